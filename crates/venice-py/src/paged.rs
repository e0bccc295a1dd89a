//! `_venice.Paged` and `_venice.Region`: memory that numpy uses in place.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;
use venice_client::channel::Error as ChannelError;
use venice_client::{Error, PagedMemory, PagedRegion};

use crate::copies::{Copies, copies};
use crate::errors::exception;
use crate::handle::{Handle, release};

/// Borrowed memory from which regions are mapped.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Paged(pub Handle<PagedMemory>);

/// A region. It exports its bytes by the buffer protocol, and lives as long as any view of them.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Region {
    /// `None` only during its drop.
    region: Option<PagedRegion>,
    process: u32,
}

#[pymethods]
impl Paged {
    fn map(&self, py: Python<'_>, len_bytes: u64, page_size: &str) -> PyResult<Region> {
        let paged = self.0.get(py)?;
        let wrong = |said| exception(py, &Error::Invalid(said));
        let page_size = page_size.parse().map_err(wrong)?;
        let mapped = py.detach(|| paged.map_by(len_bytes, page_size));
        let region = mapped.map_err(|error| exception(py, &error))?;
        Ok(Region { region: Some(region), process: std::process::id() })
    }

    fn capacity_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.capacity_bytes())
    }

    fn mapped_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.mapped_bytes())
    }

    fn resident_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.resident_bytes())
    }

    fn local_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        Ok(self.0.get(py)?.local_bytes())
    }

    fn set_local_bytes(&self, py: Python<'_>, local_bytes: u64) -> PyResult<()> {
        let set = self.0.get(py)?.set_local_bytes(local_bytes);
        set.map_err(|error| exception(py, &error))
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
}

#[pymethods]
impl Region {
    /// Implements the buffer protocol.
    ///
    /// # Safety
    /// The requirements of Python's calling convention.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let this = slf.get();
        let Some(region) = &this.region else {
            return Err(PyBufferError::new_err("the region is being dropped"));
        };
        // SAFETY: the region's bytes stay where they are for as long as `slf` lives, to which the
        // view gets a reference; `view` is Python's.
        let filled = unsafe {
            ffi::PyBuffer_FillInfo(
                view,
                slf.as_ptr(),
                region.as_ptr().cast(),
                region.len_bytes() as ffi::Py_ssize_t,
                0,
                flags,
            )
        };
        if filled == 0 { Ok(()) } else { Err(PyErr::fetch(slf.py())) }
    }

    /// Returns the address of the first byte, by which an array in it finds its offset.
    fn address(&self) -> usize {
        self.region.as_ref().map_or(0, |region| region.as_ptr() as usize)
    }

    fn advise(&self, py: Python<'_>, offset: usize, len_bytes: usize, hint: &str) -> PyResult<()> {
        let at_home = self.region.as_ref().filter(|_| self.process == std::process::id());
        let region = at_home.ok_or_else(|| exception(py, &ChannelError::Forked.into()))?;
        let hint = hint.parse().map_err(|said| exception(py, &Error::Invalid(said)))?;
        let advised = py.detach(|| region.advise(offset, len_bytes, hint));
        advised.map_err(|error| exception(py, &error))
    }

    fn __len__(&self) -> usize {
        self.region.as_ref().map_or(0, PagedRegion::len_bytes)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let region = self.region.take();
        if self.process == std::process::id() {
            release(region);
        } else {
            // A child of a `fork` does not have the region.
            std::mem::forget(region);
        }
    }
}
