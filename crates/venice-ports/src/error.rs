//! Errors of the ports.

use std::net::SocketAddr;
use std::path::PathBuf;

use rustix::io::Errno;

/// Error of a port.
#[derive(Debug, thiserror::Error)]
pub enum PortError {
    /// A system call failed.
    #[error("{step} failed")]
    System {
        /// Name of the operation.
        step: &'static str,
        /// Error of the kernel.
        source: Errno,
    },
    /// The path does not fit into a unix socket address.
    #[error("unix socket path {} is too long: use at most 107 bytes", path.display())]
    SocketPath {
        /// The path.
        path: PathBuf,
    },
    /// Another living process listens on the socket.
    #[error("cannot listen on {}: another agent listens there", path.display())]
    SocketInUse {
        /// The path.
        path: PathBuf,
    },
    /// The path exists and is not a socket.
    #[error("cannot listen on {}: the path exists and is not a socket; move it away", path.display())]
    NotASocket {
        /// The path.
        path: PathBuf,
    },
    /// The socket could not be made or listened on.
    #[error("cannot listen on {}", path.display())]
    Listen {
        /// The path.
        path: PathBuf,
        /// Error of the kernel.
        source: Errno,
    },
    /// No donor answers on the socket.
    #[error("no agent answers on {}", path.display())]
    NoAgent {
        /// The path.
        path: PathBuf,
        /// Error of the kernel.
        source: Errno,
    },
    /// The other side (for a grant: the donor) closed the connection or died.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side refused the request.
    #[error("the other side refused: {reason}")]
    Refused {
        /// Reason, in the words of the other side.
        reason: String,
    },
    /// The listener offers rings for messages, and lends no memory.
    #[error("the socket carries messages, not lent memory")]
    LendsNothing,
    /// The other side does not speak this protocol.
    #[error("unexpected message from the other side (protocol error): {what}")]
    Protocol {
        /// Description of the violation.
        what: &'static str,
    },
    /// The other side of a ring has written invalid data.
    #[error("invalid data in the ring (protocol error of the other side)")]
    RingBroken,
    /// A peer with protection at a driver without, or the reverse.
    #[error(
        "protection mismatch: this end of the link {}, the donor {}; start both with --plain, or neither",
        if *.is_sealed { "is protected" } else { "is not protected" },
        if *.is_sealed { "is not" } else { "is" }
    )]
    Protection {
        /// True if the driver seals.
        is_sealed: bool,
    },
    /// A UDP address cannot be used.
    #[error("cannot use the UDP address {address}")]
    UdpAddress {
        /// The address.
        address: SocketAddr,
        /// Error of the kernel.
        source: Errno,
    },
    /// A forked child used an object of its parent: both would continue from the same nonce or
    /// sequence number.
    #[error("link belongs to the parent process: make a new one in the forked child")]
    Forked,
    /// The RDMA device or a connection over it failed.
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
    /// AF_XDP is unavailable at an interface.
    #[error(transparent)]
    Xdp(#[from] crate::udp::XdpError),
}

impl PortError {
    /// Returns a closure for `map_err`: the system call at `step` failed.
    pub(crate) fn at(step: &'static str) -> impl Fn(Errno) -> Self {
        move |source| Self::System { step, source }
    }
}
