//! Further deaths of donors while a copy is being built, at each step of the copier: each read
//! returns the last write, or an error.

use std::os::fd::OwnedFd;

use super::super::direct::{Lane, LaneError};
use super::super::run_block::{Fate, PortKind, ReplicaAt, SLAB_SLOTS};
use super::super::slab_window::SlabSource;
use super::*;

/// Pages in use: more than one step copies.
const USED: usize = 2 * STEP_SLOTS + 7;
const NEW: usize = 3;

/// One slab with a copy at each of the donors `0..live`, and one being built at another.
fn slab(live: usize) -> Arc<FarMemory> {
    let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, live).unwrap();
    let mut memfds = Vec::new();
    for donor in 0..=NEW {
        block.add_donor(&format!("node{donor}"), donor as u32, "").unwrap();
    }
    for donor in (0..live).chain([NEW]) {
        let at = ReplicaAt { donor, remote_addr: 0, grant: donor as u64, key: 0 };
        match donor {
            0 => drop(block.add_slab(at).unwrap()),
            NEW => drop(block.add_replica(0, at, ReplicaState::Building).unwrap()),
            _ => drop(block.add_replica(0, at, ReplicaState::Live).unwrap()),
        }
        let fd = rustix::fs::memfd_create("slab", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, venice_wire::SLAB_BYTES).unwrap();
        memfds.push(fd);
    }
    let source: SlabSource = Box::new(move |replica| {
        memfds.get(replica).map(|fd: &OwnedFd| fd.try_clone().unwrap().into())
    });
    Arc::new(FarMemory::new(Arc::new(block), source).unwrap())
}

/// The text of page `page` after its write number `round`.
fn text(page: usize, round: usize) -> [u8; 64] {
    std::array::from_fn(|at| (page * 7 + round * 31 + at) as u8)
}

fn write(lane: &mut Lane, page: usize, round: usize) -> Result<(), LaneError> {
    lane.write((page * PAGE) as u64, &text(page, round))
}

/// Builds a copy of a slab with `live` copies. After `steps` steps the donors `0..deaths` die one
/// after the other, while the program goes on writing. Returns whether the copy was finished
/// before, and the result of each read afterwards.
fn build(live: usize, deaths: usize, steps: usize) -> (bool, Vec<Result<bool, LaneError>>) {
    let memory = slab(live);
    let block = memory.block().clone();
    let mut lane = memory.lane().unwrap();
    // The last confirmed write, and a failed one that may still have reached a donor.
    let (mut rounds, mut may_be) = (vec![0; USED], vec![0; USED]);
    (0..USED).for_each(|page| write(&mut lane, page, 0).unwrap());
    let (mut copier, stop) = (Copier::new(&memory).unwrap(), AtomicBool::new(false));
    let mut rebuild = Rebuild::new(0..SLAB_SLOTS, STEP_SLOTS);
    let entry = &block.replicas()[live];
    let mut slab = BuiltSlab { copier: &mut copier, replica: live, noted: None, stop: &stop };
    let mut is_done = false;
    for step in 0.. {
        if step >= steps && step < steps + deaths {
            block.donors()[step - steps].lose(Fate::Died);
        }
        let page = step * 97 % USED;
        may_be[page] = rounds[page] + 1;
        if write(&mut lane, page, may_be[page]).is_ok() {
            rounds[page] = may_be[page];
        }
        match rebuild.step(&mut slab) {
            Step::Failed => {
                block.drop_replica(entry);
                break;
            }
            Step::Done => is_done = true,
            Step::Going | Step::Waiting => {}
        }
        if is_done {
            // The deaths not yet due follow after the end.
            (0..deaths).for_each(|donor| block.donors()[donor].lose(Fate::Died));
            break;
        }
        assert!(step < 10_000, "{rebuild:?}");
    }
    let read = |page: usize| {
        let mut back = [0; 64];
        let is_right = |back| back == text(page, rounds[page]) || back == text(page, may_be[page]);
        lane.read((page * PAGE) as u64, &mut back).map(|()| is_right(back))
    };
    (is_done, (0..USED).map(read).collect())
}

#[test]
fn last_copy_dies_during_build() {
    let mut outcomes = [0; 2];
    for steps in 0..40 {
        let (is_done, read) = build(1, 1, steps);
        match is_done {
            true => assert!(read.iter().all(|read| read == &Ok(true)), "step {steps}"),
            false => assert!(
                read.iter().all(|read| matches!(read, Err(LaneError::Lost { .. }))),
                "step {steps}: an unfinished copy is not read"
            ),
        }
        outcomes[usize::from(is_done)] += 1;
    }
    assert!(outcomes.iter().all(|&count| count > 5), "{outcomes:?}");
}

#[test]
fn one_of_two_dies_during_build() {
    for steps in 0..40 {
        let (is_done, read) = build(2, 1, steps);
        assert!(is_done && read.iter().all(|read| read == &Ok(true)), "step {steps}");
    }
}

#[test]
fn both_die_during_build() {
    for steps in 0..40 {
        let (is_done, read) = build(2, 2, steps);
        let is_right = |read: &Result<bool, LaneError>| match read {
            Ok(is_right) => is_done && *is_right,
            Err(error) => !is_done && matches!(error, LaneError::Lost { .. }),
        };
        assert!(read.iter().all(is_right), "step {steps}");
    }
}
