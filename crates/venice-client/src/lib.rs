//! Borrowed memory, and devices, for programs that ask for them (composable-rack paper, section 4:
//! `GetMemory`, `GetAccelerator`, `GetIO`, Put and Get); what `venice run` gives programs that do not.
//!
//! - [`Rack`] is the front door: connect, then ask it for
//! - [`Memory`]: bytes read and written by offset, at once or with many accesses under way, and
//!   atomics;
//! - [`PagedMemory`]: regions at addresses like any other, larger than what is resident of them;
//! - [`ObjectCache`]: a victim store for caches that are too small, with Put and Get;
//! - [`Device`]: an accelerator, storage or a network card of another node, held.
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
//! A program that has borrowed memory is shown by `venice ps` and `venice status`, where the run
//! directory of its rack lets it in.
//!
//! Borrowed memory is given back when what holds it is dropped; of a program that dies, when its
//! leases end. Calls that borrow block their thread and run a small runtime of their own inside:
//! from an asynchronous program they are made where blocking is allowed.
#![forbid(unsafe_code)]

mod device;
mod error;
mod listed;
mod memory;
mod object_cache;
mod paged;
mod pending;
mod queue;
mod rack;
mod store;

pub use device::{Device, DeviceKind, DeviceOptions, Io, Leaving};
pub use error::Error;
pub use memory::Memory;
pub use object_cache::{
    CacheOptions, CacheStats, Eviction, MAX_KEY_BYTES, MIN_CACHE_BYTES, ObjectCache,
};
pub use paged::{PagedMemory, PagedRegion};
pub use pending::{Outcome, Pending};
pub use rack::{MemoryOptions, Rack};
pub use venice_control::{DEFAULT_PRIORITY, Policy, UnknownPolicy};
pub use venice_recipient::paged::{Hint, PageSize, Pattern};
pub use venice_recipient::{Copies, PortKind, ReclaimTo};
