//! Tries the confinement of a host on this machine.

use std::sync::mpsc::channel;
use std::time::Duration;

use venice_wire::GrantId;

use crate::confinement::Confinement;
use crate::secret::ServiceSecret;
use crate::spec::HostSpec;
use crate::supervisor::{HostSupervisor, SupervisorConfig};
use crate::table::HostEvent;

/// Longest wait for the host.
const LIMIT: Duration = Duration::from_secs(20);

/// Starts a host of a service, ends it, and returns the measures that were in force: what a real
/// host gets on this machine, for `venice doctor`. The directory must be no other supervisor's.
///
/// # Errors
/// Says why no host starts.
pub fn probe_confinement(config: SupervisorConfig, service: &str) -> Result<Confinement, String> {
    let (send, events) = channel();
    let on_event = move |event| {
        // The receiver is gone once the answer is known.
        let _ = send.send(event);
    };
    let supervisor = HostSupervisor::open(config, on_event).map_err(|error| error.to_string())?;
    let secret = ServiceSecret::draw().map_err(|error| error.to_string())?;
    let started = supervisor.start(GrantId(0), HostSpec::new(service, secret));
    started.map_err(|error| error.to_string())?;
    match events.recv_timeout(LIMIT) {
        Ok(HostEvent::Started { confinement, .. }) => Ok(confinement),
        Ok(HostEvent::Failed { why, .. } | HostEvent::Died { why, .. }) => Err(why),
        Ok(HostEvent::Ended { .. }) => Err(String::from("the host ended")),
        Err(_) => Err(String::from("the host does not start")),
    }
}
