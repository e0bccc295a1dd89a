//! `_venice.Claimed`.

use pyo3::prelude::*;
use venice_client::Grant;

use crate::device::{Service, service_timeout};
use crate::errors::exception;
use crate::handle::Handle;

/// Grants that were transferred to this user.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Claimed(pub Handle<venice_client::Claimed>);

/// Kind, node, address, bytes, capabilities and number of a grant, and the name of its service.
type Row = (&'static str, String, String, u64, Vec<String>, u64, Option<String>);

#[pymethods]
impl Claimed {
    fn grants(&self, py: Python<'_>) -> PyResult<Vec<Row>> {
        let claimed = self.0.get(py)?;
        let grants = claimed.grants().iter().zip(claimed.services());
        let row = |(Grant { id, donor, share, .. }, service): (&Grant, &Option<_>)| {
            let service =
                service.as_ref().map(|it: &venice_client::ServiceAccess| it.service.clone());
            let (address, capabilities) = (share.address.clone(), share.capabilities.clone());
            let kind = share.kind.name();
            (kind, donor.clone(), address, share.bytes, capabilities, id.0, service)
        };
        Ok(grants.map(row).collect())
    }

    /// Connects to the service of a grant; each call waits at most `timeout` seconds.
    fn open_service(
        &self,
        py: Python<'_>,
        index: usize,
        timeout: Option<f64>,
    ) -> PyResult<Service> {
        let claimed = self.0.get(py)?;
        let timeout = service_timeout(py, timeout)?;
        let opened = py.detach(|| claimed.open_service(index, timeout));
        opened.map(Service::new).map_err(|error| exception(py, &error))
    }

    fn is_whole(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.0.get(py)?.is_whole())
    }

    fn close(&self) {
        self.0.close();
    }

    fn is_closed(&self) -> bool {
        self.0.is_closed()
    }
}
