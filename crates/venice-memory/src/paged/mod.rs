//! The paged way to borrowed memory: a pager inside the program's own process.
//!
//! What happens to a page, in the order of its life:
//!
//! 1. `mappings` adopts an anonymous mapping: its missing pages come to the pager's
//!    userfaultfd (`uffd`).
//! 2. The program touches a page; `handler` installs zeros, and the page is resident.
//! 3. Resident pages near the budget; `evictor` takes the oldest into `staging`, whole, with
//!    one `UFFDIO_MOVE`, later writes it to a far slot (`slots`, `far`) unless it holds only
//!    zeros or what the slot holds already, and frees the frame.
//! 4. The program touches it again; `handler` brings it back from staging or from its slot,
//!    with what lies ahead of it (`read_ahead`).
//!
//! What the program says about its memory beforehand is in `hints`. Faults on large mappings may be
//! served by the thread itself that touches them (`in_thread`). Where pages are large (`page_size`),
//! several of 4 KiB come at once (`handler/large`) and lie side by side in far memory; huge ones are
//! put together in 2 MiB of the kernel's and moved whole, in and out (`handler/huge`, `huge_slots`).
//!
//! `write_behind` has all of it on this machine's disk too. `fork` keeps both sides right when the program splits in two. `run_block` is what the
//! processes of a run share; `attach` is how they meet their supervisor. `direct` is for programs
//! that read and write far memory themselves instead, `space` for programs that ask for paged
//! regions; `window` maps the slabs into the program, with no pager at all, and `rehoming` is the
//! supervisor's half of moving what lies there; `lifeline` ends its processes with their supervisor.
//!
//! The rules that keep this from waiting for itself: the handler waits for threads that serve themselves only
//! for a system call's time, and for no other thread of the program; those wait for the handler only
//! by faulting; the pager's own memory is never managed (raw mappings, locked), nor
//! are its threads' stacks.
//! Sources: `userfaultfd(2)`; OPERA D4.7, section 4 (remote page faults); Venice, section 5.2.1.

mod access_pattern;
pub mod attach;
pub mod budget;
pub mod coding;
mod descriptors;
pub mod direct;
mod evictor;
mod far;
mod first_out;
mod fork;
mod fork_mark;
mod fork_window;
mod framed;
mod handler;
mod heap;
mod hints;
pub mod huge_pages;
mod huge_slots;
mod in_thread;
mod lending;
mod lifeline;
mod lock;
pub mod loss;
mod mappings;
mod page_set;
mod page_size;
mod page_table;
mod pager;
mod placement;
mod presence;
mod read_ahead;
pub mod rebuild;
mod refaults;
mod regions;
pub mod rehoming;
mod requests;
pub mod run_block;
mod shm_far;
mod slab_window;
pub mod slots;
mod space;
mod spin;
mod staging;
mod start;
#[cfg(test)]
mod survival;
pub mod sys;
mod thread;
mod transfer;
mod udp_far;
mod uffd;
mod verbs_far;
mod waker;
mod window;
pub mod write_behind;

pub use access_pattern::Pattern;
pub use descriptors::Descriptors;
pub use far::FarError;
pub use fork::ForkedChild;
pub use heap::Heap;
pub use hints::Hint;
pub use in_thread::signal;
pub use lifeline::{Lifeline, Tether};
pub use mappings::is_manageable;
pub use page_size::PageSize;
pub use pager::{Pager, PagerError, PagerSetup, Serves, Structure};
pub use slab_window::SlabSource;
pub use space::{LEAST_LOCAL_BYTES_HUGE, Region, Space, SpaceError};
pub use start::start;
pub use uffd::Uffd;
pub use verbs_far::most_grants;
pub use window::{Window, WindowError, WindowFork, WindowStructure};

/// Bytes of a page.
pub const PAGE: usize = venice_wire::PAGE_BYTES as usize;

/// The address of a page.
pub(crate) fn address_of(page: page_table::PageNumber) -> usize {
    page * PAGE
}

/// The pages that `[addr, addr + len_bytes)` touches.
pub(crate) fn pages_of(addr: usize, len_bytes: usize) -> std::ops::Range<page_table::PageNumber> {
    addr / PAGE..(addr + len_bytes).div_ceil(PAGE)
}
