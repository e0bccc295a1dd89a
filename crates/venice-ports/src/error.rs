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
    /// The other side (of a grant: the donor) closed the connection, or died.
    #[error("the other side closed the connection")]
    Closed,
    /// The other side would not hand out what was asked for.
    #[error("the other side refuses: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
    /// The other side does not speak this protocol.
    #[error("the other side's answer makes no sense: {what}")]
    Protocol {
        /// What is wrong with it.
        what: &'static str,
    },
    /// The other side of a ring has written what no honest one writes.
    #[error("the other side has broken the ring")]
    RingBroken,
    /// A peer with protection for a driver without, or the reverse.
    #[error(
        "this end of the link {}, and the donor {}: start both with --plain, or neither",
        if *.is_sealed { "is protected" } else { "is not protected" },
        if *.is_sealed { "is not" } else { "is" }
    )]
    Protection {
        /// Whether the driver seals.
        is_sealed: bool,
    },
    /// A UDP address cannot be used.
    #[error("cannot use the UDP address {address}")]
    UdpAddress {
        /// The address.
        address: SocketAddr,
        /// What the kernel said.
        source: Errno,
    },
    /// A forked child has used what its parent made: both would count on from the same place.
    #[error("this link is the parent process's: a forked child has to make one of its own")]
    Forked,
    /// The RDMA device or a connection over it failed.
    #[error(transparent)]
    Verbs(#[from] crate::verbs::VerbsError),
    /// AF_XDP cannot be had at an interface.
    #[error(transparent)]
    Xdp(#[from] crate::udp::XdpError),
}

impl PortError {
    /// For `map_err`: a system call failed at `step`.
    pub(crate) fn at(step: &'static str) -> impl Fn(Errno) -> Self {
        move |source| Self::System { step, source }
    }
}
