//! The udp port: one frame of the fabric in each datagram, between any two hosts.
//!
//! [`UdpDriver`] is the recipient's end: it joins a `venice_fabric::Initiator` to a socket, on the
//! caller's thread. [`UdpServer`] is the donor's: threads that each join a `venice_fabric::Target`
//! to one of the agent's sockets. The fabric's links repair loss, duplication and reordering of the
//! network; the port only moves datagrams, and protects them ([`crate::seal`]).
//!
//! Datagrams travel in batches (`sendmmsg`, `recvmmsg`), and runs of equal ones to one peer pass
//! through the kernel as one (`UDP_SEGMENT`, `UDP_GRO`, [`UdpOffloads`]). A sealed frame longer
//! than the path MTU travels in several datagrams.

mod address;
pub(crate) mod alarm;
#[cfg(test)]
mod batch_tests;
mod driver;
mod incoming;
mod offload;
mod orders;
mod outgoing;
mod owners;
mod peers;
mod queue;
mod raw_address;
mod reassembly;
mod relay;
mod senders;
mod server;
mod serving;
mod shared;
mod socket;
mod spin;
mod syscall;
mod traffic;
mod wait_set;
mod xdp;

pub use driver::UdpDriver;
pub use offload::UdpOffloads;
pub(crate) use queue::Queue as UdpEnd;
pub use relay::{Relay, RelayConfig, RelayStats, neighbour_ports};
pub use server::{UdpServer, UdpService};
pub use socket::{UDP_BUFFER_BYTES, UdpSocket, unspecified_like};
pub use traffic::Traffic;
pub use xdp::{Xdp, XdpCounts, XdpError, XdpInterface, XdpMode};
