//! Huge pages: a fault on a huge page of which nothing is resident brings it in whole, as 2 MiB
//! that the processor translates as one.
//!
//! All of its pages are claimed, assembled in 2 MiB of the kernel's, a spare
//! ([`HugeSlots`](super::super::huge_slots::HugeSlots)) or fresh memory, and moved to the program
//! by one `UFFDIO_MOVE`. The touched page waits for all of it: one that came earlier would leave a
//! table of small pages in place of the huge one. If all of it is still in its staging slot, one
//! move brings it back.
//!
//! The kernel makes a table of small pages where a page is touched, before it reports the fault.
//! The huge page would be split to fit in there, so that table is freed first, by `MADV_DONTNEED`
//! of an empty range (Linux 6.14). No change of the address space may come between: the structure
//! lock is held.
//!
//! If the huge page cannot come whole (part of it is resident or lost, a fork is under way, the
//! budget has no room), the fault brings in a large page instead, and is counted.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::super::page_size::{HUGE_BYTES, HUGE_PAGES};
use super::super::page_table::{Entry, PageNumber, State};
use super::super::staging::Frame;
use super::super::sys::{self, Errno};
use super::super::transfer::Fetch;
use super::super::{PAGE, address_of};
use super::{Cause, Fault, Handler};

/// The state of each page of a huge page when it was claimed.
type Claimed = [State; HUGE_PAGES];

/// The memory in which a huge page is assembled.
#[derive(Clone, Copy, Debug)]
struct Landing {
    address: usize,
    /// The spare slot; `None`: fresh memory.
    slot: Option<usize>,
}

impl Handler {
    /// True if a huge page is to come with the page of `fault`.
    pub(super) fn is_huge(&self, fault: &Fault) -> bool {
        matches!(fault.cause, Cause::Demand | Cause::Advised)
            && !self.is_in_thread
            && self.far.is_mapped()
            && self.pager.table.huge_page_of(fault.page).is_some()
    }

    /// Brings in the huge page around the page of `fault`, which is in far slot `slot`, if in any.
    /// `false`: it did not come whole, and nothing has changed.
    pub(super) fn bring_huge(&mut self, fault: &Fault, slot: Option<u32>) -> bool {
        let pager = self.pager;
        let Some(huge) = pager.table.huge_page_of(fault.page) else { return false };
        let mut claimed = [State::Busy; HUGE_PAGES];
        let may_come =
            self.may_come(&huge) && (self.staged_whole(&huge).is_some() || self.has_room(slot));
        // The caller of an advised prefetch holds the lock.
        let has_lock = fault.cause == Cause::Advised;
        let held = if may_come && !has_lock { pager.lock.hold_as_handler() } else { None };
        let comes = may_come
            && (has_lock || held.is_some())
            && self.is_managed(&huge)
            && self.claim_huge(&huge, &mut claimed);
        let outcome = if comes { self.bring_claimed(fault, &huge, &claimed) } else { Err(None) };
        drop(held);
        match outcome {
            Ok(()) => true,
            Err(Some(Errno::EAGAIN)) => {
                self.defer(*fault);
                true
            }
            Err(_) => {
                if fault.cause == Cause::Demand {
                    pager.block.counters.huge_in_part.fetch_add(1, Ordering::Relaxed);
                }
                false
            }
        }
    }

    /// True if no page of it is resident, as far as the table shows, and no fork is under way.
    fn may_come(&self, huge: &Range<PageNumber>) -> bool {
        let is_away =
            |entry: &Entry| matches!(entry.state(), State::Zero | State::Staged | State::Far);
        !self.pager.fork.is_open()
            && huge.clone().all(|page| self.pager.table.entry(page).is_some_and(is_away))
    }

    /// True if it is still memory of the program. The caller holds the structure lock.
    fn is_managed(&self, huge: &Range<PageNumber>) -> bool {
        // SAFETY: the structure lock is held, so the regions do not change.
        let guarded = unsafe { &*self.pager.guarded.get() };
        guarded.regions.contains(huge.clone())
    }

    /// Returns the frame of its first page, if all of it is still in one staging slot as it left.
    fn staged_whole(&self, huge: &Range<PageNumber>) -> Option<u32> {
        let table = &self.pager.table;
        let first = table.entry(huge.start)?.frame();
        let is_there = |(page, frame): (PageNumber, u32)| {
            let entry = table.entry(page);
            entry.is_some_and(|entry| entry.frame() == frame)
                && self.pager.staging.holds(frame) == Frame::Page(page)
        };
        let is_aligned = self.pager.staging.address(first).is_multiple_of(HUGE_BYTES);
        (is_aligned && huge.clone().zip(first..).all(is_there)).then_some(first)
    }

    /// Waits for room for all of it. True if there is room.
    fn has_room(&self, slot: Option<u32>) -> bool {
        self.wait_for_room(slot, HUGE_PAGES as u64);
        self.room() >= HUGE_PAGES
    }

    /// Claims all of it. `false`: another thread has part of it, and the claimed pages were
    /// released again.
    fn claim_huge(&self, huge: &Range<PageNumber>, claimed: &mut Claimed) -> bool {
        let mut claims = huge.clone().zip(claimed.iter_mut()).map(|(page, claimed)| {
            let entry = self.pager.table.entry(page).expect("huge pages are in the table");
            *claimed = entry.state();
            let is_away = matches!(*claimed, State::Zero | State::Staged | State::Far);
            is_away && self.claim(page, entry, *claimed)
        });
        let count = claims.by_ref().take_while(|is_claimed| *is_claimed).count();
        if count < HUGE_PAGES {
            self.release_claims(&(huge.start..huge.start + count), claimed);
        }
        count == HUGE_PAGES
    }

    /// Releases pages in the state that they had before the claim.
    fn release_claims(&self, pages: &Range<PageNumber>, was: &[State]) {
        for (page, was) in pages.clone().zip(was) {
            self.release_entry(page, *was);
        }
    }

    /// Places all of it, which is claimed. `Err`: no page was placed, and all were released; with
    /// the kernel's error, if there was one.
    fn bring_claimed(
        &mut self,
        fault: &Fault,
        huge: &Range<PageNumber>,
        claimed: &Claimed,
    ) -> Result<(), Option<Errno>> {
        let pager = self.pager;
        let all_staged = claimed.iter().all(|was| *was == State::Staged);
        let staged = if all_staged { self.staged_whole(huge) } else { None };
        let landing = match staged {
            Some(frame) => Some(Landing { address: pager.staging.address(frame), slot: None }),
            // It may have left its staging slot since the check.
            None if self.room() < HUGE_PAGES => None,
            None => self.assemble(huge, claimed),
        };
        let Some(landing) = landing else {
            self.release_claims(huge, claimed);
            return Err(None);
        };
        if landing.slot.is_none()
            && staged.is_none()
            && self.is_huge_at(landing.address) == Some(false)
        {
            pager.block.counters.huge_refused.fetch_add(1, Ordering::Relaxed);
        }
        self.clear_table(address_of(huge.start));
        let placed = self.move_huge(address_of(huge.start), landing.address);
        if staged.is_none() {
            self.free_landing(landing);
        }
        let done = placed.as_ref().map_or(0, |bytes| bytes / PAGE);
        if done > 0 {
            self.count_huge(fault, huge, claimed, done);
        }
        self.release_huge(huge, claimed, done, staged.is_some());
        placed.map(drop).map_err(Some)
    }

    /// Frees the kernel's table of small pages where a huge page is to go.
    fn clear_table(&self, address: usize) {
        let looked = self.presence.as_ref().map(|presence| presence.look(address, HUGE_PAGES));
        // A bare system call may have placed something there.
        if matches!(looked, Some(Ok(there)) if !there.contains(&true)) {
            // SAFETY: the range is empty.
            let _ = unsafe { sys::madvise(address, HUGE_BYTES, sys::MADV_DONTNEED) };
        }
    }

    /// True if a huge page of the kernel's is at `address`; `None` if the kernel does not report
    /// it.
    fn is_huge_at(&self, address: usize) -> Option<bool> {
        self.presence.as_ref()?.is_huge(address)
    }

    /// Moves 2 MiB. Returns the bytes moved, or the error if none were.
    fn move_huge(&self, to: usize, from: usize) -> Result<usize, Errno> {
        let mut done = 0;
        while done < HUGE_BYTES {
            match self.pager.uffd().move_pages(to + done, from + done, HUGE_BYTES - done) {
                Ok(bytes) if bytes > 0 => done += bytes,
                Ok(_) => break,
                Err(errno) if done == 0 => return Err(errno),
                Err(_) => break,
            }
        }
        Ok(done)
    }

    /// Assembles a claimed huge page. `None`: part of it is lost.
    fn assemble(&mut self, huge: &Range<PageNumber>, claimed: &Claimed) -> Option<Landing> {
        let landing = self.landing();
        let far = claimed.iter().filter(|was| **was == State::Far).count();
        if far > 0 {
            self.far.hold_for(far);
        }
        for (at, (page, was)) in huge.clone().zip(claimed).enumerate() {
            let to = (landing.address + at * PAGE) as *mut u8;
            let entry = self.pager.table.entry(page).expect("claimed");
            let source = match was {
                State::Zero => None,
                State::Staged => Some(self.pager.staging.address(entry.frame())),
                _ => {
                    let slot = entry.slot().expect("a far page has a slot");
                    let Fetch::Ready(source) = self.far.fetch(&self.pager.block, slot, 0) else {
                        self.free_landing(landing);
                        return None;
                    };
                    Some(source)
                }
            };
            // SAFETY: the target is a page of the landing, which this handler owns. The source is a
            // page of a mapped slab, of a claimed frame, or of decoded memory.
            unsafe {
                match source {
                    Some(source) => std::ptr::copy_nonoverlapping(source as *const u8, to, PAGE),
                    // Fresh memory reads as zeros, once it is populated.
                    None if landing.slot.is_none() => to.write_volatile(0),
                    None => std::ptr::write_bytes(to, 0, PAGE),
                }
            }
        }
        Some(landing)
    }

    /// Returns 2 MiB to assemble a huge page in.
    fn landing(&self) -> Landing {
        let pager = self.pager;
        match pager.staging.huge().take_spare() {
            Some(slot) => {
                Landing { address: pager.staging.address_of_huge(slot), slot: Some(slot) }
            }
            None => Landing { address: pager.landing, slot: None },
        }
    }

    /// Frees the landing. After a failed move its contents are not needed.
    fn free_landing(&self, landing: Landing) {
        match landing.slot {
            Some(slot) => self.pager.empty_slot(slot),
            None => {
                // SAFETY: as above.
                let _ =
                    unsafe { sys::madvise(landing.address, HUGE_BYTES, sys::MADV_DONTNEED_LOCKED) };
            }
        }
    }

    /// Counts a huge page of which `done` pages are resident.
    fn count_huge(
        &mut self,
        fault: &Fault,
        huge: &Range<PageNumber>,
        claimed: &Claimed,
        done: usize,
    ) {
        let counters = &self.pager.block.counters;
        let add = |counter: &AtomicU64| counter.fetch_add(1, Ordering::Relaxed);
        self.count_fault(fault.cause, &counters.faults);
        let touched = claimed[fault.page - huge.start];
        match touched {
            State::Zero => add(&counters.zero_faults),
            State::Staged => add(&counters.staged_faults),
            _ => {
                self.count_fault(fault.cause, &counters.far_faults);
                0
            }
        };
        match self.is_huge_at(address_of(huge.start)) {
            Some(false) => add(&counters.huge_in_small),
            _ => add(&counters.huge_in),
        };
        let far = claimed[..done].iter().filter(|was| **was == State::Far).count();
        if far > 0 {
            let cause =
                if fault.cause == Cause::Advised { Cause::Advised } else { Cause::LargePage };
            self.count_in(cause, far, far - usize::from(touched == State::Far));
        }
        self.pager.block.record_fault_ns(sys::monotonic_ns() - fault.started_ns);
    }

    /// Releases a huge page whose first `done` pages are resident, moved back from their frames or
    /// copied.
    fn release_huge(
        &self,
        huge: &Range<PageNumber>,
        claimed: &Claimed,
        done: usize,
        moved_back: bool,
    ) {
        let pager = self.pager;
        if !moved_back && done > 0 {
            // Frames that were copied from are freed, and counted, with their chunk.
            self.arrived(done);
        }
        let mut waited = done > 0;
        for (at, (page, was)) in huge.clone().zip(claimed).enumerate() {
            let entry = pager.table.entry(page).expect("claimed");
            let to = if at < done { State::Resident } else { *was };
            if at < done && *was == State::Staged {
                let left = if moved_back { Frame::Empty } else { Frame::Orphan };
                pager.staging.set(entry.frame(), left);
            }
            waited |= self.release_quietly(page, entry, to);
        }
        if waited {
            pager.uffd().wake(address_of(huge.start), HUGE_BYTES);
        }
    }
}
