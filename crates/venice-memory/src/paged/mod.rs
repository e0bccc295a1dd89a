//! Paged mode: a pager inside the program's own process.
//!
//! The life of a page:
//!
//! 1. `mappings` adopts an anonymous mapping: its missing pages are reported to the pager's
//!    userfaultfd (`uffd`).
//! 2. The program touches a page; `handler` installs zeros, and the page is resident.
//! 3. Resident pages near the budget; `evictor` takes the oldest into `staging`, whole, with one
//!    `UFFDIO_MOVE`, later writes it to a far slot (`slots`, `far`) unless it holds only zeros or
//!    equals the slot's contents, and frees the frame.
//! 4. The program touches it again; `handler` brings it back from staging or from its slot, with
//!    its prefetch (`read_ahead`).
//!
//! `hints` applies the program's advice about its memory. Faults on large mappings may be served by
//! the thread that touches them (`in_thread`). If pages are large (`page_size`), several of 4
//! KiB come at once (`handler/large`) and lie side by side in far memory; huge pages are assembled
//! in 2 MiB of the kernel's and moved whole, in and out (`handler/huge`, `huge_slots`).
//!
//! `write_behind` keeps a copy of all far pages on this machine's disk. `fork` keeps both sides
//! right when the program splits in two. `run_block` is the shared table of a run's processes;
//! `attach` connects them to their supervisor. `direct` is for programs that read and write far
//! memory themselves, `space` for programs that ask for paged regions. `window` maps the slabs into
//! the program, with no pager at all; `slab_move` is the supervisor's half of moving those slabs;
//! `lifeline` ends the processes of a window with their supervisor.
//!
//! The rules against deadlock: the handler waits for threads that serve themselves only for the
//! time of one system call, and for no other thread of the program. Those threads wait for the
//! handler only by faulting. The pager's own memory is never managed (raw mappings, locked), nor
//! are its threads' stacks.
//!
//! Sources: `userfaultfd(2)`; OPERA D4.7, section 4 (remote page faults); Venice, section 5.2.1.

mod access_pattern;
pub mod attach;
pub mod budget;
pub mod coding;
mod cold_spans;
mod descriptors;
pub mod direct;
mod end;
mod evictor;

mod far;
mod fork;
mod fork_lock;
mod fork_mark;
mod fork_state;
mod framed;
mod handler;
mod heap;
pub mod helper;
mod hints;
pub mod huge_pages;
mod huge_slots;
pub mod image;
mod in_thread;
pub mod inheritance;
mod inherited_socket;
mod last_look;
mod lifeline;
mod lock;
pub mod loss;
mod mappings;
mod mlock;
mod own_locks;
mod page_set;
mod page_size;
mod page_table;
mod pager;
mod pause;
mod presence;
mod proc_maps;
mod read_ahead;
pub mod rebuild;
mod refaults;
mod regions;
mod requests;
pub mod rlimits;
pub mod run_block;
mod shared;
pub mod sharing;
mod shm_far;
pub mod slab_move;
mod slab_window;
mod slot_reader;
pub mod slots;
mod space;
mod spin;
mod staging;
mod start;
#[cfg(test)]
mod survival;
pub mod sys;
mod thread;
mod thread_affinity;
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
pub use inherited_socket::{InheritedSocket, ProgramEnd};
pub use lifeline::{Lifeline, Tether};
pub use mappings::{Management, management};
pub use mlock::Locking;
pub use page_size::PageSize;
pub use pager::{Pager, PagerError, PagerSetup, Serves, Structure};
pub use shared::{
    FilesError, LookError, PinLook, ReadSlot, Request as SharedRequest, SharedError, SharedFile,
    SharedPager, shared_memory_at,
};
pub use slab_window::SlabSource;
pub use slot_reader::SlotReader;
pub use space::{LEAST_LOCAL_BYTES_HUGE, Region, Space, SpaceError};
pub use start::start;
pub use uffd::Uffd;
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
