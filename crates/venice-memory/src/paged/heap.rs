//! The pager's own heap in a program that it serves.
//!
//! The program's `malloc` hands out memory that the pager pages; the pager must never wait for
//! a page of its own. So the shim allocates from a fixed piece of its own data, locked as it is
//! touched, and never from the C library. What a thread of the pager holds comes off the program's
//! budget, so long buffers of zeros are mappings of their own: of those only what was written to
//! is resident, where a heap would have to write the zeros.
//!
//! Other threads use the heap while one forks, and they cannot be held up: the fork itself may need
//! them. The kernel does not copy all memory at one moment either, so the child cannot tell by its
//! copy whether it is whole. What is shared tells: a count of what was done with the heap. If
//! nothing was done during the fork, the child goes on with its copy; else it leaves that arena as it is,
//! readable and never freed, and allocates from another one.

use std::alloc::{GlobalAlloc, Layout};
use std::ffi::c_void;
use std::ops::{Deref, DerefMut};
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use talc::base::binning::DefaultBinning;
use talc::source::Claim;

use super::PAGE;
use super::spin::{Spin, SpinGuard};
use super::sys::{self, SysResult};

/// Zeros of this length and more are mapped.
const MAPPED_BYTES: usize = 64 << 10;
/// What comes first in an arena of a child's own: where the arena before it begins.
const HEADER_BYTES: usize = size_of::<*mut u8>();

type Talc = talc::base::Talc<Claim, DefaultBinning>;

/// A global allocator on memory of its own.
#[derive(Debug)]
pub struct Heap {
    /// The arena that it was made with.
    first: *mut u8,
    /// Of each arena.
    len_bytes: usize,
    /// The arena that pieces come from: the first, or one of a child's own.
    arena: AtomicPtr<u8>,
    talc: Spin<Talc>,
    /// How often the heap was taken in hand and put down: in memory that a child shares. Null before the
    /// first fork.
    uses: AtomicPtr<AtomicU64>,
    /// What that was before the last fork.
    uses_before_fork: AtomicU64,
}

// SAFETY: `first` is never changed, and what it points to is reached through `talc` alone.
unsafe impl Sync for Heap {}

impl Heap {
    /// A heap in `memory`.
    ///
    /// # Safety
    /// The memory is there for as long as the heap or any piece of it is used, and nothing else uses it.
    pub const unsafe fn new<const N: usize>(memory: *mut [u8; N]) -> Heap {
        let first = memory.cast::<u8>();
        // SAFETY: forwarded to the caller.
        let claim = unsafe { Claim::new(first, N) };
        Heap {
            first,
            len_bytes: N,
            arena: AtomicPtr::new(first),
            talc: Spin::new(Talc::new(claim)),
            uses: AtomicPtr::new(ptr::null_mut()),
            uses_before_fork: AtomicU64::new(0),
        }
    }

    /// Locks the heap, page by page as it is touched.
    pub fn lock(&self) {
        sys::lock_on_fault(self.first as usize, self.len_bytes);
    }

    /// To be called by the thread that is about to fork, last of all.
    ///
    /// # Errors
    /// The kernel's, when there is no memory for a page.
    pub fn before_fork(&self) -> SysResult<()> {
        let in_hand = self.take();
        if self.uses().is_none() {
            let page = sys::map_shared(PAGE)?;
            self.uses.store(page.cast(), Ordering::Release);
        }
        drop(in_hand);
        let uses = self.uses().map_or(0, |uses| uses.load(Ordering::Acquire));
        self.uses_before_fork.store(uses, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the heap usable in the child of a fork, whatever other threads of the parent did with it
    /// meanwhile.
    ///
    /// # Errors
    /// The kernel's, when there is no memory for an arena.
    ///
    /// # Safety
    /// The caller is the child's only thread, and has not used the heap in it yet.
    pub unsafe fn take_over_in_child(&self) -> SysResult<()> {
        let uses_before = self.uses_before_fork.load(Ordering::Relaxed);
        // What was done since the copy counts too: that is as rare, and does no harm.
        let is_whole = self.uses().is_some_and(|uses| uses.load(Ordering::Acquire) == uses_before);
        let parents = self.uses.swap(ptr::null_mut(), Ordering::Relaxed);
        if !parents.is_null() {
            // SAFETY: the page that `before_fork` mapped, which nobody here counts in any more.
            unsafe { sys::unmap(parents.cast(), PAGE) };
        }
        if is_whole && self.talc.try_hold().is_some() {
            return Ok(());
        }
        let arena = sys::map_private(self.len_bytes)?;
        // SAFETY: the arena is fresh, longer than its header and aligned to a page; who has the heap
        // is not in this process.
        unsafe {
            arena.cast::<*mut u8>().write(self.arena.load(Ordering::Relaxed));
            let (rest, len_bytes) = (arena.add(HEADER_BYTES), self.len_bytes - HEADER_BYTES);
            self.talc.forget_holder(Talc::new(Claim::new(rest, len_bytes)));
        }
        self.arena.store(arena, Ordering::Relaxed);
        Ok(())
    }

    fn take(&self) -> InHand<'_> {
        let talc = self.talc.hold();
        let uses = self.uses();
        count(uses);
        InHand { uses, talc }
    }

    fn uses(&self) -> Option<&AtomicU64> {
        // SAFETY: null, or a page that this process unmaps only while it has but one thread.
        unsafe { self.uses.load(Ordering::Acquire).as_ref() }
    }

    fn place_of(&self, piece: *mut u8) -> Place {
        let newest = self.arena.load(Ordering::Relaxed);
        let mut arena = newest;
        loop {
            let start = arena as usize;
            if (start..start + self.len_bytes).contains(&(piece as usize)) {
                return if arena == newest { Place::Heap } else { Place::LeftBehind };
            }
            if arena == self.first {
                return Place::Mapping;
            }
            // SAFETY: an arena of a child's own begins with its header, and is never unmapped.
            arena = unsafe { arena.cast::<*mut u8>().read() };
        }
    }
}

/// The heap, in a thread's hands; counted when it is taken and when it is put down.
struct InHand<'a> {
    uses: Option<&'a AtomicU64>,
    talc: SpinGuard<'a, Talc>,
}

impl Deref for InHand<'_> {
    type Target = Talc;

    fn deref(&self) -> &Talc {
        &self.talc
    }
}

impl DerefMut for InHand<'_> {
    fn deref_mut(&mut self) -> &mut Talc {
        &mut self.talc
    }
}

impl Drop for InHand<'_> {
    fn drop(&mut self) {
        count(self.uses);
    }
}

fn count(uses: Option<&AtomicU64>) {
    if let Some(uses) = uses {
        uses.fetch_add(1, Ordering::AcqRel);
    }
}

/// Where a piece lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Heap,
    /// In an arena that somebody had in his hands when the process was forked off.
    LeftBehind,
    /// It is one.
    Mapping,
}

// SAFETY: a piece is the inner heap's, of an arena left behind, or a mapping of its own, and which of
// them its address tells.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: forwarded to the caller.
        let piece = unsafe { self.take().allocate(layout) };
        piece.map_or(ptr::null_mut(), ptr::NonNull::as_ptr)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= MAPPED_BYTES && layout.align() <= PAGE {
            return sys::map_private(layout.size()).unwrap_or(ptr::null_mut());
        }
        // SAFETY: forwarded to the caller; the piece is as long as that.
        unsafe {
            let piece = self.alloc(layout);
            if !piece.is_null() {
                piece.write_bytes(0, layout.size());
            }
            piece
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match self.place_of(piece) {
            // SAFETY: the heap's own, and forwarded to the caller.
            Place::Heap => unsafe { self.take().deallocate(piece, layout) },
            Place::LeftBehind => {}
            // SAFETY: mapped with this length, and nobody uses it any more.
            Place::Mapping => unsafe { sys::unmap(piece.cast::<c_void>(), layout.size()) },
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the heap's own, and forwarded to the caller.
        let fits = self.place_of(piece) == Place::Heap
            && unsafe { self.take().try_realloc_in_place(piece, layout, new_size) };
        if fits {
            return piece;
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

#[cfg(test)]
pub(super) mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

    use super::*;

    const LEN_BYTES: usize = 1 << 20;

    fn heap() -> &'static Heap {
        let memory = Box::leak(Box::new([0u8; LEN_BYTES]));
        // SAFETY: leaked, and nobody else's.
        Box::leak(Box::new(unsafe { Heap::new(memory) }))
    }

    fn layout(len_bytes: usize) -> Layout {
        Layout::from_size_align(len_bytes, 8).unwrap()
    }

    /// A piece of so many bytes, all of them `byte`.
    fn piece(heap: &Heap, len_bytes: usize, byte: u8) -> *mut u8 {
        // SAFETY: as long as that.
        unsafe {
            let piece = heap.alloc(layout(len_bytes));
            assert!(!piece.is_null());
            piece.write_bytes(byte, len_bytes);
            piece
        }
    }

    fn holds(piece: *mut u8, len_bytes: usize, byte: u8) -> bool {
        // SAFETY: a piece that is as long as that.
        unsafe { std::slice::from_raw_parts(piece, len_bytes) }.iter().all(|it| *it == byte)
    }

    #[test]
    fn pieces_come_and_go_and_long_zeros_are_mapped() {
        let heap = heap();
        for _ in 0..3 {
            let first = piece(heap, 600 << 10, 7);
            assert_eq!(heap.place_of(first), Place::Heap);
            // SAFETY: pieces of these lengths, each freed once.
            unsafe {
                assert!(heap.alloc(layout(600 << 10)).is_null());
                let zeros = heap.alloc_zeroed(layout(2 << 20));
                assert_eq!(heap.place_of(zeros), Place::Mapping);
                assert!(holds(zeros, 2 << 20, 0));
                let less = heap.realloc(zeros, layout(2 << 20), 1000);
                assert_eq!((heap.place_of(less), holds(less, 1000, 0)), (Place::Heap, true));
                let few = heap.alloc_zeroed(layout(1000));
                assert!(holds(few, 1000, 0));
                heap.dealloc(few, layout(1000));
                heap.dealloc(less, layout(1000));
                let less = heap.realloc(first, layout(600 << 10), 300 << 10);
                assert!(holds(less, 300 << 10, 7));
                heap.dealloc(less, layout(300 << 10));
            }
        }
    }

    /// As in a child whose parent's threads did `meanwhile` while it was forked.
    fn forked(heap: &Heap, meanwhile: impl FnOnce()) {
        heap.before_fork().unwrap();
        meanwhile();
        // SAFETY: nobody else uses this heap.
        unsafe { heap.take_over_in_child().unwrap() };
    }

    #[test]
    fn a_heap_that_was_in_use_during_the_fork_is_left_behind() {
        let heap = heap();
        let old = piece(heap, 500, 1);
        let kept = piece(heap, 500, 2);
        for _ in 0..2 {
            forked(heap, || {});
            assert_eq!(heap.place_of(old), Place::Heap, "nobody did anything");
        }
        for generation in 0..4 {
            let young = piece(heap, 500, 3);
            forked(heap, || match generation % 2 {
                0 => std::mem::forget(heap.take()),
                _ => drop(heap.take()),
            });
            assert_eq!([old, young].map(|it| heap.place_of(it)), [Place::LeftBehind; 2]);
            assert!(holds(young, 500, 3));
            let new = piece(heap, 700 << 10, generation);
            assert_eq!(heap.place_of(new), Place::Heap);
            // SAFETY: of this length.
            unsafe { heap.dealloc(new, layout(700 << 10)) };
        }
        // SAFETY: pieces of these lengths, each freed once.
        unsafe {
            let longer = heap.realloc(old, layout(500), 5000);
            assert_eq!((heap.place_of(longer), holds(longer, 500, 1)), (Place::Heap, true));
            heap.dealloc(kept, layout(500));
            assert!(holds(kept, 500, 2), "freed in vain");
            heap.dealloc(longer, layout(5000));
        }
    }

    #[test]
    fn a_child_allocates_whatever_other_threads_did_when_it_was_forked() {
        let heap = heap();
        let old = piece(heap, 100, 9);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let _last = Over(&over);
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let pieces = [40, 4000, 100].map(|len| (piece(heap, len, 1), len));
                    for (piece, len) in pieces {
                        // SAFETY: of this length.
                        unsafe { heap.dealloc(piece, layout(len)) };
                    }
                }
            });
            for number in 0..200 {
                heap.before_fork().unwrap();
                assert!(ends_well(fork(|| use_in_child(heap, old))), "child {number}");
            }
        });
    }

    fn use_in_child(heap: &Heap, old: *mut u8) -> bool {
        // SAFETY: the child has this thread alone; pieces of these lengths.
        unsafe {
            if heap.take_over_in_child().is_err() {
                return false;
            }
            let longer = heap.realloc(old, layout(100), 10_000);
            let lens: [usize; 40] = std::array::from_fn(|number| 16 << (number % 13));
            let pieces = lens.map(|len| (piece(heap, len, len as u8), len));
            let are_right = pieces.iter().all(|(piece, len)| holds(*piece, *len, *len as u8));
            for (piece, len) in pieces {
                heap.dealloc(piece, layout(len));
            }
            let is_right = holds(longer, 100, 9);
            heap.dealloc(longer, layout(10_000));
            are_right && is_right
        }
    }

    struct Over<'a>(&'a AtomicBool);

    impl Drop for Over<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// A child that ends with 0 if `body` says so.
    pub(in super::super) fn fork(body: impl FnOnce() -> bool) -> Pid {
        const SIGCHLD: usize = 17;
        // SAFETY: the child touches nothing that another thread may have had in its hands but `body`'s.
        let pid = unsafe { sys::syscall(sys::nr::CLONE, [SIGCHLD, 0, 0, 0, 0, 0]) }.unwrap();
        match Pid::from_raw(pid as i32) {
            Some(child) => child,
            None => sys::exit(usize::from(!body())),
        }
    }

    fn ends_well(child: Pid) -> bool {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            if let Some((_, status)) = waitpid(Some(child), WaitOptions::NOHANG).unwrap() {
                return status.exit_status() == Some(0);
            }
            if Instant::now() > deadline {
                kill_process(child, Signal::KILL).unwrap();
                waitpid(Some(child), WaitOptions::empty()).unwrap();
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}
