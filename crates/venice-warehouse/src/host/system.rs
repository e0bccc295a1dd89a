//! System calls, and what wakes their callers.

use super::socket::Kind;
use super::thread::{AcceptCall, Call, EpollId, LockId, Return, SocketId, State, ThreadId, Wait};
use super::{Cx, Host};
use crate::journey::{JourneyId, Stage};
use crate::packet::{Datagram, Endpoint};
use crate::part::{Event, Shared};

impl Shared {
    /// Returns the instructions of a call, without what its effect costs.
    pub(super) fn price_of(&self, call: Call) -> u32 {
        let kernel = &self.server.kernel.values;
        let above = match call {
            Call::Exit | Call::Continue | Call::Lock(_) | Call::Unlock(_) => return 0,
            Call::SleepUntil(_) => kernel.timer,
            Call::Connect { .. } => kernel.connect,
            Call::Accept { by: AcceptCall::Accept4, .. } => kernel.accept,
            Call::Accept { by: AcceptCall::Accept, .. } => {
                kernel.accept + kernel.system_call + kernel.file_control
            }
            Call::Send { .. } | Call::SendTo { .. } => kernel.send_call,
            Call::Receive { .. } => kernel.receive_call,
            Call::Watch { .. } => kernel.epoll_control,
            Call::EpollWait { .. } => kernel.epoll_wait,
            Call::Meet(_) => kernel.futex,
            Call::Close(_) => kernel.file_control,
        };
        kernel.system_call + above
    }
}

impl Cx<'_, '_> {
    /// Charges `futex(2)`: a lock is contended.
    fn charge_futex(&mut self) {
        let kernel = &self.shared.server.kernel.values;
        self.charge(kernel.system_call + kernel.futex);
    }
}

impl Host {
    /// A call takes effect. `None`: the thread sleeps, or has ended.
    pub(super) fn perform(
        &mut self,
        thread: ThreadId,
        call: Call,
        cx: &mut Cx<'_, '_>,
    ) -> Option<Return> {
        match call {
            Call::Exit => {
                let state = &mut self.threads[usize::from(thread)];
                state.state = State::Over;
                cx.forget(state.journey.take());
                None
            }
            Call::Continue => Some(Return::Started),
            Call::SleepUntil(at) => self.sleep_until(thread, at, cx),
            Call::SendTo { socket, host, to, bytes, message } => {
                self.copy(bytes, !cx.shared.server.nic.zero_copy, cx);
                cx.charge(cx.shared.server.kernel.values.udp_send);
                let to = Endpoint { host, port: to };
                let journey = self.leave_program(thread, cx);
                self.send_datagram(socket, to, Datagram { bytes, message }, journey, cx);
                Some(Return::Done)
            }
            Call::Receive { socket, most, wait } => self.receive(thread, socket, most, wait, cx),
            Call::Watch { epoll, socket } => {
                let watched = &mut self.sockets[socket as usize];
                watched.watched_by |= 1 << epoll;
                if watched.is_readable() {
                    self.list_ready(epoll, socket, cx);
                }
                Some(Return::Done)
            }
            Call::EpollWait { epoll, most } => self.epoll_wait(thread, epoll, most, cx),
            Call::Lock(lock) => self.lock(thread, lock, cx),
            Call::Unlock(lock) => self.unlock(lock, cx),
            Call::Meet(barrier) => self.meet(thread, barrier, cx),
            Call::Connect { host, listener } => self.connect(thread, host, listener, cx),
            Call::Accept { listener, wait, .. } => self.accept(thread, listener, wait, cx),
            Call::Send { socket, bytes, message } => self.send(thread, socket, bytes, message, cx),
            Call::Close(socket) => {
                self.close(socket, cx);
                Some(Return::Done)
            }
        }
    }

    /// The request that a thread works on leaves with what it sends.
    pub(super) fn leave_program(
        &mut self,
        thread: ThreadId,
        cx: &mut Cx<'_, '_>,
    ) -> Option<JourneyId> {
        let journey = self.threads[usize::from(thread)].journey.take();
        if let Some(id) = journey {
            let now = cx.time();
            cx.journeys.get_mut(id).leave_program(now);
        }
        journey
    }

    /// A thread has a request.
    fn reach_program(&mut self, thread: ThreadId, journey: JourneyId, cx: &mut Cx<'_, '_>) {
        cx.end_stage(Some(journey), Stage::WakeUp);
        cx.journeys.get_mut(journey).turn();
        cx.forget(self.threads[usize::from(thread)].journey.replace(journey));
    }

    /// Puts a thread to sleep: its call is performed again when it is awake.
    pub(super) fn sleep(&mut self, thread: ThreadId) -> Option<Return> {
        self.threads[usize::from(thread)].state = State::Asleep;
        None
    }

    fn sleep_until(&mut self, thread: ThreadId, at: u64, cx: &mut Cx<'_, '_>) -> Option<Return> {
        if at <= cx.now {
            return Some(Return::Done);
        }
        self.set_thread_timer(thread, at, cx);
        self.sleep(thread)
    }

    /// Wakes a thread at a time, or as late as the slack of timers allows.
    fn set_thread_timer(&mut self, thread: ThreadId, at: u64, cx: &mut Cx<'_, '_>) {
        let at = at.saturating_add(cx.shared.server.kernel.values.timer_slack.0);
        self.threads[usize::from(thread)].wakes_at = at;
        cx.send_at(at, Event::ThreadTimer { thread });
    }

    /// The time has come until which a thread sleeps.
    pub(super) fn thread_timer(&mut self, thread: ThreadId, cx: &mut Cx<'_, '_>) {
        let state = &self.threads[usize::from(thread)];
        if state.state != State::Asleep || state.wakes_at != cx.now {
            return;
        }
        if let Call::Receive { socket, .. } = state.call {
            self.sockets[socket as usize].readers.take(|reader| *reader == thread);
        }
        self.wake(thread, cx);
    }

    /// Charges the copy of bytes between kernel and program.
    pub(super) fn copy(&self, bytes: u32, is_copied: bool, cx: &mut Cx<'_, '_>) {
        if is_copied {
            let price = u64::from(cx.shared.server.kernel.values.copy_kilobyte);
            cx.charge((u64::from(bytes) * price / 1000) as u32);
        }
    }

    fn receive(
        &mut self,
        thread: ThreadId,
        socket: SocketId,
        most: u32,
        wait: Wait,
        cx: &mut Cx<'_, '_>,
    ) -> Option<Return> {
        let buffers = &cx.shared.server.kernel.values.sockets;
        let mut journey = None;
        let received = match &mut self.sockets[socket as usize].kind {
            Kind::Udp(udp) => udp.pop(buffers).map(|waiting| {
                journey = waiting.journey;
                Return::Received {
                    bytes: waiting.datagram.bytes,
                    message: Some(waiting.datagram.message),
                    from: (waiting.from.host, waiting.from.port),
                }
            }),
            Kind::Tcp(_) => self.read(socket, most, &mut journey, cx),
            Kind::Listener(_) | Kind::Closed => Some(Return::Closed),
        };
        match received {
            None => self.wait_to_read(thread, socket, wait, cx),
            Some(received) => {
                if let Return::Received { bytes, .. } = received {
                    self.copy(bytes, true, cx);
                }
                if let Some(journey) = journey {
                    self.reach_program(thread, journey, cx);
                }
                Some(received)
            }
        }
    }

    /// There is nothing to read: the thread waits, or its call returns.
    pub(super) fn wait_to_read(
        &mut self,
        thread: ThreadId,
        socket: SocketId,
        wait: Wait,
        cx: &mut Cx<'_, '_>,
    ) -> Option<Return> {
        match wait {
            Wait::Return => return Some(Return::WouldBlock),
            Wait::Until(at) if at <= cx.now => return Some(Return::TimedOut),
            Wait::Until(at) => self.set_thread_timer(thread, at, cx),
            Wait::Block => {}
        }
        self.sockets[socket as usize].readers.push(thread);
        self.sleep(thread)
    }

    /// Wakes those that wait for something to read on a socket.
    pub(super) fn wake_readers(&mut self, socket: SocketId, cx: &mut Cx<'_, '_>) {
        let state = &mut self.sockets[socket as usize];
        if let Some(thread) = state.readers.pop() {
            return self.wake(thread, cx);
        }
        let mut unlisted = state.watched_by & !state.listed_by;
        while unlisted != 0 {
            self.list_ready(unlisted.trailing_zeros() as EpollId, socket, cx);
            unlisted &= unlisted - 1;
        }
    }

    /// Puts a socket into the list of an epoll instance, and wakes a thread that waits for it.
    fn list_ready(&mut self, epoll: EpollId, socket: SocketId, cx: &mut Cx<'_, '_>) {
        self.sockets[socket as usize].listed_by |= 1 << epoll;
        let state = &mut self.epolls[usize::from(epoll)];
        state.ready.push_back(socket);
        if let Some(thread) = state.sleepers.pop_front() {
            self.wake(thread, cx);
        }
    }

    fn epoll_wait(
        &mut self,
        thread: ThreadId,
        epoll: EpollId,
        most: u16,
        cx: &mut Cx<'_, '_>,
    ) -> Option<Return> {
        let state = &mut self.epolls[usize::from(epoll)];
        self.ready.clear();
        for _ in 0..state.ready.len() {
            if self.ready.len() == usize::from(most) {
                break;
            }
            let socket = state.ready.pop_front().expect("counted");
            let watched = &mut self.sockets[socket as usize];
            if watched.is_readable() {
                self.ready.push(socket);
                // Level-triggered: it stays listed as long as it is ready.
                state.ready.push_back(socket);
            } else {
                watched.listed_by &= !(1 << epoll);
            }
        }
        if self.ready.is_empty() {
            state.sleepers.push_back(thread);
            return self.sleep(thread);
        }
        cx.charge(cx.shared.server.kernel.values.epoll_ready * self.ready.len() as u32);
        Some(Return::Ready)
    }

    fn lock(&mut self, thread: ThreadId, lock: LockId, cx: &mut Cx<'_, '_>) -> Option<Return> {
        let state = &mut self.locks[usize::from(lock)];
        match state.owner {
            None => state.owner = Some(thread),
            Some(owner) if owner == thread => {}
            Some(_) => {
                state.waiting.push_back(thread);
                cx.charge_futex();
                return self.sleep(thread);
            }
        }
        Some(Return::Done)
    }

    /// Gives the lock to the next thread that waits.
    fn unlock(&mut self, lock: LockId, cx: &mut Cx<'_, '_>) -> Option<Return> {
        let state = &mut self.locks[usize::from(lock)];
        state.owner = state.waiting.pop_front();
        if let Some(next) = state.owner {
            cx.charge_futex();
            self.wake(next, cx);
        }
        Some(Return::Done)
    }

    /// Lets all threads pass a barrier when the last one comes.
    fn meet(&mut self, thread: ThreadId, barrier: LockId, cx: &mut Cx<'_, '_>) -> Option<Return> {
        if std::mem::take(&mut self.threads[usize::from(thread)].has_met) {
            return Some(Return::Done);
        }
        let state = &mut self.locks[usize::from(barrier)];
        if state.waiting.len() + 1 < usize::from(state.parties) {
            state.waiting.push_back(thread);
            return self.sleep(thread);
        }
        while let Some(other) = self.locks[usize::from(barrier)].waiting.pop_front() {
            self.threads[usize::from(other)].has_met = true;
            self.wake(other, cx);
        }
        Some(Return::Done)
    }
}
