//! Reports the agent's addresses to the caller of `run`.

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Addresses of an agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentReady {
    /// Its gRPC service.
    pub control_addr: SocketAddr,
    /// Its UDP data port.
    pub udp_addr: SocketAddr,
    /// Its relay's UDP port, in a network of relays.
    pub relay_addr: Option<SocketAddr>,
    /// Its metrics, if configured.
    pub metrics_addr: Option<SocketAddr>,
    /// Its unix socket for shared memory, if any.
    pub shm_socket: Option<PathBuf>,
}

/// A callback, called once when the agent has its memory and listens on all its addresses. It may
/// not have reached the Monitor Node by then.
#[derive(Default)]
pub struct OnReady(Option<Box<dyn FnOnce(AgentReady) + Send>>);

impl OnReady {
    /// Calls `f` with the addresses. The default does nothing.
    pub fn new(f: impl FnOnce(AgentReady) + Send + 'static) -> Self {
        Self(Some(Box::new(f)))
    }

    pub(crate) fn call(self, ready: AgentReady) {
        if let Some(f) = self.0 {
            f(ready);
        }
    }
}

impl fmt::Debug for OnReady {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OnReady(..)")
    }
}
