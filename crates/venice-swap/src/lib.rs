//! Borrowed memory as a block device for the kernel's own paging: any program, static ones too.
//!
//! From the kernel's end to the donors':
//! - [`SwapDevice`] is the whole chain, attached and detached; `swap_area` switches swapping on and
//!   off, `home_room` looks whether there is room for what comes home then;
//! - `block` is the block device: `ublk`, `nbd`, or `loop_device` over `fuse` (a file that this process
//!   serves, by rings or by `/dev/fuse`); all have queues, each a thread with buffers of its own, and
//!   where these are rings, `ring_places` serves them;
//! - [`Store`] is what both serve: `page_map` knows which pages are far and which are zeros,
//!   [`Counters`] counts;
//! - [`backing`] is what the pages lie in: a queue's `lane` to the donors.
//!
//! Around it: [`Shield`] and [`IoFlusher`] keep the server from waiting for the memory that the
//! kernel frees through it, [`cgroup`] holds programs to a limit (`anchor` keeps the kernel
//! from killing them there; [`GroupAnchor`] does in groups that others have made), and [`bound`] ends them with who
//! started them. Why it is as it is:
//! `docs/decisions/0024-swap-by-fuse-and-loop.md`. Sources: Venice, section 5.2.1 (remote memory as
//! a virtual block device); `linux/fuse.h`, `linux/loop.h`, `linux/nbd.h`, `linux/ublk_cmd.h`.

mod anchor;
pub mod backing;
mod block;
pub mod bound;
pub mod cgroup;
mod counters;
mod device;
mod error;
mod fuse;
mod group_anchor;
mod home_room;
mod lane;
pub mod leftovers;
mod loop_device;
mod mapping;
mod nbd;
mod outside;
mod page_map;
mod privilege;
mod ring_places;
mod shield;
mod store;
mod swap_area;
mod sys;
mod ublk;

pub use block::BlockKind;
pub use counters::{Counters, Histogram};
pub use device::{SwapDevice, abandon, clear_after};
pub use error::SwapError;
pub use group_anchor::GroupAnchor;
pub use privilege::require_root;
pub use shield::{IoFlusher, Shield};
pub use store::Store;
pub use swap_area::{MAX_PRIORITY, used_bytes};
