//! Ports of Venice: the physical attachments that move frames and reach memory.
//!
//! * [`shm`]: donor and recipient on one host. The donor passes the memfds of a grant over a unix
//!   socket; the recipient maps them and no longer needs the donor's CPU.
//! * [`ring`]: the fabric's frames through shared memory, between two processes of one host.
//! * [`udp`]: the fabric's frames in datagrams, between hosts.
//! * [`verbs`]: RDMA devices read and write the donor's memory, one-sided, between hosts.
//! * [`seal`]: encrypts and authenticates datagrams; for relays too.
//! * [`qpair`]: messages and streams between two programs, as sockets, over rings or udp.
//! * [`channels`]: CRMA and RDMA as programs use them, over any of these ports.
//! * [`adaptive`]: a stream that takes the best channel for each segment, as a socket, over rings
//!   or udp.
//!
//! The recipient's parts ([`shm::fetch_slabs`], [`udp::UdpDriver`], [`monotonic_ns`]) run inside
//! foreign programs, on threads without thread-local storage of their own: they make system calls
//! directly (no libc, no errno), start no threads, log nothing, and allocate only when they are
//! built. The donor's parts ([`shm::ShmServer`], [`udp::UdpServer`]) own a thread each. [`verbs`]
//! is the exception: rdma-core is C, and is set up before a program's own threads run.

pub mod adaptive;
pub mod channels;
mod error;
mod mappings;
mod process;
pub mod qpair;
pub mod ring;
pub mod seal;
pub mod shm;
pub mod spin_policy;
mod system;
mod time_slice;
pub mod udp;
pub mod verbs;

pub use error::PortError;
pub use process::Process;
pub use system::{monotonic_ns, random_u64, time_of_day_error_us, wait_until};
pub use time_slice::set_time_slice;
