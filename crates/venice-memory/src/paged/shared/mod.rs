//! Shared memory of a run (docs/decisions/0074): one pager in the supervisor serves it for all the
//! run's processes.
//!
//! [`SharedPager`] is that pager. Its page table numbers the pages of *objects* as the supervisor
//! has them mapped ([`objects`]). The handler places a page there, as if it were the supervisor's
//! own, and gives it to the *user* whose thread waits ([`home`]); the evictor write-protects pages
//! in all users ([`hold`]), checks that nothing pins them ([`pin_look`]), and punches them out of
//! their object (`evictor/shared.rs`). Objects with a descriptor are [`files`] of a mount of the run.
//! [`mappings`] is the half of a process: it reports
//! changes of its address space by [`messages`].

mod btf;
mod files;
mod given;
mod hold;
mod home;
mod keeper;
mod mappings;
mod messages;
mod name;
mod objects;
mod pager;
mod pin_look;
mod reading;
mod service;
#[cfg(test)]
mod tests;

pub use files::FilesError;
pub use hold::WriteHold;
pub use home::{Message, SharedHome, Waiter};
pub use mappings::{SharedFile, SharedMappings};
pub use messages::{REQUEST_BYTES, Request};
pub use name::shared_memory_at;
pub use objects::Object;
pub use pager::{SharedError, SharedPager};
pub use pin_look::{LookError, PinLook};
pub use reading::ReadSlot;
