//! Cold pages: evicted before the clock hand's choice. These are pages that the program advised as
//! cold, pages behind a sequential stream, and wasted prefetches. Pages that the program wants
//! paged out at once (`MADV_PAGEOUT`) leave whether room is needed or not.

use std::ops::Range;

use super::super::page_size::HUGE_PAGES;
use super::super::page_table::{Entry, PageNumber, State};
use super::super::pager::Guarded;
use super::super::staging::CHUNK_FRAMES;
use super::super::sys;
use super::chunks::Victims;
use super::{Evictor, IDLE_NS};

/// Spans examined for one sweep chunk with the lock held.
const LOOKS: usize = 512;

impl Evictor {
    /// Returns the next sweep chunk with cold pages, if any are known; a huge page if all of it is
    /// cold.
    pub(super) fn next_cold_chunk(&self, guarded: &mut Guarded) -> Option<Range<PageNumber>> {
        let pager = self.pager;
        for _ in 0..LOOKS {
            let behind = || pager.stream_cold.hold().take(CHUNK_FRAMES);
            let span = guarded.advised_cold.take(CHUNK_FRAMES).or_else(behind)?;
            // Part of it may have been unmapped since.
            let Some(managed) = guarded.regions.next_from(span.start) else { continue };
            let pages = managed.start..managed.end.min(span.end);
            let is_cold = |entry: &Entry| entry.is_cold();
            if pager.table.first_live(pages.clone(), is_cold).is_some() {
                return Some(self.cold_huge_page_of(pages.start).unwrap_or(pages));
            }
        }
        None
    }

    /// Returns the huge page around `page`, if all of it is resident and cold.
    fn cold_huge_page_of(&self, page: PageNumber) -> Option<Range<PageNumber>> {
        let huge = self.pager.table.huge_page_of(page)?;
        let is_cold = |page| self.managed(page).is_cold();
        (self.is_resident_huge(&huge) && huge.clone().all(is_cold)).then_some(huge)
    }

    /// Evicts what threads of the program wait to have paged out.
    pub(super) fn page_out(&mut self) {
        while self.pager.page_outs.is_any() {
            let has_room = self.reserve_disk_room();
            if !has_room || self.with_structure(Evictor::page_out_batch).is_none() {
                // The disk is slow, or a child's memory is being copied.
                sys::futex_wait(&self.idle, 0, Some(IDLE_NS), false);
            }
            self.announce_progress();
        }
    }

    /// Evicts some sweep chunks at once. The staging chunks that they pass through are empty before
    /// and after.
    fn page_out_batch(&mut self, guarded: &mut Guarded) {
        let first = guarded.head_chunk;
        if self.retire(first, guarded).is_some() {
            for offset in 0..self.batch() {
                let Some(pages) = self.next_to_page_out(guarded) else { break };
                self.retire_staged(pages.clone(), guarded);
                if pages.len() == HUGE_PAGES {
                    let staged = self.stage_huge(pages, Victims::Cold, guarded);
                    if staged.is_none() || self.retire_last_huge(guarded).is_none() {
                        guarded.page_outs.clear();
                    }
                    continue;
                }
                let staging = &self.pager.staging;
                let chunk = staging.frames_of(staging.chunk_after(first, offset));
                self.stage(pages, chunk, Victims::Cold);
            }
        }
        if self.retire(first, guarded).is_none() {
            // Far memory is used up: staged pages stay staged, and the rest stays resident.
            guarded.page_outs.clear();
        }
        if guarded.page_outs.is_empty() {
            self.pager.page_outs.all_done();
        }
    }

    /// Returns the next sweep chunk with pages to page out.
    fn next_to_page_out(&self, guarded: &mut Guarded) -> Option<Range<PageNumber>> {
        while let Some(span) = guarded.page_outs.front_mut() {
            let is_here = |entry: &Entry| entry.is_cold() || entry.state() == State::Staged;
            if let Some(first) = self.pager.table.first_live(span.clone(), is_here) {
                let huge = self.cold_huge_page_of(first).filter(|huge| huge.end <= span.end);
                let pages = huge.unwrap_or(first..span.end.min(first + CHUNK_FRAMES));
                span.start = pages.end;
                return Some(pages);
            }
            guarded.page_outs.pop_front();
        }
        None
    }

    /// Retires the pages of the sweep chunk that are staged already, unless the disk is slow: the
    /// lock is held.
    fn retire_staged(&mut self, pages: Range<PageNumber>, guarded: &mut Guarded) {
        for page in pages {
            let entry = self.pager.table.entry(page).expect("managed pages are in the table");
            if entry.state() == State::Staged {
                if !self.far.reserve_more(&self.pager.block, self.pages_of_turn()) {
                    return;
                }
                let chunk = entry.frame() as usize / CHUNK_FRAMES;
                if chunk < self.pager.staging.chunks() {
                    let _ = self.retire(chunk, guarded);
                } else {
                    self.retire_huge_of(entry.frame(), guarded);
                }
            }
        }
    }
}
