//! The recipient's half that needs the control plane: borrow memory from the rack, keep it, give
//! it back.
//!
//! - [`borrow`] turns a [`Wish`] into a [`Loan`]: grants from the Monitor Node, and with the shm
//!   port the donors' memory;
//! - a [`Holding`] is the loan entered into a run block: donors, slabs, and which donors have the
//!   copies of which slab;
//! - [`Leases`] keeps it: one thread renews the leases at the donors, watches over these, and marks
//!   those lost in the run block that are; another gives slabs back the copies that they lost;
//! - [`Held`] keeps grants that are no pages: devices, and memory that a program reaches by itself;
//! - [`home`] is the node that a recipient belongs to where nodes relay for each other;
//! - [`local_rack`] finds the rack of this machine;
//! - [`runs`] is what a program on borrowed memory tells of itself in there, and how its budget is
//!   changed;
//! - [`RemoteMemory`] is all of it behind one handle, for programs that read and write borrowed
//!   memory themselves; each of their threads through a [`Lane`] of its own.
//!
//! `venice run` puts these together with a program's pager
//! ([`venice_memory::paged`]), which knows nothing of the control plane.
//!
//! Calls block their thread and run a small runtime of their own inside: from an asynchronous
//! program they are made on a thread where blocking is allowed.

#![forbid(unsafe_code)]

mod at_home;
mod copies;
mod device;
mod elsewhere;
mod error;
mod freeing;
mod held;
mod holding;
pub mod home;
mod leases;
mod leaving;
mod loan;
pub mod local_rack;
mod news;
mod oversleep;
mod pairing;
mod rebuild;
mod record;
mod remote_memory;
pub mod runs;
mod silence;
mod waiting;
mod write_behind;

pub use at_home::ReclaimTo;
pub use copies::Copies;
pub use device::{DeviceWish, plan_device};
pub use error::RecipientError;
pub use held::{Held, HeldEvent, HeldNews, WantedBack, reason_text};
pub use holding::Holding;
pub use home::Home;
pub use leases::Leases;
pub use loan::{
    COPIES_BY_DEFAULT, Loan, MOST_COPIES, Wish, borrow, borrow_in_line, free_bytes, plan,
};
pub use news::{LostDonor, News};
pub use oversleep::Overslept;
pub use remote_memory::{RemoteMemory, Request};
pub use venice_memory::paged::FarError;
pub use venice_memory::paged::coding::{Coding, InvalidCoding};
pub use venice_memory::paged::direct::{Lane, LaneError, ReadPart, WritePart};
pub use venice_memory::paged::run_block::{Fate, PortKind};
pub use waiting::{Told, Waiting};
pub use write_behind::{BEHIND_BYTES, WriteBehind};

/// Regions over borrowed memory ([`RemoteMemory::memory`]), paged within a budget.
pub mod paged {
    pub use venice_memory::paged::{Hint, PageSize, Pattern, Region, Space, SpaceError};
}
