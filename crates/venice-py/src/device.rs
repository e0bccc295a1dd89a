//! `_venice.Device`.

use pyo3::prelude::*;

use crate::errors::exception;
use crate::handle::Handle;

/// A granted device.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Device(pub Handle<venice_client::Device>);

#[pymethods]
impl Device {
    /// Returns kind, node, address, bytes, capabilities and grant.
    #[allow(clippy::type_complexity, reason = "a tuple in Python")]
    fn description(
        &self,
        py: Python<'_>,
    ) -> PyResult<(&'static str, String, String, u64, Vec<String>, u64)> {
        let device = self.0.get(py)?;
        let (node, address) = (device.node().to_owned(), device.address().to_owned());
        let (bytes, capabilities) = (device.len_bytes(), device.capabilities().to_vec());
        Ok((device.kind().name(), node, address, bytes, capabilities, device.grant()))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.0.get(py)?.check().map_err(|error| exception(py, &error))
    }

    /// Returns the reason of a reclaim or preemption, and the seconds until it; `None` without one.
    fn leaving(&self, py: Python<'_>) -> PyResult<Option<(&'static str, Option<f64>)>> {
        let leaving = self.0.get(py)?.leaving();
        Ok(leaving.map(|it| (it.why, it.within.map(|within| within.as_secs_f64()))))
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
