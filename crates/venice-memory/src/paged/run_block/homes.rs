//! Where each process of a run in a window has the slabs mapped, and whether it can map them
//! elsewhere while its program uses them.
//!
//! A process has what it holds of a slab in one replica of it, its home there; where that is only the
//! process knows, so it says so. What moves a slab enters a new replica as being built and calls the
//! movers of all processes: each takes what it holds to the newest replica there is, and says that
//! this is its home now. Once it is the home of all, nobody has the old one mapped.

use std::sync::atomic::{AtomicU32, Ordering};

use super::super::sys;
use super::{MAX_SLABS, Process, ReplicaState, RunBlock};

/// A process's home of each slab: the replica's index, plus one; 0: it has not mapped any yet.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Homes([AtomicU32; MAX_SLABS]);

/// Whether a process can take what it holds to another home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Mobility {
    /// It has not said yet.
    Unknown = 0,
    /// It can, and does when it is called.
    Moves = 1,
    /// It can, but has files open through which devices write to its memory by themselves.
    HeldByDevices = 2,
    /// It can, but the kernel has no memory for it, or not one mapping more.
    HeldByKernel = 3,
    /// It may have no userfaultfd that holds system calls up too.
    NoUserfaultfd = 4,
    /// Its kernel does not write-protect shared memory.
    NoWriteProtection = 5,
    /// It has no window any more: it runs another program now.
    Gone = 6,
    /// What it has lies in a memory device (DAX), whose mappings no kernel write-protects.
    InDevice = 7,
}

impl Mobility {
    fn of(word: u32) -> Mobility {
        match word {
            1 => Mobility::Moves,
            2 => Mobility::HeldByDevices,
            3 => Mobility::HeldByKernel,
            4 => Mobility::NoUserfaultfd,
            5 => Mobility::NoWriteProtection,
            6 => Mobility::Gone,
            7 => Mobility::InDevice,
            _ => Mobility::Unknown,
        }
    }

    /// Why nothing of the process's ever moves; `None`: it does.
    pub fn never(self) -> Option<&'static str> {
        match self {
            Mobility::NoUserfaultfd => Some(
                "it is mapped into the program, which may not hold its own writes up: that takes \
                 root, /dev/userfaultfd or vm.unprivileged_userfaultfd=1",
            ),
            Mobility::NoWriteProtection => Some(
                "it is mapped into the program, and this kernel cannot write-protect it: that takes \
                 Linux 5.19",
            ),
            _ => None,
        }
    }

    /// Why it does not move at present; `None`: it does, or never will.
    pub fn not_yet(self) -> Option<&'static str> {
        match self {
            Mobility::HeldByDevices => Some(
                "the program has a device, io_uring or a file with O_DIRECT open, which may be \
                 writing to its memory",
            ),
            Mobility::InDevice => Some(
                "it lies in a memory device (DAX), which the kernel does not write-protect: it stays there \
                 until the program ends",
            ),
            Mobility::HeldByKernel => Some(
                "the kernel has no memory left for it, or the program too many mappings \
                 (vm.max_map_count)",
            ),
            _ => None,
        }
    }
}

impl Process {
    /// Whether it can take what it holds to another home.
    pub fn mobility(&self) -> Mobility {
        Mobility::of(self.mobility.load(Ordering::SeqCst))
    }

    /// The process's own word on that.
    pub fn set_mobility(&self, mobility: Mobility) {
        self.mobility.store(mobility as u32, Ordering::SeqCst);
    }

    /// Its mover is no more, and with it what it had mapped: it runs another program.
    pub fn end_window(&self) {
        if self.mobility().never().is_none() {
            self.set_mobility(Mobility::Gone);
        }
    }
}

impl RunBlock {
    /// The replica where processes are to have what they hold of a slab: the newest that is written.
    pub fn newest_home(&self, slab: usize) -> Option<usize> {
        let written = self.replicas_of(slab).filter(|(_, replica)| self.is_written(replica));
        written.map(|(index, _)| index).max()
    }

    /// Says where a process has what it holds of a slab. Nothing of it is mapped elsewhere any more.
    pub fn set_home(&self, process: usize, slab: usize, replica: usize) {
        self.homes[process].0[slab].store(replica as u32 + 1, Ordering::SeqCst);
    }

    /// Forgets where another process had its place's slabs.
    pub(super) fn clear_homes(&self, process: usize) {
        for home in &self.homes[process].0[..self.slab_count()] {
            home.store(0, Ordering::SeqCst);
        }
    }

    /// Is the replica the home of its slab for every process? One that has not mapped it yet may
    /// be about to map another.
    pub fn is_home_of_all(&self, replica: usize) -> bool {
        let slab = self.replicas()[replica].slab();
        self.living_windows().all(|(place, _)| self.home(place, slab) == Some(replica))
    }

    /// Has any process a home there?
    pub fn is_home_of_any(&self, replica: usize) -> bool {
        let slab = self.replicas()[replica].slab();
        self.living_windows().any(|(place, _)| self.home(place, slab) == Some(replica))
    }

    /// Is the replica the home of its slab for this process?
    pub fn is_home(&self, process: usize, slab: usize, replica: usize) -> bool {
        self.home(process, slab) == Some(replica)
    }

    fn home(&self, process: usize, slab: usize) -> Option<usize> {
        let home = self.homes[process].0[slab].load(Ordering::SeqCst);
        home.checked_sub(1).map(|replica| replica as usize)
    }

    fn living_windows(&self) -> impl Iterator<Item = (usize, &Process)> {
        self.live_processes().filter(|(_, process)| process.mobility() != Mobility::Gone)
    }

    /// Why nothing that is mapped into the program ever moves; `None`: it does.
    pub fn window_never_moves(&self) -> Option<&'static str> {
        self.live_processes().find_map(|(_, process)| process.mobility().never())
    }

    /// Why it does not move at present.
    pub fn window_waits(&self) -> Option<&'static str> {
        self.live_processes().find_map(|(_, process)| process.mobility().not_yet())
    }

    /// Has the movers of all processes look where their slabs are to be.
    pub fn call_movers(&self) {
        self.mover_calls.fetch_add(1, Ordering::SeqCst);
        sys::futex_wake(&self.mover_calls, u32::MAX >> 1, true);
    }

    /// How often they were called.
    pub fn mover_calls(&self) -> u32 {
        self.mover_calls.load(Ordering::SeqCst)
    }

    /// Waits for another call than the `seen`th, or for so long.
    pub fn await_mover_call(&self, seen: u32, timeout_ns: Option<u64>) {
        sys::futex_wait(&self.mover_calls, seen, timeout_ns, true);
    }

    /// The supervisor's right: a replica that was built is read and written from now on; `false`: it
    /// was dropped meanwhile.
    pub fn settle_home(&self, replica: usize) -> bool {
        self.pass(&self.replicas()[replica], ReplicaState::Building, ReplicaState::Live)
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
    fn a_slab_has_moved_when_no_process_has_it_elsewhere() {
        let (block, new) = moving();
        let [one, two] = [10, 11].map(|pid| block.enter_process(pid).unwrap());
        block.set_home(one, 0, 0);
        block.set_home(two, 0, 0);
        block.set_home(one, 0, new);
        assert!(!block.is_home_of_all(new) && block.is_home_of_any(new) && block.is_home_of_any(0));
        block.set_home(two, 0, new);
        assert!(block.is_home_of_all(new) && !block.is_home_of_any(0));
        let three = block.enter_process(12).unwrap();
        assert!(!block.is_home_of_all(new), "it may be about to map the old one");
        block.processes[three].end_window();
        assert!(block.is_home_of_all(new), "it runs another program");
    }

    #[test]
    fn who_takes_a_place_has_nothing_of_who_had_it() {
        let (block, new) = moving();
        let place = block.enter_process(10).unwrap();
        block.set_home(place, 0, new);
        block.processes[place].end_window();
        super::super::super::slots::leave(&block, place, 10);
        assert_eq!(block.enter_process(11), Some(place));
        assert!(!block.is_home_of_all(new) && !block.is_home_of_any(new));
        assert_eq!(block.processes[place].mobility(), Mobility::Unknown);
    }

    #[test]
    fn the_home_is_the_newest_that_is_written() {
        let (block, new) = moving();
        assert_eq!(block.newest_home(0), Some(new));
        block.donors()[1].lose(Fate::Died);
        assert_eq!(block.newest_home(0), Some(0), "back to where it was");
        let newer = block.add_replica(0, at(2), ReplicaState::Building).unwrap();
        block.donors()[0].lose(Fate::Died);
        assert_eq!(block.newest_home(0), Some(newer));
        assert!(block.settle_home(newer) && !block.settle_home(newer));
    }

    #[test]
    fn who_can_never_move_says_why() {
        let (block, _) = moving();
        let place = block.enter_process(10).unwrap();
        assert_eq!(block.window_never_moves(), None);
        block.processes[place].set_mobility(Mobility::HeldByDevices);
        assert!(block.window_never_moves().is_none() && block.window_waits().is_some());
        block.processes[place].set_mobility(Mobility::NoUserfaultfd);
        assert!(block.window_never_moves().unwrap().contains("vm.unprivileged_userfaultfd"));
        block.processes[place].end_window();
        assert!(block.window_never_moves().is_some(), "it never had a mover");
        assert!(block.window_waits().is_none());
    }
}
