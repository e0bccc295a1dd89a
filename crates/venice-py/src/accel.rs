//! `_venice.Pool`.

use std::sync::{Mutex, PoisonError};

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use venice_client::accel::{Argument, Code, Executable};
use venice_client::{DeviceOptions, Error};

use crate::buffers::{bytes, room};
use crate::errors::exception;
use crate::handle::Handle;
use crate::rack::Rack;

/// Accelerators that run tasks together.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Pool(Handle<Mutex<venice_client::accel::Pool>>);

/// An argument from Python: kind, value, offset, bytes.
type GivenArgument = (u32, Vec<u8>, u64, u64);

/// Code that an accelerator runs.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Kernel(Executable);

#[pymethods]
impl Kernel {
    #[new]
    fn new(
        py: Python<'_>,
        code: (u32, Vec<u8>),
        name: String,
        options: String,
        global: [u64; 3],
        local: [u64; 3],
        arguments: Vec<GivenArgument>,
    ) -> PyResult<Self> {
        let invalid = |said: &str| exception(py, &Error::Invalid(said.to_owned()));
        let (kind, code) = code;
        let code = match kind {
            1 => Code::BuiltIn,
            2 => Code::OpenClSource(code),
            3 => Code::SpirV(code),
            4 => Code::DeviceBinary(code),
            _ => return Err(invalid("invalid kind of code")),
        };
        let arguments = arguments.into_iter().map(|(kind, value, offset, bytes)| match kind {
            1 => Ok(Argument::Value(value)),
            2 => Ok(Argument::Input { offset, bytes }),
            3 => Ok(Argument::Output { offset, bytes }),
            4 => Ok(Argument::Local(bytes)),
            _ => Err(invalid("invalid kind of argument")),
        });
        let arguments = arguments.collect::<PyResult<_>>()?;
        Ok(Self(Executable { code, name, options, global, local, arguments }))
    }

    /// Returns the most bytes of output for an input.
    fn output_bytes(&self, input_bytes: u64) -> u64 {
        self.0.output_bytes(input_bytes)
    }
}

#[pymethods]
impl Pool {
    /// Gets accelerators from a rack; without one, opens those that the program was started with.
    #[new]
    fn new(py: Python<'_>, rack: Option<&Rack>, count: u32, needs: &str) -> PyResult<Self> {
        let opened = py.detach(|| match rack {
            Some(rack) => {
                let options = DeviceOptions::default();
                venice_client::accel::Pool::get(rack.client(), count, needs, &options)
            }
            None => venice_client::accel::Pool::from_grants(),
        });
        let pool = opened.map_err(|error| exception(py, &error))?;
        Ok(Self(Handle::new(Mutex::new(pool))))
    }

    fn size(&self, py: Python<'_>) -> PyResult<usize> {
        let pool = self.0.get(py)?;
        Ok(py.detach(|| pool.lock().unwrap_or_else(PoisonError::into_inner).len()))
    }

    /// Returns node and reason of each lost accelerator.
    fn lost(&self, py: Python<'_>) -> PyResult<Vec<(String, String)>> {
        let pool = self.0.get(py)?;
        Ok(py.detach(|| pool.lock().unwrap_or_else(PoisonError::into_inner).lost()))
    }

    /// Runs the kernel on each input; returns the lengths of the outputs. A signal whose handler
    /// raises ends it.
    fn map(
        &self,
        py: Python<'_>,
        kernel: &Kernel,
        inputs: Vec<PyBuffer<u8>>,
        mut outputs: Vec<PyBuffer<u8>>,
    ) -> PyResult<Vec<usize>> {
        let pool = self.0.get(py)?;
        let from = inputs.iter().map(bytes).collect::<PyResult<Vec<_>>>()?;
        let mut to = outputs.iter_mut().map(room).collect::<PyResult<Vec<_>>>()?;
        let mut raised = None;
        let mapped = py.detach(|| {
            let mut pool = pool.lock().unwrap_or_else(PoisonError::into_inner);
            pool.map_while(&kernel.0, &from, &mut to, || {
                raised = Python::attach(|py| py.check_signals()).err();
                raised.is_none()
            })
        });
        mapped.map_err(|error| raised.unwrap_or_else(|| exception(py, &error)))
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
