//! Posted writes: none of them has a completion of its own; a fence completes after all that came
//! before it.

use std::collections::VecDeque;

use crate::AccessError;

/// The outstanding posted writes, by the fence that follows them. Writes of one stretch are
/// counted, not listed: they take no resource except the link's own queues.
#[derive(Debug)]
pub(super) struct PostedWrites {
    /// Number of the first stretch.
    first: u32,
    /// The stretches whose fence has not completed, and the last one, which has no fence yet.
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
    /// Returns a table with room for `fences` outstanding fences.
    pub(super) fn new(fences: u16) -> Self {
        let mut stretches = VecDeque::with_capacity(usize::from(fences) + 1);
        stretches.push_back(Stretch::default());
        Self { first: 0, stretches }
    }

    /// Counts a posted write; returns the number of its stretch.
    pub(super) fn post(&mut self) -> u32 {
        let last = self.stretches.back_mut().expect("one is always open");
        last.outstanding += 1;
        self.first.wrapping_add(self.stretches.len() as u32 - 1)
    }

    /// Settles a write of `stretch`. The first error of a stretch is kept for its fence.
    pub(super) fn settle(&mut self, stretch: u32, result: Result<(), AccessError>) {
        let at = stretch.wrapping_sub(self.first) as usize;
        let stretch =
            self.stretches.get_mut(at).expect("a stretch stays until its writes are settled");
        stretch.outstanding = stretch.outstanding.checked_sub(1).expect("settled once");
        stretch.error = stretch.error.or(result.err());
    }

    /// Ends the open stretch by a fence, which completes in `slot`.
    pub(super) fn fence(&mut self, slot: u16) {
        self.stretches.back_mut().expect("one is always open").fence = Some(slot);
        self.stretches.push_back(Stretch::default());
    }

    /// Returns the next fence whose writes, and those of all earlier fences, are settled.
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
    fn fence_reports_first_earlier_error() {
        let mut posted = PostedWrites::new(4);
        let (a, b) = (posted.post(), posted.post());
        posted.fence(7);
        let c = posted.post();
        posted.fence(8);
        posted.settle(c, Ok(()));
        posted.settle(a, Err(AccessError::NotMapped));
        assert_eq!(posted.pop_complete(), None, "one write is still outstanding");
        posted.settle(b, Err(AccessError::PeerDown(DownReason::Silent)));
        assert_eq!(posted.pop_complete(), Some((7, Err(AccessError::NotMapped))));
        assert_eq!(posted.pop_complete(), Some((8, Ok(()))));
        posted.fence(9);
        assert_eq!(posted.pop_complete(), Some((9, Ok(()))), "nothing was posted");
    }
}
