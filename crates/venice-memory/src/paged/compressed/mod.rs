//! Compression of cold pages: a copy of what leaves is kept packed in this process, beside the one
//! that goes far, and a fault on it is answered without asking a donor
//! (docs/decisions/0041-compression-of-cold-pages.md).
//!
//! The pool knows contents, not pages: an object is found by the fingerprint of what it unpacks to,
//! which the page table has of every far page anyway. So whatever happens to a page (new contents,
//! `munmap`, `mremap`, another slot), nothing here can be out of date, and nothing here is needed.

mod judge;
mod pool;

use std::sync::atomic::{AtomicU64, Ordering};

use lz4_flex::block::{
    CompressTable, compress_into_with_table, decompress_into, get_maximum_output_size,
};

pub(super) use self::judge::{Evidence, Frames, Judge, Median, Stop};
use self::pool::{LONGEST, Pool, PoolMemory};
use super::PAGE;
use super::spin::Spin;
use super::sys::SysResult;

/// Of the local budget, what the pool may be given at most, in percent: the pages that the program
/// works with need the rest.
pub const MOST_PERCENT: u32 = 50;
/// A pool of fewer pages is none: what it could hold would be gone again before it is wanted.
const LEAST_PAGES: u64 = 16;
/// One look-up in so many goes far all the same: it tells what that takes.
const FAR_ONE_IN: u64 = 64;

/// The pool of one process, as its handler and its evictor share it.
#[derive(Debug)]
pub struct Compressed {
    memory: PoolMemory,
    pool: Spin<Pool>,
    /// Its part of what the process may have resident.
    percent: u64,
    looked_up: AtomicU64,
    hits: AtomicU64,
    far: AtomicU64,
    staged: AtomicU64,
    hit_ns: Median,
    staged_ns: Median,
    far_ns: Median,
}

impl Drop for Compressed {
    fn drop(&mut self) {
        // SAFETY: the pool goes with this.
        unsafe { self.memory.unmap() };
    }
}

impl Compressed {
    /// An empty one for a process that may have `limit_pages` resident.
    ///
    /// # Errors
    /// The kernel's, when there is no address space.
    pub(super) fn new(percent: u32, limit_pages: u64) -> SysResult<Compressed> {
        let percent = u64::from(percent);
        let memory = PoolMemory::reserve(limit_pages as usize * PAGE * percent as usize / 100)?;
        // SAFETY: fresh memory.
        let pool = unsafe { Pool::over(memory) };
        Ok(Compressed {
            memory,
            pool: Spin::new(pool),
            percent,
            looked_up: AtomicU64::new(0),
            hits: AtomicU64::new(0),
            far: AtomicU64::new(0),
            staged: AtomicU64::new(0),
            hit_ns: Median::default(),
            staged_ns: Median::default(),
            far_ns: Median::default(),
        })
    }

    /// In the child of a fork, where the memory is zeros: begins anew.
    ///
    /// # Safety
    /// This process has one thread, and it was just forked.
    pub(super) unsafe fn reset_in_child(&self) {
        // SAFETY: the kernel wiped the memory, and whoever held the lock is a thread of the parent.
        unsafe { self.pool.forget_holder(Pool::over(self.memory)) };
    }

    /// Unpacks the page of that fingerprint, if it is here; it is here no longer then. Never waits:
    /// while the evictor is at work the answer is no.
    pub(super) fn take(&self, fingerprint: u128, page: &mut [u8; PAGE]) -> bool {
        let mut object = [0; LONGEST];
        let taken = self.pool.try_hold().and_then(|mut pool| pool.take(fingerprint, &mut object));
        let Some(len_bytes) = taken else { return false };
        let unpacked = decompress_into(&object[..len_bytes], page);
        assert_eq!(unpacked.ok(), Some(PAGE), "what the pool holds was packed here");
        true
    }

    /// The same for a page that the program waits for; one in some is not looked for.
    pub(super) fn take_for_fault(&self, fingerprint: u128, page: &mut [u8; PAGE]) -> bool {
        let looked_up = self.looked_up.fetch_add(1, Ordering::Relaxed);
        !looked_up.is_multiple_of(FAR_ONE_IN) && self.take(fingerprint, page)
    }

    /// A fault was answered from here; in so long, if that was timed.
    pub(super) fn note_hit(&self, ns: Option<u64>) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        ns.into_iter().for_each(|ns| self.hit_ns.add(ns));
    }

    /// The same of one that a donor answered.
    pub(super) fn note_far(&self, ns: Option<u64>) {
        self.far.fetch_add(1, Ordering::Relaxed);
        ns.into_iter().for_each(|ns| self.far_ns.add(ns));
    }

    /// The same of one that found its page still staged.
    pub(super) fn note_staged(&self, ns: Option<u64>) {
        self.staged.fetch_add(1, Ordering::Relaxed);
        ns.into_iter().for_each(|ns| self.staged_ns.add(ns));
    }

    /// Fits the pool to what the process may have resident, of which `most_pages` are what is left
    /// for the pool when the pages that the program works with have the least they need. Where more
    /// than that has become resident memory, or its lists are made for another size, it begins anew.
    pub(super) fn fit(&self, allowance_pages: u64, most_pages: u64) {
        let share_pages = allowance_pages * self.percent / 100;
        // Somewhat below: what is left for it changes all the time.
        let limit_pages = share_pages.min(most_pages - most_pages / 8);
        let limit_pages = if limit_pages < LEAST_PAGES { 0 } else { limit_pages };
        let mut pool = self.pool.hold();
        pool.set_limit(limit_pages as usize * PAGE);
        let resident_pages = pool.resident_bytes().div_ceil(PAGE) as u64;
        let too_large = resident_pages > most_pages.min(limit_pages + limit_pages / 4);
        if too_large || !pool.lists_fit() {
            pool.empty();
        }
    }

    /// May it hold anything at all?
    pub(super) fn has_room(&self) -> bool {
        self.pool.hold().limit_and_used_bytes().0 > 0
    }

    /// Forgets everything, and gives the memory back.
    pub(super) fn empty(&self) {
        self.pool.hold().empty();
    }

    /// Pages of memory that it takes.
    pub(super) fn resident_pages(&self) -> u64 {
        self.pool.hold().resident_bytes().div_ceil(PAGE) as u64
    }

    /// Does it use about all that it may?
    pub(super) fn is_full(&self) -> bool {
        let (limit_bytes, used_bytes) = self.pool.hold().limit_and_used_bytes();
        used_bytes >= limit_bytes - limit_bytes / 8
    }

    /// What has happened so far.
    pub(super) fn evidence(&self) -> Evidence {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Evidence {
            hits: get(&self.hits),
            far: get(&self.far),
            staged: get(&self.staged),
            hit_ns: self.hit_ns.get(),
            staged_ns: self.staged_ns.get(),
            far_ns: self.far_ns.get(),
            packed: 0,
            pack_ns: 0,
        }
    }
}

/// What packs pages: the evictor's own.
pub(super) struct Packer {
    table: CompressTable,
    packed: Vec<u8>,
}

impl Packer {
    pub(super) fn new() -> Packer {
        Packer { table: CompressTable::small(), packed: vec![0; get_maximum_output_size(PAGE)] }
    }

    /// Packs a page and keeps it in `pool`; into how many bytes, unless into too many.
    pub(super) fn keep(
        &mut self,
        pool: &Compressed,
        fingerprint: u128,
        page: &[u8],
    ) -> Option<usize> {
        let packed = compress_into_with_table(page, &mut self.packed, &mut self.table);
        let len_bytes = packed.expect("room for the worst case");
        (len_bytes <= LONGEST && pool.pool.hold().insert(fingerprint, &self.packed[..len_bytes]))
            .then_some(len_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> Vec<u8> {
        b"what leaves is kept packed; ".iter().copied().cycle().take(PAGE).collect()
    }

    #[test]
    fn a_page_comes_back_as_it_was_and_once() {
        let pool = Compressed::new(25, 1024).unwrap();
        pool.fit(1024, 1024);
        let (mut packer, page) = (Packer::new(), text());
        assert!(packer.keep(&pool, 7, &page).unwrap() < PAGE / 8);
        let mut back = [0; PAGE];
        assert!(!pool.take(8, &mut back) && pool.take(7, &mut back));
        assert_eq!(&back[..], &page[..]);
        assert!(!pool.take(7, &mut back));
    }

    #[test]
    fn what_packs_badly_is_not_kept() {
        let pool = Compressed::new(25, 1024).unwrap();
        pool.fit(1024, 1024);
        let mut state = 1u64;
        let mut noise = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        };
        let page: Vec<u8> = (0..PAGE).map(|_| noise()).collect();
        assert_eq!(Packer::new().keep(&pool, 7, &page), None);
        assert_eq!(pool.resident_pages(), 0);
    }

    #[test]
    fn it_is_never_more_than_its_part_for_long() {
        let pool = Compressed::new(50, 128).unwrap();
        pool.fit(128, 128);
        let (mut packer, page) = (Packer::new(), text());
        fill(&pool);
        assert!(pool.is_full() && (61..=64).contains(&pool.resident_pages()));
        pool.fit(64, 64);
        assert_eq!(pool.resident_pages(), 0, "it begins anew");
        assert!(packer.keep(&pool, 1, &page).is_some());
        pool.empty();
        assert_eq!((pool.resident_pages(), pool.take(1, &mut [0; PAGE])), (0, false));
    }

    fn fill(pool: &Compressed) {
        let (mut packer, mut page) = (Packer::new(), text());
        for number in 0..4000u128 {
            page[..16].copy_from_slice(&number.to_le_bytes());
            packer.keep(pool, number, &page).unwrap();
        }
    }

    /// A heap that the pager does not manage grows, and the pool makes room for it.
    #[test]
    fn it_leaves_the_program_what_that_needs() {
        let pool = Compressed::new(50, 1024).unwrap();
        pool.fit(1024, 200);
        fill(&pool);
        assert!((160..=176).contains(&pool.resident_pages()), "{}", pool.resident_pages());
        pool.fit(1024, 180);
        assert!(pool.resident_pages() > 0, "it may be that large still");
        pool.fit(1024, 100);
        assert_eq!(pool.resident_pages(), 0);
        pool.fit(1024, 0);
        assert_eq!((pool.has_room(), Packer::new().keep(&pool, 7, &text())), (false, None));
    }

    /// One of many processes has a small part of what the pool was made for.
    #[test]
    fn a_small_pool_in_a_large_reserve_lasts() {
        let pool = Compressed::new(50, 1 << 20).unwrap();
        pool.fit(64, 64);
        fill(&pool);
        let kept = pool.resident_pages();
        assert!((28..=32).contains(&kept), "{kept}");
        pool.fit(64, 64);
        assert_eq!(pool.resident_pages(), kept, "it stays");
        pool.fit(1 << 20, 1 << 20);
        assert_eq!(pool.resident_pages(), 0, "its lists are far too few now");
        pool.fit(8, 8);
        assert!(!pool.has_room(), "so few are of no use");
    }
}
