//! Read-ahead: which pages to bring in beside the one that was touched.
//!
//! A fault where a stream was expected to go on doubles that stream's window; any other fault
//! starts a stream of its own with no window. So random access brings in nothing, and a scan
//! soon runs at the rate of the copy.

use super::access_pattern::Pattern;
use super::page_table::PageNumber;

/// Most pages brought in at once.
pub const MAX_WINDOW: usize = 64;

const STREAMS: usize = 16;

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    next: PageNumber,
    window: usize,
    last_used: u64,
}

/// The streams seen lately.
#[derive(Debug, Default)]
pub struct ReadAhead {
    streams: [Stream; STREAMS],
    clock: u64,
}

impl ReadAhead {
    /// A fault on `page`: how many pages to bring in, that one included; at most `limit`. Where the
    /// program said that it reads in order, the window is open at once.
    pub fn on_fault(&mut self, page: PageNumber, pattern: Pattern, limit: usize) -> usize {
        self.clock += 1;
        let known = self.streams.iter_mut().find(|s| s.next == page && s.window > 0);
        let stream = match known {
            Some(stream) => {
                stream.window = (stream.window * 2).min(limit.max(1));
                stream
            }
            None => {
                let oldest = self.streams.iter_mut().min_by_key(|s| s.last_used);
                let stream = oldest.expect("there are streams");
                stream.window = if pattern == Pattern::Sequential { limit.max(1) } else { 1 };
                stream
            }
        };
        stream.last_used = self.clock;
        stream.next = page + stream.window;
        stream.window
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scan_opens_the_window_and_random_access_does_not() {
        let mut read_ahead = ReadAhead::default();
        let (mut page, mut windows) = (100, Vec::new());
        for _ in 0..6 {
            let window = read_ahead.on_fault(page, Pattern::Normal, 16);
            windows.push(window);
            page += window;
        }
        assert_eq!(windows, [1, 2, 4, 8, 16, 16]);
        for page in [7000, 3, 912, 44_444] {
            assert_eq!(read_ahead.on_fault(page, Pattern::Normal, 16), 1);
        }
    }

    #[test]
    fn two_scans_do_not_disturb_each_other() {
        let mut read_ahead = ReadAhead::default();
        let (mut one, mut two) = (0, 1_000_000);
        for _ in 0..5 {
            one += read_ahead.on_fault(one, Pattern::Normal, 64);
            two += read_ahead.on_fault(two, Pattern::Normal, 64);
        }
        assert_eq!(read_ahead.on_fault(one, Pattern::Normal, 64), 32);
        assert_eq!(read_ahead.on_fault(two, Pattern::Normal, 64), 32);
    }
}
