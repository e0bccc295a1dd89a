//! The shm port: a grant's memory is mapped by its recipient, on the same host.
//!
//! The agent listens on a unix `SOCK_SEQPACKET` socket ([`ShmServer`]). A recipient connects,
//! names its grant and key, and gets what the grant's slabs are mapped from, in their order
//! ([`fetch_slabs`]): memfds, or a memory device (DAX) and the places in it. From then on loads and
//! stores go to the memory itself and the agent's CPU takes no part.
//!
//! The connection stays open as long as the grant is used, and carries nothing more: its end
//! tells the recipient that the donor has died, or has taken the grant back. On one host the
//! kernel would keep the memory alive for whoever still maps it, but a dead node's memory is gone,
//! and so the recipient must treat it.

pub(crate) mod client;
pub(crate) mod listener;
mod mapped;
pub(crate) mod message;
pub(crate) mod server;
mod slab_file;

pub use client::{ShmConnection, fetch_slabs};
pub use mapped::MappedSlab;
pub use server::{ShmServer, SlabBatch, SlabSource};
pub use slab_file::SlabFile;
