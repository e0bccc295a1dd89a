//! The table of a run's paging processes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Mobility, RunBlock};

/// A process of this run.
#[derive(Debug)]
#[repr(C)]
pub struct Process {
    /// Process id; 0: the entry is free; or [`Process::FORKING`], [`Process::LEAVING`].
    pub pid: AtomicU32,
    /// The parent of a child that is being forked.
    pub forker: AtomicU32,
    /// Pages it has resident, staged ones included.
    pub resident_pages: AtomicU64,
    /// Pages it has beside these: its early heap, stacks, the pager's own tables.
    pub overhead_pages: AtomicU64,
    /// Address of the header of its pager's tables ([`image`](super::super::image)); 0: none.
    pub image_address: AtomicU64,
    /// Address of a page lost with its donor, plus one; 0: none.
    pub lost_address: AtomicU64,
    /// The far slot of that page.
    pub lost_slot: AtomicU64,
    /// Start of the mapping around that page.
    pub lost_region_start: AtomicU64,
    /// End of the mapping around that page.
    pub lost_region_end: AtomicU64,
    /// Its [`Mobility`](super::Mobility), in a window.
    pub(super) mobility: AtomicU32,
}

impl Process {
    /// The process id in an entry reserved for a child that is being forked.
    pub const FORKING: u32 = u32::MAX;
    /// The process id in an entry that is being cleaned up.
    pub const LEAVING: u32 = u32::MAX - 1;
}

impl RunBlock {
    /// Processes that page now.
    pub fn live_processes(&self) -> impl Iterator<Item = (usize, &Process)> {
        let unused = |pid| matches!(pid, 0 | Process::FORKING | Process::LEAVING);
        let entries = self.processes.iter().enumerate();
        entries.filter(move |(_, process)| !unused(process.pid.load(Ordering::Acquire)))
    }

    /// Claims a free entry of the table of processes for `pid`; `None`: the table is full.
    pub fn enter_process(&self, pid: u32) -> Option<usize> {
        let index = self.processes.iter().position(|process| {
            process.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        self.processes[index].resident_pages.store(0, Ordering::Relaxed);
        self.processes[index].overhead_pages.store(0, Ordering::Relaxed);
        self.processes[index].image_address.store(0, Ordering::Relaxed);
        self.processes[index].lost_address.store(0, Ordering::Relaxed);
        self.processes[index].set_mobility(Mobility::Unknown);
        if self.is_window() {
            self.clear_locations(index);
        }
        self.processes[index].forker.store(0, Ordering::Relaxed);
        self.counters.processes.fetch_add(1, Ordering::Relaxed);
        Some(index)
    }

    /// Claims a free entry for a child that `forker` is about to fork.
    pub fn enter_forking(&self, forker: u32) -> Option<usize> {
        let index = self.enter_process(Process::FORKING)?;
        self.processes[index].forker.store(forker, Ordering::Release);
        Some(index)
    }

    /// Turns a reserved entry into that of the child; `false` if the entry was freed because the
    /// child was presumed never born.
    pub fn claim_forked(&self, index: usize, pid: u32) -> bool {
        let word = &self.processes[index].pid;
        word.compare_exchange(Process::FORKING, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
    }

    /// Entries reserved for children, each with the process id of the forker. Entries without a
    /// forker yet are left out.
    pub fn forking(&self) -> impl Iterator<Item = (usize, u32)> {
        let entries = self.processes.iter().enumerate();
        entries
            .filter(|(_, process)| process.pid.load(Ordering::Acquire) == Process::FORKING)
            .map(|(index, process)| (index, process.forker.load(Ordering::Acquire)))
            .filter(|(_, forker)| *forker != 0)
    }

    /// Pages that process `index` may have resident: an equal share of the budget, plus the unused
    /// part of the others' shares.
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
    fn allowance_includes_unused_shares() {
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
