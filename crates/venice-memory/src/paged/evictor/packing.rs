//! Keeping a compressed copy of what leaves, as long as that pays.

use std::sync::atomic::Ordering;

use super::super::compressed::{Compressed, Evidence, Frames, Judge, Median, Packer, Stop};
use super::super::staging::Frame;
use super::super::sys;
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
}

impl Packing {
    pub(super) fn new(compressed: &'static Compressed) -> Packing {
        let (packer, judge) = (Packer::new(), Judge::from(compressed.evidence()));
        Packing { compressed, packer, judge, packed: 0, pack_ns: Median::default() }
    }

    fn evidence(&self) -> Evidence {
        Evidence { packed: self.packed, pack_ns: self.pack_ns.get(), ..self.compressed.evidence() }
    }
}

impl Evictor {
    /// Keeps a packed copy of a page that leaves, unless that does not pay just now.
    pub(super) fn keep_packed(&mut self, fingerprint: u128, page: &[u8]) {
        let counters = &self.pager.block.counters;
        let Some(packing) = self.packing.as_mut().filter(|packing| !packing.judge.is_resting())
        else {
            return;
        };
        let is_timed = packing.packed.is_multiple_of(TIME_ONE_IN);
        let started_ns = if is_timed { sys::monotonic_ns() } else { 0 };
        let kept = packing.packer.keep(packing.compressed, fingerprint, page);
        if is_timed {
            packing.pack_ns.add(sys::monotonic_ns() - started_ns);
        }
        packing.packed += 1;
        packing.judge.note_packed(kept.is_some());
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

    /// Fits the pool to the budget, and gives it up for a while where it does not pay.
    pub(super) fn judge_packing(&mut self, now_ns: u64) {
        let pager = self.pager;
        let ring = self.pages_in_ring();
        let Some(packing) = &mut self.packing else { return };
        let compressed = packing.compressed;
        compressed.fit(pager.block.allowance_pages(pager.process.load(Ordering::Relaxed)));
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

    /// Pages of memory that the pool takes just now.
    pub(super) fn pool_pages(&self) -> u64 {
        let Some(packing) = &self.packing else { return 0 };
        let pages = packing.compressed.resident_pages();
        let process = self.pager.process.load(Ordering::Relaxed);
        self.pager.block.processes[process].pool_pages.store(pages, Ordering::Relaxed);
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
