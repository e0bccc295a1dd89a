//! `_venice.Device` and `_venice.Service`.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use venice_client::{Error, ServiceClient};

use crate::errors::exception;
use crate::handle::Handle;
use crate::rack::seconds;

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

    /// Returns the name of its service; `None` without one.
    fn service(&self, py: Python<'_>) -> PyResult<Option<String>> {
        Ok(self.0.get(py)?.service().map(|access| access.service.clone()))
    }

    /// Connects to its service; each call waits at most `timeout` seconds.
    fn open_service(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Service> {
        let device = self.0.get(py)?;
        let timeout = service_timeout(py, timeout)?;
        let opened = py.detach(|| device.open_service(timeout));
        opened.map(Service::new).map_err(|error| exception(py, &error))
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

/// A connection to a device's service.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Service(Handle<Mutex<Client>>);

#[derive(Debug)]
struct Client {
    client: ServiceClient,
    calls: u64,
}

impl Service {
    pub(crate) fn new(client: ServiceClient) -> Self {
        Self(Handle::new(Mutex::new(Client { client, calls: 0 })))
    }
}

#[pymethods]
impl Service {
    /// Sends one request; returns the code and the bytes of its answer.
    fn call<'py>(
        &self,
        py: Python<'py>,
        operation: u16,
        request: Vec<u8>,
    ) -> PyResult<(u16, Bound<'py, PyBytes>)> {
        let service = self.0.get(py)?;
        let answered = py.detach(|| {
            let mut client = service.lock().unwrap_or_else(PoisonError::into_inner);
            client.calls += 1;
            let id = client.calls;
            client.client.call(id, operation, &request)
        });
        let (code, answer) = answered.map_err(|error| exception(py, &Error::from(error)))?;
        Ok((code, PyBytes::new(py, &answer)))
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}

/// Converts the longest wait of a call in seconds; `None`: without limit.
pub(crate) fn service_timeout(
    py: Python<'_>,
    timeout_s: Option<f64>,
) -> PyResult<Option<Duration>> {
    timeout_s.map(|timeout_s| seconds(py, "timeout", timeout_s)).transpose()
}
