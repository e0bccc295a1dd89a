//! The listening side of QPairs.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, recv};
use venice_fabric::{EndConfig, QPairError, QPairId};

use super::pipe::{Pipe, PipeSocket, PipeWatcher};
use super::shared::{Shared, Wait, Watcher, clear, ring};
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
/// Longest sleep at once, in nanoseconds; a check for missed requests follows.
const SLEEP_NS: u64 = 1_000_000_000;

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
            // A request that another thread has seen rings no bell any more.
            Self::Framed { shared, watcher } => !shared.has_incoming() && shared.arm(watcher),
            Self::Piped { pipe, watcher } => {
                pipe.as_ref().is_some_and(|pipe| !pipe.has_record() && pipe.arm(watcher))
            }
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
/// the expected kind. Any threads may accept at the same time; one may poll meanwhile.
///
/// Of the threads that accept, the first sleeps on the descriptors (the *leader*), others on the
/// condition variable. Who ends a wait on the descriptors, or leaves, wakes the rest: the bells it
/// has taken may be for them.
#[derive(Debug)]
pub struct QPairListener {
    state: Mutex<State>,
    changed: Condvar,
    local: Option<SocketAddr>,
    service: u32,
    end: EndConfig,
    max_waiting: usize,
    admission: Option<Admission>,
    process: Process,
    /// Epoll of everything that a caller's request may come through.
    requests: OwnedFd,
    /// Wakes the leader whose wait the poller has ended.
    kick: OwnedFd,
    /// Wakes the poller whose wait another thread's accept has ended.
    bell: OwnedFd,
    /// `requests` and the bell, in one epoll: for the poller.
    watch: OwnedFd,
    /// True if rings carry the records of pipes.
    is_piped: bool,
}

/// No thread sleeps under its lock.
#[derive(Debug)]
struct State {
    way: Way,
    /// True while a poller waits.
    is_polled: bool,
    /// True while a thread that accepts sleeps on the descriptors.
    has_leader: bool,
    /// Number of threads that sleep on the condition variable.
    followers: u32,
}

impl State {
    /// Yields the ends through which a request may come.
    fn ends(&self) -> impl Iterator<Item = &WaitingEnd> {
        let (one, many) = match &self.way {
            Way::Udp(end) => (Some(end), &[][..]),
            Way::Ring { waiting, .. } => (None, &waiting[..]),
        };
        one.into_iter().chain(many.iter().map(|waiting| &waiting.end))
    }
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
    Udp(WaitingEnd),
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
        let (way, local) = match address {
            QPairAddress::Ring { path, config } => {
                let listener = RingListener::bind(path, *config)?;
                (Way::Ring { listener, waiting: Vec::new(), is_full: false }, None)
            }
            QPairAddress::Udp { address, seal } => {
                let (shared, local) = connect::udp_end(*address, seal.as_ref(), service)?;
                let end = WaitingEnd::Framed { shared, watcher: Watcher::default() };
                (Way::Udp(end), Some(local))
            }
        };
        let make_epoll =
            || epoll::create(epoll::CreateFlags::CLOEXEC).map_err(PortError::at("making an epoll"));
        let (requests, watch) = (make_epoll()?, make_epoll()?);
        let make_eventfd = || {
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(PortError::at("making an eventfd"))
        };
        let (kick, bell) = (make_eventfd()?, make_eventfd()?);
        match &way {
            Way::Ring { listener, .. } => add(&requests, listener.fd())?,
            Way::Udp(end) => end.fd().map_or(Ok(()), |fd| add(&requests, fd))?,
        }
        [requests.as_fd(), bell.as_fd()].into_iter().try_for_each(|fd| add(&watch, fd))?;
        let (end, process) = (EndConfig::default(), Process::current()?);
        let state = Mutex::new(State { way, is_polled: false, has_leader: false, followers: 0 });
        Ok(Self {
            state,
            changed: Condvar::new(),
            local,
            service,
            end,
            max_waiting: MAX_WAITING,
            admission: None,
            process,
            requests,
            kick,
            bell,
            watch,
            is_piped: false,
        })
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
        let state = self.state.get_mut().expect("no thread panics under this lock");
        if let Way::Ring { listener, .. } = &mut state.way {
            listener.offer_pipes(ring_bytes);
            self.is_piped = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics under this lock")
    }

    /// Returns the UDP address, with the port the system chose if port 0 was given.
    pub fn local_addr(&self) -> Option<SocketAddr> {
        self.local
    }

    /// Accepts the next QPair of messages, within `timeout` (`None`: without limit).
    ///
    /// # Errors
    /// [`QPairSocketError::TimedOut`], or an error of the port.
    pub fn accept_messages(
        &self,
        timeout: Option<Duration>,
    ) -> Result<QPairMessages, QPairSocketError> {
        Ok(QPairMessages { socket: self.accept(timeout)? })
    }

    /// Accepts the next QPair of a stream, within `timeout` (`None`: without limit).
    ///
    /// # Errors
    /// [`QPairSocketError::TimedOut`], or an error of the port.
    pub fn accept_stream(
        &self,
        timeout: Option<Duration>,
    ) -> Result<QPairStream, QPairSocketError> {
        Ok(QPairStream { socket: self.accept(timeout)? })
    }

    /// Accepts the next QPair of a caller that sends frames.
    pub(crate) fn accept_framed(
        &self,
        timeout: Option<Duration>,
    ) -> Result<Socket, QPairSocketError> {
        match self.accept(timeout)? {
            QPairSocket::Framed(socket) => Ok(socket),
            QPairSocket::Piped(_) => Err(QPairError::WrongKind.into()),
        }
    }

    pub(super) fn accept(
        &self,
        timeout: Option<Duration>,
    ) -> Result<QPairSocket, QPairSocketError> {
        self.process.check()?;
        let timeout_ns =
            timeout.map_or(u64::MAX, |wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        let deadline_ns = monotonic_ns().saturating_add(timeout_ns);
        let mut state = self.lock();
        let accepted = loop {
            match self.try_accept(&mut state.way) {
                Ok(None) => {}
                Ok(Some(socket)) => break Ok(socket),
                Err(error) => break Err(error),
            }
            let left_ns = deadline_ns.saturating_sub(monotonic_ns());
            if left_ns == 0 {
                break Err(QPairSocketError::TimedOut);
            }
            state = self.sleep(state, left_ns);
        };
        self.wake_acceptors(&state);
        if state.is_polled {
            ring(&self.bell);
        }
        accepted
    }

    /// Wakes the threads that accept: they check for requests, and prepare another wait.
    fn wake_acceptors(&self, state: &State) {
        if state.has_leader {
            ring(&self.kick);
        } else if state.followers > 0 {
            self.changed.notify_one();
        }
    }

    /// Returns a descriptor to poll for input before an accept with a time-out of zero: first
    /// [`QPairListener::arm`], then poll, then [`QPairListener::attend`], then accept. One thread
    /// polls at a time.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    /// Prepares to poll [`QPairListener::fd`]. `false`: accept first, a request may be here.
    pub fn arm(&self) -> bool {
        if !self.process.is_current() {
            return false;
        }
        let mut state = self.lock();
        let is_armed = state.ends().all(WaitingEnd::arm);
        state.is_polled = is_armed;
        is_armed
    }

    /// Ends a wait on [`QPairListener::fd`].
    pub fn attend(&self) {
        if !self.process.is_current() {
            return;
        }
        let mut state = self.lock();
        state.is_polled = false;
        clear(&self.bell);
        state.ends().for_each(WaitingEnd::attend);
        self.wake_acceptors(&state);
    }

    fn try_accept(&self, way: &mut Way) -> Result<Option<QPairSocket>, QPairSocketError> {
        // The caller may have disconnected meanwhile: continue with the next one.
        while let Some(requested) = self.take_incoming(way)? {
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
    fn take_incoming(&self, way: &mut Way) -> Result<Option<Requested>, QPairSocketError> {
        let Self { service, requests, is_piped, max_waiting, admission, .. } = self;
        let (listener, waiting, is_full) = match way {
            Way::Udp(end) => return Ok(requested(end, *service).unwrap_or(None)),
            Way::Ring { listener, waiting, is_full } => (listener, waiting, is_full),
        };
        let admission = admission.as_ref();
        let made = |socket| match admission {
            Some(_) => Ok(Some(WaitingEnd::Stranger(socket))),
            None => offered(listener, socket, *service, *is_piped),
        };
        let admit =
            |waiting: &mut Vec<Waiting>, most| admit(listener, waiting, most, &made, requests);
        *is_full = !admit(waiting, *max_waiting)?;
        if let Some(admission) = admission {
            let offer = |socket| offered(listener, socket, *service, *is_piped);
            answer_strangers(waiting, admission, offer, requests);
        }
        let found = take_requested(waiting, *service, requests);
        if found.is_none() && !*is_full && waiting.len() >= *max_waiting {
            // All are silent.
            *is_full = !admit(waiting, *max_waiting + 1)?;
            if waiting.len() > *max_waiting {
                forget(requests, waiting.remove(0).end.fd());
            }
        }
        Ok(found)
    }

    /// Sleeps without the lock until a request may have come.
    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        left_ns: u64,
    ) -> MutexGuard<'a, State> {
        // A connection that has no room keeps the descriptor readable.
        let is_full = matches!(state.way, Way::Ring { is_full: true, .. });
        let timeout = Duration::from_nanos(left_ns.min(if is_full { FULL_NS } else { SLEEP_NS }));
        if state.has_leader {
            // It does not watch yet what this thread has admitted.
            ring(&self.kick);
            state.followers += 1;
            let woken = self.changed.wait_timeout(state, timeout);
            state = woken.expect("no thread panics under this lock").0;
            state.followers -= 1;
            return state;
        }
        let may_sleep = state.ends().all(WaitingEnd::arm);
        if may_sleep {
            state.has_leader = true;
            drop(state);
            let input = PollFlags::IN;
            let fds = &mut [PollFd::new(&self.kick, input), PollFd::new(&self.requests, input)];
            let polled = if is_full { &mut fds[..1] } else { &mut fds[..] };
            // The result is irrelevant: the caller checks again.
            let _ = poll(polled, Some(&timespec(timeout)));
            state = self.lock();
            state.has_leader = false;
            clear(&self.kick);
        }
        state.ends().for_each(WaitingEnd::attend);
        if !may_sleep {
            // A request is on its way over an emulated link: others go on meanwhile.
            drop(state);
            rustix::thread::sched_yield();
            state = self.lock();
        }
        state
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
fn take_requested(
    waiting: &mut Vec<Waiting>,
    service: u32,
    requests: &OwnedFd,
) -> Option<Requested> {
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
            forget(requests, piped.or(end.fd()));
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
    requests: &OwnedFd,
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
        forget(requests, Some(socket.as_fd()));
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
        end.fd().map_or(Ok(()), |fd| add(requests, fd)).ok()?;
        Some(Waiting { end, since_ns })
    };
    *waiting = std::mem::take(waiting).into_iter().filter_map(&mut answer).collect();
}

/// Removes a descriptor that was added when its connection came.
fn forget(requests: &OwnedFd, fd: Option<BorrowedFd<'_>>) {
    if let Some(fd) = fd {
        let _ = epoll::delete(requests, fd);
    }
}

fn timespec(duration: Duration) -> Timespec {
    Timespec { tv_sec: duration.as_secs() as i64, tv_nsec: duration.subsec_nanos().into() }
}

fn add(epoll: &OwnedFd, fd: BorrowedFd<'_>) -> Result<(), PortError> {
    epoll::add(epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        .map_err(PortError::at("watching a descriptor"))
}

/// Accepts connections until `most` wait; returns `false` if the system has no room for one.
fn admit(
    listener: &RingListener,
    waiting: &mut Vec<Waiting>,
    most: usize,
    made: &impl Fn(OwnedFd) -> Result<Option<WaitingEnd>, QPairSocketError>,
    requests: &OwnedFd,
) -> Result<bool, QPairSocketError> {
    while waiting.len() < most {
        let accepted = listener.accept_socket().map_err(QPairSocketError::from);
        match accepted.and_then(|socket| socket.map(made).transpose()) {
            Ok(Some(Some(end))) => {
                end.fd().map_or(Ok(()), |fd| add(requests, fd))?;
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
