//! The donor's end: a thread that answers the accesses from any number of rings.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, epoll, eventfd, poll};
use rustix::io::Errno;
use venice_fabric::{GrantedMemory, LinkConfig, PeerAddr, Target, TargetConfig};

use super::port::TOO_SHORT_NS;
use super::{RingListener, RingPort};
use crate::spin_policy::{Next, SpinPolicy};
use crate::udp::alarm::Alarm;
use crate::{PortError, monotonic_ns};

/// Most rings served at once; more wait in the listener's backlog.
const MAX_RINGS: usize = 1024;
/// Most frames taken from one ring before the next is served.
const FRAMES_PER_TURN: usize = 64;
/// Interval of accepting, of checks for ended rings and for the stop order, while the thread does
/// not sleep, in nanoseconds.
const CHORES_NS: u64 = 1_000_000;
/// Pause of accepting after a lack of descriptors or memory, in nanoseconds.
const ACCEPT_PAUSE_NS: u64 = 10_000_000;

/// Serves the accesses of recipients on this host, on a thread of its own, until dropped.
///
/// Each ring has its own [`Target`]: a recipient with a full ring delays no other.
#[derive(Debug)]
pub struct RingServer {
    shared: Arc<Shared>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    stop: AtomicBool,
}

impl RingServer {
    /// Starts to serve `memory` to recipients that connect to `listener`. The links are always set
    /// up for a reliable port, regardless of `config`: no checksum, no replay.
    ///
    /// # Errors
    /// Fails if the thread or its descriptors cannot be made.
    pub fn start(
        listener: RingListener,
        mut config: TargetConfig,
        memory: impl GrantedMemory + Send + 'static,
    ) -> Result<Self, PortError> {
        config.link = LinkConfig { checksum: false, replay: false, ..config.link };
        config.max_links = 1;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(PortError::at("making an eventfd"))?;
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(PortError::at("making an epoll descriptor"))?;
        let alarm = Alarm::new()?;
        for fd in [wake.as_fd(), alarm.as_fd(), listener.fd()] {
            add_to(&watch, fd)?;
        }
        let shared = Arc::new(Shared { wake, stop: AtomicBool::new(false) });
        let path = listener.path().to_path_buf();
        let service = Service {
            shared: Arc::clone(&shared),
            listener,
            config,
            memory,
            rings: Vec::new(),
            watch,
            alarm,
            chores_ns: 0,
            is_listening: true,
            accepts_from_ns: 0,
        };
        let thread = std::thread::Builder::new()
            .name("venice-ring".into())
            .spawn(move || service.run())
            .map_err(|_| PortError::System { step: "starting a thread", source: Errno::AGAIN })?;
        Ok(Self { shared, path, thread: Some(thread) })
    }

    /// Returns the path of the listener's socket.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for RingServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn add_to(watch: &OwnedFd, fd: impl AsFd) -> Result<(), PortError> {
    epoll::add(watch, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        .map_err(PortError::at("watching a descriptor"))
}

/// State of the server's thread.
struct Service<M> {
    shared: Arc<Shared>,
    listener: RingListener,
    config: TargetConfig,
    memory: M,
    rings: Vec<Ring>,
    /// Epoll of all rings, the listener, the alarm and the stop order.
    watch: OwnedFd,
    alarm: Alarm,
    chores_ns: u64,
    /// True if `watch` contains the listener.
    is_listening: bool,
    accepts_from_ns: u64,
}

/// One recipient.
struct Ring {
    port: RingPort,
    target: Target,
}

impl<M: GrantedMemory> Service<M> {
    fn run(mut self) {
        let mut spin = SpinPolicy::default();
        loop {
            let now_ns = monotonic_ns();
            if now_ns >= self.chores_ns {
                self.chores_ns = now_ns + CHORES_NS;
                if self.shared.stop.load(Ordering::Acquire) {
                    return;
                }
                self.rings.iter_mut().for_each(|ring| ring.port.look_for_end());
                self.accept(now_ns);
            }
            if self.turn(now_ns) {
                spin.found(now_ns);
                continue;
            }
            match spin.nothing(now_ns) {
                Next::Look => std::hint::spin_loop(),
                Next::Yield => rustix::thread::sched_yield(),
                Next::Sleep => self.sleep(),
            }
        }
    }

    /// Serves every ring once; returns true if any had a request. Drops the rings that have ended.
    fn turn(&mut self, now_ns: u64) -> bool {
        let mut any = false;
        let memory = &mut self.memory;
        self.rings.retain_mut(|ring| match ring.serve(now_ns, memory) {
            Ok(served) => {
                any |= served;
                true
            }
            Err(_) => false,
        });
        any
    }

    fn accept(&mut self, now_ns: u64) {
        while self.may_accept(now_ns) {
            match self.listener.try_accept() {
                Ok(Some(port)) => {
                    if add_to(&self.watch, port.fd()).is_ok() {
                        self.rings.push(Ring { port, target: Target::new(self.config.clone()) });
                    }
                }
                Ok(None) => break,
                // Waiting recipients are accepted after the pause.
                Err(_) => self.accepts_from_ns = now_ns.saturating_add(ACCEPT_PAUSE_NS),
            }
        }
        self.listen_or_not(now_ns);
    }

    fn may_accept(&self, now_ns: u64) -> bool {
        self.rings.len() < MAX_RINGS && now_ns >= self.accepts_from_ns
    }

    /// Adds the listener to the epoll, or removes it while no ring can be given: a waiting
    /// recipient then wakes no thread.
    fn listen_or_not(&mut self, now_ns: u64) {
        let wants = self.may_accept(now_ns);
        let done = match (self.is_listening, wants) {
            (false, true) => add_to(&self.watch, self.listener.fd()).is_ok(),
            (true, false) => epoll::delete(&self.watch, self.listener.fd()).is_ok(),
            _ => false,
        };
        self.is_listening ^= done;
    }

    fn sleep(&mut self) {
        let now_ns = monotonic_ns();
        let mut due_ns = None;
        // An ended ring has made room for a waiting recipient.
        let mut may_sleep = self.is_listening || !self.may_accept(now_ns);
        if self.rings.len() < MAX_RINGS && !self.is_listening {
            due_ns = Some(self.accepts_from_ns);
        }
        for ring in &mut self.rings {
            let sleeps = ring.port.prepare_wait();
            let held_ns = ring.port.next_delivery_ns();
            may_sleep &= match held_ns {
                None => sleeps,
                Some(at_ns) => at_ns >= now_ns + TOO_SHORT_NS,
            };
            due_ns = due_ns.into_iter().chain(ring.target.poll_timeout()).chain(held_ns).min();
        }
        if may_sleep {
            self.alarm.set(now_ns, due_ns);
            let _ = poll(&mut [PollFd::new(&self.watch, PollFlags::IN)], None);
        }
        self.rings.iter_mut().for_each(|ring| ring.port.finish_wait());
        self.chores_ns = 0;
    }
}

impl Ring {
    /// Takes requests and answers them; returns true if there was any.
    fn serve(&mut self, now_ns: u64, memory: &mut impl GrantedMemory) -> Result<bool, PortError> {
        if self.target.poll_timeout().is_some_and(|at_ns| at_ns <= now_ns) {
            self.target.handle_timeout(now_ns);
        }
        let mut received = 0;
        while received < FRAMES_PER_TURN
            && let Some(frame) = self.port.receive(now_ns)?
        {
            self.target.handle_frame(now_ns, PeerAddr(0), frame, memory);
            received += 1;
        }
        while let Some(buffer) = self.port.reserve()?
            && let Some((_, len_bytes)) = self.target.poll_transmit(now_ns, buffer)
        {
            self.port.commit(now_ns, len_bytes);
        }
        self.port.announce();
        Ok(received > 0)
    }
}
