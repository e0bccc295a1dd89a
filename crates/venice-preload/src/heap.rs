//! The shim's own heap.
//!
//! The program's `malloc` hands out memory that the pager pages; the pager must never wait for
//! a page of its own. So the shim allocates from a fixed piece of its own data, locked as it is
//! touched, and never from the C library.

use talc::{TalcLock, source::Claim};
use venice_memory::paged::sys;

const HEAP_BYTES: usize = 128 << 20;

static mut HEAP: [u8; HEAP_BYTES] = [0; HEAP_BYTES];

// SAFETY: nothing else uses `HEAP`, and it lives as long as the process.
#[global_allocator]
static ALLOCATOR: TalcLock<spinning_top::RawSpinlock, Claim> =
    TalcLock::new(unsafe { Claim::array(&raw mut HEAP) });

/// Locks the heap, page by page as it is touched.
pub fn lock() {
    sys::lock_on_fault(&raw const HEAP as usize, HEAP_BYTES);
}
