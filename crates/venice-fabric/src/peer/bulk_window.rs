//! The congestion window of bulk transfers to one donor: as many chunks as the link takes without
//! loss, and without queues that delay other frames.

/// Chunks in flight at first, and at least.
const LEAST: usize = 16;
/// The excess of a chunk's round trip over four times the shortest, in nanoseconds, that marks
/// congestion: a queue delays single accesses by as much.
const QUEUE_NS: u64 = 100_000;
/// Rounds after which the shortest round trip is measured anew, because the path may have changed.
const ROUNDS_REMEMBERED: u32 = 1024;

/// A window that grows while it is full and the link keeps up, and shrinks when frames get lost or
/// wait in queues. One chunk is timed at a time; its answer ends a round.
#[derive(Debug)]
pub(super) struct BulkWindow {
    chunks: usize,
    /// The window doubles every round until the first congestion.
    is_starting: bool,
    was_full: bool,
    /// Transaction and time of issue of the chunk that is timed.
    timed: Option<(u32, u64)>,
    shortest_ns: u64,
    rounds: u32,
    losses: u64,
}

impl BulkWindow {
    pub(super) fn new() -> Self {
        Self {
            chunks: LEAST,
            is_starting: true,
            was_full: false,
            timed: None,
            shortest_ns: u64::MAX,
            rounds: 0,
            losses: 0,
        }
    }

    /// True if one more chunk may be in flight besides `outstanding`, where the link allows `most`.
    pub(super) fn has_room(&mut self, outstanding: usize, most: usize) -> bool {
        let has_room = outstanding < self.chunks.min(most.max(1));
        self.was_full |= !has_room;
        has_room
    }

    pub(super) fn issued(&mut self, transaction: u32, now_ns: u64) {
        self.timed.get_or_insert((transaction, now_ns));
    }

    /// Records the answer of a chunk; `losses`: frames the link has replayed so far.
    pub(super) fn answered(&mut self, transaction: u32, now_ns: u64, losses: u64, most: usize) {
        let Some((timed, issued_ns)) = self.timed else { return };
        // Chunks are answered in order: a later one ends the round as well.
        if (transaction.wrapping_sub(timed) as i32) < 0 {
            return;
        }
        self.timed = None;
        self.end_round(now_ns.saturating_sub(issued_ns), losses, most);
    }

    /// Resets the window: the link is down or forgotten, and its transactions are void.
    pub(super) fn reset(&mut self) {
        *self = Self::new();
    }

    fn end_round(&mut self, round_trip_ns: u64, losses: u64, most: usize) {
        self.rounds += 1;
        if self.rounds.is_multiple_of(ROUNDS_REMEMBERED) {
            self.shortest_ns = u64::MAX;
        }
        self.shortest_ns = self.shortest_ns.min(round_trip_ns);
        let longest_ns = self.shortest_ns.saturating_mul(4).saturating_add(QUEUE_NS);
        let has_lost = std::mem::replace(&mut self.losses, losses) != losses;
        if has_lost {
            self.chunks /= 2;
            self.is_starting = false;
        } else if round_trip_ns > longest_ns {
            self.chunks -= self.chunks / 8;
            self.is_starting = false;
        } else if self.was_full {
            self.chunks += if self.is_starting { self.chunks } else { self.chunks.div_ceil(16) };
        }
        self.chunks = self.chunks.min(most).max(LEAST);
        self.was_full = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a link that serves one chunk every `each_ns` after a delay of 20 µs, and drops
    /// chunks beyond `queue`; returns the window after `rounds` rounds.
    fn settle(rounds: u32, each_ns: u64, queue: usize) -> usize {
        let (mut window, mut losses) = (BulkWindow::new(), 0);
        for round in 0..rounds {
            while window.has_room(usize::MAX, 1000) {}
            window.issued(round, 0);
            let in_flight = window.chunks.min(1000);
            losses += in_flight.saturating_sub(queue) as u64;
            window.answered(round, 20_000 + each_ns * in_flight as u64, losses, 1000);
        }
        window.chunks
    }

    #[test]
    fn fast_link_opens_full_window() {
        assert_eq!(settle(20, 10, usize::MAX), 1000);
    }

    #[test]
    fn slow_link_bounds_window() {
        // 6.5 µs each, as on 5 Gb/s: the shortest is seen with 16 in flight.
        let chunks = settle(300, 6_500, usize::MAX);
        assert!((16..120).contains(&chunks), "{chunks}");
    }

    #[test]
    fn losses_halve_window_to_minimum() {
        let chunks = settle(300, 10, 100);
        assert!((50..=110).contains(&chunks), "{chunks}");
        assert_eq!(settle(300, 10, 8), 16);
    }

    #[test]
    fn unused_window_does_not_grow() {
        let mut window = BulkWindow::new();
        for round in 0..100 {
            assert!(window.has_room(3, 1000));
            window.issued(round, 0);
            window.answered(round, 20_000, 0, 1000);
        }
        assert_eq!(window.chunks, LEAST);
    }
}
