//! Eviction of shared pages, which `UFFDIO_MOVE` does not take.
//!
//! The order of the steps matters (docs/decisions/0074): claimed pages are write-protected in all
//! users that they were given to, put into a pipe, looked at, read from the pipe, and punched out
//! of their object. A page that is pinned is never punched. From the protection on nothing can
//! write to a page that is not pinned, so what is read is what was there when it left.

use std::ops::Range;
use std::os::fd::AsFd;

use rustix::fs::{FallocateFlags, fallocate};

use super::super::PAGE;
use super::super::page_table::{PageNumber, State};
use super::super::shared::{Object, PinLook, SharedHome, WriteHold};
use super::super::staging::CHUNK_FRAMES;
use super::Evictor;
use super::chunks::Victims;

/// A fate for each page of a sweep chunk.
type OfChunk = [bool; CHUNK_FRAMES];

impl Evictor {
    /// Takes the `victims` of a sweep chunk out of their object to `frames`, which are as many as its
    /// pages. Returns the number of pages taken.
    pub(super) fn stage_shared(
        &self,
        home: &SharedHome,
        pages: Range<PageNumber>,
        frames: Range<u32>,
        victims: Victims,
    ) -> usize {
        let claimed = self.claim_shared(home, &pages, victims);
        let at = |page: PageNumber| page - pages.start;
        self.count_early(pages.clone().filter(|page| claimed[at(*page)]));
        let mut leaves = [false; CHUNK_FRAMES];
        if claimed.contains(&true)
            && let Some(hold) = WriteHold::take(home, &pages, |page| claimed[at(page)])
        {
            leaves = self.take_out(home, &pages, frames.start, &claimed, &hold);
            hold.lift(|page| !leaves[at(page)]);
        }
        for page in pages.clone().filter(|page| claimed[at(*page)]) {
            if leaves[at(page)] {
                self.record_in_frame(page, State::Resident, frames.start + at(page) as u32);
                self.release(page, State::Staged);
            } else {
                self.release(page, State::Resident);
            }
        }
        leaves.iter().filter(|leaves| **leaves).count()
    }

    fn claim_shared(
        &self,
        home: &SharedHome,
        pages: &Range<PageNumber>,
        victims: Victims,
    ) -> OfChunk {
        let kept = home.objects().kept(pages);
        let mut claimed = [false; CHUNK_FRAMES];
        for (page, claimed) in pages.clone().zip(&mut claimed) {
            let entry = self.managed(page);
            let stays = victims.spare(entry, false) || kept.contains(page..page + 1);
            *claimed = !stays && entry.claim(State::Resident);
        }
        claimed
    }

    /// Reads the claimed pages, which are protected, into their frames, and punches those out that
    /// nothing else refers to. Returns which these are.
    fn take_out(
        &self,
        home: &SharedHome,
        pages: &Range<PageNumber>,
        first_frame: u32,
        claimed: &OfChunk,
        hold: &WriteHold,
    ) -> OfChunk {
        let nothing = [false; CHUNK_FRAMES];
        let objects = home.objects();
        let Some(object) = objects.object_of(pages.start) else { return nothing };
        let mut look = home.look();
        let runs: Vec<_> = runs(claimed, pages).collect();
        let Some(mut leaves) = look_at(&mut look, object, &runs, pages.start, hold) else {
            look.drain();
            return nothing;
        };
        for run in &runs {
            let frame = first_frame + (run.start - pages.start) as u32;
            let to = self.pager.staging.address(frame);
            // SAFETY: the chunk's frames are empty, and the evictor's own until they are marked.
            let is_read = unsafe { look.read(to, run.len() * PAGE) };
            assert!(is_read, "the pages of {run:?} are in the pipe");
        }
        for run in self::runs(&leaves.clone(), pages) {
            let (offset, len_bytes) = (object.offset(run.start), (run.len() * PAGE) as u64);
            let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if fallocate(&object.memory, how, offset, len_bytes).is_err() {
                // Nothing has left.
                leaves[run.start - pages.start..run.end - pages.start].fill(false);
                continue;
            }
            run.for_each(|page| object.take(page));
        }
        leaves
    }
}

/// Puts the pages of `runs` into the pipe and looks at them. Returns which pages of the chunk may
/// leave. `None`: the pipe does not hold what it should.
fn look_at(
    look: &mut PinLook,
    object: &Object,
    runs: &[Range<PageNumber>],
    start: PageNumber,
    hold: &WriteHold,
) -> Option<OfChunk> {
    for run in runs {
        if look.take(object.memory.as_fd(), object.offset(run.start), run.len()) < run.len() {
            return None;
        }
    }
    let pages = runs.iter().cloned().flatten();
    let counts = look.look(pages.clone().count()).ok()?;
    let mut leaves = [false; CHUNK_FRAMES];
    for (page, counts) in pages.zip(counts) {
        // The supervisor's own mapping, and those that are protected.
        let is_known = counts.maps as usize <= 1 + hold.places(page);
        leaves[page - start] = counts.is_free() && is_known;
    }
    Some(leaves)
}

/// Returns the stretches of a chunk's pages for which the fate is true.
fn runs<'a>(
    of: &'a OfChunk,
    pages: &'a Range<PageNumber>,
) -> impl Iterator<Item = Range<PageNumber>> + use<'a> {
    let is = |page: &PageNumber| of[*page - pages.start];
    let mut page = pages.start;
    std::iter::from_fn(move || {
        let start = (page..pages.end).find(is)?;
        page = (start..pages.end).find(|page| !is(page)).unwrap_or(pages.end);
        Some(start..page)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_whole_stretches() {
        let mut of = [false; CHUNK_FRAMES];
        of[3..9].fill(true);
        of[63] = true;
        assert_eq!(runs(&of, &(100..164)).collect::<Vec<_>>(), [103..109, 163..164]);
        let short: Vec<_> = runs(&of, &(100..104)).flatten().collect();
        assert_eq!(short, [103]);
    }
}
