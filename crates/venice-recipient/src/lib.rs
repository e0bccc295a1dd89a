//! The recipient: borrows resources from the rack, keeps them, and releases them.
//!
//! - [`allocate`] turns an [`AllocationSpec`] into a [`Loan`]: grants from the Monitor Node;
//!   [`borrow`] also connects to its memory;
//! - a [`Holding`] is the loan entered into a run block: donors, slabs, and the donors of each
//!   slab's copies;
//! - [`Leases`] keeps it: one thread renews the leases at the donors and marks lost donors in the
//!   run block; another rebuilds lost copies of slabs;
//! - [`Held`] keeps grants without a run block: devices, and memory that a program reaches by
//!   itself;
//! - [`transfer`] gives grants to another user, [`claim`] takes them over;
//! - [`home`] finds a recipient's relay node where nodes relay for each other;
//! - [`local_rack`] finds the rack of this machine;
//! - [`runs`] reports the state of a program on borrowed memory, and changes its budget;
//! - [`RemoteMemory`] combines all of it in one handle, for programs that read and write borrowed
//!   memory themselves, each thread through its own [`Lane`].
//!
//! `venice run` combines these with a program's pager ([`venice_memory::paged`]), which is
//! independent of the control plane.
//!
//! Calls block their thread and run a small runtime inside: an asynchronous program makes them on a
//! thread where blocking is allowed.

#![forbid(unsafe_code)]

mod copies;
mod error;
mod held;
mod holding;
pub mod home;
mod lease_list;
mod leases;
mod leaving;
mod loan;
mod local_fallback;
pub mod local_rack;
mod news;
mod pairing;
mod rebuild;
mod reclamation;
mod record;
mod remote_memory;
mod renewals;
mod replacement;
pub mod runs;
mod services;
mod spec;
mod suspend;
mod suspicion;
mod transfer;
mod waiting;
mod write_behind;

pub use copies::Copies;
pub use error::RecipientError;
pub use held::{Held, HeldEvent, HeldNews, WantedBack, reason_text};
pub use holding::Holding;
pub use home::Home;
pub use lease_list::LeaseList;
pub use leases::Leases;
pub use loan::{
    COPIES_BY_DEFAULT, Loan, MOST_COPIES, Shortage, allocate, borrow, borrow_in_line, free_bytes,
    plan,
};
pub use local_fallback::ReclaimTo;
pub use news::{LostDonor, News};
pub use remote_memory::{RemoteMemory, Request};
pub use spec::{AllocationSpec, MemorySpec};
pub use suspend::Suspended;
pub use transfer::{Transfer, claim, transfer};
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
