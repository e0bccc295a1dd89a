//! State shared by the sockets of one link: the end itself, and the threads, tasks and pollers that
//! wait for it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use venice_fabric::QPairId;

use super::QPairSocketError;
use super::end::End;
use super::keeper::{self, ServedEnd};
use crate::process::Process;
use crate::spin_policy::{Next, SpinPolicy};
use crate::{PortError, monotonic_ns};

/// Longest sleep at once, in nanoseconds; a check for missed events follows.
const SLEEP_NS: u64 = 1_000_000_000;
/// Longest time that the drop of a socket waits until its queued bytes are sent, in nanoseconds.
const LINGER_NS: u64 = 100_000_000;

/// Longest time that the end of the last socket is kept until the other side acknowledges its
/// bytes, in nanoseconds.
const KEEP_NS: u64 = 2_000_000_000;

/// One end and its waiters.
///
/// A thread that finds nothing to do sleeps: the first on the descriptors (the *leader*), others on
/// the condition variable. A thread that takes frames in wakes all of them, because the frames may
/// be for any.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    changed: Condvar,
    /// The end's descriptors and the kick, in one epoll: for the leader.
    lead: OwnedFd,
    /// Wakes the leader after another thread has taken its frames in.
    kick: OwnedFd,
    /// The end's descriptors and the bell, in one epoll: for pollers.
    watch: OwnedFd,
    /// Wakes pollers after another thread has taken their frames in. It stays readable until all of
    /// them have attended.
    bell: OwnedFd,
    /// The keeper, which polls for tasks.
    tasks: Watcher,
    /// Process that made it. After a fork the child has the sockets too, but the link is not its
    /// own, and a thread that it does not have may hold the lock for ever.
    process: Process,
    /// Number under which the keeper lists it.
    number: AtomicU64,
}

#[derive(Debug)]
struct State {
    end: End,
    /// True if the port is closed or has failed.
    is_over: bool,
    spin: SpinPolicy,
    has_leader: bool,
    /// Number of pollers that armed the descriptor.
    armed: u32,
    /// Number of times that something came in.
    arrivals: u64,
    /// Number of threads in a blocking call.
    callers: u32,
    wakers: Vec<Waker>,
    pumped_ns: u64,
}

/// A poller of the descriptor. Its fields change only under the lock of the state.
#[derive(Debug, Default)]
pub(crate) struct Watcher {
    is_armed: AtomicBool,
    /// Value of `arrivals` when it was last woken.
    seen: AtomicU64,
}

/// Waiting mode of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    Never,
    Until(u64),
}

impl Wait {
    /// Waits for at most `timeout_ns`; `u64::MAX`: without limit.
    pub(super) fn at_most_ns(timeout_ns: u64) -> Self {
        if timeout_ns == u64::MAX {
            return Self::Until(u64::MAX);
        }
        Self::Until(monotonic_ns().saturating_add(timeout_ns))
    }
}

impl Shared {
    pub(super) fn new(end: End) -> Result<Arc<Self>, PortError> {
        let ((lead, kick), (watch, bell)) = (wakeable(&end)?, wakeable(&end)?);
        let state = State {
            end,
            is_over: false,
            spin: SpinPolicy::default(),
            has_leader: false,
            armed: 0,
            arrivals: 0,
            callers: 0,
            wakers: Vec::new(),
            pumped_ns: 0,
        };
        let shared = Arc::new(Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            lead,
            kick,
            watch,
            bell,
            tasks: Watcher::default(),
            process: Process::current()?,
            number: AtomicU64::new(0),
        });
        let kept: Arc<dyn ServedEnd> = shared.clone();
        keeper::keep(&kept)?;
        Ok(shared)
    }

    /// Returns a descriptor that is readable when something may have come in, after
    /// [`Shared::arm`].
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.watch.as_fd()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics under this lock")
    }

    /// Retries `call` until it returns something other than [`QPairSocketError::WouldBlock`].
    #[inline]
    pub(crate) fn call<T>(
        &self,
        wait: Wait,
        call: impl FnMut(&mut End, u64) -> Result<T, QPairSocketError>,
    ) -> Result<T, QPairSocketError> {
        self.process.check()?;
        self.call_locked(self.lock(), wait, call).1
    }

    /// Performs [`Shared::call`] and returns the lock, held throughout if the call did not wait.
    #[inline]
    fn call_locked<'a, T>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        wait: Wait,
        mut call: impl FnMut(&mut End, u64) -> Result<T, QPairSocketError>,
    ) -> (MutexGuard<'a, State>, Result<T, QPairSocketError>) {
        state.callers += 1;
        let done = loop {
            let now_ns = monotonic_ns();
            match call(&mut state.end, now_ns) {
                Err(QPairSocketError::WouldBlock) if state.is_over => {
                    break Err(QPairSocketError::Closed);
                }
                Err(QPairSocketError::WouldBlock) => {}
                done => break done,
            }
            if self.pump(&mut state, now_ns) || state.is_over {
                continue;
            }
            match wait {
                Wait::Never => break Err(QPairSocketError::WouldBlock),
                Wait::Until(at_ns) if now_ns >= at_ns => break Err(QPairSocketError::TimedOut),
                Wait::Until(at_ns) => state = self.back_off(state, now_ns, at_ns),
            }
        };
        state.callers -= 1;
        (state, done)
    }

    /// Performs [`Shared::call`] for a call that queues bytes, and sends them at once.
    #[inline]
    pub(crate) fn send<T>(
        &self,
        wait: Wait,
        mut call: impl FnMut(&mut End, u64) -> Result<T, QPairSocketError>,
    ) -> Result<T, QPairSocketError> {
        self.process.check()?;
        // Fast path, nearly always taken: there is room. One lock and one read of the clock.
        let (mut state, now_ns) = (self.lock(), monotonic_ns());
        match call(&mut state.end, now_ns) {
            Err(QPairSocketError::WouldBlock) => drop(state),
            Err(error) => return Err(error),
            Ok(done) => {
                self.pump(&mut state, now_ns);
                return Ok(done);
            }
        }
        let done = self.call(wait, call)?;
        self.push();
        Ok(done)
    }

    /// Sends the bytes that a call has queued.
    #[inline]
    pub(crate) fn push(&self) {
        let mut state = self.lock();
        self.pump(&mut state, monotonic_ns());
    }

    /// Performs [`Shared::call`] for a task: registers its waker before it returns pending.
    pub(crate) fn poll_call<T>(
        self: &Arc<Self>,
        context: &Context<'_>,
        mut call: impl FnMut(&mut End, u64) -> Result<T, QPairSocketError>,
    ) -> Poll<Result<T, QPairSocketError>> {
        self.process.check()?;
        loop {
            let (mut state, done) = self.call_locked(self.lock(), Wait::Never, &mut call);
            if !matches!(done, Err(QPairSocketError::WouldBlock)) {
                return Poll::Ready(done);
            }
            // Under the same lock: later events find the waker.
            if self.arm_locked(&mut state, &self.tasks) {
                let waker = context.waker();
                if !state.wakers.iter().any(|known| known.will_wake(waker)) {
                    state.wakers.push(waker.clone());
                }
                drop(state);
                return match keeper::watch(&**self) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error.into())),
                };
            }
        }
    }

    /// Prepares to wait on [`Shared::fd`]; `false` if there is something now.
    pub(crate) fn arm(&self, watcher: &Watcher) -> bool {
        if !self.process.is_current() {
            return false;
        }
        let mut state = self.lock();
        // Another thread may have taken in this poller's frames since its last check.
        if watcher.seen.swap(state.arrivals, Ordering::Relaxed) != state.arrivals {
            return false;
        }
        self.arm_locked(&mut state, watcher)
    }

    fn arm_locked(&self, state: &mut State, watcher: &Watcher) -> bool {
        if state.is_over || !state.end.prepare_wait() {
            state.end.finish_wait();
            return false;
        }
        state.armed += u32::from(!watcher.is_armed.swap(true, Ordering::Relaxed));
        true
    }

    /// Disarms a poller; the last one stops the bell.
    fn disarm(&self, state: &mut State, watcher: &Watcher) {
        if watcher.is_armed.swap(false, Ordering::Relaxed) {
            state.armed -= 1;
            if state.armed == 0 {
                clear(&self.bell);
            }
        }
    }

    /// Takes in what has come after [`Shared::fd`] was readable, and wakes the waiters.
    pub(crate) fn attend(&self, watcher: &Watcher) {
        if !self.process.is_current() {
            return;
        }
        let mut state = self.lock();
        self.disarm(&mut state, watcher);
        state.end.finish_wait();
        self.pump(&mut state, monotonic_ns());
        if state.has_leader {
            // Disarmed, the leader gets no bell: kick it, which makes it prepare its sleep again.
            ring(&self.kick);
        }
        // The caller tries again now, and finds what has come so far.
        watcher.seen.store(state.arrivals, Ordering::Relaxed);
        // The keeper polls once for all tasks: each of them checks for itself.
        state.wakers.drain(..).for_each(Waker::wake);
    }

    /// Closes a QPair. Waits briefly until its queued bytes are sent, and for the last socket of
    /// the end until they have arrived; beyond that the keeper retains the end for a while.
    pub(super) fn close(self: &Arc<Self>, id: QPairId, watcher: &Watcher) {
        if !self.process.is_current() {
            return;
        }
        let mut state = self.lock();
        self.disarm(&mut state, watcher);
        let now_ns = monotonic_ns();
        state.end.close(now_ns, id);
        state.callers += 1;
        let deadline_ns = now_ns + LINGER_NS;
        let is_settled = loop {
            let now_ns = monotonic_ns();
            self.pump(&mut state, now_ns);
            let is_queued = state.end.is_queued(id);
            let is_settled = state.is_over || (!is_queued && state.end.is_settled());
            let is_shared = Arc::strong_count(self) > 1;
            if is_settled || (!is_queued && is_shared) || now_ns >= deadline_ns {
                break is_settled;
            }
            state = self.back_off(state, now_ns, deadline_ns);
        };
        state.callers -= 1;
        if state.callers > 0 {
            // This thread may have been the leader.
            self.changed.notify_all();
        }
        drop(state);
        if !is_settled {
            keeper::hold(Arc::clone(self) as Arc<dyn ServedEnd>, monotonic_ns() + KEEP_NS);
        }
    }

    /// Returns the next requested QPair that is to be accepted.
    pub(super) fn take_incoming(&self) -> Option<QPairId> {
        let mut state = self.lock();
        self.pump(&mut state, monotonic_ns());
        state.end.take_incoming()
    }

    /// True if a requested QPair is to be accepted.
    pub(super) fn has_incoming(&self) -> bool {
        self.lock().end.has_incoming()
    }

    /// True if its link can bring nothing more.
    pub(super) fn is_over(&self) -> bool {
        self.lock().is_over
    }

    /// Moves frames; returns true if any came in.
    #[inline]
    fn pump(&self, state: &mut State, now_ns: u64) -> bool {
        if state.is_over {
            return false;
        }
        state.pumped_ns = now_ns;
        let any = match state.end.pump(now_ns) {
            Ok(any) => any,
            Err(_) => {
                state.is_over = true;
                true
            }
        };
        if any {
            state.spin.found(now_ns);
        }
        if any {
            self.notify(state);
        }
        any
    }

    fn notify(&self, state: &mut State) {
        state.arrivals += 1;
        if state.callers > 1 {
            self.changed.notify_all();
        }
        if state.has_leader {
            ring(&self.kick);
        }
        if state.armed > 0 {
            ring(&self.bell);
        }
        state.wakers.drain(..).for_each(Waker::wake);
    }

    /// Spins, yields or sleeps until something may have come in.
    fn back_off<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        now_ns: u64,
        until_ns: u64,
    ) -> MutexGuard<'a, State> {
        // A spinning thread keeps the lock, which is unfair to other callers.
        let next = if state.callers > 1 { Next::Sleep } else { state.spin.nothing(now_ns) };
        match next {
            Next::Look => std::hint::spin_loop(),
            Next::Yield => {
                drop(state);
                rustix::thread::sched_yield();
                return self.lock();
            }
            Next::Sleep => return self.sleep(state, until_ns.saturating_sub(now_ns)),
        }
        state
    }

    fn sleep<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        timeout_ns: u64,
    ) -> MutexGuard<'a, State> {
        let timeout_ns = timeout_ns.min(SLEEP_NS);
        if state.has_leader {
            let timeout = Duration::from_nanos(timeout_ns);
            let woken = self.changed.wait_timeout(state, timeout);
            return woken.expect("no thread panics under this lock").0;
        }
        if state.end.prepare_wait() {
            state.has_leader = true;
            drop(state);
            let timeout = Timespec {
                tv_sec: (timeout_ns / 1_000_000_000) as i64,
                tv_nsec: (timeout_ns % 1_000_000_000) as i64,
            };
            // The result is irrelevant: the caller checks again.
            let _ = poll(&mut [PollFd::new(&self.lead, PollFlags::IN)], Some(&timeout));
            state = self.lock();
            state.has_leader = false;
            clear(&self.kick);
            if state.callers > 1 {
                // One of the others becomes the leader.
                self.changed.notify_all();
            }
        }
        state.end.finish_wait();
        state
    }
}

impl ServedEnd for Shared {
    fn fd(&self) -> BorrowedFd<'_> {
        self.fd()
    }

    fn number(&self) -> u64 {
        self.number.load(Ordering::Relaxed)
    }

    fn set_number(&self, number: u64) {
        self.number.store(number, Ordering::Relaxed);
    }

    fn attend_tasks(&self) {
        self.attend(&self.tasks);
    }

    fn serve(&self, quiet_ns: u64) {
        let Ok(mut state) = self.state.try_lock() else { return };
        let now_ns = monotonic_ns();
        if now_ns.saturating_sub(state.pumped_ns) >= quiet_ns && !state.has_leader {
            self.pump(&mut state, now_ns);
        }
    }

    fn is_settled(&self) -> bool {
        let mut state = self.lock();
        state.is_over || state.end.is_settled()
    }
}

/// Returns an epoll of the end's descriptors, and an eventfd in it that wakes its sleepers.
fn wakeable(end: &End) -> Result<(OwnedFd, OwnedFd), PortError> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(PortError::at("making an eventfd"))?;
    let all =
        epoll::create(epoll::CreateFlags::CLOEXEC).map_err(PortError::at("making an epoll"))?;
    end.watch(&all)?;
    epoll::add(&all, &wake, epoll::EventData::new_u64(0), epoll::EventFlags::IN)
        .map_err(PortError::at("watching a descriptor"))?;
    Ok((all, wake))
}

/// Makes an eventfd readable.
pub(super) fn ring(wake: &OwnedFd) {
    // A write fails only when the counter is full; no thread sleeps then.
    let _ = rustix::io::write(wake, &1u64.to_ne_bytes());
}

/// Makes an eventfd unreadable.
pub(super) fn clear(wake: &OwnedFd) {
    let _ = rustix::io::read(wake, &mut [0u8; 8]);
}
