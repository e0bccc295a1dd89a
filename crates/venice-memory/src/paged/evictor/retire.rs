//! Retirement of staged pages: dirty pages are written back to their far slots, and the frames are
//! freed.
//!
//! A page of zeros needs no slot. A page whose fingerprint equals that of its slot's contents is
//! clean and needs no write (docs/decisions/0003). Nor does one that another process of the run has
//! written before: after a `fork` they evict the same pages (docs/decisions/0073).

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::super::page_size::{LARGE_PAGES, PageSize, huge_page_around, large_page_around};
use super::super::page_table::{PageNumber, State};
use super::super::pager::{Guarded, Pager};
use super::super::slots::Slots;
use super::super::staging::Frame;
use super::super::transfer::WriteOut;
use super::super::{PAGE, sys};
use super::{BATCH_CHUNKS, Evictor};

/// Slots taken from resident pages at a time when far memory is used up.
const SCAVENGED_SLOTS: usize = 1024;

/// A page whose frame is being retired.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leaving {
    page: PageNumber,
    to: State,
    fingerprint: u128,
    /// Index of its write, if it needs one.
    write: Option<usize>,
}

impl Evictor {
    /// Writes out the pages of the chunks from `first` on and frees their frames. Returns the
    /// number freed, or `None` if far memory is used up and the chunks had to stay.
    pub(super) fn retire(&mut self, first: usize, guarded: &mut Guarded) -> Option<usize> {
        let staging = &self.pager.staging;
        let chunk = |offset| staging.frames_of(staging.chunk_after(first, offset));
        let chunks: [Range<u32>; BATCH_CHUNKS] = std::array::from_fn(chunk);
        let batch = self.batch();
        self.retire_frames(&chunks[..batch], guarded, Evictor::drop_frames)
    }

    /// Does the same for `all`, at most [`BATCH_CHUNKS`] ranges; `free` receives each range once
    /// its contents are written.
    pub(super) fn retire_frames(
        &mut self,
        all: &[Range<u32>],
        guarded: &mut Guarded,
        free: impl Fn(&Evictor, Range<u32>),
    ) -> Option<usize> {
        let pager = self.pager;
        self.leaving.clear();
        self.writes.clear();
        let mut freed = [0; BATCH_CHUNKS];
        let mut stays = false;
        for (frames, freed) in all.iter().zip(&mut freed) {
            for frame in frames.clone() {
                match self.claim_frame(frame) {
                    Frame::Empty => continue,
                    Frame::Page(page) => stays |= !self.plan(page, frame, guarded),
                    Frame::Orphan | Frame::OrphanOf(_) => {}
                }
                *freed += 1;
            }
        }
        if stays {
            self.abandon();
            pager.block.counters.far_full.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        self.write_out(guarded)?;
        for (frames, freed) in all.iter().zip(freed) {
            free(self, frames.clone());
            frames.clone().for_each(|frame| pager.staging.set(frame, Frame::Empty));
            pager.count_gone(freed as u64);
        }
        self.finish_eviction(guarded);
        Some(freed.iter().sum())
    }

    /// Returns what the frame holds, and claims a page in it. Waits for a page that the handler is
    /// taking back: its frame must not be freed under it.
    fn claim_frame(&self, frame: u32) -> Frame {
        let pager = self.pager;
        loop {
            let holds = pager.staging.holds(frame);
            let Frame::Page(page) = holds else { return holds };
            let entry = pager.table.entry(page).expect("staged pages are in the table");
            if entry.claim(State::Staged) {
                return holds;
            }
            if entry.state() != State::Busy && pager.staging.holds(frame) == holds {
                // A fork caught the page on its way, so the frame was not marked.
                return Frame::Orphan;
            }
            sys::yield_now();
        }
    }

    /// Decides where an evicted page goes. `false`: there is no room for it.
    fn plan(&mut self, page: PageNumber, frame: u32, guarded: &mut Guarded) -> bool {
        let pager = self.pager;
        let entry = pager.table.entry(page).expect("staged pages are in the table");
        let source = pager.staging.address(frame);
        // SAFETY: the frame is a whole page of the pager's own memory, and only we use it now.
        let bytes = unsafe { std::slice::from_raw_parts(source as *const u8, PAGE) };
        let mut leaving = Leaving { page, to: State::Far, fingerprint: 0, write: None };
        if is_zero(bytes) {
            guarded.slots.forget(&pager.block, entry);
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
        if join_other(&guarded.slots, pager, page, leaving.fingerprint) {
            self.leaving.push(leaving);
            return true;
        }
        let Some(slot) = slot_or_scavenge(pager, guarded, page) else {
            self.leaving.push(Leaving { to: State::Staged, ..leaving });
            return false;
        };
        leaving.write = Some(self.writes.len());
        self.writes.push(WriteOut::page(source, slot));
        self.leaving.push(leaving);
        true
    }

    /// Sends the planned writes. A write whose donor died meanwhile is sent to another.
    fn write_out(&mut self, guarded: &mut Guarded) -> Option<()> {
        let pager = self.pager;
        self.far.write_all(&pager.block, &mut self.writes);
        while let Some(lost) = self.writes.iter().position(|write| write.lost) {
            let page = self.leaving.iter().find(|l| l.write == Some(lost)).expect("planned").page;
            guarded.slots.exclude(&pager.block, self.writes[lost].slot);
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

    /// Undoes a retirement when far memory is used up: all pages of the chunks stay staged. The
    /// contents of the slots that were to be written are unknown from now on.
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

    /// Frees the memory of frames, also of those recorded as empty: a frame may hold a page that
    /// was moved there unnoticed with its sweep chunk.
    pub(super) fn drop_frames(&self, frames: Range<u32>) {
        let start = self.pager.staging.address(frames.start);
        // SAFETY: every page in them was written out, found clean or is an orphan.
        let dropped =
            unsafe { sys::madvise(start, frames.len() * PAGE, sys::MADV_DONTNEED_LOCKED) };
        // The program may have locked all memory by a bare system call.
        assert_eq!(dropped, Ok(()), "frames {frames:?} of the staging area could not be freed");
    }

    /// Completes the eviction of the pages whose contents are where they belong.
    fn finish_eviction(&mut self, guarded: &Guarded) {
        let pager = self.pager;
        let counters = &pager.block.counters;
        let left_at = pager.refaults.leave(self.leaving.len() as u32);
        let slots_used = pager.block.slots_used.load(Ordering::Relaxed);
        pager.block.most_slots_used.fetch_max(slots_used, Ordering::Relaxed);
        for leaving in self.leaving.drain(..) {
            let entry = pager.table.entry(leaving.page).expect("planned");
            pager.table.set_left_at(leaving.page, left_at);
            let counter = match (leaving.to, leaving.write) {
                (State::Zero, _) => &counters.zero_drops,
                (_, None) => &counters.clean_drops,
                (_, Some(write)) => {
                    debug_assert_eq!(entry.slot(), Some(self.writes[write].slot));
                    entry.set_fingerprint(leaving.fingerprint);
                    publish(&guarded.slots, pager, leaving.page);
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
}

/// Returns the key of a page's contents in the content index. Relatives have a page at the same
/// address; many pages of one process may have the same contents, and need a slot each.
fn contents_key(page: PageNumber, fingerprint: u128) -> u128 {
    // The golden ratio of 128 bits: keys of neighbours are spread over the buckets.
    fingerprint ^ (page as u128).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// Gives a page the slot that another process has written with its contents. False if there is
/// none.
fn join_other(slots: &Slots, pager: &Pager, page: PageNumber, fingerprint: u128) -> bool {
    if !pager.block.shares_contents() {
        return false;
    }
    let entry = pager.table.entry(page).expect("planned");
    let key = contents_key(page, fingerprint);
    let Some(joined) = slots.join(&pager.block, key) else { return false };
    slots.forget(&pager.block, entry);
    entry.set_slot(Some(joined));
    entry.set_fingerprint(fingerprint);
    true
}

/// Publishes the contents that were written for a page. If another process has written the same at
/// the same time, its slot is used and the page's own one is free again.
fn publish(slots: &Slots, pager: &Pager, page: PageNumber) {
    let entry = pager.table.entry(page).expect("planned");
    let fingerprint = entry.fingerprint();
    if pager.block.shares_contents() && !join_other(slots, pager, page, fingerprint) {
        let slot = entry.slot().expect("it was written");
        pager.block.publish_contents(slot, contents_key(page, fingerprint));
    }
}

/// Returns the slot for a page's new contents: its own, if no other process needs its contents,
/// else a fresh one.
fn slot_to_write(slots: &Slots, pager: &Pager, page: PageNumber) -> Option<u32> {
    let entry = pager.table.entry(page).expect("planned");
    if let Some(slot) = entry.slot()
        && slots.is_writable(&pager.block, slot)
        && slots.claim_for_write(&pager.block, slot)
    {
        return Some(slot);
    }
    let fresh = fresh_slot(slots, pager, page)?;
    slots.forget(&pager.block, entry);
    entry.set_slot(Some(fresh));
    Some(fresh)
}

/// Returns a free slot. Pages of a large or huge page get neighbouring slots where possible, so
/// that they come back at once.
fn fresh_slot(slots: &Slots, pager: &Pager, page: PageNumber) -> Option<u32> {
    match pager.table.page_size(page) {
        PageSize::Small => slots.take(&pager.block),
        PageSize::Large => slot_in_row(slots, pager, page, large_page_around(page)),
        PageSize::Huge if page.is_multiple_of(LARGE_PAGES) => {
            slot_in_row(slots, pager, page, huge_page_around(page))
        }
        // The first page of each large part has looked for a row.
        PageSize::Huge => slot_in_row(slots, pager, page, large_page_around(page)),
    }
}

/// Returns a free slot for `page` in a row with those of the other pages of `whole`.
fn slot_in_row(
    slots: &Slots,
    pager: &Pager,
    page: PageNumber,
    whole: Range<PageNumber>,
) -> Option<u32> {
    let count = whole.len() as u32;
    let at = |page: PageNumber| page as u32 % count;
    let in_row_of = |other: PageNumber| {
        let slot = pager.table.entry(other)?.slot()?;
        (slot % count == at(other)).then(|| slot - at(other) + at(page))
    };
    // Pages leave in order: the one before has just been planned.
    let mut others = (whole.start..page).rev().chain(page + 1..whole.end);
    if let Some(slot) = others.find_map(in_row_of)
        && slots.take_this(&pager.block, slot)
    {
        return Some(slot);
    }
    slots.take_in_free_row(&pager.block, at(page), count).or_else(|| slots.take(&pager.block))
}

/// Does the same as [`slot_to_write`]. With far memory used up, the far copies of resident pages
/// make room: a resident page needs no far copy.
fn slot_or_scavenge(pager: &Pager, guarded: &mut Guarded, page: PageNumber) -> Option<u32> {
    if let Some(slot) = slot_to_write(&guarded.slots, pager, page) {
        return Some(slot);
    }
    scavenge(pager, guarded);
    slot_to_write(&guarded.slots, pager, page)
}

/// Releases the slots of some resident pages.
fn scavenge(pager: &Pager, guarded: &mut Guarded) {
    let mut freed = 0;
    for range in guarded.regions.parts(0..usize::MAX) {
        pager.table.for_each_live(range, |page, entry| {
            if freed >= SCAVENGED_SLOTS || entry.slot().is_none() || !entry.claim(State::Resident) {
                return;
            }
            // Read again after the claim.
            freed += guarded.slots.forget(&pager.block, entry) as usize;
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
    fn equal_pages_have_own_keys() {
        let keys: std::collections::HashSet<u128> =
            (0..1000).map(|page| contents_key(page, 7)).collect();
        assert_eq!(keys.len(), 1000);
        assert_eq!(contents_key(5, 7), contents_key(5, 7));
    }

    #[test]
    fn zero_check_covers_last_byte() {
        let mut page = vec![0u8; PAGE];
        assert!(is_zero(&page));
        page[PAGE - 1] = 1;
        assert!(!is_zero(&page));
    }
}
