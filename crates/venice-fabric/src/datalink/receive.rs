//! The receiving half of a link: what comes in order goes on, what comes early waits.

use venice_wire::{MAX_FRAME_BYTES, Sequence};

/// The next position expected, and buffers for the frames that came before their turn.
#[derive(Debug)]
pub(super) struct ReceiveWindow {
    next: Sequence,
    /// Length of the frame in each place; 0: none. Empty on a port that keeps the order itself.
    lengths: Box<[usize]>,
    /// Room for a frame in each place; away while one of them is delivered. It is not written to
    /// before frames come early, and until then costs no memory.
    frames: Box<[u8]>,
    parked_count: u32,
}

/// A frame that waited for its turn. It must come back by [`ReceiveWindow::give_back`].
#[derive(Debug)]
pub(crate) struct Parked {
    /// All places.
    frames: Box<[u8]>,
    start: usize,
    len: usize,
}

/// What became of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    /// It is the next one: deliver it, then what waited behind it.
    InOrder,
    /// It came early and was kept.
    Early,
    /// It had come before.
    Duplicate,
    /// It lies outside the window the sender was told.
    Outside,
}

impl ReceiveWindow {
    /// A window of `capacity` frames, a power of two; with buffers only if `keeps_early` ones.
    pub(super) fn new(capacity: u32, keeps_early: bool) -> Self {
        assert!(capacity.is_power_of_two(), "positions must map to slots across the wrap");
        let places = if keeps_early { capacity as usize } else { 0 };
        let lengths = vec![0; places].into();
        let frames = vec![0; places * MAX_FRAME_BYTES].into();
        Self { next: Sequence(0), lengths, frames, parked_count: 0 }
    }

    /// Forgets everything, for a new link.
    pub(super) fn clear(&mut self) {
        self.next = Sequence(0);
        self.lengths.fill(0);
        self.parked_count = 0;
    }

    /// Forgets everything and frees the buffers: nothing may arrive afterwards.
    pub(super) fn release(&mut self) {
        self.clear();
        (self.lengths, self.frames) = (Box::default(), Box::default());
    }

    /// The first position that has not arrived.
    pub(super) fn next(&self) -> Sequence {
        self.next
    }

    /// Whether frames wait for one that has not arrived.
    pub(super) fn has_gap(&self) -> bool {
        self.parked_count > 0
    }

    /// Takes note of a frame.
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

    /// Drops what waits for its turn at `sequence`, if anything does: whoever had no room for more
    /// has left it here, and now it has come again. Left where it is, it would pass for the frame
    /// one round of the window later.
    fn drop_copy(&mut self, sequence: Sequence) {
        if self.parked_count == 0 {
            return;
        }
        let at = self.index(sequence);
        if std::mem::take(&mut self.lengths[at]) > 0 {
            self.parked_count -= 1;
        }
    }

    /// The frame whose turn has come, if it waits here.
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

    /// Bit `i` is set when position `next + 1 + i` has arrived.
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
    /// The frame as it came.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.frames[self.start..][..self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_frames_wait_and_come_out_in_order() {
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

    /// Whoever has no room leaves frames here whose turn has come; the other side sends them again.
    #[test]
    fn a_frame_left_waiting_that_comes_again_is_not_taken_twice() {
        let mut window = ReceiveWindow::new(4, true);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::Early);
        assert_eq!(window.offer(Sequence(2), b"two"), Arrival::Early);
        assert_eq!(window.offer(Sequence(0), b"zero"), Arrival::InOrder);
        assert_eq!(window.offer(Sequence(3), b"three"), Arrival::Early);
        assert_eq!(window.offer(Sequence(4), b"four"), Arrival::Early, "every place is taken");
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
    fn without_replay_only_the_next_frame_is_taken() {
        let mut window = ReceiveWindow::new(4, false);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::Outside);
        assert_eq!(window.offer(Sequence(0), b"zero"), Arrival::InOrder);
        assert_eq!(window.offer(Sequence(0), b"zero"), Arrival::Duplicate);
        assert_eq!(window.offer(Sequence(1), b"one"), Arrival::InOrder);
        assert!(window.take_next().is_none() && window.bitmap() == 0);
    }

    #[test]
    fn the_window_slides_over_the_wrap() {
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
