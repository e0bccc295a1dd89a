//! The pager's page table: the state of every page of managed memory.
//!
//! Two levels, as in hardware: a root over the 47-bit user address space, and leaves of 1 GiB
//! mapped when a region first needs them and never unmapped. Entries are private memory of the
//! process, so a `fork` copies them with the pages they describe.
//!
//! A page in state [`State::Busy`] belongs to the thread that claimed it; all others leave it alone
//! until that thread is done. A fault on a busy page sets a mark, and the owner wakes the waiting
//! threads.

use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};

use super::access_pattern::{Pattern, Patterns};
use super::page_set::PageSet;
use super::page_size::{HUGE_PAGES, PageSize, huge_page_around, large_page_around};
use super::staging::CHUNK_FRAMES;
use super::sys::{self, SysResult};

/// A page's number: its address divided by 4096.
pub type PageNumber = usize;

/// The place of a page's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// Nowhere: it reads as zeros.
    Zero = 0,
    /// In the program's memory; an older copy may be in its far slot.
    Resident = 1,
    /// In its far slot alone.
    Far = 2,
    /// In the pager's staging area, on its way out; one move brings it back.
    Staged = 3,
    /// A thread of the pager works on it.
    Busy = 4,
    /// Lost with its donor: touching it is an error.
    Poisoned = 5,
}

const STATE_MASK: u32 = 7;
const WAITED: u32 = 8;
const YOUNG: u32 = 16;
const COLD: u32 = 32;
const PREFETCHED: u32 = 64;

/// No far slot.
pub const NO_SLOT: u32 = 0;

/// The entry of one page. All zeros: an untouched page.
#[derive(Debug, Default)]
#[repr(C, align(32))]
pub struct Entry {
    word: AtomicU32,
    slot_plus_one: AtomicU32,
    frame: AtomicU32,
    remembered: AtomicU32,
    fingerprint: [AtomicU64; 2],
}

impl Entry {
    /// Returns the state; it may change at once unless the caller owns the page.
    pub fn state(&self) -> State {
        decode(self.word.load(Ordering::Acquire))
    }

    /// Makes the page busy if it is in state `from`. True if the caller owns it now.
    pub fn claim(&self, from: State) -> bool {
        let mut word = self.word.load(Ordering::Relaxed);
        while decode(word) == from && from != State::Busy {
            let busy = (word & !STATE_MASK) | State::Busy as u32;
            match self.word.compare_exchange_weak(word, busy, Ordering::Acquire, Ordering::Relaxed)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// Makes the page busy whatever its state is, and waits while another thread works on it.
    /// Returns the state it had. Not for the fault handler, which never waits.
    pub fn claim_any(&self) -> State {
        loop {
            let state = self.state();
            if state == State::Busy {
                sys::yield_now();
            } else if self.claim(state) {
                return state;
            }
        }
    }

    /// Releases a busy page in state `to`. True if threads wait for it and must be woken.
    #[must_use]
    pub fn release(&self, to: State) -> bool {
        let young = if to == State::Resident { YOUNG } else { 0 };
        let before = self.word.swap(to as u32 | young, Ordering::Release);
        assert_eq!(decode(before), State::Busy, "only a busy page can be released, to {to:?}");
        before & WAITED != 0
    }

    /// Marks a busy page as waited for: its owner will wake the waiting threads. `false`: it is no
    /// longer busy, look again.
    pub fn mark_waited(&self) -> bool {
        let mut word = self.word.load(Ordering::Acquire);
        while decode(word) == State::Busy {
            let marked = word | WAITED;
            match self.word.compare_exchange_weak(word, marked, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return true,
                Err(now) => word = now,
            }
        }
        false
    }

    /// True if the page was brought in since the clock hand last passed.
    pub fn is_young(&self) -> bool {
        self.word.load(Ordering::Relaxed) & YOUNG != 0
    }

    /// Ends the second chance of a resident page. True if it had one.
    pub fn clear_young(&self) -> bool {
        let word = self.word.load(Ordering::Relaxed);
        if decode(word) != State::Resident || word & YOUNG == 0 {
            return false;
        }
        let older = word & !YOUNG;
        self.word.compare_exchange(word, older, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Makes a resident page cold: it is evicted before others. False if it is not resident. A page
    /// that is brought in again is not cold.
    pub fn make_cold(&self) -> bool {
        let cold = |word| (decode(word) == State::Resident).then_some(word & !YOUNG | COLD);
        self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, cold).is_ok()
    }

    /// True if it is cold.
    pub fn is_cold(&self) -> bool {
        self.word.load(Ordering::Relaxed) & COLD != 0
    }

    /// Releases a busy page that was prefetched: it is resident, and not young before it is used.
    /// True if threads wait for it already and must be woken; then it counts as used.
    #[must_use]
    pub fn release_prefetched(&self) -> bool {
        let before = self.word.swap(State::Resident as u32 | PREFETCHED, Ordering::Release);
        assert_eq!(decode(before), State::Busy, "only a busy page can be released");
        let is_waited_for = before & WAITED != 0;
        if is_waited_for {
            self.mark_used();
        }
        is_waited_for
    }

    /// Marks a prefetched page as used. False if it was not prefetched, or was used before.
    pub fn mark_used(&self) -> bool {
        let is_prefetched = |word| decode(word) == State::Resident && word & PREFETCHED != 0;
        let used = |word| is_prefetched(word).then_some(word & !(PREFETCHED | COLD) | YOUNG);
        self.word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, used).is_ok()
    }

    /// True if it was prefetched and no use of it is known.
    pub fn is_prefetched(&self) -> bool {
        self.word.load(Ordering::Relaxed) & PREFETCHED != 0
    }

    /// The far slot, if it has one. Changed only by the page's owner.
    pub fn slot(&self) -> Option<u32> {
        self.slot_plus_one.load(Ordering::Relaxed).checked_sub(1)
    }

    /// Sets or clears the far slot. For the page's owner only.
    pub fn set_slot(&self, slot: Option<u32>) {
        self.slot_plus_one.store(slot.map_or(NO_SLOT, |s| s + 1), Ordering::Relaxed);
    }

    /// The staging frame of a staged page.
    pub fn frame(&self) -> u32 {
        self.frame.load(Ordering::Relaxed)
    }

    /// Sets the staging frame. For the page's owner only.
    pub fn set_frame(&self, frame: u32) {
        self.frame.store(frame, Ordering::Relaxed);
    }

    /// Remembers the state that the page had when a change of the address space claimed it.
    pub fn remember(&self, state: State) {
        self.remembered.store(state as u32 + 1, Ordering::Relaxed);
    }

    /// Takes the state that [`Entry::remember`] stored. `None`: the page, busy or not, is not
    /// claimed by a change of the address space.
    pub fn take_remembered(&self) -> Option<State> {
        self.remembered.swap(0, Ordering::Relaxed).checked_sub(1).map(decode)
    }

    /// The fingerprint of the far slot's contents.
    pub fn fingerprint(&self) -> u128 {
        let [low, high] = &self.fingerprint;
        low.load(Ordering::Relaxed) as u128 | (high.load(Ordering::Relaxed) as u128) << 64
    }

    /// Sets the fingerprint. For the page's owner only.
    pub fn set_fingerprint(&self, fingerprint: u128) {
        self.fingerprint[0].store(fingerprint as u64, Ordering::Relaxed);
        self.fingerprint[1].store((fingerprint >> 64) as u64, Ordering::Relaxed);
    }

    /// Takes over slot, frame and fingerprint of `other`. The caller owns both.
    pub fn take_from(&self, other: &Entry) {
        self.set_slot(other.slot());
        self.set_frame(other.frame());
        self.set_fingerprint(other.fingerprint());
        other.set_slot(None);
    }
}

fn decode(word: u32) -> State {
    match word & STATE_MASK {
        0 => State::Zero,
        1 => State::Resident,
        2 => State::Far,
        3 => State::Staged,
        4 => State::Busy,
        5 => State::Poisoned,
        _ => unreachable!("invalid page state"),
    }
}

/// Pages of a leaf.
pub const LEAF_PAGES: usize = 1 << 18;
/// Leaves of the root.
pub const ROOT_LEAVES: usize = 1 << 17;
/// Pages of one block, for which a leaf keeps a count so that empty stretches cost nothing.
pub const BLOCK_PAGES: usize = 512;

/// One leaf: 1 GiB of address space.
#[repr(C)]
struct Leaf {
    entries: [Entry; LEAF_PAGES],
    live: [AtomicU32; LEAF_PAGES / BLOCK_PAGES],
    /// The eviction count at which a page of each sweep chunk last left.
    left_at: [AtomicU32; LEAF_PAGES / CHUNK_FRAMES],
    patterns: Patterns<{ LEAF_PAGES / 32 }>,
    in_thread: PageSet<{ LEAF_PAGES / 64 }>,
    large: PageSet<{ LEAF_PAGES / 64 }>,
    huge: PageSet<{ LEAF_PAGES / 64 }>,
    dont_fork: PageSet<{ LEAF_PAGES / 64 }>,
}

/// Bytes of an entry.
pub const ENTRY_BYTES: usize = size_of::<Entry>();

/// Bytes of a leaf.
pub const fn leaf_bytes() -> usize {
    size_of::<Leaf>()
}

/// Offset in a leaf of the count of pages that are not zero, for the block of page `index`.
pub const fn live_offset(index: usize) -> usize {
    std::mem::offset_of!(Leaf, live) + index / BLOCK_PAGES * size_of::<AtomicU32>()
}

/// An entry as read from another process, or from a core dump.
#[derive(Clone, Copy, Debug)]
pub struct SavedEntry {
    /// The state.
    pub state: State,
    /// The far slot, if it has one.
    pub slot: Option<u32>,
    /// The staging frame of a staged page.
    pub frame: u32,
}

impl SavedEntry {
    /// Decodes an entry of [`ENTRY_BYTES`] bytes. A state that no pager sets counts as lost.
    pub fn decode(bytes: &[u8]) -> SavedEntry {
        let word = |at: usize| {
            u32::from_le_bytes(bytes[at..at + 4].try_into().expect("an entry has these bytes"))
        };
        let state = word(std::mem::offset_of!(Entry, word));
        SavedEntry {
            state: if state & STATE_MASK > 5 { State::Poisoned } else { decode(state) },
            slot: word(std::mem::offset_of!(Entry, slot_plus_one)).checked_sub(1),
            frame: word(std::mem::offset_of!(Entry, frame)),
        }
    }
}

const _: () = assert!(std::mem::offset_of!(Leaf, entries) == 0, "an image counts on it");
const _: () = assert!(BLOCK_PAGES == HUGE_PAGES, "a huge page lies in one leaf, a block of it");

/// The table.
pub struct PageTable {
    root: &'static [AtomicPtr<Leaf>],
}

impl Drop for PageTable {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` and `cover`, and used by nothing else.
        unsafe {
            for leaf in self.root.iter().map(|leaf| leaf.load(Ordering::Acquire)) {
                if !leaf.is_null() {
                    sys::unmap(leaf.cast(), size_of::<Leaf>());
                }
            }
            sys::unmap(self.root.as_ptr().cast_mut().cast(), size_of_val(self.root));
        }
    }
}

impl PageTable {
    /// Makes an empty table.
    ///
    /// # Errors
    /// The kernel's, when there is no address space for the root (1 MiB).
    pub fn new() -> SysResult<PageTable> {
        let memory = sys::map_dumped(ROOT_LEAVES * size_of::<AtomicPtr<Leaf>>())?;
        // SAFETY: fresh zeroed memory of that size, unmapped with the table; zeros are null
        // pointers.
        let root =
            unsafe { std::slice::from_raw_parts(memory.cast::<AtomicPtr<Leaf>>(), ROOT_LEAVES) };
        Ok(PageTable { root })
    }

    /// The address of the root.
    pub fn root_address(&self) -> usize {
        self.root.as_ptr() as usize
    }

    /// Maps the leaves over `pages`. Only under the structure lock.
    ///
    /// # Errors
    /// The kernel's, when there is no address space for a leaf (8 MiB).
    ///
    /// # Panics
    /// If `pages` reach beyond the user address space.
    pub fn cover(&self, pages: std::ops::Range<PageNumber>) -> SysResult<()> {
        assert!(pages.end <= ROOT_LEAVES * LEAF_PAGES, "beyond the user address space");
        if pages.is_empty() {
            return Ok(());
        }
        for index in pages.start / LEAF_PAGES..=(pages.end - 1) / LEAF_PAGES {
            if self.root[index].load(Ordering::Acquire).is_null() {
                let leaf = sys::map_dumped(size_of::<Leaf>())?.cast::<Leaf>();
                self.root[index].store(leaf, Ordering::Release);
            }
        }
        Ok(())
    }

    /// Returns the entry of `page`, if a region ever covered it.
    pub fn entry(&self, page: PageNumber) -> Option<&Entry> {
        Some(&self.leaf(page)?.entries[page % LEAF_PAGES])
    }

    /// Counts a page of `page`'s block that left state zero.
    pub fn count_live(&self, page: PageNumber) {
        if let Some(count) = self.live(page) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a page that returned to state zero.
    pub fn count_dead(&self, page: PageNumber) {
        if let Some(count) = self.live(page) {
            let before = count.fetch_sub(1, Ordering::Relaxed);
            assert!(before > 0, "a block cannot hold fewer than no live pages");
        }
    }

    /// True if any page in `page`'s block is not zero.
    pub fn block_is_live(&self, page: PageNumber) -> bool {
        self.live(page).is_some_and(|count| count.load(Ordering::Relaxed) > 0)
    }

    /// Records the eviction count at which `page` left.
    pub fn set_left_at(&self, page: PageNumber, left_at: u32) {
        if let Some(leaf) = self.leaf(page) {
            leaf.left_at[page % LEAF_PAGES / CHUNK_FRAMES].store(left_at, Ordering::Relaxed);
        }
    }

    /// Returns the eviction count at which `page`, or one in the same sweep chunk, left last.
    pub fn left_at(&self, page: PageNumber) -> Option<u32> {
        let leaf = self.leaf(page)?;
        Some(leaf.left_at[page % LEAF_PAGES / CHUNK_FRAMES].load(Ordering::Relaxed))
    }

    /// Returns the access pattern that the program advised for `page`.
    pub fn pattern(&self, page: PageNumber) -> Pattern {
        self.leaf(page).map_or(Pattern::Normal, |leaf| leaf.patterns.get(page % LEAF_PAGES))
    }

    /// Sets the access pattern of all pages of the range that a region ever covered. Only under the
    /// structure lock.
    pub fn set_pattern(&self, pages: std::ops::Range<PageNumber>, pattern: Pattern) {
        self.for_each_leaf(pages, |leaf, indexes| leaf.patterns.set(indexes, pattern));
    }

    /// Copies the attributes (pattern, size, advice on forks) of the pages of `from` to the pages
    /// from `to` on. Only under the structure lock.
    pub fn copy_attributes(&self, from: std::ops::Range<PageNumber>, to: PageNumber) {
        let attributes = |page| (self.pattern(page), self.page_size(page), self.is_dont_fork(page));
        let mut start = from.start;
        while start < from.end {
            let (pattern, size, dont_fork) = attributes(start);
            let is_other = |page: &PageNumber| attributes(*page) != (pattern, size, dont_fork);
            let end = (start..from.end).find(is_other).unwrap_or(from.end);
            let pages = to + (start - from.start)..to + (end - from.start);
            self.set_pattern(pages.clone(), pattern);
            self.set_page_size(pages.clone(), size);
            self.set_dont_fork(pages, dont_fork);
            start = end;
        }
    }

    /// Returns the size of the page that `page` is part of.
    pub fn page_size(&self, page: PageNumber) -> PageSize {
        let Some(leaf) = self.leaf(page) else { return PageSize::Small };
        let index = page % LEAF_PAGES;
        match (leaf.huge.contains(index), leaf.large.contains(index)) {
            (true, _) => PageSize::Huge,
            (false, true) => PageSize::Large,
            (false, false) => PageSize::Small,
        }
    }

    /// Sets the page size of all pages of the range that a region ever covered. Only under the
    /// structure lock.
    pub fn set_page_size(&self, pages: std::ops::Range<PageNumber>, size: PageSize) {
        self.for_each_leaf(pages, |leaf, indexes| {
            leaf.large.set(indexes.clone(), size == PageSize::Large);
            leaf.huge.set(indexes, size == PageSize::Huge);
        });
    }

    /// Returns the huge page around `page`, if all of it is to be one.
    pub fn huge_page_of(&self, page: PageNumber) -> Option<std::ops::Range<PageNumber>> {
        let whole = huge_page_around(page);
        let first = whole.start % LEAF_PAGES;
        let indexes = first..first + HUGE_PAGES;
        self.leaf(page)?.huge.contains_all(indexes).then_some(whole)
    }

    /// Returns the large page around `page`, as far as it exists; parts of huge pages count as
    /// large.
    pub fn large_page_of(&self, page: PageNumber) -> std::ops::Range<PageNumber> {
        let whole = large_page_around(page);
        let is_large = |page: &PageNumber| self.page_size(*page) != PageSize::Small;
        let below = (whole.start..page).rev().take_while(is_large).count();
        let above = (page + 1..whole.end).take_while(is_large).count();
        page - below..page + 1 + above
    }

    /// True if faults on `page` are served in the thread that touches it.
    pub fn is_in_thread(&self, page: PageNumber) -> bool {
        self.leaf(page).is_some_and(|leaf| leaf.in_thread.contains(page % LEAF_PAGES))
    }

    /// Sets if faults on the pages of the range are served in their threads, as far as a region
    /// ever covered it. Only under the structure lock.
    pub fn set_in_thread(&self, pages: std::ops::Range<PageNumber>, is_in_thread: bool) {
        self.for_each_leaf(pages, |leaf, indexes| leaf.in_thread.set(indexes, is_in_thread));
    }

    /// True if children do not get `page` (`MADV_DONTFORK`).
    pub fn is_dont_fork(&self, page: PageNumber) -> bool {
        self.leaf(page).is_some_and(|leaf| leaf.dont_fork.contains(page % LEAF_PAGES))
    }

    /// Sets if children do not get the pages of the range, as far as a region ever covered it. Only
    /// under the structure lock.
    pub fn set_dont_fork(&self, pages: std::ops::Range<PageNumber>, dont_fork: bool) {
        self.for_each_leaf(pages, |leaf, indexes| leaf.dont_fork.set(indexes, dont_fork));
    }

    /// Returns the stretches of `pages` that children do not get. A leaf without any costs nothing.
    pub fn dont_fork_stretches(
        &self,
        pages: std::ops::Range<PageNumber>,
    ) -> Vec<std::ops::Range<PageNumber>> {
        let mut stretches = Vec::new();
        let mut page = pages.start;
        while page < pages.end {
            let leaf_end = pages.end.min(page / LEAF_PAGES * LEAF_PAGES + LEAF_PAGES);
            let is_unused = self.leaf(page).is_none_or(|leaf| leaf.dont_fork.is_unused());
            let start = if is_unused { leaf_end } else { page };
            let is_in = |page: &PageNumber| self.is_dont_fork(*page);
            let start = (start..leaf_end).find(is_in).unwrap_or(leaf_end);
            let end = (start..leaf_end).find(|page| !is_in(page)).unwrap_or(leaf_end);
            if start < end {
                stretches.push(start..end);
            }
            page = end;
        }
        stretches
    }

    fn for_each_leaf(
        &self,
        pages: std::ops::Range<PageNumber>,
        visit: impl Fn(&Leaf, std::ops::Range<usize>),
    ) {
        let mut page = pages.start;
        while page < pages.end {
            let first = page / LEAF_PAGES * LEAF_PAGES;
            let end = pages.end.min(first + LEAF_PAGES);
            if let Some(leaf) = self.leaf(page) {
                visit(leaf, page - first..end - first);
            }
            page = end;
        }
    }

    fn live(&self, page: PageNumber) -> Option<&AtomicU32> {
        Some(&self.leaf(page)?.live[page % LEAF_PAGES / BLOCK_PAGES])
    }

    fn leaf(&self, page: PageNumber) -> Option<&Leaf> {
        let leaf = self.root.get(page / LEAF_PAGES)?.load(Ordering::Acquire);
        // SAFETY: a leaf, once set, is never unmapped; zeroed memory is a valid leaf.
        unsafe { leaf.as_ref() }
    }

    /// Calls [`PageTable::for_each_live`] over the whole address space.
    pub fn for_each_live_anywhere(&self, mut visit: impl FnMut(PageNumber, &Entry)) {
        for (index, leaf) in self.root.iter().enumerate() {
            if !leaf.load(Ordering::Acquire).is_null() {
                self.for_each_live(index * LEAF_PAGES..(index + 1) * LEAF_PAGES, &mut visit);
            }
        }
    }

    /// Returns the first page of the range whose block is live and for whose entry `is_it` is true.
    pub fn first_live(
        &self,
        pages: std::ops::Range<PageNumber>,
        is_it: impl Fn(&Entry) -> bool,
    ) -> Option<PageNumber> {
        let mut page = pages.start;
        while page < pages.end {
            let end = pages.end.min((page / BLOCK_PAGES + 1) * BLOCK_PAGES);
            let is_live = self.block_is_live(page);
            let found = (page..end).find(|&page| is_live && self.entry(page).is_some_and(&is_it));
            if found.is_some() {
                return found;
            }
            page = end;
        }
        None
    }

    /// Calls `visit` for every page of `pages` whose block is live, in order.
    pub fn for_each_live(
        &self,
        pages: std::ops::Range<PageNumber>,
        mut visit: impl FnMut(PageNumber, &Entry),
    ) {
        let mut page = pages.start;
        while page < pages.end {
            let block_end = (page / BLOCK_PAGES + 1) * BLOCK_PAGES;
            let end = block_end.min(pages.end);
            if self.block_is_live(page) {
                for each in page..end {
                    if let Some(entry) = self.entry(each) {
                        visit(each, entry);
                    }
                }
            }
            page = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_entry_is_zero() {
        let table = PageTable::new().unwrap();
        table.cover(5..6).unwrap();
        let entry = table.entry(5).unwrap();
        assert_eq!((entry.state(), entry.slot()), (State::Zero, None));
        assert!(table.entry(LEAF_PAGES).is_none(), "no region covers that leaf");
    }

    #[test]
    fn claim_is_exclusive() {
        let entry = Entry::default();
        assert!(entry.claim(State::Zero));
        assert!(!entry.claim(State::Zero));
        assert!(!entry.claim(State::Busy));
        assert!(entry.mark_waited());
        assert!(entry.release(State::Resident), "the owner must wake the waiter");
        assert!(!entry.mark_waited());
        assert!(entry.clear_young());
        assert!(!entry.clear_young());
    }

    #[test]
    fn used_prefetch_becomes_young() {
        let entry = Entry::default();
        assert!(entry.claim(State::Zero) && !entry.release_prefetched());
        assert!(entry.is_prefetched() && !entry.is_young());
        assert!(entry.mark_used() && entry.is_young() && !entry.mark_used());
        assert!(entry.make_cold() && entry.is_cold() && !entry.is_young());
        assert!(entry.claim(State::Resident) && !entry.make_cold());
        assert!(entry.mark_waited() && entry.release_prefetched(), "a thread waits for it");
        assert!(!entry.is_prefetched() && entry.is_young() && !entry.is_cold());
    }

    #[test]
    fn attributes_move_with_pages() {
        let table = PageTable::new().unwrap();
        table.cover(0..2 * LEAF_PAGES).unwrap();
        let border = LEAF_PAGES - 3..LEAF_PAGES + 5;
        table.set_pattern(border.clone(), Pattern::Random);
        table.set_page_size(border.clone(), PageSize::Large);
        table.set_dont_fork(border.clone(), true);
        table.copy_attributes(border.start - 1..border.end + 1, 100);
        for (page, pattern) in [
            (border.end - 1, Pattern::Random),
            (border.end, Pattern::Normal),
            (100, Pattern::Normal),
            (101, Pattern::Random),
            (108, Pattern::Random),
            (109, Pattern::Normal),
            (9 * LEAF_PAGES, Pattern::Normal),
        ] {
            assert_eq!(table.pattern(page), pattern, "page {page}");
            let is_large = table.page_size(page) == PageSize::Large;
            assert_eq!(is_large, pattern == Pattern::Random, "page {page}");
            assert_eq!(table.is_dont_fork(page), is_large, "page {page}");
        }
        let kept = table.dont_fork_stretches(0..9 * LEAF_PAGES);
        assert_eq!(kept, [101..109, border.start..LEAF_PAGES, LEAF_PAGES..border.end]);
        // At its edges a large page has the pages that exist.
        assert_eq!(table.large_page_of(103), 101..109);
        assert_eq!(table.large_page_of(border.start), border.start..LEAF_PAGES);
        assert_eq!(table.large_page_of(border.end - 1), LEAF_PAGES..border.end);
    }

    #[test]
    fn huge_page_is_whole_or_none() {
        let table = PageTable::new().unwrap();
        table.cover(0..LEAF_PAGES).unwrap();
        table.set_page_size(HUGE_PAGES - 1..3 * HUGE_PAGES, PageSize::Huge);
        assert_eq!(table.huge_page_of(HUGE_PAGES + 7), Some(HUGE_PAGES..2 * HUGE_PAGES));
        assert_eq!(table.huge_page_of(HUGE_PAGES - 1), None);
        assert_eq!(table.large_page_of(HUGE_PAGES - 1), HUGE_PAGES - 1..HUGE_PAGES);
        table.set_page_size(2 * HUGE_PAGES..2 * HUGE_PAGES + 1, PageSize::Small);
        assert_eq!(table.huge_page_of(3 * HUGE_PAGES - 1), None);
        assert_eq!(table.page_size(3 * HUGE_PAGES - 1), PageSize::Huge);
    }

    #[test]
    fn empty_blocks_are_skipped() {
        let table = PageTable::new().unwrap();
        table.cover(0..4 * BLOCK_PAGES).unwrap();
        table.count_live(2 * BLOCK_PAGES + 7);
        let mut seen = Vec::new();
        table.for_each_live(1..4 * BLOCK_PAGES, |page, _| seen.push(page));
        assert_eq!(seen, (2 * BLOCK_PAGES..3 * BLOCK_PAGES).collect::<Vec<_>>());
        table.count_dead(2 * BLOCK_PAGES + 7);
        table.for_each_live(0..4 * BLOCK_PAGES, |_, _| panic!("nothing is live"));
    }
}
