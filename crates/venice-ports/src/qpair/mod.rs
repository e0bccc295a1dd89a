//! QPairs as sockets: messages ([`QPairMessages`]) and byte streams ([`QPairStream`]) between two
//! programs, in order, each byte once, and never more than the reader has room for.
//!
//! A [`QPairListener`] listens on a unix socket's path (frames then travel through shared memory,
//! [`crate::ring`]) or on a UDP address; [`QPairAddress`] names either. All calls come in three
//! kinds: blocking with a time-out, `try_` with a descriptor to poll, and futures that any executor
//! can run.
//!
//! One thread serves the links of a process. In a forked child the sockets of its parent are dead:
//! every call returns [`PortError::Forked`], and dropping one closes nothing. Sockets that the
//! child makes itself work, and are served by a thread of the child.
//!
//! ```no_run
//! use venice_ports::qpair::{QPairAddress, QPairListener, QPairMessages, QPairOptions};
//!
//! let address = QPairAddress::ring("/tmp/talk.sock");
//! let listener = QPairListener::bind(&address, 7)?;
//! # std::thread::spawn(move || {
//! let theirs = listener.accept_messages(None)?;
//! let mut buffer = [0; 4096];
//! let len = theirs.recv(&mut buffer)?;
//! theirs.send(&buffer[..len])?;
//! # Ok::<(), venice_ports::qpair::QPairSocketError>(()) });
//!
//! let ours = QPairMessages::connect(&address, 7, &QPairOptions::default())?;
//! ours.send(b"hello")?;
//! assert_eq!(ours.recv(&mut [0; 64])?, 5);
//! # Ok::<(), venice_ports::qpair::QPairSocketError>(())
//! ```
//!
//! Tasks use `send_async`, `recv_async`, `read_async` and `write_async` directly: a thread of this
//! module wakes them, which makes a reactor unnecessary. A future dropped half-way has taken and
//! sent nothing. Connecting and accepting block; they belong in an executor's pool for blocking
//! calls. With tokio:
//!
//! ```
//! use venice_ports::qpair::{QPairAddress, QPairListener, QPairMessages, QPairOptions};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("talk.sock");
//! # tokio::runtime::Builder::new_multi_thread().build()?.block_on(async {
//! let address = QPairAddress::ring(path);
//! let listener = QPairListener::bind(&address, 7)?;
//! let accepting = tokio::task::spawn_blocking(move || listener.accept_messages(None));
//! let connect = move || QPairMessages::connect(&address, 7, &QPairOptions::default());
//! let mut ours = tokio::task::spawn_blocking(connect).await??;
//! let mut theirs = accepting.await??;
//!
//! tokio::spawn(async move { ours.send_async(b"hello").await });
//! assert_eq!(theirs.recv_async(&mut [0; 64]).await?, 5);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! # })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connect;
mod end;
mod keeper;
mod landing;
mod link;
mod listener;
mod messages;
mod pipe;
mod shared;
mod socket;
mod stream;
mod streams;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use venice_fabric::adaptive::StreamError;
use venice_fabric::{LinkModel, QPairError};

pub use venice_fabric::{CreditMode, EndConfig};

pub(crate) use self::connect::{Depth, connect};
pub use self::listener::QPairListener;
pub use self::messages::QPairMessages;
pub(crate) use self::shared::Wait;
pub(crate) use self::socket::{Socket, waiting_calls};
pub use self::stream::QPairStream;
use crate::PortError;
use crate::ring::RingConfig;
use crate::seal::{SealKeys, SealedAs};

/// Time to connect if the options give none.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Address of a listener.
#[derive(Clone, Debug)]
pub enum QPairAddress {
    /// On this host: through shared memory, set up over a unix socket at `path`.
    Ring {
        /// The socket's path.
        path: PathBuf,
        /// Configuration of the rings that the listener makes.
        config: RingConfig,
    },
    /// On any host: in datagrams.
    Udp {
        /// The listener's address.
        address: SocketAddr,
        /// Protection of datagrams. `None`: plain datagrams, which any host on the route can read
        /// and forge.
        seal: Option<QPairSeal>,
    },
}

/// Protection of datagrams: a listener holds keys, a caller holds one.
#[derive(Clone)]
pub enum QPairSeal {
    /// Keys of a listener.
    Keys(Arc<dyn SealKeys + Send + Sync>),
    /// Key of a caller.
    As(SealedAs),
}

impl std::fmt::Debug for QPairSeal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("QPairSeal")
    }
}

impl QPairAddress {
    /// Returns the address of a listener on this host.
    pub fn ring(path: impl Into<PathBuf>) -> Self {
        Self::Ring { path: path.into(), config: RingConfig::default() }
    }

    /// Returns the address of a listener on this host, behind an emulated link.
    pub fn emulated(path: impl Into<PathBuf>, link: LinkModel) -> Self {
        let config = RingConfig { link: Some(link), ..RingConfig::default() };
        Self::Ring { path: path.into(), config }
    }

    /// Returns the address of a listener on any host, without protection.
    pub fn plain_udp(address: SocketAddr) -> Self {
        Self::Udp { address, seal: None }
    }
}

/// Options of a socket.
#[derive(Clone, Copy, Debug, Default)]
pub struct QPairOptions {
    /// Buffers and credits of this end.
    pub end: EndConfig,
    /// Transport of credits, in both directions; the connecting end decides.
    pub credit: CreditMode,
    /// Longest time to connect; `None`: ten seconds.
    pub connect_timeout: Option<Duration>,
}

impl QPairOptions {
    /// Returns the wait of an attempt to connect that begins now.
    pub(crate) fn connect_until(&self) -> Wait {
        let timeout_ns = u64::try_from(self.connect_timeout().as_nanos()).unwrap_or(u64::MAX);
        Wait::at_most_ns(timeout_ns)
    }

    fn connect_timeout(&self) -> Duration {
        self.connect_timeout.unwrap_or(CONNECT_TIMEOUT)
    }
}

/// Error of a call on a QPair socket or an adaptive stream.
#[derive(Debug, thiserror::Error)]
pub enum QPairSocketError {
    /// The QPair failed.
    #[error(transparent)]
    QPair(QPairError),
    /// The adaptive stream failed.
    #[error(transparent)]
    Stream(StreamError),
    /// The port cannot be made, or has failed.
    #[error(transparent)]
    Port(#[from] PortError),
    /// The other side is gone without a goodbye message.
    #[error("the other side is gone")]
    Closed,
    /// The call did not complete within its time-out.
    #[error("timed out")]
    TimedOut,
    /// The call would block: wait for the descriptor.
    #[error("operation would block: wait for the descriptor")]
    WouldBlock,
    /// The address is for the other side: a key where a listener needs keys, or the reverse.
    #[error("wrong kind of seal: a listener takes keys, a caller one key")]
    WrongSeal,
}

impl From<QPairError> for QPairSocketError {
    fn from(error: QPairError) -> Self {
        match error {
            QPairError::WouldBlock => Self::WouldBlock,
            error => Self::QPair(error),
        }
    }
}

impl From<StreamError> for QPairSocketError {
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::WouldBlock => Self::WouldBlock,
            error => Self::Stream(error),
        }
    }
}

impl From<QPairSocketError> for std::io::Error {
    fn from(error: QPairSocketError) -> Self {
        use std::io::ErrorKind;
        let kind = match &error {
            QPairSocketError::WouldBlock => ErrorKind::WouldBlock,
            QPairSocketError::TimedOut => ErrorKind::TimedOut,
            QPairSocketError::Closed => ErrorKind::ConnectionReset,
            QPairSocketError::QPair(QPairError::Closed(_) | QPairError::Ended)
            | QPairSocketError::Stream(StreamError::Closed(_) | StreamError::Ended) => {
                ErrorKind::BrokenPipe
            }
            QPairSocketError::WrongSeal => ErrorKind::InvalidInput,
            QPairSocketError::QPair(_)
            | QPairSocketError::Stream(_)
            | QPairSocketError::Port(_) => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}
