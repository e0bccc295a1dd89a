//! Prefetch: plans which pages to bring in beside the one that was touched.
//!
//! A pager sees faults, not touches: resident pages are used unseen. A *stream* is recognised by
//! where its next fault is expected: one step behind the pages prefetched for it. A fault there
//! shows that these pages were used, and doubles the prefetch window. A fault that no stream
//! explains goes to its thread's [`History`]: if it is the next page of a recent one, or the latest
//! of a majority of equal steps, a stream begins. So random access prefetches nothing, and a scan
//! soon runs at the rate of the copy.
//!
//! Prefetch stops where it does not pay: each stream that ends with its prefetch wasted costs its
//! thread some confidence. A thread without confidence gets a stream's first prefetch window one
//! step later, once that step has shown that the prefetch would have paid.
//!
//! No clock, no I/O, no allocation: `on_fault` is the whole interface. Sources: Maruf and
//! Chowdhury, "Effectively Prefetching Remote Memory with Leap", ATC 2020 (majority of the last
//! steps; a window that follows the hits); docs/decisions/0030.

mod history;
#[cfg(test)]
mod model;

use self::history::History;
use super::access_pattern::Pattern;
use super::page_table::PageNumber;

/// Most pages brought in at once, the touched one included.
pub const MAX_PREFETCH: usize = 128;

const STREAMS: usize = 16;
const THREADS: usize = 16;
/// Faults within which a stream counts as fresh. A fresh stream may go on a little off the expected
/// place: pages in between may have been resident.
const FRESH_FAULTS: u64 = 32;
/// Most steps off the expected place.
const SKIPPED_STEPS: usize = 32;
/// Faults after which a stream opens its prefetch window anew.
const OLD_FAULTS: u64 = 512;

/// A thread's initial confidence, and its maximum.
const CONFIDENCE: (u8, u8) = (8, 16);
/// Confidence gained by a used prefetch.
const GAIN_USED: u8 = 2;
/// Confidence gained where a prefetch would have been used.
const GAIN_MISSED: u8 = 8;

/// Pages at equal distances.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Steps {
    from: PageNumber,
    stride: isize,
    count: usize,
}

impl Steps {
    /// The `count` pages that follow `from` at distance `stride`, as far as they exist.
    pub fn after(from: PageNumber, stride: isize, count: usize) -> Steps {
        Steps { from, stride, count }
    }

    /// The distance, in pages.
    pub fn stride(&self) -> isize {
        self.stride
    }

    /// The most pages that there are.
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

/// The plan for a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Pages to prefetch.
    pub prefetch: Steps,
    /// Prefetched pages that the stream has used.
    pub used: Steps,
    /// Prefetched pages of a stream that ended: wasted.
    pub wasted: Steps,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stream {
    /// The page of its latest fault.
    last: PageNumber,
    /// Pages from one step to the next; 0: there is no such stream.
    stride: isize,
    /// Pages prefetched beyond the latest fault.
    prefetched: usize,
    used_at: u64,
    /// Index of the history that began it.
    thread: usize,
    /// The first of the pages on which it may go on, and how many come after that.
    within: (PageNumber, usize),
}

impl Stream {
    fn new(
        last: PageNumber,
        stride: isize,
        prefetched: usize,
        used_at: u64,
        thread: usize,
    ) -> Stream {
        let farthest = stride.saturating_mul((prefetched + 1 + SKIPPED_STEPS) as isize);
        let farthest = last.saturating_add_signed(farthest);
        let within = (last.min(farthest), last.abs_diff(farthest));
        Stream { last, stride, prefetched, used_at, thread, within }
    }

    /// True if the stream may go on at `page`. Every fault checks every stream; almost all are
    /// ruled out here.
    fn is_near(&self, page: PageNumber) -> bool {
        page.wrapping_sub(self.within.0) <= self.within.1
    }

    /// Returns how many steps on `page` is, if the stream goes on there.
    fn steps_to(&self, page: PageNumber, clock: u64) -> Option<usize> {
        let distance = page as isize - self.last as isize;
        let is_fresh = self.prefetched > 0 && clock <= self.used_at + FRESH_FAULTS;
        if distance == 0 {
            return is_fresh.then_some(0);
        }
        if self.stride == 0 {
            return None;
        }
        let most = self.prefetched + 1 + if is_fresh { SKIPPED_STEPS } else { 0 };
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
        (is_fresh || steps == self.prefetched + 1).then_some(steps)
    }
}

/// The recent streams and threads.
#[derive(Debug, Default)]
pub struct ReadAhead {
    streams: [Stream; STREAMS],
    threads: [History; THREADS],
    clock: u64,
}

impl ReadAhead {
    /// Plans for a fault of `thread` on `page`; at most `limit` pages may come, that one included.
    /// If the program announced sequential access, the prefetch window is open at once.
    pub fn on_fault(
        &mut self,
        thread: u32,
        page: PageNumber,
        pattern: Pattern,
        limit: usize,
    ) -> Plan {
        self.clock += 1;
        let most = limit.min(MAX_PREFETCH).saturating_sub(1);
        let clock = self.clock;
        let known = self
            .streams
            .iter()
            .position(|stream| stream.is_near(page) && stream.steps_to(page, clock).is_some());
        match known {
            Some(stream) => self.continue_stream(stream, page, most),
            None => self.detect_trend(thread, page, pattern, most),
        }
    }

    fn continue_stream(&mut self, stream: usize, page: PageNumber, most: usize) -> Plan {
        let stream = &mut self.streams[stream];
        let steps = stream.steps_to(page, self.clock).expect("just found");
        if steps == 0 {
            // The same fault again: it could not be served.
            let prefetch = Steps::after(page, stream.stride, stream.prefetched.min(most));
            return Plan { prefetch, ..Plan::default() };
        }
        let used = Steps::after(stream.last, stream.stride, stream.prefetched.min(steps - 1));
        let history = &mut self.threads[stream.thread];
        if stream.prefetched > 0 {
            history.gain(GAIN_USED);
        } else if most > 0 {
            history.gain(GAIN_MISSED);
        }
        let is_old = self.clock > stream.used_at + OLD_FAULTS;
        let next = match steps == stream.prefetched + 1 {
            _ if is_old => 1,
            true => 2 * stream.prefetched + 1,
            false => stream.prefetched,
        };
        *stream = Stream::new(page, stream.stride, next.min(most), self.clock, stream.thread);
        let prefetch = Steps::after(page, stream.stride, stream.prefetched);
        Plan { prefetch, used, ..Plan::default() }
    }

    fn detect_trend(
        &mut self,
        thread: u32,
        page: PageNumber,
        pattern: Pattern,
        most: usize,
    ) -> Plan {
        let place = self.history_index(thread);
        let history = &mut self.threads[place];
        let is_advised = pattern == Pattern::Sequential;
        let stride = if is_advised { Some(1) } else { history.trend(page) };
        history.push(page, self.clock);
        let Some(stride) = stride else { return Plan::default() };
        let count = match is_advised {
            true => most,
            false => most.min(usize::from(history.is_confident())),
        };
        let oldest = self.streams.iter_mut().min_by_key(|stream| stream.used_at);
        let stream = oldest.expect("there are streams");
        if stream.prefetched > 0 {
            self.threads[stream.thread].lose();
        }
        let wasted = Steps::after(stream.last, stream.stride, stream.prefetched);
        *stream = Stream::new(page, stride, count, self.clock, place);
        Plan { prefetch: Steps::after(page, stride, count), wasted, ..Plan::default() }
    }

    /// Returns the thread's history. A new thread replaces the one whose last fault is longest ago.
    fn history_index(&mut self, thread: u32) -> usize {
        let known = self.threads.iter().position(|history| history.is_of(thread));
        known.unwrap_or_else(|| {
            let oldest = (0..THREADS).min_by_key(|&place| self.threads[place].last_fault_at());
            let place = oldest.expect("there are places");
            self.threads[place] = History::of(thread, CONFIDENCE);
            place
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the prefetch windows of `n` faults of one thread, where all planned pages are
    /// brought in.
    fn prefetch_windows(
        read_ahead: &mut ReadAhead,
        start: PageNumber,
        stride: isize,
        n: usize,
    ) -> Vec<usize> {
        let mut page = start;
        let mut fault = || {
            let plan = read_ahead.on_fault(1, page, Pattern::Normal, 16);
            page = page.strict_add_signed(stride * (1 + plan.prefetch.count() as isize));
            plan.prefetch.count()
        };
        (0..n).map(|_| fault()).collect()
    }

    #[test]
    fn only_scans_open_window() {
        let mut read_ahead = ReadAhead::default();
        assert_eq!(prefetch_windows(&mut read_ahead, 100, 1, 6), [0, 1, 3, 7, 15, 15]);
        for page in [7000, 3, 912, 44_444, 81, 90_000, 17, 6] {
            assert_eq!(read_ahead.on_fault(1, page, Pattern::Normal, 16), Plan::default());
        }
    }

    #[test]
    fn strides_are_found_at_fourth_fault() {
        for stride in [-1, 7, -300, 5000] {
            let mut read_ahead = ReadAhead::default();
            let opened = prefetch_windows(&mut read_ahead, 1_000_000, stride, 8);
            assert_eq!(opened, [0, 0, 0, 1, 3, 7, 15, 15], "stride {stride}");
        }
    }

    #[test]
    fn plan_reports_used_and_wasted() {
        let mut read_ahead = ReadAhead::default();
        let mut fault = |page| read_ahead.on_fault(1, page, Pattern::Normal, 64);
        fault(10);
        assert_eq!(fault(11).prefetch.pages().collect::<Vec<_>>(), [12]);
        let plan = fault(13);
        assert_eq!(plan.used.pages().collect::<Vec<_>>(), [12]);
        assert_eq!(plan.prefetch.pages().collect::<Vec<_>>(), [14, 15, 16]);
        // A page that was resident is skipped without a fault.
        assert_eq!(fault(18).used.pages().collect::<Vec<_>>(), [14, 15, 16]);
        let wasted = (1..=STREAMS).find_map(|pair| {
            fault(pair * pair * 1000);
            let plan = fault(pair * pair * 1000 + 1);
            (plan.wasted.count() > 0).then_some(plan.wasted)
        });
        let wasted = wasted.expect("there are no more streams than that");
        assert_eq!(wasted.pages().collect::<Vec<_>>(), [19, 20, 21]);
    }

    #[test]
    fn sequential_advice_opens_window() {
        let mut read_ahead = ReadAhead::default();
        let plan = read_ahead.on_fault(1, 500, Pattern::Sequential, 64);
        assert_eq!((plan.prefetch.stride(), plan.prefetch.count()), (1, 63));
        assert_eq!(read_ahead.on_fault(2, 564, Pattern::Sequential, 1).prefetch.count(), 0);
    }

    #[test]
    fn short_runs_lose_confidence() {
        let prefetch_in_runs = |run: usize| {
            let mut read_ahead = ReadAhead::default();
            let (mut prefetched, mut used) = (0, 0);
            for start in (1..400).map(|i: usize| i * i * 7919 % 100_003 * 100 + 100) {
                let mut skip = 0;
                for page in start..start + run {
                    if skip > 0 {
                        (skip, used) = (skip - 1, used + 1);
                        continue;
                    }
                    let plan = read_ahead.on_fault(1, page, Pattern::Normal, 64);
                    skip = plan.prefetch.count();
                    prefetched += skip;
                }
            }
            (prefetched, used)
        };
        let (prefetched, _) = prefetch_in_runs(2);
        assert!(prefetched < 40, "{prefetched} pages were prefetched");
        let (prefetched, used) = prefetch_in_runs(8);
        assert!(used * 3 > prefetched, "{used} of {prefetched} were used");
    }

    #[test]
    fn steps_stay_in_address_space() {
        assert_eq!(Steps::after(3, -2, 5).pages().collect::<Vec<_>>(), [1]);
        assert_eq!(Steps::after(2, -1, 5).pages().collect::<Vec<_>>(), [1]);
        assert_eq!(Steps::after(usize::MAX - 1, 1, 5).pages().count(), 1);
        assert_eq!(Steps::after(5, isize::MAX, 5).pages().count(), 1);
    }
}
