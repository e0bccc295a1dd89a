//! The supervisor's part of moving a slab in window mode. The processes that map the slab move
//! their pages to the new replica themselves ([`Window`](super::Window)); the supervisor copies
//! nothing.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::run_block::RunBlock;

/// Interval of the checks of their progress.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// Longest wait for processes to leave a dropped replica. They keep its memory in any case.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// An error of moving a slab to a new location.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlabMoveError {
    /// The donor of the new location is lost, or reclaims its own memory.
    #[error("move failed: the new location is lost")]
    Lost,
    /// The move was stopped.
    #[error("move stopped")]
    Stopped,
    /// A process maps the slab and cannot move it.
    #[error("move failed: a process that maps the slab cannot move it")]
    Unmovable,
    /// The donor of the old location no longer reclaims it.
    #[error("move cancelled: the slab can stay where it is")]
    Unwanted,
}

/// Moves all processes' pages of a slab to `replica`, which must be entered as being built, and
/// then makes it live. Calls `report_delay` with the reason of each delay.
///
/// # Errors
/// [`SlabMoveError`]. The replica is dropped then, and the processes are back at the old location.
pub fn move_slab(
    block: &RunBlock,
    replica: usize,
    stop: &AtomicBool,
    mut report_delay: impl FnMut(&'static str),
) -> Result<(), SlabMoveError> {
    block.call_movers();
    loop {
        if let Some(error) = why_not(block, replica, stop) {
            leave(block, replica, stop);
            return Err(error);
        }
        if block.is_location_of_all(replica) && block.commit_location(replica) {
            return Ok(());
        }
        block.window_move_delay().into_iter().for_each(&mut report_delay);
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn why_not(block: &RunBlock, replica: usize, stop: &AtomicBool) -> Option<SlabMoveError> {
    let entry = &block.replicas()[replica];
    let donor = &block.donors()[entry.donor()];
    if stop.load(Ordering::Acquire) {
        return Some(SlabMoveError::Stopped);
    }
    if donor.is_gone() || donor.is_reclaiming() || !block.is_written(entry) {
        return Some(SlabMoveError::Lost);
    }
    if block.window_immobility().is_some() {
        return Some(SlabMoveError::Unmovable);
    }
    let stays = block.staying(entry.slab(), entry.fragment()).next().is_some();
    (stays && !block.is_location_of_any(replica)).then_some(SlabMoveError::Unwanted)
}

fn leave(block: &RunBlock, replica: usize, stop: &AtomicBool) {
    block.drop_replica(&block.replicas()[replica]);
    block.call_movers();
    let began = Instant::now();
    while block.is_location_of_any(replica)
        && !stop.load(Ordering::Acquire)
        && began.elapsed() < LEAVE_WITHIN
    {
        std::thread::sleep(POLL_INTERVAL);
    }
}

#[cfg(test)]
mod tests {
    use super::super::run_block::{Fate, Mobility, PortKind, ReplicaAt, ReplicaState, RunBlockMap};
    use super::*;

    /// A slab at donor 0, which reclaims it, a replica being built at donor 1, and a process at
    /// donor 0.
    fn moving() -> (RunBlockMap, usize, usize) {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        block.set_window();
        for donor in 0..2 {
            block.add_donor(&format!("node{donor}"), donor as u32, "").unwrap();
        }
        let at = |donor| ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 };
        block.add_slab(at(0)).unwrap();
        block.donors()[0].set_reclaiming(true);
        let new = block.add_replica(0, at(1), ReplicaState::Building).unwrap();
        let index = block.enter_process(10).unwrap();
        block.set_location(index, 0, 0);
        (block, index, new)
    }

    #[test]
    fn live_after_all_processes_moved() {
        let (block, index, new) = moving();
        let (stop, mut delays) = (AtomicBool::new(false), Vec::new());
        block.processes[index].set_mobility(Mobility::BlockedByDevices);
        let outcome = move_slab(&block, new, &stop, |why| {
            delays.push(why);
            block.processes[index].set_mobility(Mobility::Moves);
            block.set_location(index, 0, new);
        });
        assert_eq!((outcome, delays.len()), (Ok(()), 1));
        assert_eq!(block.state(&block.replicas()[new]), ReplicaState::Live);
        assert!(block.begin_release() == [0], "the old replica can be released");
    }

    #[test]
    fn immobile_or_unneeded_moves_fail() {
        let stop = AtomicBool::new(false);
        let outcome = |change: &dyn Fn(&RunBlockMap, usize)| {
            let (block, index, new) = moving();
            change(&block, index);
            let outcome = move_slab(&block, new, &stop, |_| ());
            assert_eq!(block.newest_location(0), Some(0));
            outcome
        };
        let never = Mobility::NoUserfaultfd;
        assert_eq!(
            outcome(&|block, index| block.processes[index].set_mobility(never)),
            Err(SlabMoveError::Unmovable)
        );
        assert_eq!(
            outcome(&|block, _| block.donors()[0].set_reclaiming(false)),
            Err(SlabMoveError::Unwanted)
        );
        assert_eq!(
            outcome(&|block, _| block.donors()[1].lose(Fate::Died)),
            Err(SlabMoveError::Lost)
        );
        stop.store(true, Ordering::Release);
        assert_eq!(outcome(&|_, _| ()), Err(SlabMoveError::Stopped));
    }
}
