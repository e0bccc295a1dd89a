//! The pager's own heap in a program that it serves.
//!
//! The program's `malloc` hands out memory that the pager pages, and the pager must never wait for
//! a page of its own. So the shim allocates from a fixed array of its own data, locked as it is
//! touched, and never from the C library. Memory of the pager's threads counts against the
//! program's budget, so long buffers of zeros are separate mappings: of those only the pages
//! written to are resident, where a heap would have to write the zeros.
//!
//! Other threads use the heap while one forks, and they cannot be stopped: the fork itself may need
//! them. The kernel does not copy all memory at one moment either, so the child cannot tell from
//! its copy if the heap is consistent. A counter of heap uses, in shared memory, decides. If the
//! heap was not used during the fork, the child goes on with its copy; else it abandons that arena,
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

/// Least length of zeros that are mapped, in bytes.
const MAPPED_BYTES: usize = 64 << 10;
/// Tries to take the heap in a panic, with a yield of the processor each.
const PANIC_TRIES: usize = 100_000;
/// Header of an arena of a child's own: the address of the arena before it.
const HEADER_BYTES: usize = size_of::<*mut u8>();

type Talc = talc::base::Talc<Claim, DefaultBinning>;

/// A global allocator on memory of its own.
#[derive(Debug)]
pub struct Heap {
    /// The arena that it was made with.
    first: *mut u8,
    /// Length of each arena.
    len_bytes: usize,
    /// The arena of new allocations: the first, or one of a child's own.
    arena: AtomicPtr<u8>,
    talc: Spin<Talc>,
    /// Number of times that the heap was locked and unlocked, in memory that a child shares. Null
    /// before the first fork.
    uses: AtomicPtr<AtomicU64>,
    /// The value of `uses` before the last fork.
    uses_before_fork: AtomicU64,
}

// SAFETY: `first` is never changed, and its memory is reached through `talc` alone.
unsafe impl Sync for Heap {}

impl Heap {
    /// Makes a heap in `memory`.
    ///
    /// # Safety
    /// The memory must live for as long as the heap or any allocation of it is used, and nothing
    /// else may use it.
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

    /// Locks the heap in memory, page by page as it is touched, and leaves it out of core dumps.
    pub fn lock(&self) {
        let first = self.first as usize / PAGE * PAGE;
        let len_bytes = self.first as usize + self.len_bytes - first;
        sys::lock_on_fault(first, len_bytes);
        sys::mark_own(first, len_bytes);
    }

    /// Prepares for a fork. To be called by the thread that is about to fork, last of all.
    ///
    /// # Errors
    /// The kernel's, when there is no memory for a page.
    pub fn before_fork(&self) -> SysResult<()> {
        let heap_guard = self.take();
        if self.uses().is_none() {
            let page = sys::map_shared(PAGE)?;
            self.uses.store(page.cast(), Ordering::Release);
        }
        drop(heap_guard);
        let uses = self.uses().map_or(0, |uses| uses.load(Ordering::Acquire));
        self.uses_before_fork.store(uses, Ordering::Relaxed);
        Ok(())
    }

    /// Makes the heap usable in the child of a fork, whatever other threads of the parent did with
    /// it meanwhile.
    ///
    /// # Errors
    /// The kernel's, when there is no memory for an arena.
    ///
    /// # Safety
    /// The caller is the child's only thread, and has not used the heap in it yet.
    pub unsafe fn take_over_in_child(&self) -> SysResult<()> {
        let uses_before = self.uses_before_fork.load(Ordering::Relaxed);
        // Uses since the copy count too: they are as rare, and an abandoned arena does no harm.
        let is_whole = self.uses().is_some_and(|uses| uses.load(Ordering::Acquire) == uses_before);
        let parents = self.uses.swap(ptr::null_mut(), Ordering::Relaxed);
        if !parents.is_null() {
            // SAFETY: the page that `before_fork` mapped, in which this process counts no more.
            unsafe { sys::unmap(parents.cast(), PAGE) };
        }
        if is_whole && self.talc.try_hold().is_some() {
            return Ok(());
        }
        let arena = sys::map_private(self.len_bytes)?;
        // SAFETY: the arena is fresh, longer than its header and aligned to a page; a thread that
        // holds the lock is not in this process.
        unsafe {
            arena.cast::<*mut u8>().write(self.arena.load(Ordering::Relaxed));
            let (rest, len_bytes) = (arena.add(HEADER_BYTES), self.len_bytes - HEADER_BYTES);
            self.talc.forget_holder(Talc::new(Claim::new(rest, len_bytes)));
        }
        self.arena.store(arena, Ordering::Relaxed);
        Ok(())
    }

    /// Ends the process: the standard library's own end does not reach `venice run`.
    fn die_full(&self, layout: Layout) -> ! {
        let (wanted, all) = (layout.size(), self.len_bytes);
        sys::die_with(format_args!("the pager's heap of {all} bytes has no room for {wanted}"))
    }

    /// Takes the heap for the text of a panic: its holder may be the thread that panics.
    fn take_for_panic(&self) -> SpinGuard<'_, Talc> {
        for _ in 0..PANIC_TRIES {
            match self.talc.try_hold() {
                Some(talc) => return talc,
                None => sys::yield_now(),
            }
        }
        sys::die("internal error: the pager panicked while its heap was in use")
    }

    fn take(&self) -> HeapGuard<'_> {
        let is_panic = std::thread::panicking();
        let talc = if is_panic { self.take_for_panic() } else { self.talc.hold() };
        let uses = self.uses();
        count(uses);
        HeapGuard { uses, talc }
    }

    fn uses(&self) -> Option<&AtomicU64> {
        // SAFETY: null, or a page that this process unmaps only while it has but one thread.
        unsafe { self.uses.load(Ordering::Acquire).as_ref() }
    }

    fn origin_of(&self, piece: *mut u8) -> Origin {
        let newest = self.arena.load(Ordering::Relaxed);
        let mut arena = newest;
        loop {
            let start = arena as usize;
            if (start..start + self.len_bytes).contains(&(piece as usize)) {
                return if arena == newest { Origin::Heap } else { Origin::Abandoned };
            }
            if arena == self.first {
                return Origin::Mapping;
            }
            // SAFETY: an arena of a child's own begins with its header, and is never unmapped.
            arena = unsafe { arena.cast::<*mut u8>().read() };
        }
    }
}

/// The locked heap; counted when it is locked and when it is unlocked.
struct HeapGuard<'a> {
    uses: Option<&'a AtomicU64>,
    talc: SpinGuard<'a, Talc>,
}

impl Deref for HeapGuard<'_> {
    type Target = Talc;

    fn deref(&self) -> &Talc {
        &self.talc
    }
}

impl DerefMut for HeapGuard<'_> {
    fn deref_mut(&mut self) -> &mut Talc {
        &mut self.talc
    }
}

impl Drop for HeapGuard<'_> {
    fn drop(&mut self) {
        count(self.uses);
    }
}

fn count(uses: Option<&AtomicU64>) {
    if let Some(uses) = uses {
        uses.fetch_add(1, Ordering::AcqRel);
    }
}

/// The origin of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Heap,
    /// An arena that was in use when the process was forked off.
    Abandoned,
    /// A mapping of its own.
    Mapping,
}

// SAFETY: an allocation is the inner heap's, of an abandoned arena, or a mapping of its own, told
// apart by its address.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: forwarded to the caller.
        let piece = unsafe { self.take().allocate(layout) };
        piece.unwrap_or_else(|| self.die_full(layout)).as_ptr()
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.size() >= MAPPED_BYTES && layout.align() <= PAGE {
            return sys::map_private(layout.size()).unwrap_or_else(|errno| {
                sys::die_with(format_args!(
                    "there is no memory for {} bytes of the pager: {errno:?}",
                    layout.size()
                ))
            });
        }
        // SAFETY: forwarded to the caller; the allocation is as long as that.
        unsafe {
            let piece = self.alloc(layout);
            if !piece.is_null() {
                piece.write_bytes(0, layout.size());
            }
            piece
        }
    }

    unsafe fn dealloc(&self, piece: *mut u8, layout: Layout) {
        match self.origin_of(piece) {
            // SAFETY: the heap's own, and forwarded to the caller.
            Origin::Heap => unsafe { self.take().deallocate(piece, layout) },
            Origin::Abandoned => {}
            // SAFETY: mapped with this length, and no longer used.
            Origin::Mapping => unsafe { sys::unmap(piece.cast::<c_void>(), layout.size()) },
        }
    }

    unsafe fn realloc(&self, piece: *mut u8, layout: Layout, new_size: usize) -> *mut u8 {
        // SAFETY: the heap's own, and forwarded to the caller.
        let fits = self.origin_of(piece) == Origin::Heap
            && unsafe { self.take().try_realloc_in_place(piece, layout, new_size) };
        if fits {
            return piece;
        }
        // SAFETY: forwarded to the caller.
        let moved =
            unsafe { self.alloc(Layout::from_size_align_unchecked(new_size, layout.align())) };
        if !moved.is_null() {
            // SAFETY: both are as long as that, and they do not overlap.
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
        // SAFETY: leaked, and used by nothing else.
        Box::leak(Box::new(unsafe { Heap::new(memory) }))
    }

    fn layout(len_bytes: usize) -> Layout {
        Layout::from_size_align(len_bytes, 8).unwrap()
    }

    /// Allocates `len_bytes` bytes, all of them `byte`.
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
        // SAFETY: an allocation that is as long as that.
        unsafe { std::slice::from_raw_parts(piece, len_bytes) }.iter().all(|it| *it == byte)
    }

    #[test]
    fn long_zeros_are_mapped() {
        let heap = heap();
        for _ in 0..3 {
            let first = piece(heap, 600 << 10, 7);
            assert_eq!(heap.origin_of(first), Origin::Heap);
            // SAFETY: pieces of these lengths, each freed once.
            unsafe {
                let zeros = heap.alloc_zeroed(layout(2 << 20));
                assert_eq!(heap.origin_of(zeros), Origin::Mapping);
                assert!(holds(zeros, 2 << 20, 0));
                let less = heap.realloc(zeros, layout(2 << 20), 1000);
                assert_eq!((heap.origin_of(less), holds(less, 1000, 0)), (Origin::Heap, true));
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

    #[test]
    fn full_heap_ends_process() {
        let heap = heap();
        piece(heap, 600 << 10, 7);
        let child = fork(|| holds(piece(heap, 600 << 10, 7), 600 << 10, 7));
        let (_, status) = waitpid(Some(child), WaitOptions::empty()).unwrap().unwrap();
        assert_eq!(status.terminating_signal(), Some(Signal::KILL.as_raw()));
    }

    /// Acts as a child whose parent's threads did `meanwhile` while it was forked.
    fn forked(heap: &Heap, meanwhile: impl FnOnce()) {
        heap.before_fork().unwrap();
        meanwhile();
        // SAFETY: nothing else uses this heap.
        unsafe { heap.take_over_in_child().unwrap() };
    }

    #[test]
    fn arena_used_during_fork_is_abandoned() {
        let heap = heap();
        let old = piece(heap, 500, 1);
        let kept = piece(heap, 500, 2);
        for _ in 0..2 {
            forked(heap, || {});
            assert_eq!(heap.origin_of(old), Origin::Heap, "the heap was not used");
        }
        for generation in 0..4 {
            let young = piece(heap, 500, 3);
            forked(heap, || match generation % 2 {
                0 => std::mem::forget(heap.take()),
                _ => drop(heap.take()),
            });
            assert_eq!([old, young].map(|it| heap.origin_of(it)), [Origin::Abandoned; 2]);
            assert!(holds(young, 500, 3));
            let new = piece(heap, 700 << 10, generation);
            assert_eq!(heap.origin_of(new), Origin::Heap);
            // SAFETY: of this length.
            unsafe { heap.dealloc(new, layout(700 << 10)) };
        }
        // SAFETY: pieces of these lengths, each freed once.
        unsafe {
            let longer = heap.realloc(old, layout(500), 5000);
            assert_eq!((heap.origin_of(longer), holds(longer, 500, 1)), (Origin::Heap, true));
            heap.dealloc(kept, layout(500));
            assert!(holds(kept, 500, 2), "an abandoned allocation is kept");
            heap.dealloc(longer, layout(5000));
        }
    }

    #[test]
    fn forked_child_can_allocate() {
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
                assert!(exits_with_success(fork(|| use_in_child(heap, old))), "child {number}");
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

    /// Forks a child that exits with 0 if `body` returns true.
    pub(in super::super) fn fork(body: impl FnOnce() -> bool) -> Pid {
        const SIGCHLD: usize = 17;
        // SAFETY: the child touches nothing that another thread may have held but what `body` uses.
        let pid = unsafe { sys::syscall(sys::nr::CLONE, [SIGCHLD, 0, 0, 0, 0, 0]) }.unwrap();
        match Pid::from_raw(pid as i32) {
            Some(child) => child,
            None => sys::exit(usize::from(!body())),
        }
    }

    fn exits_with_success(child: Pid) -> bool {
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
