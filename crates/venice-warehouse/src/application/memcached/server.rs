//! A server: a thread that accepts, and workers that answer.

use serde::{Deserialize, Serialize};

use super::message::{DATAGRAM_BYTES, FRAME_BYTES, Request};
use super::{Memcached, SERVICE, Transport};
use crate::application::{Environment, Resume};
use crate::host::thread::{AcceptCall, Call, EpollId, LockId, Return, SocketId, Step, Wait};
use crate::packet::Host;

/// Instructions of the event loop (libevent) for each event.
const EVENT_LOOP: u32 = 400;
/// Sockets that one `epoll_wait` returns (libevent: 32 at first).
const MOST_READY: u16 = 32;
/// Requests of one connection in a row (memcached's default: 20).
const MOST_REQUESTS: u32 = 20;

/// The state of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum State {
    Waiting,
    Receiving,
    Locking,
    Unlocking,
    Sending,
}

/// A thread that answers the requests of its sockets.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemcachedWorker {
    transport: Transport,
    instructions: u32,
    locked_instructions: u32,
    epoll: EpollId,
    lock: LockId,
    state: State,
    ready: Vec<SocketId>,
    /// The socket it serves, and requests of it in a row.
    socket: SocketId,
    requests: u32,
    from: (Host, SocketId),
    request: u64,
    left: u32,
}

impl MemcachedWorker {
    pub(super) fn new(config: &Memcached, epoll: EpollId, lock: LockId) -> Self {
        Self {
            transport: config.transport,
            instructions: config.server_instructions,
            locked_instructions: config.locked_instructions,
            epoll,
            lock,
            state: State::Waiting,
            ready: Vec::new(),
            socket: SERVICE,
            requests: 0,
            from: (0, 0),
            request: 0,
            left: 0,
        }
    }

    fn next_socket(&mut self) -> Step {
        match self.ready.pop() {
            Some(socket) => {
                (self.socket, self.requests) = (socket, 0);
                self.receive(EVENT_LOOP)
            }
            None => {
                self.state = State::Waiting;
                let (epoll, most) = (self.epoll, MOST_READY);
                Step::after(EVENT_LOOP, Call::EpollWait { epoll, most })
            }
        }
    }

    fn receive(&mut self, after: u32) -> Step {
        self.state = State::Receiving;
        let (socket, most) = (self.socket, 2048);
        Step::after(after, Call::Receive { socket, most, wait: Wait::Return })
    }

    fn work(&mut self, message: u64) -> Step {
        self.request = message;
        self.left = Request::unpack(message).answer_bytes();
        self.requests += 1;
        if self.locked_instructions == 0 {
            return self.send(self.instructions);
        }
        self.state = State::Locking;
        let before = self.instructions.saturating_sub(self.locked_instructions);
        Step::after(before, Call::Lock(self.lock))
    }

    /// Sends the next datagram of the answer, or all of it on a connection.
    fn send(&mut self, after: u32) -> Step {
        self.state = State::Sending;
        let (socket, message) = (self.socket, self.request);
        let call = match self.transport {
            Transport::Tcp => {
                let bytes = std::mem::take(&mut self.left);
                Call::Send { socket, bytes, message }
            }
            Transport::Udp => {
                let bytes = self.left.min(DATAGRAM_BYTES - FRAME_BYTES);
                self.left -= bytes;
                let (host, to) = self.from;
                Call::SendTo { socket, host, to, bytes: bytes + FRAME_BYTES, message }
            }
        };
        Step::after(after, call)
    }
}

impl Resume for MemcachedWorker {
    fn resume(&mut self, returned: Return, environment: &mut Environment<'_>) -> Step {
        match (self.state, returned) {
            (_, Return::Ready) => {
                self.ready.clear();
                self.ready.extend(environment.ready.iter().rev());
                self.next_socket()
            }
            (State::Receiving, Return::Received { message: Some(message), from, .. }) => {
                self.from = from;
                self.work(message)
            }
            (State::Receiving, Return::Received { message: None, .. }) => self.receive(0),
            (_, Return::Closed) => {
                self.state = State::Waiting;
                Step::after(EVENT_LOOP, Call::Close(self.socket))
            }
            (State::Locking, _) => {
                self.state = State::Unlocking;
                Step::after(self.locked_instructions, Call::Unlock(self.lock))
            }
            (State::Unlocking, _) => self.send(0),
            (State::Sending, _) if self.left > 0 => self.send(0),
            (State::Sending, _) if self.requests < MOST_REQUESTS => self.receive(0),
            (State::Sending | State::Receiving | State::Waiting, _) => self.next_socket(),
        }
    }
}

/// The thread that accepts connections and deals them to the workers in turn.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MemcachedListener {
    epoll: EpollId,
    by: AcceptCall,
    workers: u16,
    next: u16,
}

/// Instructions to hand a connection to a worker: a queue under a lock, and a byte through a pipe
/// (`thread.c`: `dispatch_conn_new`).
const DISPATCH: u32 = 3_000;

impl MemcachedListener {
    pub(super) fn new(epoll: EpollId, by: AcceptCall, workers: u16) -> Self {
        Self { epoll, by, workers, next: 0 }
    }
}

impl Resume for MemcachedListener {
    fn resume(&mut self, returned: Return, _: &mut Environment<'_>) -> Step {
        let accept = Call::Accept { listener: SERVICE, by: self.by, wait: Wait::Return };
        match returned {
            // The workers' epoll instances have the first numbers.
            Return::Socket(socket) => {
                let epoll = (self.next % self.workers) as EpollId;
                self.next = (self.next + 1) % self.workers;
                Step::after(DISPATCH, Call::Watch { epoll, socket })
            }
            Return::Ready | Return::Done => Step::after(EVENT_LOOP, accept),
            Return::Started
            | Return::WouldBlock
            | Return::TimedOut
            | Return::Closed
            | Return::Received { .. } => {
                Step::after(EVENT_LOOP, Call::EpollWait { epoll: self.epoll, most: MOST_READY })
            }
        }
    }
}
