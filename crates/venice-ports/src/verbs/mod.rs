//! The verbs port: RDMA devices (InfiniBand, RoCE, iWARP) reach a grant's memory, one-sided: the
//! donor's device carries out reads, writes and atomics, and no program runs for them there.
//!
//! The donor's agent listens on TCP ([`VerbsServer`]). A recipient ([`VerbsDriver`]) connects,
//! names its grant, its key and its own queue pair; the donor registers the grant's slabs, joins a
//! queue pair of its own to it and answers with the slabs' keys. The connection carries nothing
//! more, but stays open: its end tells either side that the other is gone.
//!
//! **Protection** is the devices': each grant has a protection domain, which confines a recipient's
//! queue pair to the slabs of its own grant, whatever keys it makes up. [`VerbsServer::revoke`]
//! returns when the slabs are deregistered. RDMA neither encrypts nor authenticates its packets:
//! the port is for a trusted fabric.
//!
//! **rdma-core** is loaded when the port is first used (`library`), through a few structures of its
//! ABI (`abi`): a machine without it runs everything else. See
//! `docs/decisions/0018-libibverbs-by-dlopen.md`.

pub mod abi;
mod admission;
mod connection;
mod device;
mod driver;
mod error;
mod keep_alive;
mod library;
mod link;
mod memory;
mod operations;
#[cfg(test)]
mod protection_in_guest;
mod queue;
mod server;
mod set_up;
mod side_channel;

pub use device::{Device, device_names};
pub use driver::{BufferId, Bulk, VerbsConfig, VerbsDriver};
pub use error::VerbsError;
pub use server::VerbsServer;
