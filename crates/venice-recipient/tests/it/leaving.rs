//! Donors that reclaim memory in use: drained, or short of memory themselves.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

use crate::common::{Rack, eventually};
use venice_memory::paged::run_block::{ReplicaAt, ReplicaState};
use venice_recipient::{
    AllocationSpec, Lane, MemorySpec, News, PortKind, ReclaimTo, RemoteMemory, Request,
};
use venice_wire::SLAB_BYTES;

const LEN: usize = 40_000;
const PATIENCE: Duration = Duration::from_secs(120);

struct Borrowed {
    memory: RemoteMemory,
    events: Receiver<News>,
}

impl Borrowed {
    fn new(rack: &Rack, port: PortKind, slabs: u64, copies: u32, to: &[ReclaimTo]) -> Borrowed {
        let memory = MemorySpec {
            remote_bytes: Some(slabs * SLAB_BYTES),
            copies: Some(copies),
            reclaim_to: to.to_vec(),
            ..MemorySpec::default()
        };
        let spec = AllocationSpec::of_memory(memory);
        let request = Request { access: rack.access(), port, node: None, spec };
        let (tell, events) = mpsc::channel();
        let memory = RemoteMemory::borrow(&request, move |news| drop(tell.send(news))).unwrap();
        Borrowed { memory, events }
    }

    /// Uses all of it until `is_over` accepts an event.
    fn use_until(&self, mut is_over: impl FnMut(&News) -> bool) {
        self.use_until_state(|events| events.try_iter().any(|news| is_over(&news)));
    }

    /// Uses all of it until `is_over` returns true: each round checks the data of the one before.
    fn use_until_state(&self, mut is_over: impl FnMut(&Receiver<News>) -> bool) {
        let (mut lane, began) = (self.memory.lane().unwrap(), Instant::now());
        let slabs = self.memory.len_bytes() / SLAB_BYTES;
        for slab in 0..slabs {
            write(&mut lane, slab, 0);
        }
        for round in 1.. {
            for slab in 0..slabs {
                let mut back = vec![0; LEN];
                lane.read(place(slab), &mut back).unwrap();
                assert!(back == pattern(slab, round - 1), "slab {slab}, round {round}");
                write(&mut lane, slab, round);
            }
            if is_over(&self.events) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "in vain");
        }
    }

    /// True if everything has two copies, none of them on `node`.
    fn is_whole_without(&self, node: &str) -> bool {
        let block = self.memory.memory().block();
        let mut same = block.donors().iter().filter(|donor| donor.name() == node);
        same.all(|donor| donor.is_gone())
            && (0..block.slab_count()).all(|slab| block.readable(slab).count() == 2)
    }

    fn check_nothing_is_lost(&self) {
        let lost = self.events.try_iter().find(|news| matches!(news, News::Lost(_)));
        assert_eq!(lost, None);
    }
}

fn place(slab: u64) -> u64 {
    slab * SLAB_BYTES + 4_095
}

fn pattern(slab: u64, round: u64) -> Vec<u8> {
    (0..LEN as u64).map(|at| ((at + slab * 7 + round * 13) * 31 % 251) as u8 + 1).collect()
}

fn write(lane: &mut Lane, slab: u64, round: u64) {
    lane.write(place(slab), &pattern(slab, round)).unwrap();
}

fn returned_to(node: &str) -> impl FnMut(&News) -> bool {
    move |news| match news {
        News::GivenBack { name, slabs } => {
            assert!(name == node && *slabs > 0);
            true
        }
        News::WantedBack { name, anchored, .. } => {
            assert_eq!((name.as_str(), *anchored), (node, None));
            false
        }
        news => panic!("{news}"),
    }
}

fn drain_in_turn(port: PortKind, copies: u32) {
    let rack = Rack::start(4, 6);
    let borrowed = Borrowed::new(&rack, port, 6, copies, &[]);
    for node in ["node1", "node2", "node3"] {
        rack.drain(node, true);
        borrowed.use_until(returned_to(node));
        eventually("it lends nothing", || rack.granted_bytes(node) == 0);
        rack.drain(node, false);
    }
    borrowed.check_nothing_is_lost();
    drop(borrowed);
    eventually("all is given back", || rack.free_bytes() == 24 * SLAB_BYTES);
}

#[test]
fn drain_in_turn_over_shm() {
    drain_in_turn(PortKind::Shm, 1);
}

#[test]
fn drain_in_turn_over_udp() {
    drain_in_turn(PortKind::Udp, 1);
}

#[test]
fn drain_in_turn_with_copies() {
    drain_in_turn(PortKind::Shm, 2);
}

#[test]
fn pressed_donor_gets_memory_in_time() {
    for port in [PortKind::Shm, PortKind::Udp] {
        let rack = Rack::start(2, 6);
        let borrowed = Borrowed::new(&rack, port, 6, 1, &[]);
        rack.set_available("node2", 1000);
        borrowed.use_until(returned_to("node2"));
        eventually("it lends nothing", || rack.granted_bytes("node2") == 0);
        borrowed.check_nothing_is_lost();
    }
}

#[test]
fn move_waits_for_room() {
    let mut rack = Rack::start(2, 4);
    let borrowed = Borrowed::new(&rack, PortKind::Shm, 8, 1, &[]);
    rack.drain("node1", true);
    borrowed.use_until(|news| matches!(news, News::NotMoved { .. }));
    rack.add_agent("node3", 3);
    rack.add_agent("node4", 2);
    borrowed.use_until(returned_to("node1"));
    borrowed.check_nothing_is_lost();
}

#[test]
fn full_run_block_stops_borrowing() {
    let mut rack = Rack::start(1, 2);
    let borrowed = Borrowed::new(&rack, PortKind::Shm, 2, 1, &[]);
    let block = borrowed.memory.memory().block();
    let at = ReplicaAt { donor: 0, remote_addr: 0, grant: 0, key: 0 };
    while block.replicas().len() < block.replica_limit() - 1 {
        block.add_replica(0, at, ReplicaState::Dropped).unwrap();
    }
    rack.add_agent("node2", 1);
    rack.add_agent("node3", 1);
    // One slab finds an entry; the memory borrowed for the other is released, and no more is
    // requested.
    rack.drain("node1", true);
    for _ in 0..2 {
        let is_reported = |news: &News| match news {
            News::NotMoved { why } => why.contains("copies of slabs in its life"),
            _ => false,
        };
        borrowed.use_until(is_reported);
        let lent = || rack.granted_bytes("node2") + rack.granted_bytes("node3");
        eventually("the other is given back", || lent() == SLAB_BYTES);
        // A repeated error is reported again after another event.
        rack.drain("node1", false);
        borrowed.use_until_state(|_| block.donors().iter().all(|donor| !donor.is_reclaiming()));
        rack.drain("node1", true);
    }
    borrowed.check_nothing_is_lost();
}

fn stop_donors_during_move(port: PortKind) {
    let mut rack = Rack::start(5, 8);
    let borrowed = Borrowed::new(&rack, port, 8, 2, &[]);
    // The donor that everything moves away from; then one of those it moves to.
    for (drained, stopped) in [("node1", 0), ("node2", 3)] {
        rack.drain(drained, true);
        borrowed.use_until(|news| matches!(news, News::WantedBack { .. }));
        rack.stop(stopped);
        let name = format!("node{}", stopped + 1);
        borrowed.use_until_state(|_| borrowed.is_whole_without(&name));
        rack.drain(drained, false);
    }
    let lost = borrowed.events.try_iter().find(|news| match news {
        News::Lost(lost) => lost.lost_slabs > 0,
        _ => false,
    });
    assert_eq!(lost, None);
}

#[test]
fn donor_stop_during_move_over_shm() {
    stop_donors_during_move(PortKind::Shm);
}

#[test]
fn donor_stop_during_move_over_udp() {
    stop_donors_during_move(PortKind::Udp);
}

/// Without room on other nodes the data goes to this machine's memory, then to its disk.
fn fall_back_locally(port: PortKind) {
    let rack = Rack::start(3, 2);
    let dir = tempfile::tempdir().unwrap();
    let places = [ReclaimTo::Donors, ReclaimTo::Local, ReclaimTo::Disk(dir.path().into())];
    for place in &places[1..] {
        let to = [ReclaimTo::Donors, place.clone()];
        let borrowed = Borrowed::new(&rack, port, 5, 1, &to);
        let mut moved = 0;
        for node in ["node1", "node2"] {
            rack.drain(node, true);
            borrowed.use_until(|news| match news {
                News::GivenBack { name, .. } => name == node,
                News::FallsBack { place: to, slabs } => {
                    assert_eq!(to, place);
                    moved += slabs;
                    false
                }
                _ => false,
            });
        }
        // One went to the third node.
        assert_eq!(moved, 3);
        borrowed.use_until_state(|_| true);
        borrowed.check_nothing_is_lost();
        drop(borrowed);
        for node in ["node1", "node2"] {
            rack.drain(node, false);
        }
        eventually("all is given back", || rack.free_bytes() == 6 * SLAB_BYTES);
    }
}

#[test]
fn local_fallback_over_shm() {
    fall_back_locally(PortKind::Shm);
}

#[test]
fn local_fallback_over_udp() {
    fall_back_locally(PortKind::Udp);
}

/// Two threads increment counters of all slabs; no value may be returned twice.
fn atomics_during_drain(port: PortKind) {
    let rack = Rack::start(3, 4);
    let borrowed = Borrowed::new(&rack, port, 4, 1, &[]);
    let stop = AtomicBool::new(false);
    let count = |memory: &RemoteMemory| {
        let mut lane = memory.lane().unwrap();
        let mut got: [Vec<u64>; 4] = Default::default();
        while !stop.load(Ordering::Acquire) {
            for (slab, got) in got.iter_mut().enumerate() {
                got.push(lane.fetch_add(slab as u64 * SLAB_BYTES + 64, 1).unwrap());
            }
        }
        got
    };
    let (one, two) = std::thread::scope(|scope| {
        let memory = &borrowed.memory;
        let (one, two) = (scope.spawn(|| count(memory)), scope.spawn(|| count(memory)));
        for node in ["node1", "node2"] {
            rack.drain(node, true);
            eventually("it is empty", || rack.granted_bytes(node) == 0);
            rack.drain(node, false);
        }
        stop.store(true, Ordering::Release);
        (one.join().unwrap(), two.join().unwrap())
    });
    for (mut one, two) in one.into_iter().zip(two) {
        one.extend(two);
        one.sort_unstable();
        assert!(one.iter().copied().eq(0..one.len() as u64), "some number moved twice, or never");
    }
}

#[test]
fn atomics_survive_drain_over_shm() {
    atomics_during_drain(PortKind::Shm);
}

#[test]
fn atomics_survive_drain_over_udp() {
    atomics_during_drain(PortKind::Udp);
}
