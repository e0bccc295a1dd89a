//! Reads of coded pages: as many fragments at once as restore the page, data fragments first; one
//! more for each that does not come.

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Donors, Framed, PendingRead, Rejected, RequestError, RequestToken, TOKENS, address};
use crate::paged::PAGE;
use crate::paged::coding::{Codec, Coding, Pieces};
use crate::paged::run_block::{MAX_SLAB_REPLICAS, RunBlockMap};
use crate::paged::transfer::{Fetch, MAX_IN_FLIGHT, Words, WriteOut, bytes_of, bytes_of_mut};

/// The state for encoding and decoding pages.
pub(super) struct Coded {
    codec: Codec,
    /// The fragments received of each page, by token.
    pieces: Vec<Pieces>,
    /// The page being written.
    out: Pieces,
}

impl Coded {
    pub fn new(coding: Coding) -> Coded {
        let pieces = vec![Pieces::new(coding); TOKENS];
        Coded { codec: Codec::new(coding), pieces, out: Pieces::new(coding) }
    }

    /// Returns a fragment of a page that is being written.
    pub fn fragment_of(&mut self, page: &WriteOut, fragment: usize) -> &[u8] {
        assert_eq!(page.len_bytes as usize, PAGE, "coded pages are written whole");
        let Coded { codec, out, .. } = self;
        // SAFETY: it does not change until the write is done.
        out.page().copy_from_slice(unsafe { page.bytes() });
        if fragment >= codec.coding().data() {
            codec.compute(out, fragment);
        }
        out.fragment(fragment)
    }
}

impl<D: Donors> Framed<D> {
    /// True if a read has fewer fragments received and outstanding than it needs.
    pub(super) fn lacks_answers(&self, token: u32) -> bool {
        let asked = &self.reads[token as usize];
        let needed = self.coded.as_ref().map_or(1, |coded| coded.codec.coding().data());
        asked.put.count_ones() as usize + asked.outstanding < needed
    }

    /// Stores the answer of a replica; true if the read now has all its data.
    pub(super) fn is_whole(
        &mut self,
        block: &RunBlockMap,
        token: u32,
        replica: usize,
        buffer: &mut Words,
    ) -> bool {
        let Some(Coded { codec, pieces, .. }) = &mut self.coded else { return true };
        let (asked, pieces) = (&mut self.reads[token as usize], &mut pieces[token as usize]);
        let (coding, fragment) = (codec.coding(), block.replicas()[replica].fragment());
        let came = &bytes_of(buffer)[..coding.fragment_bytes()];
        pieces.fragment(fragment).copy_from_slice(came);
        asked.put |= 1 << fragment;
        if (asked.put.count_ones() as usize) < coding.data() {
            return false;
        }
        codec.complete(pieces, asked.put);
        bytes_of_mut(buffer).copy_from_slice(pieces.page());
        true
    }

    /// Requests the fragments that the read with this token lacks: those not yet requested, or all
    /// again if none of these came and some live. With `is_late` the outstanding ones do not count.
    pub(super) fn request_fragments(
        &mut self,
        block: &RunBlockMap,
        token: u32,
        is_late: bool,
    ) -> Fetch {
        let outcome = self.request_more(block, token, is_late);
        let asked = &mut self.reads[token as usize];
        if outcome != Fetch::Lost || asked.tried_count == 0 {
            return outcome;
        }
        asked.tried_count = 0;
        self.request_more(block, token, is_late)
    }

    fn request_more(&mut self, block: &RunBlockMap, token: u32, is_late: bool) -> Fetch {
        let coding = self.coded.as_ref().expect("this memory is coded").codec.coding();
        let PendingRead { slot, put, outstanding, .. } = self.reads[token as usize];
        let under_way = if is_late { 0 } else { outstanding };
        let mut lacking = coding.data().saturating_sub(put.count_ones() as usize + under_way);
        let at = block.fragments_at(block.slab_of(slot));
        let mut is_full = false;
        for slow in [false, true] {
            for fragment in 0..coding.fragments() {
                let Some(replica) = at.replica(fragment).filter(|_| lacking > 0) else { continue };
                if self.health.is_slow(block.replicas()[replica].donor()) != slow {
                    continue;
                }
                match self.request_fragment(block, token, replica) {
                    None => {}
                    Some(Ok(())) => lacking -= 1,
                    Some(Err(())) => is_full = true,
                }
            }
        }
        match self.reads[token as usize].outstanding > 0 {
            true => Fetch::Pending,
            false if is_full => Fetch::Full,
            false => Fetch::Lost,
        }
    }

    /// Requests the fragment of a replica. `None`: it was requested before, or is unreachable. An
    /// error: not possible at present.
    fn request_fragment(
        &mut self,
        block: &RunBlockMap,
        token: u32,
        replica: usize,
    ) -> Option<Result<(), ()>> {
        let asked = &mut self.reads[token as usize];
        let is_put = asked.put & 1 << block.replicas()[replica].fragment() != 0;
        if is_put || asked.tried[..asked.tried_count].contains(&(replica as u32)) {
            return None;
        }
        if asked.tried_count == MAX_SLAB_REPLICAS || !self.donors.reach(block, replica) {
            return None;
        }
        let word = RequestToken::Read { generation: asked.generation, replica, token }.encode();
        let at = address(block, replica, asked.slot, 0);
        match self.donors.read(word, at, block.fragment_bytes() as u32) {
            Ok(()) => {
                asked.tried[asked.tried_count] = replica as u32;
                asked.tried_count += 1;
                asked.outstanding += 1;
                asked.sent_ns = self.donors.now_ns();
                Some(Ok(()))
            }
            Err(Rejected::Full) => Some(Err(())),
            Err(Rejected::Failed(fault)) => {
                self.record(block, replica, Err(fault));
                (fault == RequestError::NoAnswer).then_some(Err(()))
            }
        }
    }

    /// Computes a fragment of coded `slots` from others, and waits for it. `false`: too few
    /// fragments are available, or `stop` was set: a donor that does not answer may delay it for a
    /// lease.
    pub fn compute_slots(
        &mut self,
        block: &RunBlockMap,
        fragment: usize,
        slots: &[u32],
        pages: &mut [Words],
        stop: &AtomicBool,
    ) -> bool {
        let (mut awaited, mut started) = ([0; MAX_IN_FLIGHT], 0);
        let mut free: u128 = u128::MAX;
        let (mut is_there, mut buffer) = (true, [0; PAGE / 8]);
        loop {
            if stop.load(Ordering::Acquire) {
                self.forget_reads();
                return false;
            }
            while is_there && started < slots.len() && free != 0 {
                let token = free.trailing_zeros();
                match self.fetch(block, slots[started], 0..PAGE as u32, token) {
                    Fetch::Full => break,
                    Fetch::Lost => is_there = false,
                    _ => {
                        awaited[token as usize] = started;
                        (free, started) = (free & !(1 << token), started + 1);
                    }
                }
            }
            let is_over = !is_there || started == slots.len();
            if free == u128::MAX && is_over {
                return is_there;
            }
            self.donors.flush();
            let mut any = false;
            while let Some((token, arrived)) = self.poll(block, &mut buffer) {
                (any, is_there, free) = (true, is_there && arrived, free | 1 << token);
                let Some(Coded { codec, pieces, .. }) = self.coded.as_mut().filter(|_| arrived)
                else {
                    continue;
                };
                let page = bytes_of_mut(&mut pages[awaited[token as usize]]);
                codec.copy_fragment(&mut pieces[token as usize], fragment, page);
            }
            if !any {
                self.donors.turn();
            }
        }
    }

    /// Drops all outstanding reads.
    fn forget_reads(&mut self) {
        self.buffered.clear();
        for token in 0..TOKENS as u32 {
            if self.reads[token as usize].is_waiting {
                self.end(token);
            }
        }
    }
}

const _: () = assert!(MAX_IN_FLIGHT == u128::BITS as usize);
