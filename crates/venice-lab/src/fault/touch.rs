//! Touches pages and times each touch.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use clap::ValueEnum;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::region::{Region, WORDS_PER_PAGE};
use venice_measure::pattern::{self, Random};

/// Duration, in nanoseconds, above which a touch counts as a fault. A resident one, with a miss in
/// every cache and in the address translation, stays well below.
const FAULT_NS: u64 = 1_500;

/// Longer touches are counted as this long.
const MAX_NS: u64 = 60_000_000_000;

/// The order of the touched pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// A random page, each time.
    Random,
    /// One page after the other.
    Sequential,
    /// [`RUN_PAGES`] pages in a row, at a random place each time.
    Runs,
}

/// Pages of a run ([`Pattern::Runs`]), which begins at a multiple of this number: 64 KiB.
pub(crate) const RUN_PAGES: u64 = 16;

/// Access to a word of the page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// A load.
    Read,
    /// A store.
    Write,
}

impl Pattern {
    /// Returns the name used in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
            Self::Runs => "runs",
        }
    }
}

impl Operation {
    /// Returns the name used in arguments and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

/// Figures of one case. Latencies are those of single touches, resident pages included, less the
/// cost of the clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Order of the pages.
    pub pattern: Pattern,
    /// Loads or stores.
    pub operation: Operation,
    /// Threads that touched pages at the same time.
    pub threads: usize,
    /// Touches in all.
    pub accesses: u64,
    /// Touches above 1.5 µs, which must have faulted.
    pub faults: u64,
    /// Mean latency of a touch in microseconds.
    pub mean_us: f64,
    /// Median latency of a touch in microseconds.
    pub p50_us: f64,
    /// 99th percentile of the latency of a touch in microseconds.
    pub p99_us: f64,
    /// The slowest touch in microseconds.
    pub max_us: f64,
    /// Median latency of the touches that faulted, in microseconds; 0 without any.
    pub fault_p50_us: f64,
    /// 99th percentile of the touches that faulted, in microseconds; 0 without any.
    pub fault_p99_us: f64,
    /// Pages touched a second, all threads together.
    pub pages_per_s: f64,
    /// Faults a second, all threads together.
    pub faults_per_s: f64,
    /// Processor time of the program, its pager included, for each fault, in microseconds.
    pub cpu_us_per_fault: f64,
    /// Processor time of the program, its pager included, for each touched page, in microseconds.
    pub cpu_us_per_page: f64,
    /// Processor time of donors or servers for each touched page, in microseconds.
    pub helper_cpu_us_per_page: f64,
    /// The program's greatest resident anonymous memory during the case, in bytes, sampled.
    pub resident_bytes_peak: u64,
    /// Words that differ from the written ones.
    pub wrong: u64,
}

/// Figures of one thread.
#[derive(Debug)]
pub(crate) struct Tally {
    pub(crate) all: Histogram<u64>,
    pub(crate) faults: Histogram<u64>,
    pub(crate) wrong: u64,
}

impl Tally {
    pub(crate) fn new() -> Self {
        let histogram = || {
            // 1 ns to a minute with three significant digits: a valid configuration.
            Histogram::new_with_bounds(1, MAX_NS, 3).expect("the bounds are supported")
        };
        Self { all: histogram(), faults: histogram(), wrong: 0 }
    }

    fn record(&mut self, latency_ns: u64) {
        self.all.saturating_record(latency_ns);
        if latency_ns > FAULT_NS {
            self.faults.saturating_record(latency_ns);
        }
    }

    /// # Panics
    /// Never: all tallies have the same bounds.
    pub(crate) fn add(&mut self, other: &Tally) {
        self.all.add(&other.all).expect("the same bounds");
        self.faults.add(&other.faults).expect("the same bounds");
        self.wrong += other.wrong;
    }
}

/// Kind of the touches, and the expected words.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Touch {
    pub(crate) operation: Operation,
    pub(crate) clock_cost_ns: u64,
    /// The page whose pattern every page holds, if it is not its own.
    pub(crate) source_page: Option<u64>,
}

impl Touch {
    /// Touches `pages` until they or the time run out.
    pub(crate) fn run(
        &self,
        region: &Region,
        pages: impl Iterator<Item = u64>,
        length: Duration,
        seed: u64,
    ) -> Tally {
        let mut tally = Tally::new();
        let mut random = Random::new(seed);
        let start = Instant::now();
        for page in pages {
            let index = random.next_u64() % WORDS_PER_PAGE;
            let expected = pattern::word(self.source_page.unwrap_or(page), index);
            let word = region.word(page, index);
            let before = Instant::now();
            let found = match self.operation {
                Operation::Read => word.load(Ordering::Relaxed),
                Operation::Write => {
                    word.store(expected, Ordering::Relaxed);
                    expected
                }
            };
            // The next clock read must not be moved before the access.
            std::sync::atomic::compiler_fence(Ordering::SeqCst);
            let found = std::hint::black_box(found);
            let after = Instant::now();
            tally.wrong += u64::from(found != expected);
            let latency_ns = (after - before).as_nanos() as u64;
            tally.record(latency_ns.saturating_sub(self.clock_cost_ns).max(1));
            if after - start > length {
                break;
            }
        }
        tally
    }
}

/// Resources used by a case.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Spent {
    pub(crate) elapsed: Duration,
    /// Processor seconds of the program itself.
    pub(crate) program_s: f64,
    /// Processor seconds of its helpers.
    pub(crate) helpers_s: f64,
    pub(crate) resident_bytes_peak: u64,
}

impl CaseReport {
    pub(crate) fn new(
        (pattern, operation, threads): (Pattern, Operation, usize),
        tally: &Tally,
        spent: Spent,
    ) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        let accesses = tally.all.len();
        let faults = tally.faults.len();
        let share = |seconds: f64, of: u64| if of == 0 { 0.0 } else { seconds * 1e6 / of as f64 };
        let fault_quantile = |quantile: f64| {
            if faults == 0 { 0.0 } else { us(tally.faults.value_at_quantile(quantile)) }
        };
        Self {
            pattern,
            operation,
            threads,
            accesses,
            faults,
            mean_us: tally.all.mean() / 1e3,
            p50_us: us(tally.all.value_at_quantile(0.50)),
            p99_us: us(tally.all.value_at_quantile(0.99)),
            max_us: us(tally.all.max()),
            fault_p50_us: fault_quantile(0.50),
            fault_p99_us: fault_quantile(0.99),
            pages_per_s: accesses as f64 / spent.elapsed.as_secs_f64(),
            faults_per_s: faults as f64 / spent.elapsed.as_secs_f64(),
            cpu_us_per_fault: share(spent.program_s, faults),
            cpu_us_per_page: share(spent.program_s, accesses),
            helper_cpu_us_per_page: share(spent.helpers_s, accesses),
            resident_bytes_peak: spent.resident_bytes_peak,
            wrong: tally.wrong,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn touch(operation: Operation) -> Touch {
        Touch { operation, clock_cost_ns: 0, source_page: None }
    }

    #[test]
    fn wrong_words_are_counted() {
        let region = Region::map(4).unwrap();
        (0..4).for_each(|page| region.fill_page(page));
        let minute = Duration::from_secs(60);
        let tally = touch(Operation::Read).run(&region, (0..4).cycle().take(100), minute, 1);
        assert_eq!((tally.all.len(), tally.wrong), (100, 0));

        (0..WORDS_PER_PAGE).for_each(|index| region.word(2, index).store(0, Ordering::Relaxed));
        let tally = touch(Operation::Read).run(&region, (0..4).cycle().take(100), minute, 1);
        assert_eq!((tally.all.len(), tally.wrong), (100, 25));
    }

    #[test]
    fn writes_keep_the_pattern() {
        let region = Region::map(2).unwrap();
        (0..2).for_each(|page| region.fill_page(page));
        let minute = Duration::from_secs(60);
        touch(Operation::Write).run(&region, (0..2).cycle().take(50), minute, 1);
        let tally = touch(Operation::Read).run(&region, (0..2).cycle().take(5000), minute, 2);
        assert_eq!(tally.wrong, 0);
    }

    #[test]
    fn case_without_faults_has_finite_figures() {
        let mut tally = Tally::new();
        (0..99).for_each(|_| tally.record(200));
        tally.record(9_000_000);
        let elapsed = Duration::from_secs(2);
        let spent = Spent { elapsed, program_s: 0.5, helpers_s: 0.0, resident_bytes_peak: 0 };
        let case = (Pattern::Random, Operation::Read, 1);
        let report = CaseReport::new(case, &tally, spent);
        assert_eq!((report.accesses, report.faults), (100, 1));
        assert!((0.19..0.21).contains(&report.p50_us));
        assert!(report.fault_p50_us > 8_000.0);
        assert_eq!(report.pages_per_s, 50.0);
        assert_eq!(report.cpu_us_per_page, 5_000.0);

        let empty = CaseReport::new(case, &Tally::new(), spent);
        let json = serde_json::to_string(&empty).unwrap();
        assert!(!json.contains("null"), "{json}");
    }
}
