//! The processes of a run that page, each with a place in the run block.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Mobility, RunBlock};

/// A process of this run.
#[derive(Debug)]
#[repr(C)]
pub struct Process {
    /// Process id; 0: the place is free; or [`Process::FORKING`], [`Process::LEAVING`].
    pub pid: AtomicU32,
    /// Of a child about to be: the process that forks.
    pub forker: AtomicU32,
    /// Pages it has resident, the staged ones among them.
    pub resident_pages: AtomicU64,
    /// Pages it has beside all these: its early heap, stacks, the pager's own tables.
    pub overhead_pages: AtomicU64,
    /// Address of a page lost with its donor, plus one; 0: none.
    pub lost_address: AtomicU64,
    /// The far slot it was in.
    pub lost_slot: AtomicU64,
    /// Start of the mapping around it.
    pub lost_region_start: AtomicU64,
    /// End of the mapping around it.
    pub lost_region_end: AtomicU64,
    /// Its [`Mobility`](super::Mobility), in a window.
    pub(super) mobility: AtomicU32,
}

impl Process {
    /// The process id of a place kept for a child that is being forked.
    pub const FORKING: u32 = u32::MAX;
    /// The process id of a place that is being cleaned up.
    pub const LEAVING: u32 = u32::MAX - 1;
}

impl RunBlock {
    /// Processes that page now.
    pub fn live_processes(&self) -> impl Iterator<Item = (usize, &Process)> {
        let unused = |pid| matches!(pid, 0 | Process::FORKING | Process::LEAVING);
        let places = self.processes.iter().enumerate();
        places.filter(move |(_, process)| !unused(process.pid.load(Ordering::Acquire)))
    }

    /// Takes a free place in the table of processes for `pid`.
    pub fn enter_process(&self, pid: u32) -> Option<usize> {
        let index = self.processes.iter().position(|process| {
            process.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        self.processes[index].resident_pages.store(0, Ordering::Relaxed);
        self.processes[index].overhead_pages.store(0, Ordering::Relaxed);
        self.processes[index].lost_address.store(0, Ordering::Relaxed);
        self.processes[index].set_mobility(Mobility::Unknown);
        if self.is_window() {
            self.clear_homes(index);
        }
        self.processes[index].forker.store(0, Ordering::Relaxed);
        self.counters.processes.fetch_add(1, Ordering::Relaxed);
        Some(index)
    }

    /// Takes a free place for a child that `forker` is about to fork.
    pub fn enter_forking(&self, forker: u32) -> Option<usize> {
        let index = self.enter_process(Process::FORKING)?;
        self.processes[index].forker.store(forker, Ordering::Release);
        Some(index)
    }

    /// The child is there and takes its place; `false`: it was given up as never born.
    pub fn take_forked_place(&self, index: usize, pid: u32) -> bool {
        let word = &self.processes[index].pid;
        word.compare_exchange(Process::FORKING, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Places kept for children whose forker, by its process id, may be asked after.
    pub fn forking(&self) -> impl Iterator<Item = (usize, u32)> {
        let places = self.processes.iter().enumerate();
        places
            .filter(|(_, process)| process.pid.load(Ordering::Acquire) == Process::FORKING)
            .map(|(place, process)| (place, process.forker.load(Ordering::Acquire)))
            .filter(|(_, forker)| *forker != 0)
    }

    /// Pages process `index` may have resident: an equal share of the budget, and what the
    /// others leave of theirs.
    pub fn allowance_pages(&self, index: usize) -> u64 {
        let limit = self.limit_pages.load(Ordering::Relaxed);
        let (mut count, mut others) = (0, 0);
        for (each, process) in self.live_processes() {
            count += 1;
            if each != index {
                others += process.resident_pages.load(Ordering::Relaxed);
            }
        }
        let share = limit / count.max(1);
        share.max(limit.saturating_sub(others))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PortKind, RunBlockMap};
    use super::*;

    #[test]
    fn a_budget_is_shared_by_what_the_others_leave() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        block.limit_pages.store(1000, Ordering::Relaxed);
        let first = block.enter_process(10).unwrap();
        assert_eq!(block.allowance_pages(first), 1000);
        let second = block.enter_process(11).unwrap();
        block.processes[second].resident_pages.store(100, Ordering::Relaxed);
        assert_eq!(block.allowance_pages(first), 900);
        block.processes[second].resident_pages.store(900, Ordering::Relaxed);
        assert_eq!(block.allowance_pages(first), 500);
    }
}
