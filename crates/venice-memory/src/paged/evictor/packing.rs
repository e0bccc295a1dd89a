//! Keeping a compressed copy of what leaves, as long as that pays.

use std::sync::atomic::Ordering;

use super::super::budget::{least_managed_pages, managed_pages};
use super::super::compressed::{Compressed, Evidence, Frames, Judge, Median, Packer, Stop};
use super::super::page_table::State;
use super::super::run_block::{Counters, RunBlock};
use super::super::staging::Frame;
use super::super::{PAGE, sys};
use super::Evictor;

/// One page in so many is timed.
const TIME_ONE_IN: u64 = 64;
/// Chunks of the staging ring that are looked at, to know how many pages are in it.
const CHUNKS_LOOKED_AT: usize = 256;

/// What the evictor needs for it.
pub(super) struct Packing {
    compressed: &'static Compressed,
    packer: Packer,
    judge: Judge,
    packed: u64,
    pack_ns: Median,
    /// How often pools were wanted when this one was last looked at for it.
    wanted_seen: u64,
}

impl Packing {
    pub(super) fn new(compressed: &'static Compressed, block: &RunBlock) -> Packing {
        let (packer, judge) = (Packer::new(), Judge::from(compressed.evidence()));
        let (pack_ns, wanted_seen) = (Median::default(), block.pools_wanted());
        Packing { compressed, packer, judge, packed: 0, pack_ns, wanted_seen }
    }

    fn evidence(&self) -> Evidence {
        Evidence { packed: self.packed, pack_ns: self.pack_ns.get(), ..self.compressed.evidence() }
    }

    fn keep(&mut self, fingerprint: u128, page: &[u8], counters: &Counters) {
        let is_timed = self.packed.is_multiple_of(TIME_ONE_IN);
        let started_ns = if is_timed { sys::monotonic_ns() } else { 0 };
        let kept = self.packer.keep(self.compressed, fingerprint, page);
        if is_timed {
            self.pack_ns.add(sys::monotonic_ns() - started_ns);
        }
        self.packed += 1;
        self.judge.note_packed(kept.is_some());
        match kept {
            Some(len_bytes) => {
                counters.compressed.fetch_add(1, Ordering::Relaxed);
                counters.compressed_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
            }
            None => {
                counters.incompressible.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Empties the pool and rests; `false`: it is empty.
    fn yield_all(&mut self, block: &RunBlock) -> bool {
        self.wanted_seen = block.pools_wanted();
        if self.compressed.resident_pages() == 0 {
            return false;
        }
        self.compressed.empty();
        self.judge.rest(sys::monotonic_ns());
        block.counters.pools_yielded.fetch_add(1, Ordering::Relaxed);
        true
    }
}

impl Evictor {
    /// Is what leaves packed just now?
    pub(super) fn is_packing(&self) -> bool {
        let packing = self.packing.as_ref();
        packing.is_some_and(|packing| !packing.judge.is_resting() && packing.compressed.has_room())
    }

    /// Keeps packed copies of the pages that leave, unless that does not pay just now. They are written
    /// out already: what stays for want of room far is not packed time and again.
    pub(super) fn keep_packed(&mut self) {
        if !self.is_packing() {
            return;
        }
        let Evictor { pager, packing: Some(packing), leaving, .. } = self else { return };
        for leaving in leaving.iter().filter(|leaving| leaving.to == State::Far) {
            let address = pager.staging.address(leaving.frame);
            // SAFETY: the frame is a whole page of the pager's own memory, and its page was claimed.
            let page = unsafe { std::slice::from_raw_parts(address as *const u8, PAGE) };
            packing.keep(leaving.fingerprint, page, &pager.block.counters);
        }
    }

    /// Fits the pool to the budget, and gives it up for a while where it does not pay.
    pub(super) fn judge_packing(&mut self, now_ns: u64) {
        let pager = self.pager;
        let ring = self.pages_in_ring();
        let Some(packing) = &mut self.packing else { return };
        let compressed = packing.compressed;
        let allowance = pager.block.allowance_pages(pager.process.load(Ordering::Relaxed));
        let managed = managed_pages(allowance, self.overhead_pages);
        compressed.fit(allowance, managed - least_managed_pages(allowance));
        if !compressed.has_room() {
            return;
        }
        let is_full = compressed.is_full();
        let frames = Frames { pool: compressed.resident_pages(), ring, is_full };
        let evidence = packing.evidence();
        let counters = &pager.block.counters;
        match packing.judge.look(now_ns, evidence, frames) {
            None => return,
            Some(Stop::PacksBadly) => counters.packed_badly.fetch_add(1, Ordering::Relaxed),
            Some(Stop::DoesNotPay) => counters.paid_badly.fetch_add(1, Ordering::Relaxed),
        };
        compressed.empty();
    }

    /// The program cannot go on without the room that its pool takes, or that of other processes: what
    /// is in its own is far too, so all of that can go. `false`: it is empty already.
    pub(super) fn give_up_pool(&mut self) -> bool {
        let Some(packing) = &mut self.packing else { return false };
        self.pager.block.want_pools();
        packing.yield_all(&self.pager.block)
    }

    /// The same where another process of the run cannot go on.
    pub(super) fn yield_pool(&mut self) {
        let Some(packing) = &mut self.packing else { return };
        if packing.wanted_seen != self.pager.block.pools_wanted() {
            packing.yield_all(&self.pager.block);
        }
    }

    /// Pages of memory that the pool takes just now.
    pub(super) fn pool_pages(&self) -> u64 {
        let Some(packing) = &self.packing else { return 0 };
        let pages = packing.compressed.resident_pages();
        self.pager.own_place().pool_pages.store(pages, Ordering::Relaxed);
        pages
    }

    /// Pages in the staging ring, about: of a long one some chunks stand for all.
    fn pages_in_ring(&self) -> u64 {
        let staging = &self.pager.staging;
        if self.packing.is_none() {
            return 0;
        }
        let step = staging.in_use().div_ceil(CHUNKS_LOOKED_AT).max(1);
        let chunks = (0..staging.in_use()).step_by(step);
        let frames = chunks.flat_map(|chunk| staging.frames_of(chunk));
        let is_page = |frame: &u32| matches!(staging.holds(*frame), Frame::Page(_));
        (frames.filter(is_page).count() * step) as u64
    }
}
