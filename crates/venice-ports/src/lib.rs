//! Venice: ports, the physical attachments that move frames and reach memory.
//!
//! * [`shm`]: donor and recipient on one host. The donor passes the memfds of a grant over a
//!   unix socket; the recipient maps them and needs the donor's CPU no more.
//! * [`udp`]: the fabric's frames in datagrams, between hosts.
//!
//! The recipient's halves ([`shm::fetch_slabs`], [`udp::UdpDriver`], [`monotonic_ns`]) run inside
//! foreign programs, on threads that have no thread-local storage of their own: they make system
//! calls directly (no libc, no errno), start no threads, log nothing, and allocate only when they
//! are built. The donor's halves ([`shm::ShmServer`], [`udp::UdpServer`]) own a thread each.

mod error;
mod outside;
pub mod shm;
pub mod udp;

pub use error::PortError;
pub use outside::{monotonic_ns, random_u64};
