//! What can go wrong with an RDMA device and the connections over it.

use std::net::SocketAddr;

/// Why the verbs port cannot do what it was asked.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// rdma-core is not installed, or too old.
    #[error(
        "RDMA needs rdma-core's libibverbs.so.1, which cannot be loaded here ({reason}); install it (Debian: \
         apt-get install libibverbs1 ibverbs-providers)"
    )]
    Library {
        /// What the loader said.
        reason: String,
    },
    /// There is no RDMA device, or none called so.
    #[error(
        "no RDMA device{}: `rdma link` should show one in state ACTIVE; for a NIC without RDMA \
         there is soft RoCE: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`",
        wanted.as_ref().map(|name| format!(" called {name}")).unwrap_or_default()
    )]
    NoDevice {
        /// The name asked for.
        wanted: Option<String>,
    },
    /// A call of the library failed.
    #[error("{device}: {step} failed")]
    Call {
        /// The device.
        device: String,
        /// What was being done.
        step: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// No address of the device can be used.
    #[error("{device} has no RoCE v2 address: give its network interface an IP address")]
    NoAddress {
        /// The device.
        device: String,
    },
    /// No queue pair is left for a grant that came later.
    #[error("all queue pairs of {device} that were made ready are in use")]
    NoneReady {
        /// The device.
        device: String,
    },
    /// The device cannot do what the port needs.
    #[error("{device} cannot {what}")]
    Incapable {
        /// The device.
        device: String,
        /// What is missing.
        what: &'static str,
    },
    /// The connection over which queue pairs are introduced failed.
    #[error("the connection with {address} failed while {step}")]
    SideChannel {
        /// The other end, or what is listened on.
        address: SocketAddr,
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The donor would not let this recipient in.
    #[error("the donor at {address} refuses: {reason}")]
    Refused {
        /// The donor.
        address: SocketAddr,
        /// In its words.
        reason: String,
    },
    /// The other side does not speak this protocol.
    #[error("what answers at {address} makes no sense: {what}")]
    Protocol {
        /// The other side.
        address: SocketAddr,
        /// What is wrong.
        what: &'static str,
    },
    /// Memory for buffers or a thread could not be had.
    #[error("{step} failed")]
    System {
        /// What was being done.
        step: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
}
