//! Posted writes: nobody waits for one of them, a fence waits for all that came before it.

use std::collections::VecDeque;

use crate::AccessError;

/// The posted writes outstanding, by the fence they lie before. Writes of one stretch are counted,
/// not listed: they cost nothing but the link's own queues.
#[derive(Debug)]
pub(super) struct PostedWrites {
    /// Number of the first stretch.
    first: u32,
    /// Those whose fence has not completed, and at the end the one without a fence yet.
    stretches: VecDeque<Stretch>,
}

/// The posted writes between two fences.
#[derive(Clone, Copy, Debug, Default)]
struct Stretch {
    outstanding: u32,
    error: Option<AccessError>,
    /// The completion slot of the fence that ends the stretch.
    fence: Option<u16>,
}

impl PostedWrites {
    /// Room for `fences` fences outstanding.
    pub(super) fn new(fences: u16) -> Self {
        let mut stretches = VecDeque::with_capacity(usize::from(fences) + 1);
        stretches.push_back(Stretch::default());
        Self { first: 0, stretches }
    }

    /// A write was posted; returns the number of its stretch.
    pub(super) fn post(&mut self) -> u32 {
        let last = self.stretches.back_mut().expect("one is always open");
        last.outstanding += 1;
        self.first.wrapping_add(self.stretches.len() as u32 - 1)
    }

    /// A write of `stretch` is over. The first error of a stretch is kept for its fence.
    pub(super) fn settle(&mut self, stretch: u32, result: Result<(), AccessError>) {
        let at = stretch.wrapping_sub(self.first) as usize;
        let stretch = self.stretches.get_mut(at).expect("it waits for its writes");
        stretch.outstanding = stretch.outstanding.checked_sub(1).expect("settled once");
        stretch.error = stretch.error.or(result.err());
    }

    /// Ends the open stretch by a fence, which completes in `slot`.
    pub(super) fn fence(&mut self, slot: u16) {
        self.stretches.back_mut().expect("one is always open").fence = Some(slot);
        self.stretches.push_back(Stretch::default());
    }

    /// The next fence whose writes are all over, those of the fences before it too.
    pub(super) fn pop_complete(&mut self) -> Option<(u16, Result<(), AccessError>)> {
        let Stretch { outstanding, error, fence } = *self.stretches.front()?;
        let slot = fence.filter(|_| outstanding == 0)?;
        self.stretches.pop_front();
        self.first = self.first.wrapping_add(1);
        Some((slot, error.map_or(Ok(()), Err)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DownReason;

    #[test]
    fn a_fence_waits_for_what_lies_before_it_and_tells_its_first_error() {
        let mut posted = PostedWrites::new(4);
        let (a, b) = (posted.post(), posted.post());
        posted.fence(7);
        let c = posted.post();
        posted.fence(8);
        posted.settle(c, Ok(()));
        posted.settle(a, Err(AccessError::NotMapped));
        assert_eq!(posted.pop_complete(), None, "one write is still on its way");
        posted.settle(b, Err(AccessError::PeerDown(DownReason::Silent)));
        assert_eq!(posted.pop_complete(), Some((7, Err(AccessError::NotMapped))));
        assert_eq!(posted.pop_complete(), Some((8, Ok(()))));
        posted.fence(9);
        assert_eq!(posted.pop_complete(), Some((9, Ok(()))), "nothing was posted");
    }
}
