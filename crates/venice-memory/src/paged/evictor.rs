//! The evictor: keeps the process within its budget, off the fault path.
//!
//! Victims are found by a clock hand that sweeps the managed regions: a page brought in since
//! the hand last passed is spared once. A batch of victims moves to a chunk of the staging
//! ring; the chunk that was there longest is written out first and its frames are freed. A
//! page that is touched while it is staged is brought back whole, and young again.

use std::sync::atomic::{AtomicU32, Ordering};

use super::far::{Far, WriteOut};
use super::page_table::{PageNumber, State};
use super::pager::{Guarded, Pager};
use super::slots::Slots;
use super::staging::{CHUNK_FRAMES, Frame};
use super::sys::{self, Errno, PollFd};
use super::{PAGE, address_of};

/// Pages looked at in search of victims in one turn with the lock held.
const SCAN_PAGES: usize = 16 * 1024;
/// Slots taken from resident pages at a time when far memory is used up.
const SCAVENGED_SLOTS: usize = 1024;
/// How often the budget is looked at again when nothing happens.
const TICK_NS: u64 = 20_000_000;
/// How long the evictor rests when it can do nothing.
const IDLE_NS: u64 = 1_000_000;
/// How long a program may stand still for want of far memory before it is ended.
const FAR_FULL_PATIENCE_NS: u64 = 500_000_000;
/// How often the process's own anonymous memory is measured.
const MEASURE_EVERY_NS: u64 = 50_000_000;

/// Pages at which the evictor starts.
pub fn high_watermark(limit_pages: u64) -> u64 {
    limit_pages.saturating_sub(slack(limit_pages))
}

/// Pages at which it stops.
fn low_watermark(limit_pages: u64) -> u64 {
    limit_pages.saturating_sub(2 * slack(limit_pages))
}

fn slack(limit_pages: u64) -> u64 {
    (limit_pages / 32).clamp(64, 4096).min(limit_pages / 4)
}

/// The evictor's own state.
pub struct Evictor {
    pager: &'static Pager,
    far: Far,
    victims: Vec<PageNumber>,
    writes: Vec<WriteOut>,
    leaving: Vec<Leaving>,
    statm_fd: i32,
    measured_ns: u64,
    overhead_pages: u64,
    exhausted: bool,
    far_full_since_ns: Option<u64>,
    idle: AtomicU32,
}

/// What came of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Something moved, or may the next time.
    Progress,
    /// There is nothing to evict.
    Nothing,
    /// There is, and no far memory to take it.
    FarFull,
}

/// A page whose frame is being retired.
#[derive(Clone, Copy, Debug)]
struct Leaving {
    page: PageNumber,
    to: State,
    fingerprint: u128,
    /// Index of its write, if it needs one.
    write: Option<usize>,
}

/// The thread's body; `evictor` is the address of a leaked [`Evictor`].
pub extern "C" fn run(evictor: usize) -> ! {
    // SAFETY: `Pager::start_threads` leaked it for this thread alone.
    let evictor = unsafe { &mut *(evictor as *mut Evictor) };
    loop {
        evictor.turn();
    }
}

impl Evictor {
    /// An evictor that has not started yet.
    pub fn new(pager: &'static Pager, far: Far) -> Evictor {
        let statm = sys::open_readonly(b"/proc/self/statm\0");
        Evictor {
            pager,
            far,
            victims: Vec::with_capacity(CHUNK_FRAMES),
            writes: Vec::with_capacity(CHUNK_FRAMES),
            leaving: Vec::with_capacity(CHUNK_FRAMES),
            statm_fd: statm.and_then(|fd| sys::move_fd(fd, pager.lowest_fd)).unwrap_or(-1),
            measured_ns: 0,
            overhead_pages: 0,
            exhausted: false,
            far_full_since_ns: None,
            idle: AtomicU32::new(0),
        }
    }

    fn turn(&mut self) {
        let pager = self.pager;
        pager.evictor_bell.store(0, Ordering::Release);
        self.refresh_limit();
        let limit = pager.limit_pages.load(Ordering::Relaxed);
        let resident = || pager.resident().load(Ordering::Relaxed);
        if resident() <= high_watermark(limit) {
            sys::futex_wait(&pager.evictor_bell, 0, Some(TICK_NS), false);
            return;
        }
        while resident() > low_watermark(limit) {
            let outcome = self.evict_batch();
            self.note_far_full(outcome, resident() >= limit);
            let stuck = outcome == Outcome::Nothing;
            pager.evictor_stuck.store(stuck as u32, Ordering::Relaxed);
            pager.evictor_progress.fetch_add(1, Ordering::Release);
            sys::futex_wake(&pager.evictor_progress, u32::MAX >> 1, false);
            if outcome != Outcome::Progress {
                sys::futex_wait(&self.idle, 0, Some(IDLE_NS), false);
                break;
            }
        }
    }

    /// With far memory used up and the budget too, the program cannot go on: like the kernel's
    /// own out-of-memory, but with a word on what to do.
    fn note_far_full(&mut self, outcome: Outcome, at_limit: bool) {
        if outcome != Outcome::FarFull || !at_limit {
            self.far_full_since_ns = None;
            return;
        }
        let now_ns = sys::monotonic_ns();
        let since_ns = *self.far_full_since_ns.get_or_insert(now_ns);
        if now_ns - since_ns > FAR_FULL_PATIENCE_NS {
            sys::die("far memory is used up and so is --local: run with a larger --remote");
        }
    }

    /// The budget, less what the process holds that is not managed: its early heap, its
    /// stacks, the pager's own tables.
    fn refresh_limit(&mut self) {
        let pager = self.pager;
        let now_ns = sys::monotonic_ns();
        if now_ns >= self.measured_ns + MEASURE_EVERY_NS {
            self.measured_ns = now_ns;
            self.overhead_pages = self.measure_overhead();
            self.check_supervisor();
        }
        let allowance = pager.block.allowance_pages(pager.process.load(Ordering::Relaxed));
        let limit = allowance.saturating_sub(self.overhead_pages).max(allowance / 4);
        pager.limit_pages.store(limit, Ordering::Relaxed);
    }

    fn measure_overhead(&self) -> u64 {
        let managed = self.pager.resident().load(Ordering::Relaxed);
        let mut text = [0u8; 128];
        let Ok(len) = sys::pread0(self.statm_fd, &mut text) else { return 0 };
        let mut fields = text[..len].split(|&b| b == b' ').map(|field| {
            field.iter().fold(0u64, |value, &digit| {
                value.wrapping_mul(10).wrapping_add((digit.wrapping_sub(b'0')) as u64)
            })
        });
        // proc(5): size, resident, shared (file and shmem) pages.
        let resident = fields.nth(1).unwrap_or(0);
        let shared = fields.next().unwrap_or(0);
        resident.saturating_sub(shared).saturating_sub(managed)
    }

    /// Without its supervisor nobody renews the leases: the memory will be taken away.
    fn check_supervisor(&self) {
        let mut connection =
            [PollFd { fd: self.pager.supervisor_fd, events: sys::POLLIN, revents: 0 }];
        if sys::poll(&mut connection, 0) > 0 {
            sys::die("`venice run` is gone, and with it this program's far memory");
        }
    }

    /// Retires the oldest chunk of the ring and fills it anew.
    fn evict_batch(&mut self) -> Outcome {
        let pager = self.pager;
        let _held = pager.lock.hold_as_evictor();
        // SAFETY: the lock is held.
        let guarded = unsafe { &mut *pager.guarded.get() };
        if pager.fork.has_unpaged_children() {
            return Outcome::Nothing;
        }
        let chunk = guarded.head_chunk;
        let Some(retired) = self.retire(chunk, guarded) else { return Outcome::FarFull };
        let (moved, exhausted) = self.fill(chunk, guarded);
        guarded.head_chunk = (chunk + 1) % pager.staging.chunks();
        let was_exhausted = std::mem::replace(&mut self.exhausted, exhausted);
        let nothing = retired + moved == 0 && exhausted && was_exhausted;
        if nothing && !self.ring_holds_pages() { Outcome::Nothing } else { Outcome::Progress }
    }

    fn ring_holds_pages(&self) -> bool {
        let staging = &self.pager.staging;
        (0..staging.chunks())
            .flat_map(|chunk| staging.frames_of(chunk))
            .any(|frame| staging.holds(frame) != Frame::Empty)
    }

    /// Writes out what the chunk still holds and frees its frames; the number freed, or `None`
    /// if far memory is used up and the chunk had to stay.
    fn retire(&mut self, chunk: usize, guarded: &mut Guarded) -> Option<usize> {
        let pager = self.pager;
        self.leaving.clear();
        self.writes.clear();
        let mut freed = 0;
        let mut stays = false;
        for frame in pager.staging.frames_of(chunk) {
            match self.claim_frame(frame) {
                Frame::Empty => {}
                Frame::Page(page) => {
                    stays |= !self.plan(page, frame, guarded);
                    freed += 1;
                }
                Frame::Orphan | Frame::OrphanOf(_) => freed += 1,
            }
        }
        if stays {
            self.abandon();
            pager.block.counters.far_full.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        if freed == 0 {
            return Some(0);
        }
        self.write_out(guarded)?;
        self.free_chunk(chunk, freed);
        Some(freed)
    }

    /// What the frame holds; a page in it is the evictor's then. A page that the handler is
    /// just taking back is waited for: its frame must not be freed under it.
    fn claim_frame(&self, frame: u32) -> Frame {
        let pager = self.pager;
        loop {
            let holds = pager.staging.holds(frame);
            let Frame::Page(page) = holds else { return holds };
            let entry = pager.table.entry(page).expect("staged pages are in the table");
            if entry.claim(State::Staged) {
                return holds;
            }
            sys::yield_now();
        }
    }

    /// Decides where a page goes that is leaving. `false`: there is no room for it.
    fn plan(&mut self, page: PageNumber, frame: u32, guarded: &mut Guarded) -> bool {
        let pager = self.pager;
        let entry = pager.table.entry(page).expect("staged pages are in the table");
        let source = pager.staging.address(frame);
        // SAFETY: the frame is a whole page of the pager's own memory, and only we use it now.
        let bytes = unsafe { std::slice::from_raw_parts(source as *const u8, PAGE) };
        let mut leaving = Leaving { page, to: State::Far, fingerprint: 0, write: None };
        if is_zero(bytes) {
            if let Some(slot) = entry.slot() {
                guarded.slots.give_up(&pager.block, slot);
                entry.set_slot(None);
            }
            leaving.to = State::Zero;
            self.leaving.push(leaving);
            return true;
        }
        let seed = pager.block.fingerprint_seed.load(Ordering::Relaxed);
        leaving.fingerprint = xxhash_rust::xxh3::xxh3_128_with_seed(bytes, seed);
        let slot = entry.slot().filter(|&slot| pager.block.slot_is_alive(slot));
        if slot.is_some() && entry.fingerprint() == leaving.fingerprint {
            self.leaving.push(leaving);
            return true;
        }
        let Some(slot) = slot_or_scavenge(pager, guarded, page) else {
            self.leaving.push(Leaving { to: State::Staged, ..leaving });
            return false;
        };
        leaving.write = Some(self.writes.len());
        self.writes.push(WriteOut { source, slot, lost: false });
        self.leaving.push(leaving);
        true
    }

    /// Sends the planned writes; one whose donor died meanwhile is sent to another.
    fn write_out(&mut self, guarded: &mut Guarded) -> Option<()> {
        let pager = self.pager;
        self.far.write_all(&pager.block, &mut self.writes);
        while let Some(lost) = self.writes.iter().position(|write| write.lost) {
            let page = self.leaving.iter().find(|l| l.write == Some(lost)).expect("planned").page;
            let Some(slot) = slot_or_scavenge(pager, guarded, page) else {
                self.abandon();
                return None;
            };
            let write = &mut self.writes[lost];
            (write.slot, write.lost) = (slot, false);
            self.far.write_all(&pager.block, std::slice::from_mut(write));
        }
        Some(())
    }

    /// Far memory is used up: all pages of the chunk stay staged. What the slots that were to
    /// be written hold is not known any more.
    fn abandon(&mut self) {
        let pager = self.pager;
        for leaving in self.leaving.drain(..) {
            let entry = pager.table.entry(leaving.page).expect("planned");
            if leaving.write.is_some() {
                entry.set_fingerprint(!leaving.fingerprint);
            }
            if entry.release(State::Staged) {
                pager.wake_page(leaving.page);
            }
        }
    }

    fn free_chunk(&mut self, chunk: usize, freed: usize) {
        let pager = self.pager;
        let counters = &pager.block.counters;
        let frames = pager.staging.frames_of(chunk);
        let start = pager.staging.address(frames.start);
        // SAFETY: every page of the chunk was written out, found clean or is an orphan.
        let dropped = unsafe { sys::madvise(start, CHUNK_FRAMES * PAGE, sys::MADV_DONTNEED) };
        assert!(dropped.is_ok(), "the staging area is plain memory");
        for frame in frames {
            pager.staging.set(frame, Frame::Empty);
        }
        pager.resident().fetch_sub(freed as u64, Ordering::Relaxed);
        for leaving in self.leaving.drain(..) {
            let entry = pager.table.entry(leaving.page).expect("planned");
            let counter = match (leaving.to, leaving.write) {
                (State::Zero, _) => &counters.zero_drops,
                (_, None) => &counters.clean_drops,
                (_, Some(write)) => {
                    debug_assert_eq!(entry.slot(), Some(self.writes[write].slot));
                    entry.set_fingerprint(leaving.fingerprint);
                    &counters.pages_out
                }
            };
            counter.fetch_add(1, Ordering::Relaxed);
            let waited = entry.release(leaving.to);
            if leaving.to == State::Zero {
                pager.table.count_dead(leaving.page);
            }
            if waited {
                pager.wake_page(leaving.page);
            }
        }
    }

    /// Moves the next victims into the chunk; the number moved, and whether the hand found
    /// no more of them.
    fn fill(&mut self, chunk: usize, guarded: &mut Guarded) -> (usize, bool) {
        let exhausted = self.pick_victims(guarded);
        let first = self.pager.staging.frames_of(chunk).start;
        let (mut at, mut moved) = (0, 0);
        while at < self.victims.len() {
            let run = self.run_from(at);
            let done = self.stage(at, run, first + at as u32);
            moved += done;
            at += done.max(1);
        }
        (moved, exhausted)
    }

    fn run_from(&self, at: usize) -> usize {
        let pages = &self.victims[at..];
        pages.iter().zip(pages[0]..).take_while(|(page, expected)| **page == *expected).count()
    }

    /// Moves `run` victims from `at` on to `frame` on; returns how many went. If the first one
    /// cannot go it stays resident.
    fn stage(&mut self, at: usize, run: usize, frame: u32) -> usize {
        let pager = self.pager;
        let first = self.victims[at];
        let (source, target) = (address_of(first), pager.staging.address(frame));
        let mut outcome = pager.uffd().move_pages(target, source, run * PAGE);
        if outcome == Err(Errno::EBUSY) {
            // Shared with a forked process: make this side's own copy, then move that.
            // SAFETY: populating changes no contents.
            let own = unsafe { sys::madvise(source, PAGE, sys::MADV_POPULATE_WRITE) };
            if own.is_ok() {
                outcome = pager.uffd().move_pages(target, source, PAGE);
            }
        }
        let done = outcome.map_or(0, |bytes| bytes / PAGE);
        for offset in 0..done {
            let (page, frame) = (first + offset, frame + offset as u32);
            let entry = pager.table.entry(page).expect("a victim");
            entry.set_frame(frame);
            pager.staging.set(frame, Frame::Page(page));
            if entry.release(State::Staged) {
                pager.wake_page(page);
            }
        }
        if done == 0 {
            let entry = pager.table.entry(first).expect("a victim");
            if entry.release(State::Resident) {
                pager.wake_page(first);
            }
        }
        done
    }

    /// Lets the hand sweep until it has a chunk of victims or has looked long enough; `true` if
    /// it went round without finding a chunk of them.
    fn pick_victims(&mut self, guarded: &mut Guarded) -> bool {
        let table = &self.pager.table;
        self.victims.clear();
        let mut looked = 0;
        let mut wraps = 0;
        while self.victims.len() < CHUNK_FRAMES && looked < SCAN_PAGES && wraps < 2 {
            let Some(range) = guarded.regions.next_from(guarded.hand) else {
                guarded.hand = 0;
                wraps += 1;
                continue;
            };
            let mut page = range.start;
            while page < range.end && self.victims.len() < CHUNK_FRAMES && looked < SCAN_PAGES {
                if !table.block_is_live(page) {
                    let block = super::page_table::BLOCK_PAGES;
                    page = (page / block + 1) * block;
                    looked += 1;
                    continue;
                }
                if let Some(entry) = table.entry(page)
                    && entry.state() == State::Resident
                    && !entry.take_youth()
                    && entry.claim(State::Resident)
                {
                    self.victims.push(page);
                }
                looked += 1;
                page += 1;
            }
            guarded.hand = page.min(range.end);
        }
        wraps == 2
    }
}

/// The slot a page's new contents go to: its own, if no other process needs what that holds,
/// else a fresh one.
fn slot_to_write(slots: &Slots, pager: &Pager, page: PageNumber) -> Option<u32> {
    let entry = pager.table.entry(page).expect("planned");
    if let Some(slot) = entry.slot() {
        if slots.is_mine_alone(&pager.block, slot) && pager.block.slot_is_alive(slot) {
            return Some(slot);
        }
        let fresh = slots.take(&pager.block)?;
        slots.give_up(&pager.block, slot);
        entry.set_slot(Some(fresh));
        return Some(fresh);
    }
    let fresh = slots.take(&pager.block)?;
    entry.set_slot(Some(fresh));
    Some(fresh)
}

/// As [`slot_to_write`]; with far memory used up, copies of resident pages make room: what is
/// local need not be far too.
fn slot_or_scavenge(pager: &Pager, guarded: &mut Guarded, page: PageNumber) -> Option<u32> {
    if let Some(slot) = slot_to_write(&guarded.slots, pager, page) {
        return Some(slot);
    }
    scavenge(pager, guarded);
    slot_to_write(&guarded.slots, pager, page)
}

/// Gives up the slots of some resident pages.
fn scavenge(pager: &Pager, guarded: &mut Guarded) {
    let mut freed = 0;
    for range in guarded.regions.parts(0..usize::MAX) {
        pager.table.for_each_live(range, |page, entry| {
            if freed >= SCAVENGED_SLOTS || entry.slot().is_none() || !entry.claim(State::Resident) {
                return;
            }
            // Read again: it is ours only now.
            if let Some(slot) = entry.slot() {
                guarded.slots.give_up(&pager.block, slot);
                entry.set_slot(None);
                freed += 1;
            }
            if entry.release(State::Resident) {
                pager.wake_page(page);
            }
        });
        if freed >= SCAVENGED_SLOTS {
            return;
        }
    }
}

fn is_zero(page: &[u8]) -> bool {
    page.chunks_exact(64).all(|line| line == [0; 64])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_leave_room_between_them() {
        for limit in [1024, 65_536, 1 << 24] {
            assert!(low_watermark(limit) < high_watermark(limit));
            assert!(high_watermark(limit) < limit);
            assert!(low_watermark(limit) > limit / 3);
        }
    }

    #[test]
    fn one_byte_makes_a_page_worth_keeping() {
        let mut page = vec![0u8; PAGE];
        assert!(is_zero(&page));
        page[PAGE - 1] = 1;
        assert!(!is_zero(&page));
    }
}
