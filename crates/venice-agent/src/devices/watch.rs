//! Watches whether lent devices are still there.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use venice_control::ResourceSpec;
use venice_ports::monotonic_ns;

use super::host::Host;
use super::identity::twice_on;
use super::{Offer, examine, fault, foreign_use};
use crate::AgentError;
use crate::lender::Lender;

/// Interval between two checks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The offered devices.
#[derive(Debug)]
pub(crate) struct DeviceWatch {
    host: Host,
    specs: Vec<ResourceSpec>,
}

impl DeviceWatch {
    /// Checks this machine for the offers.
    ///
    /// # Errors
    /// [`AgentError::Device`] if a device is missing, cannot be lent, or is offered twice.
    pub(crate) fn begin(offers: &[Offer]) -> Result<Self, AgentError> {
        let host = Host::default();
        let mut specs: Vec<ResourceSpec> = Vec::new();
        for offer in offers {
            let wrong = |why: String| AgentError::Device { offer: offer.to_string(), why };
            specs.push(examine(&host, offer).map_err(wrong)?);
        }
        if let Some((offer, why)) = twice_on(&host, offers) {
            return Err(AgentError::Device { offer: offer.to_string(), why });
        }
        Ok(Self { host, specs })
    }

    /// Returns the devices for the registration.
    pub(crate) fn specs(&self) -> &[ResourceSpec] {
        &self.specs
    }

    /// Returns the machine that has them.
    pub(crate) fn host(&self) -> &Host {
        &self.host
    }

    /// Checks the devices forever; reports changes to the Monitor Node at once.
    pub(crate) async fn run(self, lender: Arc<Lender>) {
        if self.specs.is_empty() {
            return std::future::pending().await;
        }
        let watch = Arc::new(self);
        let mut ticks = tokio::time::interval(LOOK_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let looking = Arc::clone(&watch);
            let idle: Vec<bool> =
                watch.specs.iter().map(|it| lender.lends_nothing_of(it)).collect();
            // A file system may block the check.
            let looked = tokio::task::spawn_blocking(move || looking.look(&idle));
            let found = looked.await.expect("looking at devices does not panic");
            for (spec, Looked { fault, used }) in watch.specs.iter().zip(found) {
                // A recipient's own use is no fault.
                let is_used = fault.is_empty() && lender.lends_nothing_of(spec);
                let fault = if is_used { used } else { fault };
                if !lender.note_device_health(spec, &fault) {
                    continue;
                }
                match fault.as_str() {
                    "" => tracing::info!(device = spec.address, "available again"),
                    fault => tracing::warn!(device = spec.address, fault, "cannot be lent"),
                }
                lender.notify_change();
            }
        }
    }

    /// Checks the devices. Local use is not checked while a device is lent: the check would disturb
    /// its recipient.
    fn look(&self, idle: &[bool]) -> Vec<Looked> {
        let looked = self.specs.iter().zip(idle).map(|(spec, is_idle)| Looked {
            fault: fault(&self.host, spec),
            used: if *is_idle { foreign_use(&self.host, spec) } else { String::new() },
        });
        looked.collect()
    }
}

/// Result of a check.
#[derive(Debug)]
struct Looked {
    /// Fault; empty: none.
    fault: String,
    /// Local use; empty: none.
    used: String,
}

impl Lender {
    /// Offers these devices besides memory.
    pub(crate) fn offer_devices(&self, devices: &DeviceWatch) {
        let node = &mut self.state().node;
        let now_ns = node.now_ns(monotonic_ns());
        node.core_mut().offer_devices(now_ns, devices.specs().iter().cloned());
    }

    /// True if no part of the device is granted.
    fn lends_nothing_of(&self, spec: &ResourceSpec) -> bool {
        self.state().node.core().free_device_bytes(spec.kind, &spec.address) == spec.bytes
    }

    /// Records the health; returns true if it has changed.
    fn note_device_health(&self, spec: &ResourceSpec, fault: &str) -> bool {
        self.state().node.core_mut().handle_device_health(spec.kind, &spec.address, fault)
    }
}
