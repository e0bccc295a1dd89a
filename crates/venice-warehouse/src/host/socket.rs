//! Sockets, and the epoll instances that watch them.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use venice_tcp::{Connection, State};

use super::config::SocketBuffers;
use super::thread::{SocketId, ThreadId};
use crate::few::Few;
use crate::journey::JourneyId;
use crate::packet::{Datagram, Endpoint};

/// A socket.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Socket {
    pub kind: Kind,
    /// Epoll instances that watch it, and those in whose list of ready sockets it is: a bit each.
    pub watched_by: u64,
    pub listed_by: u64,
    /// Threads that wait for something to read.
    pub readers: Few<ThreadId>,
}

/// The kinds of sockets.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[expect(clippy::large_enum_variant, reason = "a world of connections has them in few pages")]
pub(super) enum Kind {
    Udp(Udp),
    Listener(Listener),
    Tcp(Tcp),
    /// Its number may be used again.
    Closed,
}

/// A socket that takes connections.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Listener {
    /// Connections that are being opened, by their other end.
    pub opening: Vec<(Endpoint, SocketId)>,
    /// Open connections that wait to be accepted.
    pub waiting: VecDeque<SocketId>,
}

/// One end of a connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Tcp {
    pub connection: Connection,
    /// The other end. Before it has answered, its listening socket.
    pub peer: Endpoint,
    /// The listening socket that waits for it to be open.
    pub opened_by: Option<SocketId>,
    /// A thread that waits until it is open, or for room to write.
    pub writer: Option<ThreadId>,
    /// The time of the timer that is set, `u64::MAX` if none is; others that come are void.
    pub timer: u64,
    /// The timer is due, and waits for its core.
    pub is_due: bool,
    /// It was opened by a listening socket.
    pub is_server: bool,
    /// The program has closed it.
    pub is_closed: bool,
    /// Requests whose messages it sends, and those whose messages have come.
    pub followed: Few<Followed>,
}

/// A request that is followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Followed {
    pub message: u64,
    pub journey: JourneyId,
    pub has_come: bool,
}

impl Tcp {
    pub fn new(connection: Connection, peer: Endpoint, opened_by: Option<SocketId>) -> Self {
        Self {
            connection,
            peer,
            opened_by,
            writer: None,
            timer: u64::MAX,
            is_due: false,
            is_server: opened_by.is_some(),
            is_closed: false,
            followed: Few::default(),
        }
    }

    /// True if nothing more comes.
    pub fn has_ended(&self) -> bool {
        match self.connection.state() {
            State::SynSent
            | State::SynReceived
            | State::Established
            | State::FinWait1
            | State::FinWait2 => false,
            State::CloseWait
            | State::Closing
            | State::LastAck
            | State::TimeWait
            | State::Closed => true,
        }
    }

    /// True if a call that receives returns at once.
    fn is_readable(&self) -> bool {
        self.connection.readable() > 0 || self.connection.has_message() || self.has_ended()
    }
}

/// Datagrams that wait to be read.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Udp {
    waiting: VecDeque<Waiting>,
    bytes: u64,
}

/// A datagram that waits to be read.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Waiting {
    pub from: Endpoint,
    pub datagram: Datagram,
    pub journey: Option<JourneyId>,
}

impl Socket {
    pub fn new(kind: Kind) -> Self {
        Self { kind, watched_by: 0, listed_by: 0, readers: Few::default() }
    }

    /// True if a call that receives finds something.
    pub fn is_readable(&self) -> bool {
        match &self.kind {
            Kind::Udp(udp) => !udp.waiting.is_empty(),
            Kind::Listener(listener) => !listener.waiting.is_empty(),
            Kind::Tcp(tcp) => tcp.is_readable(),
            Kind::Closed => false,
        }
    }
}

impl Udp {
    /// Keeps a datagram; `false`: the buffer is full.
    pub fn push(
        &mut self,
        from: Endpoint,
        datagram: Datagram,
        journey: Option<JourneyId>,
        buffers: &SocketBuffers,
    ) -> bool {
        let bytes = u64::from(datagram.bytes) + buffers.datagram_overhead.0;
        // As Linux does, a buffer takes a last datagram that exceeds it.
        if self.bytes >= buffers.receive.0 {
            return false;
        }
        self.bytes += bytes;
        self.waiting.push_back(Waiting { from, datagram, journey });
        true
    }

    /// Returns the followed requests of the datagrams.
    pub fn journeys(&mut self) -> impl Iterator<Item = &mut Option<JourneyId>> {
        self.waiting.iter_mut().map(|waiting| &mut waiting.journey)
    }

    /// Takes the next datagram.
    pub fn pop(&mut self, buffers: &SocketBuffers) -> Option<Waiting> {
        let waiting = self.waiting.pop_front()?;
        self.bytes -= u64::from(waiting.datagram.bytes) + buffers.datagram_overhead.0;
        Some(waiting)
    }
}

/// An epoll instance, level-triggered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Epoll {
    /// Sockets that were ready when they were put here.
    pub ready: VecDeque<SocketId>,
    /// Threads that wait, the first one first.
    pub sleepers: VecDeque<ThreadId>,
}
