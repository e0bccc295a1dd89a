//! The shim's own heap.

use venice_memory::paged::Heap;

/// Length of the heap.
pub const HEAP_BYTES: usize = 128 << 20;

static mut HEAP: [u8; HEAP_BYTES] = [0; HEAP_BYTES];

// SAFETY: nothing else uses `HEAP`, and it lives as long as the process.
#[global_allocator]
static ALLOCATOR: Heap = unsafe { Heap::new(&raw mut HEAP) };

/// The global allocator.
pub fn heap() -> &'static Heap {
    &ALLOCATOR
}
