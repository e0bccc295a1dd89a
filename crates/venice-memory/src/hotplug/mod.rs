//! Whole memory blocks taken from a kernel and given to one, by its own hot-plug: the donor's and
//! the recipient's half of a window of physical memory.
//!
//! * [`MemoryBlocks`] takes blocks of this machine's memory offline, and online again; a donor's
//!   [`Offline`] blocks come back by themselves, also after a `kill -9` ([`record`]).
//! * [`DaxBus`] hands a DAX device (CXL memory, an NVDIMM) to the kernel as system memory, and
//!   takes it away again.
//!
//! All of it are files below `/sys`; tests have a folder of their own.

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
