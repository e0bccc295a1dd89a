//! Refaults of a run: faults on pages that were evicted a while before. They tell if a run was
//! bound by them, and which budget or mode would have helped.
//!
//! The needed budget follows from the refault distance (Linux, `mm/workingset.c`): a page that left
//! N evictions ago would still be there with N pages more. The waiting time is the number of
//! refaults times the mean time of a fault, and [`SWITCHES_S`] for each that put a thread to sleep.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};
use venice_memory::paged::run_block::RunBlock;
use venice_wire::{ByteSize, PAGE_BYTES};

/// Least waiting time of a run that is bound by refaults, in seconds. Short runs are not reported.
const LEAST_WAIT_S: f64 = 0.5;
/// Least share of its time that such a run waits.
const LEAST_WAIT_RATIO: f64 = 0.2;
/// Least share of refaults among all pages that come back. Of a stream nearly all are prefetched.
const LEAST_DEMAND_RATIO: f64 = 0.25;
/// Time that a thread takes to sleep and to go on beside a fault's service, in seconds: two switches
/// on one processor.
const SWITCHES_S: f64 = 5e-6;
/// Share of the refaults that the needed budget avoids.
const AVOIDED: f64 = 0.9;
/// A pager keeps up to a sixteenth of its budget free, and does not count the pages that a process
/// has beside it.
const SPARE_DIVISOR: u64 = 12;
/// The needed budget is a multiple of this.
const BUDGET_STEP_BYTES: u64 = 1 << 20;

/// The refaults of a run so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RefaultCounts {
    /// Faults on pages that were far, and on pages that were still staged.
    pub refaults: u64,
    /// All pages that came back, with prefetched ones, without those beside a page in a large page.
    pub pages_back: u64,
    /// Seconds that threads waited for refaulted pages.
    pub wait_s: f64,
    /// The distance of nine in ten refaults, in bytes.
    pub distance_bytes: Option<u64>,
    /// The budget.
    pub local_bytes: u64,
    /// The most far memory that was in use at a time.
    pub most_far_bytes: u64,
    /// True if `--mode window` could map the far memory.
    pub is_mappable: bool,
}

/// The time in which a run happened.
#[derive(Clone, Copy, Debug)]
pub struct RunTime {
    /// Seconds since it began.
    pub wall_s: f64,
    /// Seconds of processor time of its processes. Threads that run side by side wait side by side
    /// too, so waiting counts against the larger of both.
    pub cpu_s: f64,
}

/// A run that was bound by refaults, and what would have helped.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RefaultBound {
    /// The share of its time that it waited for refaulted pages, 0 to 1.
    pub wait_ratio: f64,
    /// The budget that would have avoided nine in ten refaults; `None`: unknown.
    pub needed_local_bytes: Option<u64>,
    /// True if `--mode window` could map the far memory: then nothing would fault.
    pub is_mappable: bool,
}

impl RefaultCounts {
    /// Reads the counters of a run.
    pub fn of(block: &RunBlock) -> RefaultCounts {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counters = &block.counters;
        let staged = get(&counters.staged_faults);
        let refaults = block.far_refaults() + staged;
        let from_far = get(&counters.pages_in).saturating_sub(get(&counters.large_in));
        let slept = refaults.saturating_sub(get(&counters.in_thread_faults));
        let mean_ns = block.fault_times().mean_ns().unwrap_or(0.0);
        RefaultCounts {
            refaults,
            pages_back: from_far + staged + get(&counters.staged_ahead),
            wait_s: refaults as f64 * mean_ns / 1e9 + slept as f64 * SWITCHES_S,
            distance_bytes: block.refault_distance_at(AVOIDED).map(|pages| pages * PAGE_BYTES),
            local_bytes: get(&block.limit_pages) * PAGE_BYTES,
            most_far_bytes: get(&block.most_slots_used) * PAGE_BYTES,
            is_mappable: is_mappable(block),
        }
    }

    /// Returns what would have helped, if the run was bound by refaults for `time`.
    pub fn bound(&self, time: RunTime) -> Option<RefaultBound> {
        let wait_ratio = self.wait_ratio(time);
        let is_bound = self.wait_s >= LEAST_WAIT_S
            && wait_ratio >= LEAST_WAIT_RATIO
            && self.refaults as f64 >= self.pages_back as f64 * LEAST_DEMAND_RATIO;
        is_bound.then(|| RefaultBound {
            wait_ratio,
            needed_local_bytes: self.needed_local_bytes(),
            is_mappable: self.is_mappable,
        })
    }

    /// Returns the share of `time` that was waited for refaulted pages, 0 to 1.
    pub fn wait_ratio(&self, time: RunTime) -> f64 {
        let run_s = time.wall_s.max(time.cpu_s);
        if run_s > 0.0 { (self.wait_s / run_s).min(1.0) } else { 0.0 }
    }

    /// Returns the budget that would have avoided nine in ten refaults: no more than all memory
    /// that the run can have had.
    fn needed_local_bytes(&self) -> Option<u64> {
        let more = self.distance_bytes?.min(self.most_far_bytes);
        let needed = self.local_bytes + more;
        Some((needed + needed / SPARE_DIVISOR).next_multiple_of(BUDGET_STEP_BYTES))
    }

    /// Combines those of two borrowed memories of one program. No budget follows from both.
    pub fn and(self, other: RefaultCounts) -> RefaultCounts {
        let is_first = self == RefaultCounts::default();
        RefaultCounts {
            refaults: self.refaults + other.refaults,
            pages_back: self.pages_back + other.pages_back,
            wait_s: self.wait_s + other.wait_s,
            distance_bytes: if is_first { other.distance_bytes } else { None },
            local_bytes: self.local_bytes + other.local_bytes,
            most_far_bytes: self.most_far_bytes + other.most_far_bytes,
            is_mappable: false,
        }
    }
}

/// True if the far memory of a run could be mapped in `--mode window`.
fn is_mappable(block: &RunBlock) -> bool {
    let keeps_plain_pages = block.coding().is_none() && block.first_on_disk().is_none();
    block.port().capabilities().mapped
        && !block.is_window()
        && keeps_plain_pages
        && block.link().is_none()
}

impl std::fmt::Display for RefaultBound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = 100.0 * self.wait_ratio;
        write!(f, "bound by refaults ({percent:.0} % of the time): ")?;
        let local = self.needed_local_bytes.map(|bytes| format!("--local {}", ByteSize(bytes)));
        match (local, self.is_mappable) {
            (Some(local), true) => write!(f, "use {local}, or --mode window"),
            (Some(local), false) => write!(f, "use {local}"),
            (None, true) => f.write_str("use a larger --local, or --mode window"),
            (None, false) => f.write_str("use a larger --local"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    /// 94 MiB touched at random with 64 MiB of local memory.
    fn random() -> RefaultCounts {
        RefaultCounts {
            refaults: 400_000,
            pages_back: 420_000,
            wait_s: 4.0,
            distance_bytes: Some(30 * MIB),
            local_bytes: 64 * MIB,
            most_far_bytes: 90 * MIB,
            is_mappable: true,
        }
    }

    fn time(wall_s: f64) -> RunTime {
        RunTime { wall_s, cpu_s: wall_s }
    }

    #[test]
    fn random_refaults_bind() {
        let bound = random().bound(time(8.0)).unwrap();
        assert_eq!((bound.wait_ratio, bound.needed_local_bytes), (0.5, Some(102 * MIB)));
        let said = "bound by refaults (50 % of the time): use --local 102MiB, or --mode window";
        assert_eq!(bound.to_string(), said);
    }

    #[test]
    fn short_runs_do_not() {
        assert_eq!(RefaultCounts { wait_s: 0.4, ..random() }.bound(time(0.5)), None);
        assert_eq!(RefaultCounts::default().bound(time(0.0)), None);
    }

    #[test]
    fn streams_do_not() {
        let stream = RefaultCounts { pages_back: 20_000_000, ..random() };
        assert_eq!(stream.bound(time(8.0)), None);
    }

    #[test]
    fn busy_runs_do_not() {
        assert_eq!(random().bound(time(40.0)), None);
        let side_by_side = RunTime { wall_s: 5.0, cpu_s: 40.0 };
        assert_eq!(random().bound(side_by_side), None);
    }

    #[test]
    fn needed_budget_is_bounded() {
        let far = RefaultCounts { distance_bytes: Some(1 << 40), ..random() };
        assert_eq!(far.bound(time(8.0)).unwrap().needed_local_bytes, Some(167 * MIB));
        let staged = RefaultCounts { distance_bytes: None, is_mappable: false, ..random() };
        let said = "bound by refaults (50 % of the time): use a larger --local";
        assert_eq!(staged.bound(time(8.0)).unwrap().to_string(), said);
    }

    #[test]
    fn counts_of_two_add_up() {
        let both = RefaultCounts::default().and(random());
        assert_eq!(both.distance_bytes, random().distance_bytes);
        let twice = both.and(random());
        assert_eq!((twice.refaults, twice.distance_bytes), (800_000, None));
    }
}
