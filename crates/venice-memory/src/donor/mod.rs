//! The donor's part: the memory that a node lends.
//!
//! The unit is a [`Slab`]. The [`SlabPool`] creates all slabs when the agent starts, from the
//! machine's memory or from a [`MemoryDevice`], and replaces returned ones. The [`GrantTable`] has
//! the slabs of each grant and checks every access: grant, key and range.

mod error;
mod grants;
mod memory_device;
mod pool;
mod slab;

pub use error::DonorError;
pub use grants::{GrantTable, HandedOutGrants, SharedGrants};
pub use memory_device::MemoryDevice;
pub use pool::{SlabPool, available_bytes};
pub use slab::Slab;
