//! Read-ahead: which pages to bring in beside the one that was touched.
//!
//! A pager sees faults, not touches: pages that are there are used without a word. So a *stream* is
//! known by where its next fault is to come: one step behind the pages brought in for it. A fault
//! there says that these pages were gone past, and doubles the window. A fault that no stream
//! explains is a matter of its thread's [`History`]: where it is the next page of a recent one, or
//! the latest of a majority of equal steps, a stream begins. So random access brings in nothing,
//! and a scan soon runs at the rate of the copy.
//!
//! Read-ahead stops where it does not pay: each stream that ends without having been gone past
//! costs its thread some confidence, and a thread that has none left gets a stream's first window
//! one step later, when that step has shown that it would have paid.
//!
//! No clock, no I/O, no allocation: `on_fault` is all there is.
//! Sources: Maruf and Chowdhury, "Effectively Prefetching Remote Memory with Leap", ATC 2020
//! (majority of the last steps; a window that follows what was hit); docs/decisions/0030.

mod history;
#[cfg(test)]
mod model;

use self::history::History;
use super::access_pattern::Pattern;
use super::page_table::PageNumber;

/// Most pages brought in at once, the one that was touched among them.
pub const MAX_WINDOW: usize = 128;

const STREAMS: usize = 16;
const THREADS: usize = 16;
/// A stream may go on a little off the expected place if it was seen within so many faults: pages
/// in between may have been there.
const FRESH_FAULTS: u64 = 32;
/// How far off, in steps.
const SKIPPED_STEPS: usize = 32;
/// After so many faults a stream opens its window anew.
const OLD_FAULTS: u64 = 512;

/// What a thread begins with, and the most it has.
const CONFIDENCE: (u8, u8) = (8, 16);
/// What it gets for a window that was gone past.
const FOR_A_HIT: u8 = 2;
/// What it gets for a window that would have been, had there been one.
const FOR_A_MISSED_CHANCE: u8 = 8;

/// Pages at equal distances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    from: PageNumber,
    stride: isize,
    count: usize,
}

impl Steps {
    /// The `count` pages that follow `from`, each `stride` on; those that there are.
    pub fn after(from: PageNumber, stride: isize, count: usize) -> Steps {
        Steps { from, stride, count }
    }

    /// The distance.
    pub fn stride(&self) -> isize {
        self.stride
    }

    /// How many there are at most.
    pub fn count(&self) -> usize {
        self.count
    }

    /// The pages, nearest first.
    pub fn pages(self) -> impl Iterator<Item = PageNumber> {
        (1..=self.count as isize)
            .map_while(move |step| self.from.checked_add_signed(step.checked_mul(self.stride)?))
            .filter(|&page| page > 0)
    }
}

/// What to do about a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Bring these in too.
    pub ahead: Steps,
    /// These were brought in ahead, and the program has gone past them.
    pub passed: Steps,
    /// These were, and it seems that it will not.
    pub given_up: Steps,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// Its latest fault.
    last: PageNumber,
    /// 0: there is no such stream.
    stride: isize,
    /// Pages planned beyond the latest fault.
    ahead: usize,
    used_at: u64,
    /// Whose history began it.
    thread: usize,
    /// The first of the pages on which it may go on, and how many come after that.
    within: (PageNumber, usize),
}

impl Stream {
    fn new(last: PageNumber, stride: isize, ahead: usize, used_at: u64, thread: usize) -> Stream {
        let farthest = stride.saturating_mul((ahead + 1 + SKIPPED_STEPS) as isize);
        let farthest = last.saturating_add_signed(farthest);
        let within = (last.min(farthest), last.abs_diff(farthest));
        Stream { last, stride, ahead, used_at, thread, within }
    }

    /// Every fault asks every stream, and almost all are told no here.
    fn is_near(&self, page: PageNumber) -> bool {
        page.wrapping_sub(self.within.0) <= self.within.1
    }

    /// How many steps on `page` is, if the stream goes on there.
    fn steps_to(&self, page: PageNumber, clock: u64) -> Option<usize> {
        let distance = page as isize - self.last as isize;
        let is_fresh = self.ahead > 0 && clock <= self.used_at + FRESH_FAULTS;
        if distance == 0 {
            return is_fresh.then_some(0);
        }
        if self.stride == 0 {
            return None;
        }
        let most = self.ahead + 1 + if is_fresh { SKIPPED_STEPS } else { 0 };
        let reach = self.stride.saturating_mul(most as isize);
        let is_within = if reach > 0 {
            (1..=reach).contains(&distance)
        } else {
            (reach..=-1).contains(&distance)
        };
        if !is_within || distance % self.stride != 0 {
            return None;
        }
        let steps = (distance / self.stride) as usize;
        (is_fresh || steps == self.ahead + 1).then_some(steps)
    }
}

/// The streams and threads seen lately.
#[derive(Debug, Default)]
pub struct ReadAhead {
    streams: [Stream; STREAMS],
    threads: [History; THREADS],
    clock: u64,
}

impl ReadAhead {
    /// A fault of `thread` on `page`; at most `limit` pages may come, that one included. Where the
    /// program said that it reads in order, the window is open at once.
    pub fn on_fault(
        &mut self,
        thread: u32,
        page: PageNumber,
        pattern: Pattern,
        limit: usize,
    ) -> Plan {
        self.clock += 1;
        let most = limit.min(MAX_WINDOW).saturating_sub(1);
        let clock = self.clock;
        let known = self
            .streams
            .iter()
            .position(|stream| stream.is_near(page) && stream.steps_to(page, clock).is_some());
        match known {
            Some(stream) => self.go_on(stream, page, most),
            None => self.look_for_a_trend(thread, page, pattern, most),
        }
    }

    fn go_on(&mut self, stream: usize, page: PageNumber, most: usize) -> Plan {
        let stream = &mut self.streams[stream];
        let steps = stream.steps_to(page, self.clock).expect("just found");
        if steps == 0 {
            // The same fault again: it could not be served.
            let ahead = Steps::after(page, stream.stride, stream.ahead.min(most));
            return Plan { ahead, ..Plan::default() };
        }
        let passed = Steps::after(stream.last, stream.stride, stream.ahead.min(steps - 1));
        let history = &mut self.threads[stream.thread];
        if stream.ahead > 0 {
            history.gain(FOR_A_HIT);
        } else if most > 0 {
            history.gain(FOR_A_MISSED_CHANCE);
        }
        let is_old = self.clock > stream.used_at + OLD_FAULTS;
        let next = match steps == stream.ahead + 1 {
            _ if is_old => 1,
            true => 2 * stream.ahead + 1,
            false => stream.ahead,
        };
        *stream = Stream::new(page, stream.stride, next.min(most), self.clock, stream.thread);
        let ahead = Steps::after(page, stream.stride, stream.ahead);
        Plan { ahead, passed, ..Plan::default() }
    }

    fn look_for_a_trend(
        &mut self,
        thread: u32,
        page: PageNumber,
        pattern: Pattern,
        most: usize,
    ) -> Plan {
        let place = self.place_of(thread);
        let history = &mut self.threads[place];
        let is_told = pattern == Pattern::Sequential;
        let stride = if is_told { Some(1) } else { history.trend(page) };
        history.push(page, self.clock);
        let Some(stride) = stride else { return Plan::default() };
        let ahead = match is_told {
            true => most,
            false => most.min(usize::from(history.is_confident())),
        };
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used_at);
        let stream = oldest.expect("there are streams");
        if stream.ahead > 0 {
            self.threads[stream.thread].lose();
        }
        let given_up = Steps::after(stream.last, stream.stride, stream.ahead);
        *stream = Stream::new(page, stride, ahead, self.clock, place);
        Plan { ahead: Steps::after(page, stride, ahead), given_up, ..Plan::default() }
    }

    /// The thread's history; one not heard of lately takes the place of the one unheard of longest.
    fn place_of(&mut self, thread: u32) -> usize {
        let known = self.threads.iter().position(|history| history.is_of(thread));
        known.unwrap_or_else(|| {
            let oldest = (0..THREADS).min_by_key(|&place| self.threads[place].heard_at());
            let place = oldest.expect("there are places");
            self.threads[place] = History::of(thread, CONFIDENCE);
            place
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Faults of one thread where the pages planned are always brought in.
    fn windows(
        read_ahead: &mut ReadAhead,
        start: PageNumber,
        stride: isize,
        n: usize,
    ) -> Vec<usize> {
        let mut page = start;
        let mut fault = || {
            let plan = read_ahead.on_fault(1, page, Pattern::Normal, 16);
            page = page.strict_add_signed(stride * (1 + plan.ahead.count() as isize));
            plan.ahead.count()
        };
        (0..n).map(|_| fault()).collect()
    }

    #[test]
    fn a_scan_opens_the_window_and_random_access_does_not() {
        let mut read_ahead = ReadAhead::default();
        assert_eq!(windows(&mut read_ahead, 100, 1, 6), [0, 1, 3, 7, 15, 15]);
        for page in [7000, 3, 912, 44_444, 81, 90_000, 17, 6] {
            assert_eq!(read_ahead.on_fault(1, page, Pattern::Normal, 16), Plan::default());
        }
    }

    #[test]
    fn steps_back_and_wide_ones_are_found_at_the_fourth() {
        for stride in [-1, 7, -300, 5000] {
            let mut read_ahead = ReadAhead::default();
            let opened = windows(&mut read_ahead, 1_000_000, stride, 8);
            assert_eq!(opened, [0, 0, 0, 1, 3, 7, 15, 15], "stride {stride}");
        }
    }

    #[test]
    fn what_lies_behind_was_passed_and_what_is_replaced_given_up() {
        let mut read_ahead = ReadAhead::default();
        let mut fault = |page| read_ahead.on_fault(1, page, Pattern::Normal, 64);
        fault(10);
        assert_eq!(fault(11).ahead.pages().collect::<Vec<_>>(), [12]);
        let plan = fault(13);
        assert_eq!(plan.passed.pages().collect::<Vec<_>>(), [12]);
        assert_eq!(plan.ahead.pages().collect::<Vec<_>>(), [14, 15, 16]);
        // One that was there already is skipped without a fault.
        assert_eq!(fault(18).passed.pages().collect::<Vec<_>>(), [14, 15, 16]);
        let given_up = (1..=STREAMS).find_map(|pair| {
            fault(pair * pair * 1000);
            let plan = fault(pair * pair * 1000 + 1);
            (plan.given_up.count() > 0).then_some(plan.given_up)
        });
        let given_up = given_up.expect("there are no more streams than that");
        assert_eq!(given_up.pages().collect::<Vec<_>>(), [19, 20, 21]);
    }

    #[test]
    fn told_that_it_is_in_order_it_opens_at_once() {
        let mut read_ahead = ReadAhead::default();
        let plan = read_ahead.on_fault(1, 500, Pattern::Sequential, 64);
        assert_eq!((plan.ahead.stride(), plan.ahead.count()), (1, 63));
        assert_eq!(read_ahead.on_fault(2, 564, Pattern::Sequential, 1).ahead.count(), 0);
    }

    #[test]
    fn pairs_are_not_followed_for_long_and_longer_runs_are() {
        let ahead_of = |run: usize| {
            let mut read_ahead = ReadAhead::default();
            let (mut ahead, mut useful) = (0, 0);
            for start in (1..400).map(|i: usize| i * i * 7919 % 100_003 * 100 + 100) {
                let mut skip = 0;
                for page in start..start + run {
                    if skip > 0 {
                        (skip, useful) = (skip - 1, useful + 1);
                        continue;
                    }
                    let plan = read_ahead.on_fault(1, page, Pattern::Normal, 64);
                    skip = plan.ahead.count();
                    ahead += skip;
                }
            }
            (ahead, useful)
        };
        let (ahead, _) = ahead_of(2);
        assert!(ahead < 40, "{ahead} pages came for nothing");
        let (ahead, useful) = ahead_of(8);
        assert!(useful * 3 > ahead, "{useful} of {ahead} were used");
    }

    #[test]
    fn no_page_lies_before_the_first_or_after_the_last() {
        assert_eq!(Steps::after(3, -2, 5).pages().collect::<Vec<_>>(), [1]);
        assert_eq!(Steps::after(2, -1, 5).pages().collect::<Vec<_>>(), [1]);
        assert_eq!(Steps::after(usize::MAX - 1, 1, 5).pages().count(), 1);
        assert_eq!(Steps::after(5, isize::MAX, 5).pages().count(), 1);
    }
}
