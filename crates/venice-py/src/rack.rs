//! `_venice.Rack`, `_venice.Options`, `_venice.connect`.

use std::time::Duration;

use pyo3::prelude::*;
use venice_client::{
    CacheOptions, DeviceOptions, Error, Eviction, InvalidOwner, MemoryOptions, ReclaimTo, Transfer,
    UnknownPolicy,
};

use crate::cache::ObjectCache;
use crate::device::Device;
use crate::errors::exception;
use crate::handle::Handle;
use crate::memory::Memory;
use crate::paged::Paged;
use crate::transfer::Claimed;

/// The options of borrowed memory.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Options(MemoryOptions);

#[pymethods]
impl Options {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    fn new(
        py: Python<'_>,
        donors: Vec<String>,
        port: Option<&str>,
        node: Option<String>,
        purpose: String,
        most_under_way: usize,
        copies: Option<u64>,
        wait_s: f64,
        priority: i64,
        preempt: bool,
        placement: Option<&str>,
        bandwidth_bps: u64,
        reclaim_to: &str,
        devices: &str,
    ) -> PyResult<Options> {
        let port =
            port.map(|name| name.parse().map_err(|said| exception(py, &Error::Invalid(said))));
        let mut options = MemoryOptions::default();
        options.donors = donors;
        options.port = port.transpose()?;
        options.node = node;
        options.purpose = purpose;
        options.copies = copies.map(|copies| requested_copies(py, copies)).transpose()?;
        options.wait = seconds(py, "wait_s", wait_s)?;
        options.preempt = preempt;
        options.bandwidth_bps = bandwidth_bps;
        let wrong = |error: UnknownPolicy| exception(py, &Error::Invalid(error.to_string()));
        options.placement = placement.map(|name| name.parse().map_err(wrong)).transpose()?;
        let places = ReclaimTo::list(reclaim_to);
        options.reclaim_to = places.map_err(|said| exception(py, &Error::Invalid(said)))?;
        options.priority = request_priority(py, priority)?;
        let devices = venice_client::wants(devices);
        options.devices = devices.map_err(|error| exception(py, &error))?;
        if most_under_way > 0 {
            options.most_under_way = most_under_way;
        }
        Ok(Options(options))
    }
}

/// A rack.
#[pyclass(frozen, module = "venice._venice")]
#[derive(Debug)]
pub struct Rack(venice_client::Rack);

impl Rack {
    pub(crate) fn client(&self) -> &venice_client::Rack {
        &self.0
    }
}

#[pymethods]
impl Rack {
    fn monitor(&self) -> &str {
        self.0.monitor()
    }

    fn free_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.free_bytes()).map_err(|error| exception(py, &error))
    }

    fn get_memory(
        &self,
        py: Python<'_>,
        len_bytes: u64,
        options: &Options,
    ) -> PyResult<(Memory, Vec<Device>)> {
        let borrowed = py.detach(|| self.0.get_memory(len_bytes, &options.0));
        let mut memory = borrowed.map_err(|error| exception(py, &error))?;
        let devices = memory.take_devices().into_iter();
        let devices = devices.map(|device| Device(Handle::new(device))).collect();
        Ok((Memory(Handle::new(memory)), devices))
    }

    #[allow(clippy::too_many_arguments, reason = "keywords in Python")]
    fn get_devices(
        &self,
        py: Python<'_>,
        wants: &str,
        donors: Vec<String>,
        purpose: String,
        wait_s: f64,
        priority: i64,
        preempt: bool,
    ) -> PyResult<Vec<Device>> {
        let mut options = DeviceOptions::default();
        options.wait = seconds(py, "wait_s", wait_s)?;
        options.priority = request_priority(py, priority)?;
        options.preempt = preempt;
        options.donors = donors;
        options.purpose = purpose;
        let wants = venice_client::wants(wants).map_err(|error| exception(py, &error))?;
        let got = py.detach(|| self.0.get_devices(&wants, &options));
        let devices = got.map_err(|error| exception(py, &error))?;
        Ok(devices.into_iter().map(|device| Device(Handle::new(device))).collect())
    }

    fn paged(
        &self,
        py: Python<'_>,
        len_bytes: u64,
        local_bytes: u64,
        options: &Options,
    ) -> PyResult<Paged> {
        let started = py.detach(|| self.0.paged_memory(len_bytes, local_bytes, &options.0));
        started.map(|paged| Paged(Handle::new(paged))).map_err(|error| exception(py, &error))
    }

    fn object_cache(
        &self,
        py: Python<'_>,
        len_bytes: u64,
        options: &Options,
        evict_oldest: bool,
        max_age_s: Option<f64>,
    ) -> PyResult<ObjectCache> {
        let eviction = if evict_oldest { Eviction::Oldest } else { Eviction::default() };
        let max_age = max_age_s.map(|age_s| seconds(py, "max_age_s", age_s)).transpose()?;
        let cache = CacheOptions { eviction, max_age };
        let made = py.detach(|| self.0.object_cache(len_bytes, &options.0, &cache));
        made.map(|cache| ObjectCache(Handle::new(cache))).map_err(|error| exception(py, &error))
    }

    /// Returns the number of the transfer, and the old number, the new number and the state of each
    /// grant.
    #[allow(clippy::type_complexity, reason = "a tuple in Python")]
    fn transfer(
        &self,
        py: Python<'_>,
        grants: Vec<u64>,
        to: &str,
        claim_within_s: f64,
    ) -> PyResult<(String, Vec<(u64, u64, &'static str)>)> {
        let wrong = |error: InvalidOwner| exception(py, &Error::Invalid(error.to_string()));
        let to = to.parse().map_err(wrong)?;
        let within = seconds(py, "claim_within_s", claim_within_s)?;
        let made = py.detach(|| self.0.transfer(&grants, to, within));
        let made = made.map_err(|error| exception(py, &error))?;
        let rows = made.grants.iter().map(|it| (it.from.0, it.to.0, it.state.name()));
        Ok((made.number_text(), rows.collect()))
    }

    /// Takes over one transfer, or all; `None`: nothing came.
    fn claim(
        &self,
        py: Python<'_>,
        transfer: Option<&str>,
        wait_s: f64,
    ) -> PyResult<Option<Claimed>> {
        let number = transfer.map(Transfer::parse_number).transpose();
        let number = number.map_err(|said| exception(py, &Error::Invalid(said)))?;
        let within = seconds(py, "wait_s", wait_s)?;
        let claimed = py.detach(|| self.0.claim(number, within));
        let claimed = claimed.map_err(|error| exception(py, &error))?;
        Ok(claimed.map(|claimed| Claimed(Handle::new(claimed))))
    }
}

fn requested_copies(py: Python<'_>, copies: u64) -> PyResult<u32> {
    let wrong =
        |_| exception(py, &Error::Invalid(format!("invalid number of copies {copies}: 1 to 3")));
    u32::try_from(copies).map_err(wrong)
}

/// Converts the seconds of the argument `name`.
pub(crate) fn seconds(py: Python<'_>, name: &str, seconds: f64) -> PyResult<Duration> {
    let wrong = |error| exception(py, &Error::Invalid(format!("{name}: {error}")));
    Duration::try_from_secs_f64(seconds).map_err(wrong)
}

fn request_priority(py: Python<'_>, priority: i64) -> PyResult<u8> {
    let wrong = |_| exception(py, &Error::Invalid("invalid priority: 0 to 255".into()));
    u8::try_from(priority).map_err(wrong)
}

/// Connects to the rack at `monitor`, or to the one found.
#[pyfunction]
#[pyo3(signature = (monitor))]
pub fn connect(py: Python<'_>, monitor: Option<&str>) -> PyResult<Rack> {
    let connected = py.detach(|| match monitor {
        Some(monitor) => venice_client::Rack::connect_to(monitor),
        None => venice_client::Rack::connect(),
    });
    connected.map(Rack).map_err(|error| exception(py, &error))
}
