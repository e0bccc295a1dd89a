//! Whether the devices that are lent are still there.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::MissedTickBehavior;
use venice_control::ResourceSpec;

use super::host::Host;
use super::{Offer, examine, fault};
use crate::AgentError;
use crate::lender::Lender;

/// How often it looks.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The devices on offer.
#[derive(Debug)]
pub(crate) struct DeviceWatch {
    host: Host,
    specs: Vec<ResourceSpec>,
}

impl DeviceWatch {
    /// Looks at the machine for what is offered.
    ///
    /// # Errors
    /// [`AgentError::Device`]: it is not there, cannot be lent, or is offered twice.
    pub(crate) fn begin(offers: &[Offer]) -> Result<Self, AgentError> {
        let host = Host::default();
        let mut specs: Vec<ResourceSpec> = Vec::new();
        for offer in offers {
            let wrong = |why: String| AgentError::Device { offer: offer.to_string(), why };
            let spec = examine(&host, offer).map_err(wrong)?;
            if specs.iter().any(|it| it.address == spec.address) {
                return Err(wrong("is offered twice".to_owned()));
            }
            specs.push(spec);
        }
        Ok(Self { host, specs })
    }

    /// As the Monitor Node is to list them.
    pub(crate) fn specs(&self) -> &[ResourceSpec] {
        &self.specs
    }

    /// Looks again and again, for ever; of what has changed the Monitor Node hears at once.
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
            // A file system may keep whoever looks waiting.
            let looked = tokio::task::spawn_blocking(move || looking.look());
            let faults = looked.await.expect("looking at devices does not panic");
            for (spec, fault) in watch.specs.iter().zip(faults) {
                if !lender.note_device_health(spec, &fault) {
                    continue;
                }
                match fault.as_str() {
                    "" => tracing::info!(device = spec.address, "is there again"),
                    fault => tracing::warn!(device = spec.address, fault, "cannot be lent"),
                }
                lender.tell_change();
            }
        }
    }

    fn look(&self) -> Vec<String> {
        self.specs.iter().map(|spec| fault(&self.host, spec)).collect()
    }
}

impl Lender {
    /// Lends these besides memory.
    pub(crate) fn offer_devices(&self, devices: &DeviceWatch) {
        let mut state = self.state();
        let now_ns = state.now_ns();
        state.core.offer_devices(now_ns, devices.specs().iter().cloned());
    }

    /// True if it was otherwise before.
    fn note_device_health(&self, spec: &ResourceSpec, fault: &str) -> bool {
        self.state().core.handle_device_health(spec.kind, &spec.address, fault)
    }
}
