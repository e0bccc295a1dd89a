//! The listening side of QPairs.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use venice_fabric::{EndConfig, QPairError, QPairId};

use super::pipe::{Pipe, PipeSocket, PipeWatcher};
use super::shared::{Shared, Wait, Watcher};
use super::socket::{QPairSocket, Socket};
use super::{QPairAddress, QPairMessages, QPairSocketError, QPairStream, connect};
use crate::process::Process;
use crate::ring::{RingConfig, RingListener};
use crate::shm::message::Reply;
use crate::shm::server::send_reply;
use crate::{PortError, monotonic_ns};

/// Longest time until a new connection requests a QPair, in nanoseconds.
const REQUEST_TIMEOUT_NS: u64 = 10_000_000_000;
/// Most connections that may be without a QPair at once, unless set.
const MAX_WAITING: usize = 128;
/// Longest bytes that a caller shows to be admitted.
const MAX_ADMISSION_BYTES: usize = 64;
/// Pause before the next attempt to accept, after there was no room, in nanoseconds.
const FULL_NS: u64 = 10_000_000;

/// A ring whose caller has not requested its QPair yet.
#[derive(Debug)]
struct Waiting {
    end: WaitingEnd,
    since_ns: u64,
}

#[derive(Debug)]
enum WaitingEnd {
    /// A connection that has not shown yet what admits it.
    Stranger(OwnedFd),
    Framed {
        shared: Arc<Shared>,
        watcher: Watcher,
    },
    /// `None` once it was accepted, or has ended.
    Piped {
        pipe: Option<Box<Pipe>>,
        watcher: PipeWatcher,
    },
}

impl WaitingEnd {
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Stranger(socket) => Some(socket.as_fd()),
            Self::Framed { shared, .. } => Some(shared.fd()),
            Self::Piped { pipe, .. } => pipe.as_ref().map(|pipe| pipe.fd()),
        }
    }

    fn arm(&self) -> bool {
        match self {
            Self::Stranger(_) => true,
            Self::Framed { shared, watcher } => shared.arm(watcher),
            Self::Piped { pipe, watcher } => pipe.as_ref().is_some_and(|pipe| pipe.arm(watcher)),
        }
    }

    fn attend(&self) {
        match self {
            Self::Stranger(_) => {}
            Self::Framed { shared, watcher } => shared.attend(watcher),
            Self::Piped { pipe, watcher } => {
                if let Some(pipe) = pipe {
                    pipe.attend(watcher);
                }
            }
        }
    }
}

/// True if what a caller shows admits it.
type Admits = dyn Fn(&[u8]) -> bool + Send + Sync;

struct Admission(Box<Admits>);

impl std::fmt::Debug for Admission {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Admission")
    }
}

/// A requested QPair.
#[derive(Debug)]
enum Requested {
    Framed(Arc<Shared>, QPairId),
    Piped(Box<Pipe>),
}

/// Listener of a service. The connecting side decides whether messages or a stream travel: accept
/// the expected kind.
#[derive(Debug)]
pub struct QPairListener {
    way: Way,
    service: u32,
    end: EndConfig,
    max_waiting: usize,
    admission: Option<Admission>,
    process: Process,
    /// Epoll of everything that a caller's request may come through.
    watch: OwnedFd,
    /// True if rings carry the records of pipes.
    is_piped: bool,
}

#[derive(Debug)]
enum Way {
    /// Each ring has its own end. `waiting` holds those whose caller has not requested its QPair
    /// yet, oldest first.
    Ring {
        listener: RingListener,
        waiting: Vec<Waiting>,
        /// True if the system has no descriptor or memory for a connection now.
        is_full: bool,
    },
    /// All callers share one end.
    Udp { end: WaitingEnd, local: SocketAddr },
}

impl QPairListener {
    /// Descriptors of a connection through shared memory, without an emulated link: its socket, and
    /// those to wait with.
    pub const DESCRIPTORS: usize = 5;

    /// Listens at `address` for `service`. A caller must name the same number, which may be any.
    ///
    /// # Errors
    /// Fails if the address is taken or unusable.
    pub fn bind(address: &QPairAddress, service: u32) -> Result<Self, QPairSocketError> {
        let mut listener = Self::bind_framed(address, service)?;
        if let QPairAddress::Ring { config: RingConfig { link: None, ring_bytes }, .. } = address {
            listener.offer_pipes(*ring_bytes);
        }
        Ok(listener)
    }

    /// Listens like [`QPairListener::bind`] for callers that send frames over rings too.
    pub(crate) fn bind_framed(
        address: &QPairAddress,
        service: u32,
    ) -> Result<Self, QPairSocketError> {
        let way = match address {
            QPairAddress::Ring { path, config } => {
                let listener = RingListener::bind(path, *config)?;
                Way::Ring { listener, waiting: Vec::new(), is_full: false }
            }
            QPairAddress::Udp { address, seal } => {
                let (shared, local) = connect::udp_end(*address, seal.as_ref(), service)?;
                let end = WaitingEnd::Framed { shared, watcher: Watcher::default() };
                Way::Udp { end, local }
            }
        };
        let watch =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(PortError::at("making an epoll"))?;
        match &way {
            Way::Ring { listener, .. } => add(&watch, listener.fd())?,
            Way::Udp { end, .. } => end.fd().map_or(Ok(()), |fd| add(&watch, fd))?,
        }
        let (end, process) = (EndConfig::default(), Process::current()?);
        let max_waiting = MAX_WAITING;
        let admission = None;
        Ok(Self { way, service, end, max_waiting, admission, process, watch, is_piped: false })
    }

    /// Sets the buffers and credits of QPairs accepted from now on. Through shared memory, the
    /// receive buffer is that of both directions.
    pub fn set_end(&mut self, end: EndConfig) {
        self.end = end;
        if self.is_piped {
            self.offer_pipes(end.recv_bytes as usize);
        }
    }

    /// Sets the number of connections through shared memory that may be without a QPair at once, at
    /// least 1; 128 at first. Each has [`QPairListener::DESCRIPTORS`] descriptors. A further one
    /// takes the place of the oldest: silent callers keep no other out.
    pub fn set_max_waiting(&mut self, most: usize) {
        self.max_waiting = most.max(1);
    }

    /// Admits through shared memory only callers that show bytes for which `admits` returns true:
    /// [`QPairMessages::connect_admitted`]. Others get no memory and no more than one descriptor.
    /// Set it before the first accept; a listener of UDP admits by keys instead.
    pub fn set_admission(&mut self, admits: impl Fn(&[u8]) -> bool + Send + Sync + 'static) {
        self.admission = Some(Admission(Box::new(admits)));
    }

    fn offer_pipes(&mut self, ring_bytes: usize) {
        if let Way::Ring { listener, .. } = &mut self.way {
            listener.offer_pipes(ring_bytes);
            self.is_piped = true;
        }
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

    /// Accepts the next QPair of a caller that sends frames.
    pub(crate) fn accept_framed(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<Socket, QPairSocketError> {
        match self.accept(timeout)? {
            QPairSocket::Framed(socket) => Ok(socket),
            QPairSocket::Piped(_) => Err(QPairError::WrongKind.into()),
        }
    }

    pub(super) fn accept(
        &mut self,
        timeout: Option<Duration>,
    ) -> Result<QPairSocket, QPairSocketError> {
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
        self.process.is_current() && self.ends().all(WaitingEnd::arm)
    }

    /// Ends a wait on [`QPairListener::fd`].
    pub fn attend(&self) {
        self.ends().for_each(WaitingEnd::attend);
    }

    /// Yields the ends through which a request may come.
    fn ends(&self) -> impl Iterator<Item = &WaitingEnd> {
        let (one, many) = match &self.way {
            Way::Udp { end, .. } => (Some(end), &[][..]),
            Way::Ring { waiting, .. } => (None, &waiting[..]),
        };
        one.into_iter().chain(many.iter().map(|waiting| &waiting.end))
    }

    fn try_accept(&mut self) -> Result<Option<QPairSocket>, QPairSocketError> {
        self.process.check()?;
        // The caller may have disconnected meanwhile: continue with the next one.
        while let Some(requested) = self.take_incoming()? {
            match requested {
                Requested::Framed(shared, id) => {
                    let (socket, end) = (Socket::new(shared, id), self.end);
                    let accepted =
                        socket.shared.send(Wait::Never, |at, _| Ok(at.qpairs().accept(id, end)?));
                    if accepted.is_ok() {
                        return Ok(Some(QPairSocket::Framed(socket)));
                    }
                }
                Requested::Piped(pipe) => {
                    return Ok(Some(QPairSocket::Piped(PipeSocket::new(pipe.accept()?))));
                }
            }
        }
        Ok(None)
    }

    /// Returns the next requested QPair.
    fn take_incoming(&mut self) -> Result<Option<Requested>, QPairSocketError> {
        let Self { way, service, watch, is_piped, max_waiting, admission, .. } = self;
        let (listener, waiting, is_full) = match way {
            Way::Udp { end, .. } => return Ok(requested(end, *service).unwrap_or(None)),
            Way::Ring { listener, waiting, is_full } => (listener, waiting, is_full),
        };
        let admission = admission.as_ref();
        let made = |socket| match admission {
            Some(_) => Ok(Some(WaitingEnd::Stranger(socket))),
            None => offered(listener, socket, *service, *is_piped),
        };
        let admit = |waiting: &mut Vec<Waiting>, most| admit(listener, waiting, most, &made, watch);
        *is_full = !admit(waiting, *max_waiting)?;
        if let Some(admission) = admission {
            let offer = |socket| offered(listener, socket, *service, *is_piped);
            answer_strangers(waiting, admission, offer, watch);
        }
        let found = take_requested(waiting, *service, watch);
        if found.is_none() && !*is_full && waiting.len() >= *max_waiting {
            // All are silent.
            *is_full = !admit(waiting, *max_waiting + 1)?;
            if waiting.len() > *max_waiting {
                forget(watch, waiting.remove(0).end.fd());
            }
        }
        Ok(found)
    }

    fn sleep(&self, timeout_ns: u64) {
        let timeout = Timespec {
            tv_sec: (timeout_ns / 1_000_000_000) as i64,
            tv_nsec: (timeout_ns % 1_000_000_000) as i64,
        };
        let ends: Vec<&WaitingEnd> = self.ends().collect();
        let may_sleep = ends.iter().all(|end| end.arm());
        let mut fds: Vec<_> = ends
            .iter()
            .filter_map(|end| Some(PollFd::from_borrowed_fd(end.fd()?, PollFlags::IN)))
            .collect();
        if let Way::Ring { listener, is_full: false, .. } = &self.way {
            fds.push(PollFd::from_borrowed_fd(listener.fd(), PollFlags::IN));
        }
        if may_sleep {
            // The result is irrelevant: the caller checks again.
            let _ = poll(&mut fds, Some(&timeout));
        }
        drop(fds);
        ends.iter().for_each(|end| end.attend());
    }
}

/// Returns the QPair that was requested through an end, if any.
///
/// # Errors
/// Fails if none will come.
fn requested(end: &mut WaitingEnd, service: u32) -> Result<Option<Requested>, QPairSocketError> {
    match end {
        WaitingEnd::Stranger(_) => Ok(None),
        WaitingEnd::Framed { shared, .. } => match shared.take_incoming() {
            Some(id) => Ok(Some(Requested::Framed(Arc::clone(shared), id))),
            None if shared.is_over() => Err(QPairSocketError::Closed),
            None => Ok(None),
        },
        WaitingEnd::Piped { pipe, watcher } => {
            let Some(waiting) = pipe else { return Err(QPairSocketError::Closed) };
            if !waiting.take_request(service)? {
                return Ok(None);
            }
            waiting.attend(watcher);
            Ok(pipe.take().map(Requested::Piped))
        }
    }
}

/// Returns the first QPair that was requested through an end, and drops the ends through which none
/// will be.
fn take_requested(waiting: &mut Vec<Waiting>, service: u32, watch: &OwnedFd) -> Option<Requested> {
    let (mut found, now_ns) = (None, monotonic_ns());
    waiting.retain_mut(|Waiting { end, since_ns }| {
        if found.is_some() {
            return true;
        }
        let request = requested(end, service);
        let stays = matches!(request, Ok(None)) && now_ns - *since_ns < REQUEST_TIMEOUT_NS;
        found = request.unwrap_or(None);
        if !stays {
            let piped = match &found {
                Some(Requested::Piped(pipe)) => Some(pipe.fd()),
                Some(Requested::Framed(..)) | None => None,
            };
            forget(watch, piped.or(end.fd()));
        }
        stays
    });
    found
}

/// Offers a ring to the strangers that have shown what admits them; refuses and drops those that
/// have shown anything else.
fn answer_strangers(
    waiting: &mut Vec<Waiting>,
    Admission(admits): &Admission,
    offer: impl Fn(OwnedFd) -> Result<Option<WaitingEnd>, QPairSocketError>,
    watch: &OwnedFd,
) {
    let mut answer = |Waiting { end, since_ns }: Waiting| {
        let WaitingEnd::Stranger(socket) = end else { return Some(Waiting { end, since_ns }) };
        let mut shown = [0; MAX_ADMISSION_BYTES + 1];
        let len = match recv(&socket, &mut shown, RecvFlags::DONTWAIT) {
            Err(Errno::AGAIN | Errno::INTR) => {
                return Some(Waiting { end: WaitingEnd::Stranger(socket), since_ns });
            }
            Ok((len, _)) => len,
            Err(_) => 0,
        };
        forget(watch, Some(socket.as_fd()));
        if len == 0 {
            return None;
        }
        if !admits(&shown[..len]) {
            let reason = String::from("not admitted");
            send_reply(socket.as_fd(), &Reply::Refused { reason }, &[] as &[OwnedFd]);
            return None;
        }
        // Without descriptors or memory for a ring the connection closes.
        let end = offer(socket).ok().flatten()?;
        end.fd().map_or(Ok(()), |fd| add(watch, fd)).ok()?;
        Some(Waiting { end, since_ns })
    };
    *waiting = std::mem::take(waiting).into_iter().filter_map(&mut answer).collect();
}

/// Removes a descriptor that was added when its connection came.
fn forget(watch: &OwnedFd, fd: Option<BorrowedFd<'_>>) {
    if let Some(fd) = fd {
        let _ = epoll::delete(watch, fd);
    }
}

fn add(watch: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), PortError> {
    epoll::add(watch, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        .map_err(PortError::at("watching a descriptor"))
}

/// Accepts connections until `most` wait; returns `false` if the system has no room for one.
fn admit(
    listener: &RingListener,
    waiting: &mut Vec<Waiting>,
    most: usize,
    made: &impl Fn(OwnedFd) -> Result<Option<WaitingEnd>, QPairSocketError>,
    watch: &OwnedFd,
) -> Result<bool, QPairSocketError> {
    while waiting.len() < most {
        let accepted = listener.accept_socket().map_err(QPairSocketError::from);
        match accepted.and_then(|socket| socket.map(made).transpose()) {
            Ok(Some(Some(end))) => {
                end.fd().map_or(Ok(()), |fd| add(watch, fd))?;
                waiting.push(Waiting { end, since_ns: monotonic_ns() });
            }
            // The process that connected has ended.
            Ok(Some(None)) => {}
            Ok(None) => return Ok(true),
            // Descriptors and memory become free when other sockets are dropped.
            Err(QPairSocketError::Port(PortError::System {
                source: Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS,
                ..
            })) => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Offers a ring over a connection; returns its end, `None` if the connection cannot take it.
fn offered(
    listener: &RingListener,
    socket: OwnedFd,
    service: u32,
    is_piped: bool,
) -> Result<Option<WaitingEnd>, QPairSocketError> {
    let Some(port) = listener.offer(socket)? else { return Ok(None) };
    if is_piped {
        let pipe = Some(Box::new(Pipe::listening(port)?));
        return Ok(Some(WaitingEnd::Piped { pipe, watcher: PipeWatcher::default() }));
    }
    let shared = connect::ring_end(port, service)?;
    Ok(Some(WaitingEnd::Framed { shared, watcher: Watcher::default() }))
}
