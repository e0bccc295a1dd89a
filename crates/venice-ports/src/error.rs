//! What can go wrong at a port.

use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::io::Errno;

/// Why a port cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A system call failed.
    #[error("{step} failed")]
    System {
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        source: Errno,
    },
    /// The path does not fit into a unix socket address.
    #[error("{} cannot be a socket: its path is too long (107 bytes at most)", path.display())]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// Another living process listens on the socket.
    #[error("{} is in use: another agent listens there", path.display())]
    SocketInUse {
        /// The path.
        path: PathBuf,
    },
    /// Something that is not a socket is in the way.
    #[error("{} exists and is not a socket: move it away", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket could not be made or listened on.
    #[error("cannot listen on {}", path.display())]
    Listen {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// No donor answers on the socket.
    #[error("no agent answers on {}", path.display())]
    NoAgent {
        /// The path.
        path: PathBuf,
        /// What the kernel said.
        source: Errno,
    },
    /// The donor closed the connection, or died.
    #[error("the donor closed the connection")]
    Closed,
    /// The donor would not hand out the slabs of a grant.
    #[error("the donor refuses: {reason}")]
    Refused {
        /// In the donor's words.
        reason: String,
    },
    /// The other side does not speak this protocol.
    #[error("the donor's answer makes no sense: {what}")]
    Protocol {
        /// What is wrong with it.
        what: &'static str,
    },
    /// A UDP address cannot be used.
    #[error("cannot use the UDP address {address}")]
    UdpAddress {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: Errno,
    },
}

impl PortError {
    /// For `map_err`: a system call failed at `step`.
    pub(crate) fn at(step: &'static str) -> impl Fn(Errno) -> Self {
        move |source| Self::System { step, source }
    }
}
