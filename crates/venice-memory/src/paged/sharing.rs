//! Measurement of the memory that the processes of a run share since a `fork`.
//!
//! A page that several processes map is one page of the machine, and the budget is charged for it
//! once. Right after a `fork` the parent is charged for what both share, and the child for nothing.
//! Later the kernel divides it among them: the proportional set size of `proc_pid_smaps(5)`. The
//! supervisor reads that of all processes in one *round*, so that together they are charged for what
//! is there: if each process measured for itself, a page could be charged to two of them for a
//! while, or to none.
//!
//! A round visits every resident page, and holds off changes of the address space of the process it
//! visits. So there is none while the run would be within its budget if nothing were shared.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::PAGE;
use super::budget;
use super::run_block::RunBlockMap;

/// Shortest time between two rounds.
const LEAST_PAUSE: Duration = Duration::from_millis(100);
/// The same after processes came or left.
const LEAST_PAUSE_CHANGED: Duration = Duration::from_millis(10);
/// Pause after a round, in times of its duration.
const PAUSE_FACTOR: u32 = 20;
/// The same after processes came or left.
const PAUSE_FACTOR_CHANGED: u32 = 4;
const PAGE_KIB: u64 = PAGE as u64 / 1024;

/// The rounds of a run.
#[derive(Debug, Default)]
pub struct SharingMeter {
    last: Option<Round>,
}

/// A round.
#[derive(Debug)]
struct Round {
    census: Census,
    ended: Instant,
    took: Duration,
}

/// The processes of a run and their pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Census {
    /// Index and process id of each.
    processes: Vec<(usize, u32)>,
    /// Pages of all, counted in each process that has them.
    all_pages: u64,
    charged_pages: u64,
}

impl Census {
    fn of(block: &RunBlockMap) -> Census {
        let mapped = block.shared_pages();
        let mut census = Census { processes: Vec::new(), all_pages: mapped, charged_pages: mapped };
        for (index, process) in block.live_processes() {
            census.processes.push((index, process.pid.load(Ordering::Acquire)));
            census.all_pages += process.all_pages();
            census.charged_pages += process.charge().all_pages();
        }
        census
    }
}

impl SharingMeter {
    /// Makes a round if it is time for one. To be called some times in 100 ms.
    pub fn look(&mut self, block: &RunBlockMap) {
        if block.is_window() || !block.shares_contents() {
            return;
        }
        let census = Census::of(block);
        let started = Instant::now();
        if self.is_due(&census, block.limit_pages.load(Ordering::Relaxed), started) {
            measure(block, &census, anonymous_kib);
            let census = Census::of(block);
            let ended = Instant::now();
            self.last = Some(Round { census, ended, took: ended - started });
        }
    }

    fn is_due(&self, census: &Census, limit_pages: u64, now: Instant) -> bool {
        // One process shares with nobody, and a run with room enough need not know.
        if census.processes.len() < 2 || census.all_pages < limit_pages / 4 * 3 {
            return false;
        }
        let Some(last) = &self.last else { return true };
        let (factor, least) = match last.census.processes == census.processes {
            true if last.census == *census || census.charged_pages < limit_pages / 2 => {
                return false;
            }
            true => (PAUSE_FACTOR, LEAST_PAUSE),
            false => (PAUSE_FACTOR_CHANGED, LEAST_PAUSE_CHANGED),
        };
        now >= last.ended + (last.took * factor).max(least)
    }
}

/// Charges each process of `census` for its proportional part, and records by how much the run is
/// over its budget. `read` returns the anonymous memory of a process id and the proportional part of
/// it; `None`: it has ended, or the kernel refuses it (a program that has changed its user).
fn measure(block: &RunBlockMap, census: &Census, read: impl Fn(u32) -> Option<[u64; 2]>) {
    for &(index, pid) in &census.processes {
        let Some([all_kib, own_kib]) = read(pid) else { continue };
        let process = &block.processes[index];
        let shared = all_kib.saturating_sub(own_kib) / PAGE_KIB;
        process.shared_pages.store(shared.min(process.all_pages()), Ordering::Relaxed);
    }
    let (limit, most) = (block.limit_pages.load(Ordering::Relaxed), block.largest_page_size());
    let charged = Census::of(block).charged_pages;
    let is_over = charged > budget::high_watermark(limit, most);
    let excess = charged.saturating_sub(budget::low_watermark(limit, most));
    block.shared_excess.store(if is_over { excess } else { 0 }, Ordering::Release);
}

fn anonymous_kib(pid: u32) -> Option<[u64; 2]> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?)
}

/// Returns the anonymous memory and this process's proportional part of it, in KiB.
fn parse(rollup: &str) -> Option<[u64; 2]> {
    let field = |name: &str| {
        let value = rollup.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().strip_suffix(" kB")?.parse().ok()
    };
    Some([field("Anonymous:")?, field("Pss_Anon:")?])
}

#[cfg(test)]
mod tests {
    use super::super::run_block::PortKind;
    use super::*;

    #[test]
    fn kernel_reports_both_fields() {
        let rollup = "55d0-7ffc ---p 00000000 00:00 0   [rollup]\nRss:  53232 kB\n\
            Pss_Anon:   13105 kB\nPss_Shmem:  2 kB\nAnonymous:  51952 kB\n";
        assert_eq!(parse(rollup), Some([51952, 13105]));
        assert_eq!(parse("Rss: 4 kB\n"), None);
        assert!(anonymous_kib(std::process::id()).is_some());
    }

    #[test]
    fn round_charges_each_part() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        block.limit_pages.store(1000, Ordering::Relaxed);
        for pid in [10, 11] {
            let index = block.enter_process(pid).unwrap();
            block.processes[index].resident_pages.store(1500, Ordering::Relaxed);
        }
        let census = Census::of(&block);
        assert_eq!((census.all_pages, census.charged_pages), (3000, 3000));
        measure(&block, &census, |_| Some([6000, 3000]));
        assert_eq!(Census::of(&block).charged_pages, 1500);
        let excess = block.shared_excess.load(Ordering::Relaxed);
        assert_eq!(excess, 1500 - budget::low_watermark(1000, block.largest_page_size()));
        measure(&block, &census, |pid| (pid == 10).then_some([6000, 6000]));
        assert_eq!(Census::of(&block).charged_pages, 1500 + 750, "an unknown part stays");
    }

    #[test]
    fn rounds_follow_changes() {
        let census = |processes: &[(usize, u32)], all_pages, charged_pages| Census {
            processes: processes.to_vec(),
            all_pages,
            charged_pages,
        };
        let (two, three) = ([(0, 10), (1, 11)], [(0, 10), (1, 11), (2, 12)]);
        let mut meter = SharingMeter::default();
        let ended = Instant::now();
        assert!(!meter.is_due(&census(&two[..1], 9000, 900), 1000, ended), "it is alone");
        assert!(!meter.is_due(&census(&two, 500, 500), 1000, ended), "there is room");
        assert!(meter.is_due(&census(&two, 1800, 900), 1000, ended));
        let took = Duration::from_millis(8);
        meter.last = Some(Round { census: census(&two, 1800, 900), ended, took });
        let later = |ms| ended + Duration::from_millis(ms);
        assert!(!meter.is_due(&census(&two, 1800, 900), 1000, later(9999)), "nothing changed");
        assert!(!meter.is_due(&census(&two, 1801, 901), 1000, later(159)));
        assert!(meter.is_due(&census(&two, 1801, 901), 1000, later(160)));
        assert!(!meter.is_due(&census(&three, 2700, 900), 1000, later(31)));
        assert!(meter.is_due(&census(&three, 2700, 900), 1000, later(32)));
    }
}
