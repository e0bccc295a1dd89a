//! The shm port: a recipient on the same host maps a grant's memory.
//!
//! The agent listens on a unix `SOCK_SEQPACKET` socket ([`ShmServer`]). A recipient connects, names
//! its grant and key, and receives the memory of the grant's slabs, in their order
//! ([`fetch_slabs`]): memfds, or a memory device (DAX) and the places in it. From then on loads and
//! stores go to the memory itself, and the agent's CPU takes no part.
//!
//! The connection stays open as long as the grant is used, and carries nothing more: its end tells
//! the recipient that the donor has died or revoked the grant. On one host the kernel would keep
//! the memory alive for a process that still maps it, but a dead node's memory is gone, and the
//! recipient must treat it as lost.

pub(crate) mod client;
pub(crate) mod listener;
mod mapped;
pub(crate) mod message;
pub(crate) mod server;
mod slab_file;
mod slab_mapping;

pub use client::{ShmConnection, fetch_slabs};
pub use mapped::MappedSlab;
pub use server::{ShmServer, SlabBatch, SlabSource};
pub use slab_file::SlabFile;
pub use slab_mapping::SlabMapping;
