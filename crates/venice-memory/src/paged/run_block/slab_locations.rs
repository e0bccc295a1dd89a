//! Slab locations of a run in a window: the replica in which each process has a slab mapped, and
//! whether the process can move it while its program runs.
//!
//! A process maps its pages of a slab from one replica, its location of that slab. Only the process
//! has that information, so it records it here. To move a slab, the supervisor enters a new replica
//! as being built and notifies the movers of all processes. Each mover moves its pages to the
//! newest replica and records it as the new location. Once it is the location of all processes,
//! none has the old replica mapped.

use std::sync::atomic::{AtomicU32, Ordering};

use super::super::sys;
use super::{MAX_SLABS, Process, ReplicaState, RunBlock};

/// A process's location of each slab: the replica's index, plus one; 0: not mapped yet.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct SlabLocations([AtomicU32; MAX_SLABS]);

/// The ability of a process to move its mapped slabs to another location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mobility {
    /// Not reported yet.
    Unknown = 0,
    /// It moves them when notified.
    Moves = 1,
    /// Blocked at present: it has files open through which devices write directly to its memory.
    BlockedByDevices = 2,
    /// Blocked at present: the kernel has no memory or no mapping left for it.
    BlockedByKernel = 3,
    /// Never: it may not use a userfaultfd that also blocks system calls.
    NoUserfaultfd = 4,
    /// Never: its kernel does not write-protect shared memory.
    NoWriteProtection = 5,
    /// It has no window any more: it runs another program now.
    Gone = 6,
    /// Blocked: its slabs lie in a memory device (DAX), and no kernel write-protects its mappings.
    InDevice = 7,
}

impl Mobility {
    fn of(word: u32) -> Mobility {
        match word {
            1 => Mobility::Moves,
            2 => Mobility::BlockedByDevices,
            3 => Mobility::BlockedByKernel,
            4 => Mobility::NoUserfaultfd,
            5 => Mobility::NoWriteProtection,
            6 => Mobility::Gone,
            7 => Mobility::InDevice,
            _ => Mobility::Unknown,
        }
    }

    /// The reason why nothing of the process ever moves; `None` if it does.
    pub fn immobility(self) -> Option<&'static str> {
        match self {
            Mobility::NoUserfaultfd => Some(
                "it is mapped into the program, which may not block its own writes: this needs \
                 root, /dev/userfaultfd or vm.unprivileged_userfaultfd=1",
            ),
            Mobility::NoWriteProtection => Some(
                "it is mapped into the program, and this kernel cannot write-protect it: this needs \
                 Linux 5.19",
            ),
            _ => None,
        }
    }

    /// The reason why it does not move at present; `None` if it does, or never will.
    pub fn delay(self) -> Option<&'static str> {
        match self {
            Mobility::BlockedByDevices => Some(
                "the program has a device, io_uring or a file with O_DIRECT open, which may be \
                 writing to its memory",
            ),
            Mobility::InDevice => Some(
                "it lies in a memory device (DAX), which the kernel does not write-protect: it stays there \
                 until the program ends",
            ),
            Mobility::BlockedByKernel => Some(
                "the kernel has no memory left for it, or the program too many mappings \
                 (vm.max_map_count)",
            ),
            _ => None,
        }
    }
}

impl Process {
    /// The ability of the process to move its mapped slabs.
    pub fn mobility(&self) -> Mobility {
        Mobility::of(self.mobility.load(Ordering::SeqCst))
    }

    /// Sets the ability. Only the process itself calls it.
    pub fn set_mobility(&self, mobility: Mobility) {
        self.mobility.store(mobility as u32, Ordering::SeqCst);
    }

    /// Ends the window: the process runs another program, so its mover and its mappings are gone.
    pub fn end_window(&self) {
        if self.mobility().immobility().is_none() {
            self.set_mobility(Mobility::Gone);
        }
    }
}

impl RunBlock {
    /// The replica that processes should map a slab from: the newest one that is written.
    pub fn newest_location(&self, slab: usize) -> Option<usize> {
        let written = self.replicas_of(slab).filter(|(_, replica)| self.is_written(replica));
        written.map(|(index, _)| index).max()
    }

    /// Records that a process has its pages of a slab in `replica` and maps no other one.
    pub fn set_location(&self, process: usize, slab: usize, replica: usize) {
        self.locations[process].0[slab].store(replica as u32 + 1, Ordering::SeqCst);
    }

    /// Clears the slab locations that the last user of a table entry left.
    pub(super) fn clear_locations(&self, process: usize) {
        for location in &self.locations[process].0[..self.slab_count()] {
            location.store(0, Ordering::SeqCst);
        }
    }

    /// True if the replica is the location of its slab for every process. A process that has not
    /// mapped the slab yet may be about to map another replica.
    pub fn is_location_of_all(&self, replica: usize) -> bool {
        let slab = self.replicas()[replica].slab();
        self.live_windows().all(|(index, _)| self.location(index, slab) == Some(replica))
    }

    /// True if the replica is the location of its slab for any process.
    pub fn is_location_of_any(&self, replica: usize) -> bool {
        let slab = self.replicas()[replica].slab();
        self.live_windows().any(|(index, _)| self.location(index, slab) == Some(replica))
    }

    /// True if the replica is the location of its slab for this process.
    pub fn is_location(&self, process: usize, slab: usize, replica: usize) -> bool {
        self.location(process, slab) == Some(replica)
    }

    fn location(&self, process: usize, slab: usize) -> Option<usize> {
        let location = self.locations[process].0[slab].load(Ordering::SeqCst);
        location.checked_sub(1).map(|replica| replica as usize)
    }

    fn live_windows(&self) -> impl Iterator<Item = (usize, &Process)> {
        self.live_processes().filter(|(_, process)| process.mobility() != Mobility::Gone)
    }

    /// The reason why no mapped slab ever moves; `None` if slabs move.
    pub fn window_immobility(&self) -> Option<&'static str> {
        self.live_processes().find_map(|(_, process)| process.mobility().immobility())
    }

    /// The reason why no mapped slab moves at present.
    pub fn window_move_delay(&self) -> Option<&'static str> {
        self.live_processes().find_map(|(_, process)| process.mobility().delay())
    }

    /// Notifies the movers of all processes to check the locations of their slabs.
    pub fn call_movers(&self) {
        self.mover_calls.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&self.mover_calls, u32::MAX >> 1, true);
    }

    /// The number of notifications so far.
    pub fn mover_calls(&self) -> u32 {
        self.mover_calls.load(Ordering::SeqCst)
    }

    /// Waits until the number of notifications differs from `seen`, or until the timeout
    /// (nanoseconds).
    pub fn await_mover_call(&self, seen: u32, timeout_ns: Option<u64>) {
        sys::futex_wait(&self.mover_calls, seen, timeout_ns, true);
    }

    /// Makes a rebuilt replica readable and writable; `false` if it was dropped meanwhile. Only the
    /// supervisor calls it.
    pub fn commit_location(&self, replica: usize) -> bool {
        self.transition(&self.replicas()[replica], ReplicaState::Building, ReplicaState::Live)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fate, PortKind, ReplicaAt, RunBlockMap};
    use super::*;

    fn at(donor: usize) -> ReplicaAt {
        ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 }
    }

    /// A slab at donor 0, being moved to donor 1.
    fn moving() -> (RunBlockMap, usize) {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        block.set_window();
        for donor in 0..3 {
            block.add_donor(&format!("node{donor}"), donor, "").unwrap();
        }
        block.add_slab(at(0)).unwrap();
        let new = block.add_replica(0, at(1), ReplicaState::Building).unwrap();
        (block, new)
    }

    #[test]
    fn slab_moves_after_last_process() {
        let (block, new) = moving();
        let [one, two] = [10, 11].map(|pid| block.enter_process(pid).unwrap());
        block.set_location(one, 0, 0);
        block.set_location(two, 0, 0);
        block.set_location(one, 0, new);
        assert!(
            !block.is_location_of_all(new)
                && block.is_location_of_any(new)
                && block.is_location_of_any(0)
        );
        block.set_location(two, 0, new);
        assert!(block.is_location_of_all(new) && !block.is_location_of_any(0));
        let three = block.enter_process(12).unwrap();
        assert!(!block.is_location_of_all(new), "it may be about to map the old one");
        block.processes[three].end_window();
        assert!(block.is_location_of_all(new), "it runs another program");
    }

    #[test]
    fn reused_entry_starts_empty() {
        let (block, new) = moving();
        let index = block.enter_process(10).unwrap();
        block.set_location(index, 0, new);
        block.processes[index].end_window();
        super::super::super::slots::leave(&block, index, 10);
        assert_eq!(block.enter_process(11), Some(index));
        assert!(!block.is_location_of_all(new) && !block.is_location_of_any(new));
        assert_eq!(block.processes[index].mobility(), Mobility::Unknown);
    }

    #[test]
    fn location_is_newest_written_replica() {
        let (block, new) = moving();
        assert_eq!(block.newest_location(0), Some(new));
        block.donors()[1].lose(Fate::Died);
        assert_eq!(block.newest_location(0), Some(0), "back to where it was");
        let newer = block.add_replica(0, at(2), ReplicaState::Building).unwrap();
        block.donors()[0].lose(Fate::Died);
        assert_eq!(block.newest_location(0), Some(newer));
        assert!(block.commit_location(newer) && !block.commit_location(newer));
    }

    #[test]
    fn immobile_process_reports_reason() {
        let (block, _) = moving();
        let index = block.enter_process(10).unwrap();
        assert_eq!(block.window_immobility(), None);
        block.processes[index].set_mobility(Mobility::BlockedByDevices);
        assert!(block.window_immobility().is_none() && block.window_move_delay().is_some());
        block.processes[index].set_mobility(Mobility::NoUserfaultfd);
        assert!(block.window_immobility().unwrap().contains("vm.unprivileged_userfaultfd"));
        block.processes[index].end_window();
        assert!(block.window_immobility().is_some(), "it never had a mover");
        assert!(block.window_move_delay().is_none());
    }
}
