//! Errors of RDMA devices and the connections over them.

use std::net::SocketAddr;

/// Error of the verbs port.
#[derive(Debug, thiserror::Error)]
pub enum VerbsError {
    /// rdma-core is not installed, or too old.
    #[error(
        "RDMA needs rdma-core's libibverbs.so.1, which cannot be loaded here ({reason}); install it (Debian: \
         apt-get install libibverbs1 ibverbs-providers)"
    )]
    Library {
        /// Error of the loader.
        reason: String,
    },
    /// There is no RDMA device, or none with this name.
    #[error(
        "no RDMA device{}: `rdma link` should show one in state ACTIVE; for a NIC without RDMA \
         there is soft RoCE: `modprobe rdma_rxe && rdma link add rxe0 type rxe netdev eth0`",
        wanted.as_ref().map(|name| format!(" called {name}")).unwrap_or_default()
    )]
    NoDevice {
        /// Requested name.
        wanted: Option<String>,
    },
    /// A call of the library failed.
    #[error("{device}: {step} failed")]
    Call {
        /// The device.
        device: String,
        /// Name of the operation.
        step: &'static str,
        /// Error of the library.
        source: std::io::Error,
    },
    /// No address of the device is usable.
    #[error("{device} has no RoCE v2 address: give its network interface an IP address")]
    NoAddress {
        /// The device.
        device: String,
    },
    /// No queue pair is left for a grant that came later.
    #[error("no queue pair of {device} left: all prepared ones are in use")]
    NoneReady {
        /// The device.
        device: String,
    },
    /// The device lacks a capability that the port needs.
    #[error("{device} cannot {what}")]
    Incapable {
        /// The device.
        device: String,
        /// Missing capability.
        what: &'static str,
    },
    /// The connection that introduces queue pairs failed.
    #[error("connection to {address} failed while {step}")]
    SideChannel {
        /// The other end, or the address listened on.
        address: SocketAddr,
        /// Name of the operation.
        step: &'static str,
        /// Error of the kernel.
        source: std::io::Error,
    },
    /// The donor refused this recipient.
    #[error("donor at {address} refused: {reason}")]
    Refused {
        /// The donor.
        address: SocketAddr,
        /// Reason, in the donor's words.
        reason: String,
    },
    /// The other side does not speak this protocol.
    #[error("unexpected reply from {address} (protocol error): {what}")]
    Protocol {
        /// The other side.
        address: SocketAddr,
        /// Description of the violation.
        what: &'static str,
    },
    /// Memory for buffers or a thread is unavailable.
    #[error("{step} failed")]
    System {
        /// Name of the operation.
        step: &'static str,
        /// Error of the kernel.
        source: std::io::Error,
    },
}
