//! Threads of programs, and what they ask of the system.

use serde::{Deserialize, Serialize};

use crate::application::Program;
use crate::journey::JourneyId;
use crate::packet::Host;
use venice_simkernel::random::Stream;

/// The number of a thread in its host.
pub type ThreadId = u16;
/// The number of a socket in its host.
pub type SocketId = u32;
/// The number of an epoll instance in its host, below 64.
pub type EpollId = u8;
/// The number of a lock in its host.
pub type LockId = u16;

/// Work of a program between two calls, and the next call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    /// Instructions of the program before the call.
    pub instructions: u32,
    /// The call.
    pub call: Call,
}

impl Step {
    /// A call after some instructions.
    pub fn after(instructions: u32, call: Call) -> Self {
        Self { instructions, call }
    }
}

/// Behaviour of a call that finds nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wait {
    /// The thread sleeps until there is something.
    Block,
    /// The same, but until this time at the latest: then it returns [`Return::TimedOut`].
    Until(u64),
    /// The call returns [`Return::WouldBlock`].
    Return,
}

/// The calls that make a connection out of a waiting one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AcceptCall {
    /// `accept(2)`: a second call makes the descriptor non-blocking.
    Accept,
    /// `accept4(2)`.
    Accept4,
}

/// A system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// The thread ends.
    Exit,
    /// The thread gives the core to others that wait, if there are any; it costs nothing.
    Continue,
    /// The thread sleeps until this time, in picoseconds.
    SleepUntil(u64),
    /// Opens a connection to a listening socket of another host, and waits until it is open.
    Connect {
        /// The other host.
        host: Host,
        /// Its listening socket.
        listener: SocketId,
    },
    /// Takes a connection that waits.
    Accept {
        /// The listening socket.
        listener: SocketId,
        /// The call.
        by: AcceptCall,
        /// Its behaviour if none waits.
        wait: Wait,
    },
    /// Sends a message on a connection; waits while its buffer is full.
    Send {
        /// The connection.
        socket: SocketId,
        /// Bytes of the message.
        bytes: u32,
        /// Its content.
        message: u64,
    },
    /// Sends a datagram.
    SendTo {
        /// The socket.
        socket: SocketId,
        /// The other host.
        host: Host,
        /// Its socket.
        to: SocketId,
        /// Bytes of the datagram.
        bytes: u32,
        /// Its content.
        message: u64,
    },
    /// Receives a datagram, or bytes of a connection.
    Receive {
        /// The socket.
        socket: SocketId,
        /// Most bytes of a connection.
        most: u32,
        /// Its behaviour if there is nothing.
        wait: Wait,
    },
    /// Adds a socket to those that an epoll instance watches.
    Watch {
        /// The instance.
        epoll: EpollId,
        /// The socket.
        socket: SocketId,
    },
    /// Waits until a watched socket is ready.
    EpollWait {
        /// The instance.
        epoll: EpollId,
        /// Most sockets that it returns.
        most: u16,
    },
    /// Takes a lock.
    Lock(LockId),
    /// Gives a lock back.
    Unlock(LockId),
    /// Waits until as many threads as the lock's number of parties are here
    /// (`pthread_barrier_wait(3)`).
    Meet(LockId),
    /// Closes a connection.
    Close(SocketId),
}

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Return {
    /// The thread begins; it has made no call.
    Started,
    /// The call is done.
    Done,
    /// The connection that was opened or accepted.
    Socket(SocketId),
    /// Bytes were received.
    Received {
        /// Their number.
        bytes: u32,
        /// The message that ends with them, if one does.
        message: Option<u64>,
        /// The sender of a datagram, with its socket; of a connection its other end.
        from: (Host, SocketId),
    },
    /// There was nothing.
    WouldBlock,
    /// There was nothing for long.
    TimedOut,
    /// Sockets are ready: they are in the environment.
    Ready,
    /// The other end has closed the connection, or it has failed.
    Closed,
}

/// The state of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum State {
    /// It has a core, or waits for one; `left` is the time that its step still needs.
    Ready { left: u64 },
    /// Its call waits.
    Asleep,
    /// It has ended.
    Over,
}

/// A thread of a host.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Thread {
    pub program: Program,
    pub random: Stream,
    /// The call at the end of its present step.
    pub call: Call,
    pub state: State,
    /// The core on which it last ran.
    pub core: u16,
    /// The time until which it sleeps, if its call says so.
    pub wakes_at: u64,
    /// It has passed the barrier at which it waited.
    pub has_met: bool,
    /// The connection that its call opens.
    pub opening: Option<SocketId>,
    /// Bytes of its call that have been written.
    pub written: u32,
    /// The request that it works on.
    pub journey: Option<JourneyId>,
}
