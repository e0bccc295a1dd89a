//! The shim's own heap.
//!
//! The program's `malloc` hands out memory that the pager pages; the pager must never wait for
//! a page of its own. So the shim allocates from a fixed piece of its own data, locked as it is
//! touched, and never from the C library. What a thread of the pager holds comes off the program's
//! budget, so long buffers of zeros are mappings of their own: of those only what was written to
//! is resident, where a heap would have to write the zeros.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ptr;

use talc::{TalcLock, source::Claim};
use venice_memory::paged::sys;

const HEAP_BYTES: usize = 128 << 20;
/// Zeros of this length and more are mapped.
const MAPPED_BYTES: usize = 64 << 10;
/// What a mapping is aligned to.
const PAGE: usize = 4096;

static mut HEAP: [u8; HEAP_BYTES] = [0; HEAP_BYTES];

struct Heap(TalcLock<spinning_top::RawSpinlock, Claim>);

// SAFETY: nothing else uses `HEAP`, and it lives as long as the process.
#[global_allocator]
static ALLOCATOR: Heap = Heap(TalcLock::new(unsafe { Claim::array(&raw mut HEAP) }));

/// Locks the heap, page by page as it is touched.
pub fn lock() {
    sys::lock_on_fault(&raw const HEAP as usize, HEAP_BYTES);
}

fn is_of_heap(piece: *mut u8) -> bool {
    let start = &raw const HEAP as usize;
    (start..start + HEAP_BYTES).contains(&(piece as usize))
}

// SAFETY: a piece is the inner heap's or a mapping of its own, and which of them its address tells.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: forwarded to the caller.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() < MAPPED_BYTES || layout.align() > PAGE {
            // SAFETY: forwarded to the caller.
            return unsafe { self.0.alloc_zeroed(layout) };
        }
        sys::map_private(layout.size()).unwrap_or(ptr::null_mut())
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        if is_of_heap(piece) {
            // SAFETY: the heap's own, and forwarded to the caller.
            unsafe { self.0.dealloc(piece, layout) };
        } else {
            // SAFETY: mapped with this length, and nobody uses it any more.
            unsafe { sys::unmap(piece.cast::<c_void>(), layout.size()) };
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        if is_of_heap(piece) {
            // SAFETY: the heap's own, and forwarded to the caller.
            return unsafe { self.0.realloc(piece, layout, new_size) };
        }
        // SAFETY: forwarded to the caller.
        let moved =
            unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both are as long as that, and they are two.
            unsafe {
                ptr::copy_nonoverlapping(piece, moved, layout.size().min(new_size));
                self.dealloc(piece, layout);
            }
        }
        moved
    }
}
