//! Borrowed memory as a block device for the kernel's own paging: for any program, static ones too.
//!
//! From the kernel's end to the donors':
//! - [`SwapDevice`] is the whole chain, attached and detached; `swap_area` switches swapping on and
//!   off, `swap_off_room` checks the room for swap-off;
//! - `block` is the block device: `ublk`, `nbd`, or `loop_device` over `fuse` (a file that this
//!   process serves, by rings or by `/dev/fuse`). All have queues, each a thread with its own
//!   buffers; `ring_slots` serves the queues that are rings;
//! - [`Store`] is the common state of all queues: `page_map` records which pages are far and which
//!   are zeros, [`Counters`] counts;
//! - [`backing`] is the memory behind the pages: a queue's `lane` to the donors.
//!
//! Around it: [`Shield`] and [`IoFlusher`] prevent the server from waiting for the memory that the
//! kernel frees through it. [`cgroup`] holds programs to a limit; `anchor` prevents the kernel from
//! killing them there, [`GroupAnchor`] does so in groups made by others. [`UserProcess`] is a process
//! that an ordinary user may have moved into a group, [`Gate`] has it wait for that. [`bound`] ends
//! programs with their starter. Reasons: `docs/decisions/0024-swap-by-fuse-and-loop.md`. Sources:
//! Venice, section 5.2.1 (remote memory as a virtual block device); `linux/fuse.h`, `linux/loop.h`,
//! `linux/nbd.h`, `linux/ublk_cmd.h`.

mod anchor;
pub mod backing;
mod block;
pub mod bound;
pub mod cgroup;
mod clock;
mod counters;
mod device;
mod error;
mod fuse;
mod gate;
mod group_anchor;
mod lane;
pub mod leftovers;
mod loop_device;
mod mapping;
mod nbd;
mod page_map;
mod privilege;
mod ring_slots;
mod shield;
mod store;
mod swap_area;
mod swap_off_room;
mod sys;
mod ublk;
mod user_process;

pub use block::BlockKind;
pub use counters::{Counters, Histogram};
pub use device::{SwapDevice, abandon, clear_after};
pub use error::SwapError;
pub use gate::Gate;
pub use group_anchor::GroupAnchor;
pub use privilege::require_root;
pub use shield::{IoFlusher, Shield};
pub use store::Store;
pub use swap_area::{MAX_PRIORITY, used_bytes};
pub use sys::peer_groups;
pub use user_process::UserProcess;
