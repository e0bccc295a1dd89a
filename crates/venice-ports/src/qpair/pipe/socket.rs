//! One end of a pipe, and its calls: blocking, polled, and for tasks.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use venice_fabric::{CloseReason, QPairError, QPairKind, RejectReason};

use super::super::QPairSocketError;
use super::super::keeper::{self, ServedEnd};
use super::super::shared::Wait;
use super::bells::{Bells, Sleeper};
use super::receive::ReceiveHalf;
use super::record::Record;
use super::send::SendHalf;
use crate::process::Process;
use crate::ring::RingPort;
use crate::spin_policy::{Next, SpinPolicy};
use crate::{PortError, monotonic_ns};

/// Longest sleep at once, in nanoseconds; a check for missed bells follows.
const SLEEP_NS: u64 = 1_000_000_000;
/// Longest time that a drop waits for room for what was accepted, and that the keeper does
/// afterwards, in nanoseconds.
const LINGER_NS: u64 = 100_000_000;
const KEEP_NS: u64 = 2_000_000_000;
/// Bit of a greeting's number that asks for a stream.
const STREAM: u64 = 1 << 32;

/// State of one end. Any thread may send while any other receives: each half has its own lock, and no
/// call takes both. A call that sends a message has the *turn* until all of the message is accepted,
/// also while it waits without the lock.
#[derive(Debug)]
pub(crate) struct Pipe {
    kind: QPairKind,
    send: Mutex<SendHalf>,
    /// Wakes the threads that wait for the turn.
    turn: Condvar,
    receive: Mutex<ReceiveHalf>,
    bells: Bells,
    wakers: Mutex<Vec<Waker>>,
    /// Poller of the keeper, for tasks.
    tasks: PipeWatcher,
    process: Process,
    /// Number under which the keeper lists it.
    number: AtomicU64,
}

/// A poller.
#[derive(Debug, Default)]
pub(crate) struct PipeWatcher {
    is_armed: AtomicBool,
}

impl Pipe {
    pub(super) fn new(port: RingPort, kind: QPairKind) -> Result<Self, PortError> {
        let (socket, writer, reader) = port.into_parts();
        Ok(Self {
            kind,
            send: Mutex::new(SendHalf::new(writer)),
            turn: Condvar::new(),
            receive: Mutex::new(ReceiveHalf::new(reader)),
            bells: Bells::new(socket)?,
            wakers: Mutex::default(),
            tasks: PipeWatcher::default(),
            process: Process::current()?,
            number: AtomicU64::new(0),
        })
    }

    /// Requests `service` from the listener at the other end, and waits until it accepts.
    pub(crate) fn connect(
        port: RingPort,
        service: u32,
        kind: QPairKind,
        until: Wait,
    ) -> Result<Arc<Self>, QPairSocketError> {
        let pipe = Self::new(port, kind)?;
        let stream = if kind == QPairKind::Stream { STREAM } else { 0 };
        {
            let mut send = pipe.lock_send();
            send.push(Record::Hello(u64::from(service) | stream), &[])?;
            send.announce(|| pipe.bells.ring());
        }
        let answer = pipe.receiving(until, |half| {
            half.take_greeting(|| pipe.bells.ring())?.ok_or(QPairSocketError::WouldBlock)
        })?;
        match answer {
            Record::Accept => Self::kept(pipe),
            Record::Refuse => {
                let reason = CloseReason::Refused(RejectReason::NoListener);
                Err(QPairError::Closed(reason).into())
            }
            _ => Err(QPairError::Closed(CloseReason::Protocol).into()),
        }
    }

    /// Makes the accepting end of a ring, whose request is still to come.
    pub(crate) fn listening(port: RingPort) -> Result<Self, PortError> {
        Self::new(port, QPairKind::Messages)
    }

    /// True if the other side has sent something.
    pub(crate) fn has_record(&self) -> bool {
        self.lock_receive().has_record()
    }

    /// Returns true once a request for `service` has come. Another one is refused.
    pub(crate) fn take_request(&mut self, service: u32) -> Result<bool, QPairSocketError> {
        let asked = {
            let mut half = self.lock_receive();
            half.take_greeting(|| self.bells.ring())?
        };
        let Some(Record::Hello(asked)) = asked else {
            return match asked {
                None if self.bells.is_peer_gone() => Err(QPairSocketError::Closed),
                None => Ok(false),
                Some(_) => Err(QPairError::Closed(CloseReason::Protocol).into()),
            };
        };
        if asked & !STREAM != u64::from(service) {
            let mut send = self.lock_send();
            send.push(Record::Refuse, &[])?;
            send.announce(|| self.bells.ring());
            return Err(QPairError::Closed(CloseReason::Refused(RejectReason::NoListener)).into());
        }
        self.kind = if asked & STREAM == 0 { QPairKind::Messages } else { QPairKind::Stream };
        Ok(true)
    }

    /// Accepts the request.
    pub(crate) fn accept(self) -> Result<Arc<Self>, QPairSocketError> {
        let pipe = Self::kept(self)?;
        {
            let mut send = pipe.lock_send();
            send.push(Record::Accept, &[])?;
            send.announce(|| pipe.bells.ring());
        }
        Ok(pipe)
    }

    fn kept(pipe: Self) -> Result<Arc<Self>, QPairSocketError> {
        let pipe = Arc::new(pipe);
        let served: Arc<dyn ServedEnd> = pipe.clone();
        keeper::keep(&served)?;
        Ok(pipe)
    }

    fn lock_send(&self) -> MutexGuard<'_, SendHalf> {
        self.send.lock().expect("no thread panics under this lock")
    }

    fn lock_receive(&self) -> MutexGuard<'_, ReceiveHalf> {
        self.receive.lock().expect("no thread panics under this lock")
    }

    /// Returns the bytes allocated for a message that has arrived in part.
    #[cfg(test)]
    pub(super) fn partial_bytes(&self) -> usize {
        self.lock_receive().partial_bytes()
    }

    fn check(&self, kind: QPairKind) -> Result<(), QPairSocketError> {
        self.process.check()?;
        if self.kind == kind { Ok(()) } else { Err(QPairError::WrongKind.into()) }
    }

    /// Returns the descriptor for pollers.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.bells.watch()
    }

    /// Prepares a poller's wait; `false` if there may be something now.
    pub(crate) fn arm(&self, watcher: &PipeWatcher) -> bool {
        if !self.process.is_current() {
            return false;
        }
        if !watcher.is_armed.swap(true, Ordering::AcqRel) {
            self.bells.begin(Sleeper::Pollers);
        }
        let may_read_sleep = self.lock_receive().prepare_sleep();
        let may_write_sleep = {
            let mut send = self.lock_send();
            let _ = send.flush(|| self.bells.ring());
            let may_await_room = send.prepare_sleep();
            send.may_await_turn() && may_await_room
        };
        let may_sleep = may_read_sleep && may_write_sleep && !self.bells.is_peer_gone();
        if !may_sleep {
            self.disarm(watcher);
        }
        may_sleep
    }

    fn disarm(&self, watcher: &PipeWatcher) -> bool {
        let was_armed = watcher.is_armed.swap(false, Ordering::AcqRel);
        if was_armed {
            self.bells.end(Sleeper::Pollers, true);
        }
        was_armed
    }

    /// Ends a poller's wait.
    pub(crate) fn attend(&self, watcher: &PipeWatcher) {
        if !self.process.is_current() {
            return;
        }
        self.disarm(watcher);
        self.flush();
        self.wake_tasks();
    }

    fn wake_tasks(&self) {
        let wakers = std::mem::take(&mut *self.wakers.lock().expect("no thread panics here"));
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Sends what is left of accepted messages; returns true if nothing is left, or nothing can be
    /// sent any more.
    fn flush(&self) -> bool {
        let mut send = self.lock_send();
        if !send.has_rest() {
            return true;
        }
        let flushed = send.flush(|| self.bells.ring());
        flushed.unwrap_or(true) || send.is_peer_deaf() || self.bells.is_peer_gone()
    }
}

/// Calls.
impl Pipe {
    /// Sends a message: all of it, or nothing. What a call that may not wait has no room for is
    /// kept, and sent by later calls and the keeper.
    pub(crate) fn send(&self, wait: Wait, message: &[u8]) -> Result<(), QPairSocketError> {
        self.check(QPairKind::Messages)?;
        let half = self.take_turn(wait, message)?;
        let mut at = 0;
        let (mut half, sent) = self.sending(half, wait, |half| {
            if at == 0 {
                half.check(message)?;
                if half.has_rest() && !half.flush(|| self.bells.ring())? {
                    return Err(QPairSocketError::WouldBlock);
                }
            }
            half.push_message(message, &mut at, || self.bells.ring())?;
            if at == message.len() { Ok(()) } else { Err(QPairSocketError::WouldBlock) }
        });
        let sent = match sent {
            Err(QPairSocketError::WouldBlock | QPairSocketError::TimedOut) if at > 0 => {
                half.keep_rest(message, at);
                Ok(())
            }
            sent => sent,
        };
        self.end_turn(half);
        sent
    }

    /// Waits until no other call is sending a message.
    fn take_turn(
        &self,
        wait: Wait,
        message: &[u8],
    ) -> Result<MutexGuard<'_, SendHalf>, QPairSocketError> {
        let mut half = self.lock_send();
        loop {
            half.check(message)?;
            if half.take_turn() {
                return Ok(half);
            }
            let now_ns = monotonic_ns();
            let until_ns = checked(wait, now_ns).inspect_err(|_| half.wants_turn = true)?;
            let left = Duration::from_nanos(until_ns.saturating_sub(now_ns).min(SLEEP_NS));
            half.turn_waiters += 1;
            let woken = self.turn.wait_timeout(half, left);
            half = woken.expect("no thread panics under this lock").0;
            half.turn_waiters -= 1;
        }
    }

    /// Lets other calls send, and sends the end if it has waited for this message.
    fn end_turn(&self, mut half: MutexGuard<'_, SendHalf>) {
        let is_awaited_by_pollers = half.end_turn(|| self.bells.ring());
        if half.turn_waiters > 0 {
            self.turn.notify_all();
        }
        drop(half);
        if is_awaited_by_pollers {
            self.bells.kick(Sleeper::Pollers);
        }
    }

    /// Receives a message.
    pub(crate) fn recv(&self, wait: Wait, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        self.check(QPairKind::Messages)?;
        self.receiving(wait, |half| half.take_message(into, || self.bells.ring()))
    }

    /// Receives a message in memory that grows with what has arrived; `None` at the end.
    pub(crate) fn recv_vec(&self, wait: Wait) -> Result<Option<Vec<u8>>, QPairSocketError> {
        self.check(QPairKind::Messages)?;
        self.receiving(wait, |half| half.take_vec(|| self.bells.ring()))
    }

    /// Writes the front of `bytes`.
    pub(crate) fn write(&self, wait: Wait, bytes: &[u8]) -> Result<usize, QPairSocketError> {
        self.check(QPairKind::Stream)?;
        let (_half, written) = self.sending(self.lock_send(), wait, |half| {
            half.check(&bytes[..bytes.len().min(1)])?;
            match half.push_bytes(bytes, || self.bells.ring())? {
                0 => Err(QPairSocketError::WouldBlock),
                len => Ok(len),
            }
        });
        written
    }

    /// Reads what has arrived.
    pub(crate) fn read(&self, wait: Wait, into: &mut [u8]) -> Result<usize, QPairSocketError> {
        self.check(QPairKind::Stream)?;
        self.receiving(wait, |half| half.take_bytes(into, || self.bells.ring()))
    }

    /// Ends the sending, behind a message that another thread is sending.
    pub(crate) fn shutdown(&self) -> Result<(), QPairSocketError> {
        self.process.check()?;
        let mut send = self.lock_send();
        if send.is_peer_deaf() {
            return Err(QPairError::Closed(CloseReason::PeerClosed).into());
        }
        send.has_ended = true;
        send.flush(|| self.bells.ring())?;
        drop(send);
        // Calls that have not begun their message end now.
        self.turn.notify_all();
        self.bells.kick(Sleeper::Sender);
        self.bells.kick(Sleeper::Pollers);
        Ok(())
    }

    /// Repeats a call until it returns something other than [`QPairSocketError::WouldBlock`], and
    /// returns the lock, held throughout if the call did not wait.
    fn sending<'a, T>(
        &'a self,
        mut half: MutexGuard<'a, SendHalf>,
        wait: Wait,
        mut call: impl FnMut(&mut SendHalf) -> Result<T, QPairSocketError>,
    ) -> (MutexGuard<'a, SendHalf>, Result<T, QPairSocketError>) {
        loop {
            // An end that is seen now was seen after everything that came before it.
            let was_gone = self.bells.is_peer_gone();
            if was_gone && !half.is_peer_deaf() {
                return (half, Err(QPairSocketError::Closed));
            }
            match call(&mut half) {
                Err(QPairSocketError::WouldBlock) => {}
                done => return (half, done),
            }
            let now_ns = monotonic_ns();
            self.bells.look_for_end(now_ns);
            let until_ns = match checked(wait, now_ns) {
                Ok(until_ns) => until_ns,
                Err(error) => return (half, Err(error)),
            };
            match next(&mut half.spin, now_ns) {
                Next::Look => std::hint::spin_loop(),
                Next::Yield => {
                    drop(half);
                    rustix::thread::sched_yield();
                    half = self.lock_send();
                }
                Next::Sleep => {
                    self.bells.begin(Sleeper::Sender);
                    let may_sleep = half.prepare_sleep() && !self.bells.is_peer_gone();
                    drop(half);
                    self.sleep(Sleeper::Sender, may_sleep, until_ns.saturating_sub(now_ns));
                    half = self.lock_send();
                    half.spin.found(monotonic_ns());
                }
            }
        }
    }

    fn receiving<T>(
        &self,
        wait: Wait,
        mut call: impl FnMut(&mut ReceiveHalf) -> Result<T, QPairSocketError>,
    ) -> Result<T, QPairSocketError> {
        let mut half = self.lock_receive();
        let mut now_ns = 0;
        loop {
            let was_gone = self.bells.is_peer_gone();
            match call(&mut half) {
                Err(QPairSocketError::WouldBlock) if was_gone => {
                    return Err(QPairSocketError::Closed);
                }
                Err(QPairSocketError::WouldBlock) => {}
                done => {
                    if let Wait::Until(_) = wait {
                        half.spin.found(if now_ns == 0 { monotonic_ns() } else { now_ns });
                    }
                    return done;
                }
            }
            now_ns = monotonic_ns();
            if self.bells.look_for_end(now_ns) && self.bells.is_peer_gone() {
                continue;
            }
            let until_ns = checked(wait, now_ns)?;
            match next(&mut half.spin, now_ns) {
                Next::Look => std::hint::spin_loop(),
                Next::Yield => {
                    drop(half);
                    rustix::thread::sched_yield();
                    half = self.lock_receive();
                }
                Next::Sleep => {
                    self.bells.begin(Sleeper::Receiver);
                    let may_sleep = half.prepare_sleep() && !self.bells.is_peer_gone();
                    drop(half);
                    self.sleep(Sleeper::Receiver, may_sleep, until_ns.saturating_sub(now_ns));
                    half = self.lock_receive();
                }
            }
        }
    }

    /// Sleeps after an announcement, and ends it.
    fn sleep(&self, sleeper: Sleeper, may_sleep: bool, timeout_ns: u64) {
        let mut has_kick = false;
        if may_sleep {
            self.flush_beside(sleeper);
            has_kick = self.bells.sleep(sleeper, timeout_ns.min(SLEEP_NS));
        }
        self.bells.end(sleeper, has_kick);
    }

    /// Continues a message that a call has left, before a receiver sleeps.
    fn flush_beside(&self, sleeper: Sleeper) {
        if sleeper == Sleeper::Receiver
            && let Ok(mut send) = self.send.try_lock()
        {
            let _ = send.flush(|| self.bells.ring());
        }
    }

    /// Makes a call for a task: registers its waker before it returns pending.
    fn poll_call<T>(
        self: &Arc<Self>,
        context: &Context<'_>,
        mut call: impl FnMut() -> Result<T, QPairSocketError>,
    ) -> Poll<Result<T, QPairSocketError>> {
        loop {
            match call() {
                Err(QPairSocketError::WouldBlock) => {}
                done => return Poll::Ready(done),
            }
            self.add_waker(context.waker());
            // What another task was told before it had this waker, this call finds.
            match call() {
                Err(QPairSocketError::WouldBlock) => {}
                done => return Poll::Ready(done),
            }
            if self.arm(&self.tasks) {
                return match keeper::watch(&**self) {
                    Ok(()) => Poll::Pending,
                    Err(error) => Poll::Ready(Err(error.into())),
                };
            }
            // What there is now is reported once, and may be for another task.
            self.wake_tasks();
        }
    }

    fn add_waker(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().expect("no thread panics under this lock");
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push(waker.clone());
        }
    }
}

/// Returns the time at which a call that found nothing at `now_ns` gives up.
fn checked(wait: Wait, now_ns: u64) -> Result<u64, QPairSocketError> {
    match wait {
        Wait::Never => Err(QPairSocketError::WouldBlock),
        Wait::Until(at_ns) if now_ns >= at_ns => Err(QPairSocketError::TimedOut),
        Wait::Until(at_ns) => Ok(at_ns),
    }
}

fn next(spin: &mut SpinPolicy, now_ns: u64) -> Next {
    spin.nothing(now_ns)
}

impl ServedEnd for Pipe {
    fn fd(&self) -> BorrowedFd<'_> {
        self.bells.watch()
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

    fn serve(&self, _quiet_ns: u64) {
        if let Ok(mut send) = self.send.try_lock()
            && send.has_rest()
        {
            let _ = send.flush(|| self.bells.ring());
        }
    }

    fn is_settled(&self) -> bool {
        self.bells.look_for_end(monotonic_ns());
        self.flush()
    }
}

/// One end of a pipe; closed on drop.
#[derive(Debug)]
pub(crate) struct PipeSocket {
    pipe: Arc<Pipe>,
    watcher: PipeWatcher,
    /// Longest wait of a blocking call in nanoseconds; `u64::MAX`: no limit.
    timeout_ns: AtomicU64,
}

impl PipeSocket {
    pub(crate) fn new(pipe: Arc<Pipe>) -> Self {
        Self { pipe, watcher: PipeWatcher::default(), timeout_ns: AtomicU64::new(u64::MAX) }
    }

    pub(crate) fn pipe(&self) -> &Pipe {
        &self.pipe
    }

    pub(crate) fn wait(&self) -> Wait {
        Wait::at_most_ns(self.timeout_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        let timeout_ns =
            timeout.map_or(u64::MAX, |wait| u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX));
        self.timeout_ns.store(timeout_ns, Ordering::Relaxed);
    }

    pub(crate) fn arm(&self) -> bool {
        self.pipe.arm(&self.watcher)
    }

    pub(crate) fn attend(&self) {
        self.pipe.attend(&self.watcher);
    }

    pub(crate) fn poll_call<T>(
        &self,
        context: &Context<'_>,
        mut call: impl FnMut(&Pipe) -> Result<T, QPairSocketError>,
    ) -> Poll<Result<T, QPairSocketError>> {
        self.pipe.poll_call(context, || call(&self.pipe))
    }
}

impl Drop for PipeSocket {
    /// Waits briefly until what was accepted is in the ring; beyond that the keeper retains the end
    /// for a while. The other side can read the ring after this process has ended.
    fn drop(&mut self) {
        if !self.pipe.process.is_current() {
            return;
        }
        self.pipe.disarm(&self.watcher);
        self.pipe.lock_receive().go_deaf();
        self.pipe.lock_send().has_ended = true;
        let deadline_ns = monotonic_ns() + LINGER_NS;
        while !self.pipe.flush() {
            let now_ns = monotonic_ns();
            if now_ns >= deadline_ns {
                keeper::hold(Arc::clone(&self.pipe) as Arc<dyn ServedEnd>, now_ns + KEEP_NS);
                return;
            }
            self.pipe.bells.begin(Sleeper::Sender);
            let may_sleep = self.pipe.lock_send().prepare_sleep();
            self.pipe.sleep(Sleeper::Sender, may_sleep, deadline_ns - now_ns);
        }
        // A sender on the other side that sleeps for room has none to expect.
        self.pipe.bells.ring();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::RingConfig;

    #[test]
    fn keepers_flush_leaves_room_told() {
        let (ours, theirs) = RingPort::pair(&RingConfig::default()).unwrap();
        let ours = Pipe::new(ours, QPairKind::Messages).unwrap();
        let theirs = Pipe::new(theirs, QPairKind::Messages).unwrap();
        let (message, mut into) = (vec![7; 300_000], vec![0; 300_000]);
        let watcher = PipeWatcher::default();
        for _ in 0..20 {
            // Until a message is refused, beside the rest of one that was accepted.
            while ours.send(Wait::Never, &message).is_ok() {}
            while theirs.recv(Wait::Never, &mut into).is_ok() {}
            // The keeper sends the rest before the program prepares its wait.
            ours.flush();
            assert!(!ours.arm(&watcher), "the refused message has room now");
            while theirs.recv(Wait::Never, &mut into).is_ok() {}
        }
    }
}
