//! Parts common to all sockets.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use venice_fabric::QPairId;

use super::QPairSocketError;
use super::pipe::PipeSocket;
use super::shared::{Shared, Wait, Watcher};

/// One end of a QPair; closed on drop.
#[derive(Debug)]
pub(crate) struct Socket {
    pub(crate) shared: Arc<Shared>,
    pub(crate) id: QPairId,
    /// Longest wait of a blocking call in nanoseconds; `u64::MAX`: no limit.
    timeout_ns: AtomicU64,
    pub(crate) watcher: Watcher,
}

impl Socket {
    pub(super) fn new(shared: Arc<Shared>, id: QPairId) -> Self {
        let timeout_ns = AtomicU64::new(u64::MAX);
        Self { shared, id, timeout_ns, watcher: Watcher::default() }
    }

    pub(crate) fn wait(&self) -> Wait {
        Wait::at_most_ns(self.timeout_ns.load(Ordering::Relaxed))
    }

    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) {
        let timeout_ns =
            timeout.map(|timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        self.timeout_ns.store(timeout_ns.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub(super) fn shutdown(&self) -> Result<(), QPairSocketError> {
        let id = self.id;
        self.shared.call(self.wait(), |end, _| Ok(end.qpairs().shutdown(id)?))?;
        self.shared.push();
        Ok(())
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    pub(crate) fn arm(&self) -> bool {
        self.shared.arm(&self.watcher)
    }

    pub(crate) fn attend(&self) {
        self.shared.attend(&self.watcher);
    }
}

/// Socket of messages or a stream: by frames, or through a pipe.
#[derive(Debug)]
pub(super) enum QPairSocket {
    Framed(Socket),
    Piped(PipeSocket),
}

impl QPairSocket {
    pub(super) fn set_timeout(&self, timeout: Option<Duration>) {
        match self {
            Self::Framed(socket) => socket.set_timeout(timeout),
            Self::Piped(socket) => socket.set_timeout(timeout),
        }
    }

    pub(super) fn wait(&self) -> Wait {
        match self {
            Self::Framed(socket) => socket.wait(),
            Self::Piped(socket) => socket.wait(),
        }
    }

    pub(super) fn shutdown(&self) -> Result<(), QPairSocketError> {
        match self {
            Self::Framed(socket) => socket.shutdown(),
            Self::Piped(socket) => socket.pipe().shutdown(),
        }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Framed(socket) => socket.fd(),
            Self::Piped(socket) => socket.pipe().fd(),
        }
    }

    pub(super) fn arm(&self) -> bool {
        match self {
            Self::Framed(socket) => socket.arm(),
            Self::Piped(socket) => socket.arm(),
        }
    }

    pub(super) fn attend(&self) {
        match self {
            Self::Framed(socket) => socket.attend(),
            Self::Piped(socket) => socket.attend(),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.shared.close(self.id, &self.watcher);
    }
}

/// Calls for waiting and polling, for every kind of socket.
macro_rules! waiting_calls {
    ($socket:ident) => {
        impl $socket {
            /// Sets the longest wait of a blocking call; `None`, the initial value: no limit.
            pub fn set_timeout(&self, timeout: Option<std::time::Duration>) {
                self.socket.set_timeout(timeout);
            }

            /// Returns a descriptor to poll for input: first [`Self::arm`], then poll, then
            /// [`Self::attend`], then `try_` again. It becomes readable when anything changes.
            ///
            /// All sockets that one UDP listener accepted have the same descriptor, because they
            /// share one end of a link. Every arrival wakes each of them: no socket consumes the
            /// readiness, which lasts until every armed socket has attended. Poll by level, not by
            /// edge; expect wake-ups caused by another socket. Where a descriptor can be registered
            /// only once, as with one epoll (`EEXIST`), register a duplicate for each socket, and
            /// close it with the socket. Futures need none of this.
            pub fn fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.socket.fd()
            }

            /// Prepares to poll [`Self::fd`]. `false`: do not wait, something has come in since the
            /// last call of this or of [`Self::attend`]; try again first.
            pub fn arm(&self) -> bool {
                self.socket.arm()
            }

            /// Ends a wait, after [`Self::fd`] was readable or the wait was cancelled: until then
            /// it stays readable for the other sockets of this address.
            pub fn attend(&self) {
                self.socket.attend();
            }
        }

        impl std::os::fd::AsFd for $socket {
            fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
                self.socket.fd()
            }
        }

        impl std::os::fd::AsRawFd for $socket {
            fn as_raw_fd(&self) -> std::os::fd::RawFd {
                self.socket.fd().as_raw_fd()
            }
        }
    };
}
pub(crate) use waiting_calls;

/// Calls that messages and streams share under the same names.
macro_rules! common_calls {
    ($socket:ident) => {
        crate::qpair::waiting_calls!($socket);

        impl $socket {
            /// Ends the sending: the other side gets all sent bytes, then the end. Receiving
            /// continues.
            ///
            /// # Errors
            /// Fails if the QPair is closed.
            pub fn shutdown(&self) -> Result<(), QPairSocketError> {
                self.socket.shutdown()
            }
        }
    };
}
pub(super) use common_calls;
