//! Writes, atomics and copies to donors: each call waits until it is over.

use venice_fabric::Atomic;

use super::{Donors, Framed, Rejected, RequestError, RequestToken, address};
use crate::paged::PAGE;
use crate::paged::run_block::{MAX_SLAB_REPLICAS, ReplicaState, RunBlockMap};
use crate::paged::transfer::{Words, WriteOut, bytes_of, bytes_of_mut};

/// Progress of a batch of writes.
#[derive(Default)]
struct Sending {
    /// The index of the page being sent.
    page: usize,
    /// The replicas that it was sent to.
    sent: [usize; MAX_SLAB_REPLICAS],
    sent_count: usize,
    /// Outstanding writes.
    outstanding: usize,
    /// Pages and replicas whose link stopped answering before they confirmed the write.
    retries: Vec<(usize, usize)>,
}

impl<D: Donors> Framed<D> {
    /// Writes all of `pages`. Waits until each has reached its targets, or these are lost.
    pub fn write_all(&mut self, block: &RunBlockMap, pages: &mut [WriteOut]) {
        let mut sending = Sending::default();
        let mut buffer = [0; PAGE / 8];
        loop {
            self.send_more(block, pages, &mut sending);
            self.resend(block, pages, &mut sending);
            self.donors.flush();
            let before = sending.outstanding;
            while let Some((word, result)) = self.donors.next(&mut buffer) {
                match RequestToken::decode(word) {
                    RequestToken::Write { index, replica } => {
                        sending.outstanding -= 1;
                        self.record(block, replica, result);
                        if result == Err(RequestError::NoAnswer) {
                            sending.retries.push((index, replica));
                        }
                        let entry = &block.replicas()[replica];
                        if result.is_ok() && block.state(entry) == ReplicaState::Live {
                            pages[index].reached |= 1 << entry.fragment();
                        }
                    }
                    // The late answer of a slow donor.
                    RequestToken::Read { replica, .. } => self.record(block, replica, result),
                }
            }
            if sending.outstanding == 0 && sending.retries.is_empty() && sending.page == pages.len()
            {
                return;
            }
            if sending.outstanding == before {
                self.donors.turn();
            }
        }
    }

    fn send_more(&mut self, block: &RunBlockMap, pages: &mut [WriteOut], sending: &mut Sending) {
        while let Some(page) = pages.get_mut(sending.page) {
            let targets = block.targets(block.slab_of(page.slot));
            page.is_marking |= targets.is_marking;
            for replica in targets.replicas() {
                let sent = &sending.sent[..sending.sent_count];
                // A position with a new replica: its copier waits for this batch.
                if sent.contains(&replica) || sent.len() == MAX_SLAB_REPLICAS {
                    continue;
                }
                match self.send(block, page, sending.page, replica) {
                    Ok(taken) => sending.outstanding += usize::from(taken),
                    Err(Rejected::Full) => return,
                    Err(Rejected::Failed(RequestError::NoAnswer)) => {
                        sending.retries.push((sending.page, replica));
                    }
                    Err(Rejected::Failed(RequestError::Gone(_))) => {}
                }
                sending.sent[sending.sent_count] = replica;
                sending.sent_count += 1;
            }
            sending.page += 1;
            sending.sent_count = 0;
        }
    }

    /// Repeats writes that a suspected donor may not have received, once it answers again. A write
    /// that need no longer reach the donor is dropped.
    fn resend(&mut self, block: &RunBlockMap, pages: &mut [WriteOut], sending: &mut Sending) {
        let mut at = 0;
        while let Some(&(index, replica)) = sending.retries.get(at) {
            let is_wanted = block.is_written(&block.replicas()[replica]);
            match is_wanted.then(|| self.send(block, &mut pages[index], index, replica)) {
                Some(Ok(taken)) => sending.outstanding += usize::from(taken),
                Some(Err(Rejected::Full)) => return,
                Some(Err(Rejected::Failed(RequestError::NoAnswer))) => {
                    at += 1;
                    continue;
                }
                Some(Err(Rejected::Failed(RequestError::Gone(_)))) | None => {}
            }
            sending.retries.swap_remove(at);
        }
    }

    /// Sends a page to one replica. An unreachable replica (`false`) is dropped for all processes,
    /// unless it is the last one.
    fn send(
        &mut self,
        block: &RunBlockMap,
        page: &mut WriteOut,
        index: usize,
        replica: usize,
    ) -> Result<bool, Rejected> {
        if !self.is_ready(block, replica)? {
            page.is_missed |= !block.drop_replica(&block.replicas()[replica]);
            return Ok(false);
        }
        let bytes = match &mut self.coded {
            // SAFETY: the bytes do not change until the write is done.
            None => unsafe { page.bytes() },
            Some(coded) => coded.fragment_of(page, block.replicas()[replica].fragment()),
        };
        let to = address(block, replica, page.slot, page.skip_bytes);
        let word = RequestToken::Write { index, replica }.encode();
        let taken = self.donors.write(word, to, bytes);
        if let Err(Rejected::Failed(fault)) = taken {
            self.record(block, replica, Err(fault));
        }
        taken.map(|()| true)
    }

    /// True if the replica is reachable. An error: its donor is suspected, and has not answered on
    /// a new link either.
    fn is_ready(&mut self, block: &RunBlockMap, replica: usize) -> Result<bool, Rejected> {
        if !self.donors.reach(block, replica) {
            return Ok(false);
        }
        let donor = block.replicas()[replica].donor();
        if self.is_silent(donor) && !self.donors.is_up(replica) {
            self.handle_no_answer(block, donor);
            return Err(Rejected::Failed(RequestError::NoAnswer));
        }
        Ok(true)
    }

    /// Changes eight bytes of a slot of one replica atomically, waits, and returns the earlier
    /// value. `None`: the donor is lost or unreachable. If the replica is still readable, it is
    /// unknown whether the change was made.
    pub fn atomic(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slot: u32,
        skip_bytes: u32,
        atomic: Atomic,
    ) -> Option<u64> {
        let at = address(block, replica, slot, skip_bytes);
        self.start_atomic(block, replica, at, atomic)?;
        let mut buffer = [0; PAGE / 8];
        loop {
            self.donors.flush();
            while let Some((done, result)) = self.donors.next(&mut buffer) {
                match RequestToken::decode(done) {
                    RequestToken::Read { replica, .. } => self.record(block, replica, result),
                    RequestToken::Write { replica, .. } => {
                        self.record(block, replica, result);
                        if result == Err(RequestError::NoAnswer) {
                            self.await_resolution(block, replica);
                        }
                        return result.ok().map(|()| buffer[0]);
                    }
                }
            }
            self.donors.turn();
        }
    }

    fn start_atomic(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        address: u64,
        atomic: Atomic,
    ) -> Option<()> {
        let word = RequestToken::Write { index: 0, replica }.encode();
        while block.is_written(&block.replicas()[replica]) {
            let taken = match self.is_ready(block, replica) {
                Ok(true) => self.donors.atomic(word, address, atomic),
                Ok(false) => return None,
                Err(no_answer) => Err(no_answer),
            };
            match taken {
                Ok(()) => return Some(()),
                Err(Rejected::Full) => {}
                Err(Rejected::Failed(fault)) => self.record(block, replica, Err(fault)),
            }
            self.donors.turn();
        }
        None
    }

    /// Waits until a suspected donor is dropped, or answers again.
    fn await_resolution(&mut self, block: &RunBlockMap, replica: usize) {
        while block.is_written(&block.replicas()[replica]) && self.is_ready(block, replica).is_err()
        {
            self.donors.turn();
        }
    }

    /// Reads or writes one replica's fragments of slots and waits for them; `false`: its donor is
    /// lost, suspected or unreachable.
    pub fn move_slots(
        &mut self,
        block: &RunBlockMap,
        replica: usize,
        slots: &[u32],
        pages: &mut [Words],
        is_write: bool,
    ) -> bool {
        if self.is_ready(block, replica) != Ok(true) {
            self.donors.turn();
            return false;
        }
        let len_bytes = block.fragment_bytes();
        let (mut started, mut outstanding, mut is_done) = (0, 0usize, true);
        let mut buffer = [0; PAGE / 8];
        while outstanding > 0 || is_done && started < slots.len() {
            while is_done && started < slots.len() {
                let word = RequestToken::Write { index: started, replica }.encode();
                let at = address(block, replica, slots[started], 0);
                let taken = if is_write {
                    self.donors.write(word, at, &bytes_of(&pages[started])[..len_bytes])
                } else {
                    self.donors.read(word, at, len_bytes as u32)
                };
                match taken {
                    Ok(()) => (started, outstanding) = (started + 1, outstanding + 1),
                    Err(Rejected::Full) => break,
                    Err(Rejected::Failed(fault)) => {
                        self.record(block, replica, Err(fault));
                        is_done = false;
                    }
                }
            }
            self.donors.flush();
            let before = outstanding;
            while let Some((word, result)) = self.donors.next(&mut buffer) {
                let RequestToken::Write { index, replica } = RequestToken::decode(word) else {
                    continue;
                };
                outstanding -= 1;
                self.record(block, replica, result);
                match result {
                    Ok(()) if !is_write => {
                        let came = &bytes_of(&buffer)[..len_bytes];
                        bytes_of_mut(&mut pages[index])[..len_bytes].copy_from_slice(came);
                    }
                    Ok(()) => {}
                    Err(_) => is_done = false,
                }
            }
            // Also waits if the queue has no room for the first, because abandoned reads fill it.
            if outstanding == before && (outstanding > 0 || is_done && started < slots.len()) {
                self.donors.turn();
            }
        }
        is_done
    }
}
