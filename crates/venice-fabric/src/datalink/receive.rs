//! The receiving half of a link: frames in order are delivered, early ones are parked.

use venice_wire::{MAX_FRAME_BYTES, Sequence};

/// The next position expected, and buffers for frames that came early.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    next: Sequence,
    /// Length of the frame in each slot; 0: none. Empty on a port that keeps the order itself.
    lengths: Box<[usize]>,
    /// A buffer for a frame in each slot; absent while one of them is delivered. It is not written
    /// before frames come early, and until then takes no memory.
    frames: Box<[u8]>,
    parked_count: u32,
}

/// A frame that was parked. It must be returned by [`ReceiveWindow::give_back`].
#[derive(Debug)]
pub(crate) struct Parked {
    /// The buffers of all slots.
    frames: Box<[u8]>,
    start: usize,
    len: usize,
}

/// The classification of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// The next one: deliver it, then those parked behind it.
    InOrder,
    /// Early, and parked.
    Early,
    /// A duplicate.
    Duplicate,
    /// Outside the window given to the sender.
    Outside,
}

impl ReceiveWindow {
    /// Returns a window of `capacity` frames, a power of two; with buffers only if `keeps_early` is
    /// set.
    pub(super) fn new(capacity: u32, keeps_early: bool) -> Self {
        assert!(capacity.is_power_of_two(), "positions must map to slots across the wrap");
        let places = if keeps_early { capacity as usize } else { 0 };
        let lengths = vec![0; places].into();
        let frames = vec![0; places * MAX_FRAME_BYTES].into();
        Self { next: Sequence(0), lengths, frames, parked_count: 0 }
    }

    /// Resets the window for a new link.
    pub(super) fn clear(&mut self) {
        self.next = Sequence(0);
        self.lengths.fill(0);
        self.parked_count = 0;
    }

    /// Resets the window and frees the buffers: nothing may arrive afterwards.
    pub(super) fn release(&mut self) {
        self.clear();
        (self.lengths, self.frames) = (Box::default(), Box::default());
    }

    /// Returns the first position that has not arrived.
    pub(super) fn next(&self) -> Sequence {
        self.next
    }

    /// True if frames are parked behind a missing one.
    pub(super) fn has_gap(&self) -> bool {
        self.parked_count > 0
    }

    /// Classifies a frame, and parks an early one.
    pub(super) fn offer(&mut self, sequence: Sequence, bytes: &[u8]) -> Arrival {
        if sequence.is_before(self.next) {
            return Arrival::Duplicate;
        }
        if sequence == self.next {
            self.drop_copy(sequence);
            self.next = sequence.plus(1);
            return Arrival::InOrder;
        }
        if sequence.since(self.next) >= self.lengths.len() as u32 {
            return Arrival::Outside;
        }
        let at = self.index(sequence);
        if self.lengths[at] > 0 {
            return Arrival::Duplicate;
        }
        self.frames[at * MAX_FRAME_BYTES..][..bytes.len()].copy_from_slice(bytes);
        self.lengths[at] = bytes.len();
        self.parked_count += 1;
        assert!(self.parked_count as usize <= self.lengths.len(), "a receive buffer ran over");
        Arrival::Early
    }

    /// Drops the frame parked at `sequence`, if any: the receiver had no room for its answer, left
    /// it here, and now it was sent again. Otherwise it would be taken for the frame one round of
    /// the window later.
    fn drop_copy(&mut self, sequence: Sequence) {
        if self.parked_count == 0 {
            return;
        }
        let at = self.index(sequence);
        if std::mem::take(&mut self.lengths[at]) > 0 {
            self.parked_count -= 1;
        }
    }

    /// Returns the frame whose turn has come, if it is parked.
    pub(super) fn take_next(&mut self) -> Option<Parked> {
        if self.parked_count == 0 {
            return None;
        }
        let at = self.index(self.next);
        let len = std::mem::take(&mut self.lengths[at]);
        if len == 0 {
            return None;
        }
        self.next = self.next.plus(1);
        self.parked_count -= 1;
        let frames = std::mem::take(&mut self.frames);
        Some(Parked { frames, start: at * MAX_FRAME_BYTES, len })
    }

    /// Returns the frame that [`ReceiveWindow::take_next`] gave last.
    pub(super) fn give_back(&mut self, parked: Parked) {
        debug_assert!(self.frames.is_empty(), "one frame is delivered at a time");
        self.frames = parked.frames;
    }

    /// Returns a bitmap: bit `i` is set if position `next + 1 + i` has arrived.
    pub(super) fn bitmap(&self) -> u64 {
        (0..(self.lengths.len() as u32).saturating_sub(1).min(64))
            .filter(|&i| self.lengths[self.index(self.next.plus(1 + i))] > 0)
            .fold(0, |bitmap, i| bitmap | 1 << i)
    }

    fn index(&self, sequence: Sequence) -> usize {
        sequence.0 as usize & (self.lengths.len() - 1)
    }
}

impl Parked {
    /// Returns the frame as it was received.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.frames[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_frames_are_reordered() {
        let mut window = ReceiveWindow::new(4, true);
        assert_eq!(window.offer(Sequence(2), b"two"), Arrival::Early);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::Early);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::Duplicate);
        assert_eq!(window.offer(Sequence(4), b"four"), Arrival::Outside);
        assert_eq!((window.has_gap(), window.bitmap()), (true, 0b11));
        assert_eq!(window.offer(Sequence(0), b"zero"), Arrival::InOrder);
        for expected in [b"one".as_slice(), b"two"] {
            let parked = window.take_next().unwrap();
            assert_eq!(parked.bytes(), expected);
            window.give_back(parked);
        }
        assert!(window.take_next().is_none() && !window.has_gap());
        assert_eq!(window.offer(Sequence(0), b"zero"), Arrival::Duplicate);
        assert_eq!(window.next(), Sequence(3));
    }

    /// A receiver without room leaves frames parked whose turn has come; the other side sends them
    /// again.
    #[test]
    fn repeated_parked_frame_is_delivered_once() {
        let mut window = ReceiveWindow::new(4, true);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::Early);
        assert_eq!(window.offer(Sequence(2), b"two"), Arrival::Early);
        assert_eq!(window.offer(Sequence(0), b"zero"), Arrival::InOrder);
        assert_eq!(window.offer(Sequence(3), b"three"), Arrival::Early);
        assert_eq!(window.offer(Sequence(4), b"four"), Arrival::Early, "every slot is taken");
        assert_eq!(window.offer(Sequence(5), b"five"), Arrival::Outside);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::InOrder);
        for expected in [b"two".as_slice(), b"three", b"four"] {
            let parked = window.take_next().unwrap();
            assert_eq!(parked.bytes(), expected);
            window.give_back(parked);
        }
        assert!(window.take_next().is_none() && !window.has_gap());
        assert_eq!(window.next(), Sequence(5), "where the copy of 1 would be");
    }

    #[test]
    fn no_parking_without_replay() {
        let mut window = ReceiveWindow::new(4, false);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::Outside);
        assert_eq!(window.offer(Sequence(0), b"zero"), Arrival::InOrder);
        assert_eq!(window.offer(Sequence(0), b"zero"), Arrival::Duplicate);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::InOrder);
        assert!(window.take_next().is_none() && window.bitmap() == 0);
    }

    #[test]
    fn window_slides_over_wrap() {
        let mut window = ReceiveWindow::new(4, true);
        window.next = Sequence(u32::MAX);
        assert_eq!(window.offer(Sequence(0), b"b"), Arrival::Early);
        assert_eq!(window.offer(Sequence(u32::MAX), b"a"), Arrival::InOrder);
        let parked = window.take_next().unwrap();
        assert_eq!(parked.bytes(), b"b");
        window.give_back(parked);
        assert_eq!(window.next(), Sequence(1));
    }
}
