//! The listening side of QPairs.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use venice_fabric::{EndConfig, QPairId};

use super::shared::{Shared, Wait, Watcher};
use super::socket::Socket;
use super::{QPairAddress, QPairMessages, QPairSocketError, QPairStream, connect};
use crate::process::Process;
use crate::ring::RingListener;
use crate::{PortError, monotonic_ns};

/// Longest time until a new connection requests a QPair, in nanoseconds.
const REQUEST_TIMEOUT_NS: u64 = 10_000_000_000;
/// Most connections that may be without a QPair at once; more wait in the listener's backlog.
const MAX_WAITING: usize = 128;
/// Pause before the next attempt to accept, after there was no room, in nanoseconds.
const FULL_NS: u64 = 10_000_000;

/// A ring whose caller has not requested its QPair yet.
#[derive(Debug)]
struct Waiting {
    shared: Arc<Shared>,
    since_ns: u64,
    watcher: Watcher,
}

/// Listener of a service. The connecting side decides whether messages or a stream travel: accept
/// the expected kind.
#[derive(Debug)]
pub struct QPairListener {
    way: Way,
    service: u32,
    end: EndConfig,
    process: Process,
    /// Epoll of everything that a caller's request may come through.
    watch: OwnedFd,
}

#[derive(Debug)]
enum Way {
    /// Each ring has its own end. `waiting` holds those whose caller has not requested its QPair
    /// yet, with their time of arrival.
    Ring {
        listener: RingListener,
        waiting: Vec<Waiting>,
        /// True if no more connections can be accepted now.
        is_full: bool,
    },
    /// All callers share one end.
    Udp { shared: Arc<Shared>, local: SocketAddr, watcher: Watcher },
}

impl QPairListener {
    /// Listens at `address` for `service`. A caller must name the same number, which may be any.
    ///
    /// # Errors
    /// Fails if the address is taken or unusable.
    pub fn bind(address: &QPairAddress, service: u32) -> Result<Self, QPairSocketError> {
        let way = match address {
            QPairAddress::Ring { path, config } => {
                let listener = RingListener::bind(path, *config)?;
                Way::Ring { listener, waiting: Vec::new(), is_full: false }
            }
            QPairAddress::Udp { address, seal } => {
                let (shared, local) = connect::udp_end(*address, seal.as_ref(), service)?;
                Way::Udp { shared, local, watcher: Watcher::default() }
            }
        };
        let watch =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(PortError::at("making an epoll"))?;
        match &way {
            Way::Ring { listener, .. } => add(&watch, listener.fd())?,
            Way::Udp { shared, .. } => add(&watch, shared.fd())?,
        }
        Ok(Self { way, service, end: EndConfig::default(), process: Process::current()?, watch })
    }

    /// Sets the buffers and credits of QPairs accepted from now on.
    pub fn set_end(&mut self, end: EndConfig) {
        self.end = end;
    }

    /// Returns the UDP address, with the port the system chose if port 0 was given.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        match &self.way {
            Way::Udp { local, .. } => Some(*local),
            Way::Ring { .. } => None,
        }
    }

    /// Accepts the next QPair of messages, within `timeout` (`None`: without limit).
    ///
    /// # Errors
    /// [`QPairSocketError::TimedOut`], or an error of the port.
    pub fn accept_messages(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<QPairMessages, QPairSocketError> {
        Ok(QPairMessages { socket: self.accept(timeout)? })
    }

    /// Accepts the next QPair of a stream, within `timeout` (`None`: without limit).
    ///
    /// # Errors
    /// [`QPairSocketError::TimedOut`], or an error of the port.
    pub fn accept_stream(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<QPairStream, QPairSocketError> {
        Ok(QPairStream { socket: self.accept(timeout)? })
    }

    pub(crate) fn accept(&mut self, timeout: Option<Duration>) -> Result<Socket, QPairSocketError> {
        let timeout_ns = timeout.map_or(u64::MAX, |timeout| timeout.as_nanos() as u64);
        let deadline_ns = monotonic_ns().saturating_add(timeout_ns);
        loop {
            if let Some(socket) = self.try_accept()? {
                return Ok(socket);
            }
            let left_ns = deadline_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                return Err(QPairSocketError::TimedOut);
            }
            let is_full = matches!(self.way, Way::Ring { is_full: true, .. });
            self.sleep(left_ns.min(if is_full { FULL_NS } else { 1_000_000_000 }));
        }
    }

    /// Returns a descriptor to poll for input before an accept with a time-out of zero: first
    /// [`QPairListener::arm`], then poll, then [`QPairListener::attend`], then accept.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Prepares to poll [`QPairListener::fd`]. `false`: accept first, a request may be here.
    pub fn arm(&self) -> bool {
        self.process.is_current() && self.ends().all(|(shared, watcher)| shared.arm(watcher))
    }

    /// Ends a wait on [`QPairListener::fd`].
    pub fn attend(&self) {
        self.ends().for_each(|(shared, watcher)| shared.attend(watcher));
    }

    /// Yields the ends through which a request may come.
    fn ends(&self) -> impl Iterator<Item = (&Arc<Shared>, &Watcher)> {
        let (one, many) = match &self.way {
            Way::Udp { shared, watcher, .. } => (Some((shared, watcher)), &[][..]),
            Way::Ring { waiting, .. } => (None, &waiting[..]),
        };
        one.into_iter().chain(many.iter().map(|end| (&end.shared, &end.watcher)))
    }

    fn try_accept(&mut self) -> Result<Option<Socket>, QPairSocketError> {
        self.process.check()?;
        // The caller may have disconnected meanwhile: continue with the next one.
        while let Some((shared, id)) = self.take_incoming()? {
            let (socket, end) = (Socket::new(shared, id), self.end);
            let accepted =
                socket.shared.send(Wait::Never, |at, _| Ok(at.qpairs().accept(id, end)?));
            if accepted.is_ok() {
                return Ok(Some(socket));
            }
        }
        Ok(None)
    }

    /// Returns the next requested QPair.
    fn take_incoming(&mut self) -> Result<Option<(Arc<Shared>, QPairId)>, QPairSocketError> {
        let Self { way, service, watch, .. } = self;
        Ok(match way {
            Way::Udp { shared, .. } => shared.take_incoming().map(|id| (Arc::clone(shared), id)),
            Way::Ring { listener, waiting, is_full } => {
                *is_full = !admit(listener, waiting, *service, watch)?;
                let mut found = None;
                let now_ns = monotonic_ns();
                waiting.retain(|Waiting { shared, since_ns, .. }| {
                    if found.is_some() {
                        return true;
                    }
                    found = shared.take_incoming().map(|id| (Arc::clone(shared), id));
                    let stays = found.is_none()
                        && !shared.is_over()
                        && now_ns - since_ns < REQUEST_TIMEOUT_NS;
                    if !stays {
                        // It was added when the connection came.
                        let _ = epoll::delete(&*watch, shared.fd());
                    }
                    stays
                });
                found
            }
        })
    }

    fn sleep(&self, timeout_ns: u64) {
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        let ends: Vec<(&Arc<Shared>, &Watcher)> = self.ends().collect();
        let may_sleep = ends.iter().all(|(shared, watcher)| shared.arm(watcher));
        let mut fds: Vec<_> = ends
            .iter()
            .map(|(shared, _)| PollFd::from_borrowed_fd(shared.fd(), PollFlags::IN))
            .collect();
        if let Way::Ring { listener, is_full: false, .. } = &self.way {
            fds.push(PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN));
        }
        if may_sleep {
            // The result is irrelevant: the caller checks again.
            let _ = poll(&mut fds, Some(&timeout));
        }
        drop(fds);
        ends.iter().for_each(|(shared, watcher)| shared.attend(watcher));
    }
}

fn add(watch: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), PortError> {
    epoll::add(watch, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        .map_err(PortError::at("watching a descriptor"))
}

/// Accepts waiting connections; returns `false` if there is no room for more.
fn admit(
    listener: &RingListener,
    waiting: &mut Vec<Waiting>,
    service: u32,
    watch: &OwnedFd,
) -> Result<bool, QPairSocketError> {
    while waiting.len() < MAX_WAITING {
        let accepted = listener.try_accept().map_err(QPairSocketError::from);
        let ends =
            accepted.and_then(|port| port.map(|port| connect::ring_end(port, service)).transpose());
        match ends {
            Ok(Some(shared)) => {
                add(watch, shared.fd())?;
                let (since_ns, watcher) = (monotonic_ns(), Watcher::default());
                waiting.push(Waiting { shared, since_ns, watcher });
            }
            Ok(None) => return Ok(true),
            // Descriptors and memory become free when other sockets are dropped.
            Err(QPairSocketError::Port(PortError::System {
                source: Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS,
                ..
            })) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}
