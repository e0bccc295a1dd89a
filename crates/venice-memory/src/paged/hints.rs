//! Advice of the program about its memory (`madvise(2)`), and its effects on paging.
//!
//! - NORMAL, SEQUENTIAL, RANDOM: recorded for each page ([`Pattern`]); a fault reads it.
//! - WILLNEED: brought in before the call returns, by the handler: the calling thread touches one
//!   page of each stretch, and the handler brings in the whole stretch
//!   ([`WillNeed`](super::requests::WillNeed)).
//! - COLD: evicted before anything else, when room is needed.
//! - PAGEOUT: evicted at once by the evictor, while the call waits
//!   ([`PageOuts`](super::requests::PageOuts)).
//!
//! Each call goes to the kernel first: it checks that the range is mapped and not locked, and its
//! errors are passed to the program. PAGEOUT is passed on as COLD: the kernel would swap the pages
//! out.

use std::ops::Range;
use std::sync::atomic::Ordering;

use super::access_pattern::Pattern;
use super::budget::high_watermark;
use super::page_size::PageSize;
use super::page_table::{PageNumber, State};
use super::pager::{Pager, Structure};
use super::pages_of;
use super::read_ahead::MAX_PREFETCH;
use super::sys::{self, Errno, SysResult};

/// Longest wait of WILLNEED for room, in nanoseconds.
const ROOM_PATIENCE_NS: u64 = 2_000_000_000;
/// Period at which it checks meanwhile, in nanoseconds.
const LOOK_EVERY_NS: u64 = 1_000_000;
/// WILLNEED fills at most one part in this many of the budget.
const WILLNEED_SHARE: u64 = 2;

const MADV_NORMAL: usize = 0;
const MADV_RANDOM: usize = 1;
const MADV_SEQUENTIAL: usize = 2;
const MADV_WILLNEED: usize = 3;

/// Advice that changes no contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// The expected pattern of use.
    Use(Pattern),
    /// The pages will be needed soon.
    WillNeed,
    /// The pages will not be needed for a while.
    Cold,
    /// The pages are to leave now.
    PageOut,
}

impl Hint {
    /// Returns the hint of an advice number of `madvise(2)`, if it is one.
    pub fn of(advice: usize) -> Option<Hint> {
        match advice {
            MADV_NORMAL => Some(Hint::Use(Pattern::Normal)),
            MADV_RANDOM => Some(Hint::Use(Pattern::Random)),
            MADV_SEQUENTIAL => Some(Hint::Use(Pattern::Sequential)),
            MADV_WILLNEED => Some(Hint::WillNeed),
            sys::MADV_COLD => Some(Hint::Cold),
            sys::MADV_PAGEOUT => Some(Hint::PageOut),
            _ => None,
        }
    }

    /// Returns the advice that is passed to the kernel.
    fn advice(self) -> usize {
        match self {
            Hint::Use(Pattern::Normal) => MADV_NORMAL,
            Hint::Use(Pattern::Random) => MADV_RANDOM,
            Hint::Use(Pattern::Sequential) => MADV_SEQUENTIAL,
            Hint::WillNeed => MADV_WILLNEED,
            Hint::Cold | Hint::PageOut => sys::MADV_COLD,
        }
    }
}

/// The hints by name.
const NAMES: [(&str, Hint); 6] = [
    ("normal", Hint::Use(Pattern::Normal)),
    ("sequential", Hint::Use(Pattern::Sequential)),
    ("random", Hint::Use(Pattern::Random)),
    ("willneed", Hint::WillNeed),
    ("cold", Hint::Cold),
    ("pageout", Hint::PageOut),
];

impl std::str::FromStr for Hint {
    type Err = String;

    fn from_str(text: &str) -> Result<Hint, String> {
        let named = NAMES.into_iter().find(|(name, _)| *name == text).map(|(_, hint)| hint);
        named.ok_or_else(|| {
            let names = NAMES.map(|(name, _)| name).join(", ");
            format!("unknown hint {text:?}: expected one of {names}")
        })
    }
}

impl Pager {
    /// Applies a hint to `[addr, addr + len_bytes)`, whole pages. Unmanaged pages of it get the
    /// kernel's treatment only.
    ///
    /// # Errors
    /// The kernel's. `ENOMEM`: part of the range is not mapped; the hint is applied to the rest all
    /// the same.
    pub fn apply_hint(&'static self, addr: usize, len_bytes: usize, hint: Hint) -> SysResult<()> {
        let pages = pages_of(addr, len_bytes);
        let mut structure = self.hold_structure();
        // SAFETY: these change no contents.
        let outcome = unsafe { sys::madvise(addr, len_bytes, hint.advice()) };
        if !matches!(outcome, Ok(()) | Err(Errno::ENOMEM)) {
            return outcome;
        }
        match hint {
            Hint::Use(pattern) => structure.set_pattern(pages, pattern),
            Hint::Cold => structure.make_cold(pages),
            Hint::WillNeed => {
                drop(structure);
                self.bring_in(pages);
            }
            Hint::PageOut => {
                let number = structure.page_out(pages);
                drop(structure);
                if let Some(number) = number {
                    self.ring_if_needed(u64::MAX);
                    self.page_outs.wait(number, &self.evictor_progress);
                }
            }
        }
        outcome
    }

    /// Brings in the far and staged pages of `pages`, from the start on, as far as the budget has
    /// room. Others are evicted for it.
    fn bring_in(&'static self, pages: Range<PageNumber>) {
        let thread = sys::gettid();
        let most = self.limit_pages.load(Ordering::Relaxed) / WILLNEED_SHARE;
        let mut brought = 0;
        let mut page = pages.start;
        while page < pages.end && brought < most {
            let far = self.hold_structure().next_nonresident(page..pages.end);
            let Some(first) = far else { return };
            let Some(room) = self.make_room() else { return };
            // Held, so that nothing leaves and nothing is unmapped meanwhile.
            let mut structure = self.hold_structure();
            let end = pages.end.min(first + room.min(MAX_PREFETCH));
            page = first;
            while let Some(next) = structure.next_nonresident(page..end) {
                self.will_need.set(thread, end);
                let came = self.populate(next, true);
                self.will_need.set(0, 0);
                if came.is_err() {
                    // It may not be read just now (`PROT_NONE`), or is lost.
                    return;
                }
                page = next + 1;
            }
            brought += (end - first) as u64;
            page = end;
        }
    }

    /// Waits until the evictor has made room. Returns the room in pages. `None`: there will not be
    /// any.
    fn make_room(&self) -> Option<usize> {
        let patience_ends_ns = sys::monotonic_ns() + ROOM_PATIENCE_NS;
        loop {
            let limit = self.limit_pages.load(Ordering::Relaxed);
            let charged = self.charged();
            if charged <= high_watermark(limit, self.block.largest_page_size()) {
                return Some((limit - charged) as usize).filter(|&room| room > 0);
            }
            let is_stuck = self.evictor_stuck.load(Ordering::Relaxed) != 0;
            if is_stuck || sys::monotonic_ns() > patience_ends_ns {
                return None;
            }
            let seen = self.evictor_progress.load(Ordering::Acquire);
            self.ring_if_needed(u64::MAX);
            sys::futex_wait(&self.evictor_progress, seen, Some(LOOK_EVERY_NS), false);
        }
    }
}

impl Structure {
    fn set_pattern(&mut self, pages: Range<PageNumber>, pattern: Pattern) {
        let pager = self.pager;
        for part in self.guarded().regions.parts(pages) {
            pager.table.set_pattern(part, pattern);
        }
    }

    /// Sets the page size by which the range is brought in from now on. Resident pages stay as they
    /// are.
    pub fn set_page_size(&mut self, addr: usize, len_bytes: usize, size: PageSize) {
        let pager = self.pager;
        pager.block.note_page_size(size);
        for part in self.guarded().regions.parts(pages_of(addr, len_bytes)) {
            pager.table.set_page_size(part, size);
        }
    }

    fn make_cold(&mut self, pages: Range<PageNumber>) {
        let pager = self.pager;
        let guarded = self.guarded();
        for part in guarded.regions.parts(pages) {
            if make_cold(pager, part.clone()) {
                guarded.advised_cold.push(part);
            }
        }
    }

    /// Requests the evictor to page out the resident pages of `pages`. Returns the number of the
    /// request, if there is any page to take.
    fn page_out(&mut self, pages: Range<PageNumber>) -> Option<u32> {
        let pager = self.pager;
        let guarded = self.guarded();
        let before = guarded.page_outs.len();
        for part in guarded.regions.parts(pages) {
            if make_cold(pager, part.clone()) {
                guarded.page_outs.push_back(part);
            }
        }
        (guarded.page_outs.len() > before).then(|| pager.page_outs.ask())
    }

    /// Returns the first managed page of the range that was written and is not resident.
    fn next_nonresident(&mut self, pages: Range<PageNumber>) -> Option<PageNumber> {
        let table = &self.pager.table;
        let mut parts = self.guarded().regions.parts(pages);
        parts.find_map(|part| {
            table.first_live(part, |entry| matches!(entry.state(), State::Far | State::Staged))
        })
    }
}

/// Makes the resident pages of a managed range cold. True if there are any, staged ones included.
fn make_cold(pager: &Pager, pages: Range<PageNumber>) -> bool {
    let mut any = false;
    pager.table.for_each_live(pages, |_, entry| {
        any |= entry.make_cold() || entry.state() == State::Staged;
    });
    any
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hint_numbers_match_kernel() {
        for advice in [0, 1, 2, 3, 20] {
            assert_eq!(Hint::of(advice).map(Hint::advice), Some(advice));
        }
        let page_out = Hint::of(21).expect("MADV_PAGEOUT");
        assert_eq!(page_out, Hint::PageOut);
        assert_eq!(page_out.advice(), sys::MADV_COLD, "the kernel must not swap");
        assert_eq!(Hint::of(sys::MADV_DONTNEED), None);
    }

    #[test]
    fn hint_names_parse() {
        assert_eq!("sequential".parse(), Ok(Hint::Use(Pattern::Sequential)));
        assert_eq!("pageout".parse(), Ok(Hint::PageOut));
        assert!("dontneed".parse::<Hint>().unwrap_err().contains("willneed, cold"));
    }
}
