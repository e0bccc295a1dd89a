//! The ports of a node that lends, as those see them who begin and end grants.

use std::sync::{Arc, Mutex, MutexGuard};

use venice_ports::shm::ShmServer;
use venice_ports::verbs::VerbsServer;
use venice_wire::GrantId;

use crate::relay_host::RelayHost;
use crate::udp_host::UdpHost;

/// All ports that recipients reach grants through.
#[derive(Debug, Default)]
pub(crate) struct Ports {
    pub(crate) shm: Option<ShmServer>,
    pub(crate) verbs: Option<VerbsServer>,
    pub(crate) frames: Option<FramePorts>,
}

impl Ports {
    /// A grant of this number begins, perhaps not the first that bears it.
    pub(crate) fn share(&self, grant: GrantId) {
        if let Some(frames) = &self.frames {
            frames.udp().share(grant);
            frames.with_relay(|relay| relay.share(grant));
        }
    }

    /// Tells whoever uses the grant that it is over. No port may reach its slabs any more.
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

    /// Whether all who had to be told over frames have said that they have heard.
    pub(crate) fn are_notified(&self) -> bool {
        let Some(frames) = &self.frames else { return true };
        let mut are_notified = frames.udp().are_notified();
        frames.with_relay(|relay| are_notified &= relay.are_notified());
        are_notified
    }
}

/// The ports that answer frames. They serve once the node has its number, which its membership
/// brings, and tell what grants do, which the lender knows.
#[derive(Clone, Debug)]
pub(crate) struct FramePorts {
    udp: Arc<Mutex<UdpHost>>,
    /// Where the rack is wired as a network of relays.
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

    /// `None` where there is no relay.
    pub(crate) fn with_relay<T>(&self, with: impl FnOnce(&mut RelayHost) -> T) -> Option<T> {
        let relay = self.relay.as_ref()?;
        Some(with(&mut relay.lock().expect("no task panics with the relay")))
    }
}
