//! Memory hot-plug: whole memory blocks taken from a kernel and given to one.
//!
//! * [`MemoryBlocks`] takes blocks of this machine's memory offline, and online again. A donor's
//!   [`Offline`] blocks come back by themselves, also after a `kill -9` ([`record`]).
//! * [`DaxBus`] turns a DAX device (CXL memory, an NVDIMM) into system memory, and back.
//!
//! All functions use files below `/sys`; tests use a directory of their own.

mod blocks;
mod dax;
mod error;
mod lock;
mod offline;
pub mod record;

pub use blocks::{Block, MemoryBlocks};
pub use dax::{BadDaxName, DaxBus, DaxDevice, dax_name};
pub use error::HotplugError;
pub use offline::Offline;
