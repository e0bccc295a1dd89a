//! `_venice.Memory`.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use venice_client::{Error, Outcome};

use crate::buffers::{bytes, room};
use crate::copies::{Copies, copies};
use crate::errors::exception;
use crate::handle::Handle;

/// Borrowed memory.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Memory(pub Handle<venice_client::Memory>);

#[pymethods]
impl Memory {
    fn len_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.len_bytes())
    }

    fn copies(&self, py: Python<'_>) -> PyResult<Copies> {
        Ok(copies(self.0.get(py)?.copies()))
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn read<'py>(
        &self,
        py: Python<'py>,
        offset: u64,
        len_bytes: usize,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let memory = self.0.get(py)?;
        let size_bytes = memory.len_bytes();
        if len_bytes as u64 > size_bytes {
            // Checked before the bytes are allocated.
            let len_bytes = len_bytes as u64;
            return Err(exception(py, &Error::OutOfRange { offset, len_bytes, size_bytes }));
        }
        PyBytes::new_with(py, len_bytes, |into| {
            py.detach(|| memory.read(offset, into)).map_err(|error| exception(py, &error))
        })
    }

    fn read_into(&self, py: Python<'_>, offset: u64, mut buffer: PyBuffer<u8>) -> PyResult<()> {
        let memory = self.0.get(py)?;
        let into = room(&mut buffer)?;
        py.detach(|| memory.read(offset, into)).map_err(|error| exception(py, &error))
    }

    fn write(&self, py: Python<'_>, offset: u64, data: PyBuffer<u8>) -> PyResult<()> {
        let memory = self.0.get(py)?;
        let from = bytes(&data)?;
        py.detach(|| memory.write(offset, from)).map_err(|error| exception(py, &error))
    }

    fn start_read(
        &self,
        py: Python<'_>,
        offset: u64,
        len_bytes: usize,
        done: Py<PyAny>,
    ) -> PyResult<()> {
        let memory = self.0.get(py)?;
        let size_bytes = memory.len_bytes();
        if len_bytes as u64 > size_bytes {
            let len_bytes = len_bytes as u64;
            return Err(exception(py, &Error::OutOfRange { offset, len_bytes, size_bytes }));
        }
        let tell = move |outcome| complete(&done, outcome, true);
        let started = py.detach(|| memory.start_read(offset, vec![0; len_bytes], tell));
        started.map_err(|error| exception(py, &error))
    }

    fn start_write(
        &self,
        py: Python<'_>,
        offset: u64,
        data: PyBuffer<u8>,
        done: Py<PyAny>,
    ) -> PyResult<()> {
        let memory = self.0.get(py)?;
        let from = bytes(&data)?.to_vec();
        let tell = move |outcome| complete(&done, outcome, false);
        let started = py.detach(|| memory.start_write(offset, from, tell));
        started.map_err(|error| exception(py, &error))
    }

    fn flush(&self, py: Python<'_>) -> PyResult<()> {
        let memory = self.0.get(py)?;
        py.detach(|| memory.flush());
        Ok(())
    }

    fn fetch_add(&self, py: Python<'_>, offset: u64, add: u64) -> PyResult<u64> {
        let memory = self.0.get(py)?;
        py.detach(|| memory.fetch_add(offset, add)).map_err(|error| exception(py, &error))
    }

    fn compare_swap(&self, py: Python<'_>, offset: u64, expected: u64, new: u64) -> PyResult<u64> {
        let memory = self.0.get(py)?;
        let swapped = py.detach(|| memory.compare_swap(offset, expected, new));
        swapped.map_err(|error| exception(py, &error))
    }
}

/// Calls `done(value, None)` or `done(None, error)` on the thread that performed the access; no
/// longer once the interpreter ends.
fn complete(done: &Py<PyAny>, outcome: Outcome, is_read: bool) {
    Python::try_attach(|py| {
        let called = match outcome {
            Ok(bytes) if is_read => done.call1(py, (PyBytes::new(py, &bytes), py.None())),
            Ok(_) => done.call1(py, (py.None(), py.None())),
            Err(error) => done.call1(py, (py.None(), exception(py, &error).into_value(py))),
        };
        if let Err(error) = called {
            error.write_unraisable(py, None);
        }
    });
}
