//! The donor's side: a thread of the agent that admits recipients; it takes no part in accesses.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use venice_wire::GrantId;

use super::admission::{Admission, Lent};
use super::connection::Connection;
use super::queue::QueuePair;
use super::set_up::Hello;
use super::{Device, VerbsError};
use crate::monotonic_ns;
use crate::shm::SlabSource;

/// Most connections served at once; more wait in the backlog.
const MAX_CONNECTIONS: usize = 4096;

/// Lends the slabs of grants to recipients' RDMA devices, until dropped.
///
/// The memory of a grant is registered when its recipient connects, in a protection domain of its
/// own, which confines the recipient's queue pair to this grant's slabs. From then on the device
/// carries out the recipient's reads, writes and atomics, and no thread of the donor runs.
#[derive(Debug)]
pub struct VerbsServer {
    shared: Arc<Shared>,
    local: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the owner and the server's thread.
#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    lent: BTreeMap<GrantId, Lent>,
    revoked: Vec<GrantId>,
    stop: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics under this lock")
    }

    /// Admits a recipient. The lock is not held while slabs are registered, because a revocation
    /// waits for it; only this thread adds grants.
    fn admit(
        &self,
        admission: &Admission<impl SlabSource>,
        hello: &Hello,
        ip: IpAddr,
    ) -> Result<(Vec<u8>, QueuePair), String> {
        admission.check(hello)?;
        let is_lent = self.state().lent.contains_key(&hello.grant);
        let mut registered =
            if is_lent { None } else { Some(admission.register(hello.grant, hello.key)?) };
        let mut state = self.state();
        // Under the lock: the source drops a grant before it is revoked here, which means that a
        // grant added now is still to be revoked.
        admission.check(hello)?;
        if let Some(registered) = registered.take() {
            state.lent.insert(hello.grant, registered);
        }
        let lent = state.lent.get(&hello.grant).ok_or("the grant has ended")?;
        admission.admit(lent, hello, ip)
    }

    fn wake(&self) {
        // A write fails only when the counter is full; the thread is awake then.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}

impl VerbsServer {
    /// Listens on `address` (TCP; port 0: any) for recipients that want the slabs of `source`
    /// through `device`.
    ///
    /// # Errors
    /// Fails if the address cannot be listened on, or a thread cannot be started.
    pub fn start(
        device: Arc<Device>,
        address: SocketAddr,
        source: impl SlabSource + 'static,
    ) -> Result<Self, VerbsError> {
        let listening = |source| VerbsError::SideChannel { address, step: "listening", source };
        let listener = TcpListener::bind(address).map_err(listening)?;
        listener.set_nonblocking(true).map_err(listening)?;
        let local = listener.local_addr().map_err(listening)?;
        let system = |step| move |source| VerbsError::System { step, source };
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| system("making an eventfd")(errno.into()))?;
        let shared = Arc::new(Shared { wake, state: Mutex::default() });
        let admission = Admission::new(device, source)?;
        let service =
            Service { listener, shared: Arc::clone(&shared), admission, connections: Vec::new() };
        let thread = std::thread::Builder::new()
            .name("venice-verbs".into())
            .spawn(move || service.run())
            .map_err(system("starting a thread"))?;
        Ok(Self { shared, local, thread: Some(thread) })
    }

    /// Revokes a grant. After the return no device reaches its slabs any more; outstanding and
    /// later accesses are refused, and the recipient is notified.
    ///
    /// The source must refuse the grant already, and the caller must hold no lock that the source
    /// takes.
    pub fn revoke(&self, id: GrantId) {
        let mut state = self.shared.state();
        state.lent.remove(&id);
        state.revoked.push(id);
        drop(state);
        self.shared.wake();
    }

    /// Returns the address it listens on.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl Drop for VerbsServer {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State of the server's thread.
struct Service<S> {
    listener: TcpListener,
    shared: Arc<Shared>,
    admission: Admission<S>,
    connections: Vec<Connection>,
}

impl<S: SlabSource> Service<S> {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            if self.take_orders() {
                return;
            }
            for (connection, ready) in self.connections.iter_mut().zip(&ready.connections) {
                if *ready {
                    connection.serve(|hello, ip| self.shared.admit(&self.admission, hello, ip));
                }
            }
            if ready.listener {
                self.accept();
            }
            let now_ns = monotonic_ns();
            self.connections.retain(|connection| !connection.is_over(now_ns));
        }
    }

    fn wait(&self) -> Ready {
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        let accepting = self.connections.len() < MAX_CONNECTIONS;
        let listening = if accepting { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::new(&self.listener, listening));
        fds.extend(self.connections.iter().map(|each| PollFd::new(each, each.wants())));
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut fds, Some(&second)) {
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel is out of memory for a moment: retry later rather than spin.
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
        Ready {
            listener: !fds[1].revents().is_empty(),
            connections: fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect(),
        }
    }

    /// Executes the owner's orders; returns true for the stop order.
    fn take_orders(&mut self) -> bool {
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
        let (revoked, stop) = {
            let mut state = self.shared.state();
            (std::mem::take(&mut state.revoked), state.stop)
        };
        let now_ns = monotonic_ns();
        for connection in &mut self.connections {
            if connection.grant().is_some_and(|grant| revoked.contains(&grant)) {
                connection.revoke(now_ns);
            }
        }
        stop
    }

    fn accept(&mut self) {
        while self.connections.len() < MAX_CONNECTIONS {
            match self.listener.accept() {
                Ok((stream, _)) => self.connections.extend(Connection::new(stream, monotonic_ns())),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => {
                    // Out of descriptors: the socket stays readable, do not spin on it.
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    return;
                }
            }
        }
    }
}

struct Ready {
    listener: bool,
    connections: Vec<bool>,
}
