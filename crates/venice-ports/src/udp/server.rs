//! The donor's end: threads that each join a `Target` to one of the agent's sockets.

use std::net::SocketAddr;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;

use rustix::io::Errno;
use venice_fabric::{GrantedMemory, TargetConfig};
use venice_wire::GrantId;

use super::UdpSocket;
use super::orders::Orders;
use super::queue::Queue;
use super::shared::Shared;
use super::traffic::Traffic;
use super::xdp::{Xdp, XdpCounts, XdpError};
use crate::PortError;
use crate::seal::{SealCounts, SealKeys};

/// Configuration of a server.
pub struct UdpService {
    /// Sockets, each served by one thread; see [`UdpSocket::bind_queues`].
    pub sockets: Vec<UdpSocket>,
    /// Configuration of the node's end of the fabric. With `keys` its frames carry no checksum: the
    /// seal covers more.
    pub target: TargetConfig,
    /// Keys under which datagrams are sealed. `None`: all are plain, and sealed ones are dropped.
    pub keys: Option<Arc<dyn SealKeys + Send + Sync>>,
    /// Path for single datagrams past the kernel's network stack, opened for the one socket.
    pub xdp: Option<Xdp>,
}

/// Serves the accesses of recipients, on threads of its own, until dropped.
#[derive(Debug)]
pub struct UdpServer {
    shared: Arc<Shared>,
    local: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl UdpServer {
    /// Starts to serve `memory` on one socket, without protection.
    ///
    /// # Errors
    /// Fails if the thread or its descriptors cannot be made.
    pub fn start(
        socket: UdpSocket,
        target: TargetConfig,
        memory: impl GrantedMemory + Send + 'static,
    ) -> Result<Self, PortError> {
        let mut memory = Some(memory);
        let service = UdpService { sockets: vec![socket], target, keys: None, xdp: None };
        Self::serve(service, || memory.take().expect("one socket has one thread"))
    }

    /// Starts to serve; `memory` makes each thread's own handle of the memory.
    ///
    /// # Errors
    /// Fails if a thread or its descriptors cannot be made; with AF_XDP, also if there are several
    /// sockets.
    ///
    /// # Panics
    /// Panics if there is no socket.
    pub fn serve<M: GrantedMemory + Send + 'static>(
        service: UdpService,
        mut memory: impl FnMut() -> M,
    ) -> Result<Self, PortError> {
        let UdpService { sockets, mut target, keys, mut xdp } = service;
        if xdp.is_some() && sockets.len() > 1 {
            return Err(XdpError::SeveralSockets { queues: sockets.len() }.into());
        }
        let local = sockets.first().expect("a service has at least one socket").local_addr();
        target.link.checksum &= keys.is_none();
        let shared = Arc::new(Shared::of(sockets.len())?);
        let mut server = Self { shared, local, threads: Vec::new() };
        for (number, socket) in sockets.into_iter().enumerate() {
            let shared = Arc::clone(&server.shared);
            let keys = keys.clone();
            let queue =
                Queue::new(number, socket, shared, target.clone(), memory(), keys, xdp.take())?;
            let thread = std::thread::Builder::new()
                .name(format!("venice-udp-{number}"))
                .spawn(move || queue.run())
                .map_err(|_| PortError::System {
                    step: "starting a thread",
                    source: Errno::AGAIN,
                })?;
            server.threads.push(thread);
        }
        Ok(server)
    }

    /// Returns the address served.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Tells every recipient that uses the grant that it has ended, on all queues; see
    /// [`venice_fabric::Target::revoke`]. The memory must refuse the grant already. Does not wait.
    pub fn revoke(&self, grant: GrantId) {
        self.shared.orders.iter().for_each(|orders| orders.revoke(grant));
    }

    /// Ends the links under the key of an ended grant, which the keys must refuse already. Does not
    /// wait.
    pub fn forget(&self, grant: GrantId) {
        self.shared.orders.iter().for_each(|orders| orders.forget(grant));
    }

    /// Marks a grant as shared from now on, even if it was revoked before; see
    /// [`venice_fabric::Target::share`].
    pub fn share(&self, grant: GrantId) {
        self.shared.orders.iter().for_each(|orders| orders.share(grant));
    }

    /// True if all recipients that had to be notified of the end of a grant have acknowledged, or
    /// are gone.
    pub fn are_notified(&self) -> bool {
        self.shared.orders.iter().all(Orders::are_done)
    }

    /// Returns the numbers of dropped datagrams, by reason.
    pub fn dropped(&self) -> SealCounts {
        self.shared.counters.counts()
    }

    /// Returns the counters of AF_XDP; at most some tenths of a second old.
    pub fn xdp_counts(&self) -> XdpCounts {
        *self.shared.xdp.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the traffic under each key since the server started; without protection, under no
    /// name. At most some tenths of a second old.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.shared.traffic.all()
    }

    /// Returns the sum of [`Self::traffic`] over all keys, also over those long forgotten.
    pub fn total_traffic(&self) -> Traffic {
        self.shared.traffic.total()
    }
}

impl Drop for UdpServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.orders.iter().for_each(Orders::wake);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
