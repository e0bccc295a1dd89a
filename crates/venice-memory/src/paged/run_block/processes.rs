//! The table of a run's paging processes.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::{Mobility, RunBlock};

/// A process of this run.
#[derive(Debug)]
#[repr(C)]
pub struct Process {
    /// Process id; 0: the entry is free; or [`Process::FORKING`], [`Process::LEAVING`],
    /// [`Process::SHARED`].
    pub pid: AtomicU32,
    /// The parent of a child that is being forked.
    pub forker: AtomicU32,
    /// Pages it has resident, staged ones included.
    pub resident_pages: AtomicU64,
    /// Pages it has beside these: its early heap, stacks, the pager's own tables.
    pub overhead_pages: AtomicU64,
    /// Pages of both that other processes are charged for: they share them since a `fork`.
    pub shared_pages: AtomicU64,
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

/// The pages of a process that the budget is charged for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// Resident pages, staged ones included.
    pub resident_pages: u64,
    /// Pages beside these.
    pub overhead_pages: u64,
}

impl Charge {
    /// All of them.
    pub fn all_pages(self) -> u64 {
        self.resident_pages + self.overhead_pages
    }
}

impl Process {
    /// All pages of this process, shared ones too.
    pub fn all_pages(&self) -> u64 {
        self.resident_pages.load(Ordering::Relaxed) + self.overhead_pages.load(Ordering::Relaxed)
    }

    /// The pages that the budget is charged for: those shared with other processes count in one of
    /// them.
    pub fn charge(&self) -> Charge {
        let resident = self.resident_pages.load(Ordering::Relaxed);
        let overhead = self.overhead_pages.load(Ordering::Relaxed);
        let shared = self.shared_pages.load(Ordering::Relaxed);
        Charge {
            resident_pages: resident.saturating_sub(shared),
            overhead_pages: overhead.saturating_sub(shared.saturating_sub(resident)),
        }
    }

    /// Counts pages of this process that it no longer shares: it has made its own copies of them.
    pub fn unshare(&self, pages: u64) {
        let fewer = |shared: u64| (pages > 0).then(|| shared.saturating_sub(pages));
        let _ = self.shared_pages.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fewer);
    }

    /// The process id in an entry reserved for a child that is being forked.
    pub const FORKING: u32 = u32::MAX;
    /// The process id in an entry that is being cleaned up.
    pub const LEAVING: u32 = u32::MAX - 1;
    /// The process id in the entry of the run's shared pager, which serves all its processes.
    pub const SHARED: u32 = u32::MAX - 2;
}

impl RunBlock {
    /// Processes that page now.
    pub fn live_processes(&self) -> impl Iterator<Item = (usize, &Process)> {
        let is_process = |entry: &Process| entry.pid.load(Ordering::Acquire) != Process::SHARED;
        self.pagers().filter(move |(_, entry)| is_process(entry))
    }

    /// Entries of all pagers: those of [`RunBlock::live_processes`], and that of the shared pager.
    pub fn pagers(&self) -> impl Iterator<Item = (usize, &Process)> {
        let unused = |pid| matches!(pid, 0 | Process::FORKING | Process::LEAVING);
        let entries = self.processes.iter().enumerate();
        entries.filter(move |(_, process)| !unused(process.pid.load(Ordering::Acquire)))
    }

    /// Pages that the shared pager has resident, staged ones included.
    pub fn shared_pages(&self) -> u64 {
        let is_shared = |entry: &&Process| entry.pid.load(Ordering::Acquire) == Process::SHARED;
        let shared = self.processes.iter().filter(is_shared);
        shared.map(|entry| entry.resident_pages.load(Ordering::Relaxed)).sum()
    }

    /// Claims a free entry of the table of processes for `pid`; `None`: the table is full.
    pub fn enter_process(&self, pid: u32) -> Option<usize> {
        let index = self.processes.iter().position(|process| {
            process.pid.compare_exchange(0, pid, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        })?;
        self.processes[index].resident_pages.store(0, Ordering::Relaxed);
        self.processes[index].overhead_pages.store(0, Ordering::Relaxed);
        self.processes[index].shared_pages.store(0, Ordering::Relaxed);
        self.processes[index].image_address.store(0, Ordering::Relaxed);
        self.processes[index].lost_address.store(0, Ordering::Relaxed);
        self.processes[index].set_mobility(Mobility::Unknown);
        if self.is_window() {
            self.clear_locations(index);
        }
        self.processes[index].forker.store(0, Ordering::Relaxed);
        if pid != Process::SHARED {
            self.counters.processes.fetch_add(1, Ordering::Relaxed);
        }
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

    /// Pages that process `index` may be charged for: an equal share of the budget, plus the unused
    /// part of the others' shares.
    pub fn allowance_pages(&self, index: usize) -> u64 {
        let limit = self.limit_pages.load(Ordering::Relaxed);
        let (mut count, mut others) = (0, 0);
        for (each, process) in self.pagers() {
            count += 1;
            if each != index {
                others += process.charge().all_pages();
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

    #[test]
    fn shared_pages_count_once() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        block.limit_pages.store(1000, Ordering::Relaxed);
        let entries = [10, 11, 12].map(|pid| block.enter_process(pid).unwrap());
        for index in entries {
            let process = &block.processes[index];
            process.resident_pages.store(600, Ordering::Relaxed);
            process.overhead_pages.store(40, Ordering::Relaxed);
            let shared = if index == entries[0] { 0 } else { 610 };
            process.shared_pages.store(shared, Ordering::Relaxed);
        }
        let charge = block.processes[entries[1]].charge();
        assert_eq!(charge, Charge { resident_pages: 0, overhead_pages: 30 });
        assert_eq!(block.allowance_pages(entries[0]), 1000 - 2 * 30);
    }

    #[test]
    fn shared_pager_is_no_process() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        block.limit_pages.store(1000, Ordering::Relaxed);
        let first = block.enter_process(10).unwrap();
        let shared = block.enter_process(Process::SHARED).unwrap();
        assert_eq!((block.live_processes().count(), block.pagers().count()), (1, 2));
        block.processes[shared].resident_pages.store(300, Ordering::Relaxed);
        assert_eq!((block.allowance_pages(first), block.shared_pages()), (700, 300));
    }
}
