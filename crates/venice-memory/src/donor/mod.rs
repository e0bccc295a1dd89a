//! The donor half: the memory a node lends.
//!
//! A [`Slab`] is the unit. The [`SlabPool`] makes all of them when the agent starts and replaces
//! those that come back, of the machine's memory or of a [`MemoryDevice`]; the [`GrantTable`] says
//! which grant holds which slabs and checks every access: grant, key and range.

mod error;
mod grants;
mod memory_device;
mod pool;
mod slab;

pub use error::DonorError;
pub use grants::{GrantTable, SharedGrants};
pub use memory_device::MemoryDevice;
pub use pool::{SlabPool, available_bytes};
pub use slab::Slab;
