//! Borrowed memory, and devices, for programs that request them (composable-rack paper, section 4:
//! `GetMemory`, `GetAccelerator`, `GetIO`, Put and Get); `venice run` serves programs that do not.
//!
//! - [`Rack`] is the entry point: connect, then request
//! - [`Memory`]: bytes read and written by offset, synchronously or with many accesses outstanding,
//!   and atomics;
//! - [`PagedMemory`]: regions at ordinary addresses, larger than their resident part;
//! - [`ObjectCache`]: a victim store for small caches, with Put and Get;
//! - [`Device`]: a granted accelerator, storage or network card of another node, with its service;
//! - [`accel`]: accelerators that run tasks, one or several together;
//! - [`channel`]: messages, streams and registered memory between two programs, without a rack.
//!
//! ```no_run
//! use venice_client::{CacheOptions, MemoryOptions, Rack};
//!
//! let rack = Rack::connect()?;
//! let memory = rack.get_memory(1 << 30, &MemoryOptions::default())?;
//! memory.write(4096, b"far away")?;
//! let under_way: Vec<_> =
//!     (0..64).map(|page| memory.read_async(page * 4096, vec![0; 4096])).collect::<Result<_, _>>()?;
//! for read in under_way {
//!     assert_eq!(read.wait()?.len(), 4096);
//! }
//! let cache = rack.object_cache(4 << 30, &MemoryOptions::default(), &CacheOptions::default())?;
//! cache.put(b"key", b"value")?;
//! assert_eq!(cache.get(b"key")?.as_deref(), Some(&b"value"[..]));
//! # Ok::<(), venice_client::Error>(())
//! ```
//!
//! `venice ps` and `venice status` show a program that has borrowed memory, if it has access to the
//! run directory of its rack.
//!
//! Borrowed memory is given back when its owner is dropped; for a program that dies, when its
//! leases expire. Calls that borrow block their thread and use a small runtime of their own: an
//! asynchronous program makes them where blocking is allowed.
#![forbid(unsafe_code)]

pub mod accel;
pub mod channel;
mod device;
mod error;
mod listing;
mod memory;
mod object_cache;
mod paged;
mod pending;
mod queue;
mod rack;
mod service;
mod store;
mod transfer;

pub use device::{Device, DeviceOptions, Leaving, wants};
pub use error::Error;
pub use memory::Memory;
pub use object_cache::{
    CacheOptions, CacheStats, Eviction, MAX_KEY_BYTES, MIN_CACHE_BYTES, ObjectCache,
};
pub use paged::{PagedMemory, PagedRegion};
pub use pending::{Outcome, Pending};
pub use rack::{MemoryOptions, Rack};
pub use service::granted_services;
pub use transfer::Claimed;
pub use venice_control::{
    DEFAULT_PRIORITY, Endpoint, Grant, InvalidOwner, InvalidWant, Owner, Policy, ResourceKind,
    ServiceAccess, TransferState, Transferred, UnknownPolicy, Want,
};
pub use venice_recipient::paged::{Hint, PageSize, Pattern};
pub use venice_recipient::{Copies, PortKind, ReclaimTo, Transfer};
pub use venice_service::{ClientError, ServiceClient};
