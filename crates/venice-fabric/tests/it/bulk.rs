//! Bulk transfers: lists on both sides, a bounded ring, the link shared by bytes among grants and
//! with single accesses, completions by event.

use std::collections::BTreeMap;

use crate::world::{
    Faults, KEY, LENT_BYTES, MS, RECIPIENT, RECIPIENT_ADDR, SECOND, World, donor_node,
};
use proptest::prelude::*;
use venice_fabric::{
    AccessError, DownReason, FabricError, LinkConfig, PeerState, RdmaDirection, ScatterGather,
    WindowRange,
};
use venice_wire::{Channel, Frame, GrantId, HeaderRepr, LinkId, MAX_FRAME_BYTES, Opcode, Sequence};

fn settled(donors: usize, window: u16) -> World {
    let mut world = World::new(1, donors, window, Faults::default());
    world.run_for(100 * MS);
    world
}

/// Waits for the end of the transfer of `token`; returns its lists.
fn finish(world: &mut World, token: u64) -> (Result<(), AccessError>, ScatterGather) {
    for _ in 0..1_000_000 {
        if let Some(done) = world.initiator.poll_rdma_completion() {
            assert_eq!(done.token, token);
            return (done.result, done.lists);
        }
        world.transmit();
        world.step_without_collecting();
    }
    panic!("it does not end");
}

prop_compose! {
    /// Ranges that do not overlap, over both donors, in any order.
    fn any_ranges()(
        places in prop::collection::btree_map(0..16u64, 1..8192u64, 1..8),
        turn in any::<prop::sample::Index>(),
    ) -> Vec<WindowRange> {
        let mut ranges: Vec<_> = places.into_iter()
            .map(|(place, len_bytes)| WindowRange { window_addr: place * 8192, len_bytes })
            .collect();
        let at = turn.index(ranges.len());
        ranges.rotate_left(at);
        ranges
    }
}

fn cut(bytes: &[u8], cuts: &[usize]) -> Vec<Vec<u8>> {
    let mut left = bytes;
    let mut segments = Vec::new();
    for &cut in cuts {
        let (now, later) = left.split_at(cut.min(left.len()));
        segments.push(now.to_vec());
        left = later;
    }
    segments.push(left.to_vec());
    segments
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Written by one pair of lists, read back by others: each byte lies where the lists place it.
    #[test]
    fn lists_move_bytes_in_place(
        seed in any::<u64>(),
        lost in prop_oneof![Just(0), Just(200)],
        ranges in any_ranges(),
        cuts in prop::collection::vec(0..5000usize, 0..10),
        cuts_back in prop::collection::vec(0..5000usize, 0..10),
    ) {
        let faults = Faults { lost, repeated: lost / 2, delayed: lost, damaged: 0, stale: lost / 4 };
        let mut world = World::new(seed, 2, 16, faults);
        let total: u64 = ranges.iter().map(|range| range.len_bytes).sum();
        let bytes: Vec<u8> = (0..total).map(|n| (n * 7 + seed) as u8).collect();
        let lists = ScatterGather { ranges: ranges.clone(), segments: cut(&bytes, &cuts) };
        world.initiator.rdma_submit(world.now_ns, 1, RdmaDirection::Write, lists).unwrap();
        let (result, lists) = finish(&mut world, 1);
        prop_assert_eq!(result, Ok(()));
        prop_assert_eq!(&lists.ranges, &ranges);
        let mut at = 0;
        for range in &ranges {
            for n in 0..range.len_bytes {
                let addr = range.window_addr + n;
                let donor = &world.donors[(addr / LENT_BYTES) as usize];
                prop_assert_eq!(donor.memory.bytes[(addr % LENT_BYTES) as usize], bytes[at]);
                at += 1;
            }
        }
        let segments = cut(&vec![0; bytes.len()], &cuts_back);
        let lists = ScatterGather { ranges, segments };
        world.initiator.rdma_submit(world.now_ns, 2, RdmaDirection::Read, lists).unwrap();
        let (result, lists) = finish(&mut world, 2);
        prop_assert_eq!(result, Ok(()));
        prop_assert!(lists.segments.concat() == bytes);
    }
}

#[test]
fn small_segments_share_frames() {
    let mut world = settled(1, 64);
    let sent = world.network.sent;
    let segments = vec![vec![7; 64]; 256];
    let ranges = vec![WindowRange { window_addr: 0, len_bytes: 256 * 64 }];
    let lists = ScatterGather { ranges, segments };
    world.initiator.rdma_submit(world.now_ns, 1, RdmaDirection::Write, lists).unwrap();
    assert_eq!(finish(&mut world, 1).0, Ok(()));
    assert_eq!(world.network.sent - sent, 4 + 1, "four chunks and one answer");
}

#[test]
fn invalid_lists_are_returned() {
    let mut world = settled(1, 16);
    let range = |window_addr, len_bytes| WindowRange { window_addr, len_bytes };
    let cases = [
        (vec![range(0, 10)], vec![vec![0; 9]], FabricError::ListsDiffer { there: 10, here: 9 }),
        (vec![], vec![vec![]], FabricError::BadLength { window_addr: 0, len_bytes: 0 }),
        (
            vec![range(u64::MAX, 2)],
            vec![vec![0; 2]],
            FabricError::BadLength { window_addr: u64::MAX, len_bytes: u64::MAX },
        ),
    ];
    for (ranges, segments, error) in cases {
        let lists = ScatterGather { ranges: ranges.clone(), segments: segments.clone() };
        let refused = world.initiator.rdma_submit(0, 1, RdmaDirection::Read, lists).unwrap_err();
        assert_eq!(refused.error, error);
        assert_eq!(refused.lists, ScatterGather { ranges, segments });
    }
    assert!(!world.initiator.has_rdma_outstanding());
}

#[test]
fn polled_completion_frees_ring_slot() {
    let mut world = settled(1, 16);
    for token in 0..64 {
        world.initiator.rdma_write(world.now_ns, token, 0, vec![1; 100]).unwrap();
    }
    let full = world.initiator.rdma_write(world.now_ns, 64, 0, vec![9; 3]).unwrap_err();
    assert_eq!((full.error, full.buffer), (FabricError::WouldBlock, vec![9; 3]));
    world.run_until(|world| !world.bulk_done.is_empty());
    world.initiator.rdma_write(world.now_ns, 64, 0, vec![9; 3]).unwrap();
    world.run_until(|world| world.bulk_done.len() == 65);
}

/// Moves bulk data over two grants for a while; returns the bytes each has moved.
fn contest(sizes: [usize; 2], directions: [RdmaDirection; 2], window: u16) -> [u64; 2] {
    let mut world = settled(1, window);
    let second = GrantId(6);
    world.donors[0].memory.grants.push(second);
    world.initiator.map_window(1 << 40, LENT_BYTES, world.peers[0], 0, second, KEY).unwrap();
    let mut moved = [0, 0];
    let end_ns = world.now_ns + 20 * MS;
    let submit = |world: &mut World, of: usize, buffer: Vec<u8>| {
        let addr = if of == 0 { 0 } else { 1 << 40 };
        let taken = match directions[of] {
            RdmaDirection::Read => world.initiator.rdma_read(world.now_ns, of as u64, addr, buffer),
            RdmaDirection::Write => {
                world.initiator.rdma_write(world.now_ns, of as u64, addr, buffer)
            }
        };
        taken.unwrap();
    };
    for of in [0, 1] {
        // Enough outstanding to fill any window, however small each is.
        (0..30).for_each(|_| submit(&mut world, of, vec![1; sizes[of]]));
    }
    while world.now_ns < end_ns {
        world.transmit();
        world.step_without_collecting();
        while let Some(done) = world.initiator.poll_rdma_completion() {
            assert_eq!(done.result, Ok(()));
            let of = done.token as usize;
            moved[of] += done.buffer.len() as u64;
            submit(&mut world, of, done.buffer);
        }
    }
    moved
}

#[test]
fn grants_share_link_by_bytes() {
    use RdmaDirection::{Read, Write};
    for (sizes, directions, window) in [
        ([60_000, 10_000], [Read, Read], 64),
        ([60_000, 3_000], [Write, Write], 16),
        ([64, 60_000], [Write, Write], 8),
        ([60_000, 60_000], [Read, Write], 16),
    ] {
        let [a, b] = contest(sizes, directions, window);
        let ratio = a as f64 / b as f64;
        // 30 transfers of 64 bytes do not fill a turn: they complete at the requested rate.
        let is_small = sizes[0] == 64;
        assert!(is_small || (0.9..1.1).contains(&ratio), "{sizes:?} over {window}: {a} and {b}");
        assert!(!is_small || a > 1000 * 64, "{a} of {b}");
    }
}

/// Single accesses at full rate, and a bulk transfer still gets its share.
#[test]
fn single_accesses_do_not_starve_bulk() {
    let mut world = settled(1, 16);
    for token in 0..8 {
        world.initiator.rdma_write(world.now_ns, token, 0, vec![5; LENT_BYTES as usize]).unwrap();
    }
    let (start_ns, mut posted) = (world.now_ns, 0);
    while world.bulk_done.len() < 8 {
        while world.initiator.post(world.now_ns, 0, &[1; 8]).is_ok() {
            posted += 1;
        }
        assert!(world.step() && world.now_ns < start_ns + 50 * MS, "{posted} posted meanwhile");
    }
    assert!(posted > 30, "{posted}");
}

/// Long transfers, and each read still takes little more than its round trip.
#[test]
fn bulk_does_not_starve_singles() {
    let mut world = settled(1, 16);
    for token in 0..8 {
        world.initiator.rdma_write(world.now_ns, token, 0, vec![1; LENT_BYTES as usize]).unwrap();
    }
    for token in 0..10 {
        let start_ns = world.now_ns;
        world.initiator.read(world.now_ns, token, 0, 64).unwrap();
        world.run_until(|world| world.done.contains_key(&token));
        assert!(world.now_ns - start_ns <= 40_000, "{} ns", world.now_ns - start_ns);
    }
    assert!(world.bulk_done.len() < 8);
}

#[test]
fn event_fires_once_at_threshold() {
    let mut world = settled(1, 16);
    assert!(!world.initiator.poll_event(), "no event was requested");
    world.initiator.arm_event(3);
    world.initiator.read(world.now_ns, 1, 0, 8).unwrap();
    world.initiator.rdma_read(world.now_ns, 2, 0, vec![0; 10_000]).unwrap();
    let mut steps = 0;
    while steps < 1000 && !world.initiator.poll_event() {
        world.transmit();
        world.step_without_collecting();
        steps += 1;
    }
    assert_eq!(steps, 1000, "only two are over");
    world.initiator.fence(world.now_ns, 3).unwrap();
    assert!(world.initiator.poll_event());
    assert!(!world.initiator.poll_event(), "the event fires once");
    world.initiator.arm_event(1);
    assert!(world.initiator.poll_event(), "they are still there");
    world.collect();
    world.initiator.arm_event(1);
    assert!(!world.initiator.poll_event());
}

#[test]
fn dead_donor_returns_lists() {
    let mut world = World::with_link(3, 2, LinkConfig::default(), Faults::default());
    world.run_for(SECOND);
    world.donors[1].is_alive = false;
    let ranges = vec![
        WindowRange { window_addr: 0, len_bytes: 5000 },
        WindowRange { window_addr: LENT_BYTES, len_bytes: 50_000 },
        WindowRange { window_addr: 8192, len_bytes: 5000 },
    ];
    let lists = ScatterGather { ranges: ranges.clone(), segments: vec![vec![3; 60_000]] };
    world.initiator.rdma_submit(world.now_ns, 1, RdmaDirection::Write, lists).unwrap();
    let (result, lists) = finish(&mut world, 1);
    assert_eq!(result, Err(AccessError::PeerDown(DownReason::Silent)));
    assert_eq!((lists.ranges, lists.segments), (ranges, vec![vec![3; 60_000]]));
    assert!(!world.initiator.has_rdma_outstanding());
}

/// A donor that answers a write without acknowledging it is broken: the bytes of the write may
/// still have to be sent, and would be gone.
#[test]
fn answer_without_acknowledgement_is_rejected() {
    let mut world = World::new(7, 1, 8, Faults::default());
    let (mut buf, now_ns) = ([0; MAX_FRAME_BYTES], world.now_ns);
    let (_, len) = world.initiator.poll_transmit(now_ns, &mut buf).expect("a Hello");
    let donor = &mut world.donors[0];
    donor.target.handle_frame(now_ns, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
    let (_, len) = donor.target.poll_transmit(now_ns, &mut buf).expect("a Welcome");
    let link = LinkId(Frame::parse(&buf[..len]).unwrap().transaction());
    world.initiator.handle_frame(now_ns, world.peers[0], &buf[..len]);
    world.initiator.rdma_write(now_ns, 1, 0, vec![1; 4096]).unwrap();
    while world.initiator.poll_transmit(now_ns, &mut buf).is_some() {}
    let done = HeaderRepr {
        link,
        sequence: Sequence(0),
        ack: Sequence(0),
        ..HeaderRepr::new(Channel::Rdma, Opcode::Done, donor_node(0), RECIPIENT)
    };
    let len = done.emit(&[], &mut buf).unwrap();
    world.initiator.handle_frame(now_ns, world.peers[0], &buf[..len]);
    let down = PeerState::Down { reason: DownReason::Protocol };
    assert_eq!(world.initiator.peer_state(world.peers[0]), down);
    let failed = world.initiator.poll_rdma_completion().unwrap();
    assert_eq!(failed.result, Err(AccessError::PeerDown(DownReason::Protocol)));
}

/// Mappings are removed while transfers through them wait: each ends, and none blocks another.
#[test]
fn unmapping_fails_only_its_transfers() {
    let mut world = settled(1, 8);
    let second = GrantId(6);
    world.donors[0].memory.grants.push(second);
    world.initiator.map_window(1 << 40, LENT_BYTES, world.peers[0], 0, second, KEY).unwrap();
    for token in 0..4 {
        let addr = if token % 2 == 0 { 0 } else { 1 << 40 };
        let buffer = vec![token as u8; LENT_BYTES as usize];
        world.initiator.rdma_write(world.now_ns, token, addr, buffer).unwrap();
    }
    world.step();
    world.initiator.unmap_window(0).unwrap();
    world.run_until(|world| world.bulk_done.len() == 4);
    let outcomes: BTreeMap<_, _> =
        world.bulk_done.iter().map(|(token, done)| (*token, done.is_ok())).collect();
    assert_eq!(outcomes, BTreeMap::from([(0, false), (1, true), (2, false), (3, true)]));
}
