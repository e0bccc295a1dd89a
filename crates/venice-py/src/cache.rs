//! `_venice.ObjectCache`.

use pyo3::buffer::PyBuffer;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::buffers::bytes;
use crate::copies::{Copies, copies};
use crate::errors::exception;
use crate::handle::Handle;

/// An object cache.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct ObjectCache(pub Handle<venice_client::ObjectCache>);

/// The fields of `CacheStats` in `cache.py`, in order.
type Stats = (u64, u64, u64, u64, u64, u64, u64, u64, u64);

#[pymethods]
impl ObjectCache {
    fn copies(&self, py: Python<'_>) -> PyResult<Copies> {
        Ok(copies(self.0.get(py)?.copies()))
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }

    fn put(&self, py: Python<'_>, key: &[u8], value: PyBuffer<u8>) -> PyResult<()> {
        let cache = self.0.get(py)?;
        let from = bytes(&value)?;
        py.detach(|| cache.put(key, from)).map_err(|error| exception(py, &error))
    }

    fn get<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Bound<'py, PyBytes>>> {
        let cache = self.0.get(py)?;
        let found = py.detach(|| cache.get(key)).map_err(|error| exception(py, &error))?;
        Ok(found.map(|value| PyBytes::new(py, &value)))
    }

    fn delete(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        Ok(self.0.get(py)?.delete(key))
    }

    fn contains(&self, py: Python<'_>, key: &[u8]) -> PyResult<bool> {
        Ok(self.0.get(py)?.contains(key))
    }

    fn clear(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get(py)?.clear();
        Ok(())
    }

    fn stats(&self, py: Python<'_>) -> PyResult<Stats> {
        let stats = self.0.get(py)?.stats();
        Ok((
            stats.objects,
            stats.value_bytes,
            stats.capacity_bytes,
            stats.puts,
            stats.hits,
            stats.misses,
            stats.evictions,
            stats.expired,
            stats.lost,
        ))
    }
}
