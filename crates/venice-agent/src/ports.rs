//! The ports of a lending node, as used when grants begin and end.

use std::sync::{Arc, Mutex, MutexGuard};

use venice_ports::shm::ShmServer;
use venice_ports::verbs::VerbsServer;
use venice_wire::{GrantId, NodeSecret};

use crate::relay_host::RelayHost;
use crate::udp_host::UdpHost;

/// All ports over which recipients reach grants.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    pub(crate) shm: Option<ShmServer>,
    pub(crate) verbs: Option<VerbsServer>,
    pub(crate) frames: Option<FramePorts>,
}

impl Ports {
    /// Starts a grant with this id, which may have been used before.
    pub(crate) fn share(&self, grant: GrantId) {
        if let Some(frames) = &self.frames {
            frames.udp().share(grant);
            frames.with_relay(|relay| relay.share(grant));
        }
    }

    /// Returns the secret from which recipients' keys are derived; `None` without protection.
    pub(crate) fn node_secret(&self) -> Option<NodeSecret> {
        self.frames.as_ref().and_then(|frames| frames.udp().secret())
    }

    /// Notifies the users of a grant of its end. No port may reach its slabs any more.
    pub(crate) fn revoke(&self, grant: GrantId) {
        if let Some(shm) = &self.shm {
            shm.revoke(grant);
        }
        if let Some(verbs) = &self.verbs {
            verbs.revoke(grant);
        }
        if let Some(frames) = &self.frames {
            frames.udp().revoke(grant);
            frames.with_relay(|relay| relay.revoke(grant));
        }
    }

    /// Ends what is left of an ended grant's links. Its key must be refused already.
    pub(crate) fn forget(&self, grant: GrantId) {
        if let Some(frames) = &self.frames {
            frames.udp().forget(grant);
            frames.with_relay(|relay| relay.forget(grant));
        }
    }

    /// True if all recipients over frames have acknowledged the end of their grants.
    pub(crate) fn are_notified(&self) -> bool {
        let Some(frames) = &self.frames else { return true };
        let mut are_notified = frames.udp().are_notified();
        frames.with_relay(|relay| are_notified &= relay.are_notified());
        are_notified
    }
}

/// The ports that serve frames. They serve once the node has its id, which the registration brings;
/// the lender starts and ends their grants.
#[derive(Clone, Debug)]
pub(crate) struct FramePorts {
    udp: Arc<Mutex<UdpHost>>,
    /// Relay, in a network of relays.
    relay: Option<Arc<Mutex<RelayHost>>>,
}

impl FramePorts {
    pub(crate) fn new(udp: UdpHost, relay: Option<RelayHost>) -> Self {
        let relay = relay.map(|relay| Arc::new(Mutex::new(relay)));
        Self { udp: Arc::new(Mutex::new(udp)), relay }
    }

    pub(crate) fn udp(&self) -> MutexGuard<'_, UdpHost> {
        self.udp.lock().expect("no task panics with the udp port")
    }

    /// Calls `with` on the relay; `None` without a relay.
    pub(crate) fn with_relay<T>(&self, with: impl FnOnce(&mut RelayHost) -> T) -> Option<T> {
        let relay = self.relay.as_ref()?;
        Some(with(&mut relay.lock().expect("no task panics with the relay")))
    }
}
