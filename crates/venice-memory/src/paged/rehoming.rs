//! The supervisor's half of moving a slab of a window: the processes that have it mapped take what
//! they hold to a new replica themselves ([`Window`](super::Window)), and nobody copies for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::run_block::RunBlock;

/// How often it is looked how far they are.
const LOOK_EVERY: Duration = Duration::from_millis(2);
/// How long processes are waited for that are to leave a replica that came to nothing. What they have
/// there stays theirs in any case.
const LEAVE_WITHIN: Duration = Duration::from_secs(5);

/// Why a slab is not in a new home.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RehomeError {
    /// The donor of the new one is lost, or wants its own memory back.
    #[error("the new home is lost")]
    Lost,
    /// It was told to stop.
    #[error("stopped")]
    Stopped,
    /// A process has it mapped and cannot move it.
    #[error("a process that has it mapped cannot move it")]
    Unmovable,
    /// The donor of the old one no longer wants it back.
    #[error("it can stay where it is")]
    Unwanted,
}

/// Has all processes take what they hold of a slab to `replica`, which was entered as being built,
/// and makes it live when they have. What keeps them from it for the time being is told to `waits`.
///
/// # Errors
/// [`RehomeError`]; the replica is dropped then, and they are back where they were.
pub fn rehome(
    block: &RunBlock,
    replica: usize,
    stop: &AtomicBool,
    mut waits: impl FnMut(&'static str),
) -> Result<(), RehomeError> {
    block.call_movers();
    loop {
        if let Some(error) = why_not(block, replica, stop) {
            leave(block, replica, stop);
            return Err(error);
        }
        if block.is_home_of_all(replica) && block.settle_home(replica) {
            return Ok(());
        }
        block.window_waits().into_iter().for_each(&mut waits);
        std::thread::sleep(LOOK_EVERY);
    }
}

fn why_not(block: &RunBlock, replica: usize, stop: &AtomicBool) -> Option<RehomeError> {
    let entry = &block.replicas()[replica];
    let donor = &block.donors()[entry.donor()];
    if stop.load(Ordering::Acquire) {
        return Some(RehomeError::Stopped);
    }
    if donor.is_gone() || donor.is_leaving() || !block.is_written(entry) {
        return Some(RehomeError::Lost);
    }
    if block.window_never_moves().is_some() {
        return Some(RehomeError::Unmovable);
    }
    let stays = block.staying(entry.slab(), entry.fragment()).next().is_some();
    (stays && !block.is_home_of_any(replica)).then_some(RehomeError::Unwanted)
}

fn leave(block: &RunBlock, replica: usize, stop: &AtomicBool) {
    block.give_up(&block.replicas()[replica]);
    block.call_movers();
    let began = Instant::now();
    while block.is_home_of_any(replica)
        && !stop.load(Ordering::Acquire)
        && began.elapsed() < LEAVE_WITHIN
    {
        std::thread::sleep(LOOK_EVERY);
    }
}

#[cfg(test)]
mod tests {
    use super::super::run_block::{Fate, Mobility, PortKind, ReplicaAt, ReplicaState, RunBlockMap};
    use super::*;

    /// A slab at donor 0, which wants it back, and one being built at donor 1; a process is at 0.
    fn moving() -> (RunBlockMap, usize, usize) {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        block.set_window();
        for donor in 0..2 {
            block.add_donor(&format!("node{donor}"), donor as u32, "").unwrap();
        }
        let at = |donor| ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 };
        block.add_slab(at(0)).unwrap();
        block.donors()[0].set_leaving(true);
        let new = block.add_replica(0, at(1), ReplicaState::Building).unwrap();
        let place = block.enter_process(10).unwrap();
        block.set_home(place, 0, 0);
        (block, place, new)
    }

    #[test]
    fn it_lives_once_all_are_there() {
        let (block, place, new) = moving();
        let (stop, mut told) = (AtomicBool::new(false), Vec::new());
        block.processes[place].set_mobility(Mobility::HeldByDevices);
        let outcome = rehome(&block, new, &stop, |why| {
            told.push(why);
            block.processes[place].set_mobility(Mobility::Moves);
            block.set_home(place, 0, new);
        });
        assert_eq!((outcome, told.len()), (Ok(()), 1));
        assert_eq!(block.state(&block.replicas()[new]), ReplicaState::Live);
        assert!(block.begin_to_let_go() == [0], "the old one can go");
    }

    #[test]
    fn who_cannot_move_or_need_not_stays() {
        let stop = AtomicBool::new(false);
        let outcome = |change: &dyn Fn(&RunBlockMap, usize)| {
            let (block, place, new) = moving();
            change(&block, place);
            let outcome = rehome(&block, new, &stop, |_| ());
            assert_eq!(block.newest_home(0), Some(0));
            outcome
        };
        let never = Mobility::NoUserfaultfd;
        assert_eq!(
            outcome(&|block, place| block.processes[place].set_mobility(never)),
            Err(RehomeError::Unmovable)
        );
        assert_eq!(
            outcome(&|block, _| block.donors()[0].set_leaving(false)),
            Err(RehomeError::Unwanted)
        );
        assert_eq!(outcome(&|block, _| block.donors()[1].lose(Fate::Died)), Err(RehomeError::Lost));
        stop.store(true, Ordering::Release);
        assert_eq!(outcome(&|_, _| ()), Err(RehomeError::Stopped));
    }
}
