//! Edge cases of atomics and posted writes: refusals, alignment, many at once, and a donor's death
//! between a posted write and its fence.

use crate::world::{
    Faults, GRANT, KEY, LENT_BYTES, MS, RECIPIENT, RECIPIENT_ADDR, SECOND, World, donor_node,
};
use venice_fabric::{AccessError, DownReason, FabricError, LinkConfig, Refusal};
use venice_wire::{Channel, HeaderRepr, MAX_FRAME_BYTES, Opcode, Sequence};

fn settled(donors: usize, faults: Faults) -> World {
    let mut world = World::new(1, donors, 64, Faults::default());
    world.run_for(100 * MS);
    world.network.faults = faults;
    world
}

#[test]
fn fetch_add_applies_once_under_faults() {
    let faults = Faults { lost: 200, repeated: 200, delayed: 200, stale: 100, damaged: 50 };
    let mut world = settled(1, faults);
    for token in 0..500 {
        while world.initiator.fetch_add(world.now_ns, token, 64, 3).is_err() {
            world.step();
        }
    }
    world.run_until(|world| world.done.len() == 500);
    for (token, old) in &world.done {
        assert_eq!(old.as_deref(), Ok((token * 3).to_le_bytes().as_slice()), "in the order given");
    }
    assert_eq!(world.donors[0].memory.bytes[64..72], 1500u64.to_le_bytes());
}

#[test]
fn compare_swap_returns_old_value() {
    let mut world = settled(1, Faults::default());
    let now_ns = world.now_ns;
    world.initiator.compare_swap(now_ns, 1, 8, 0, 5).unwrap();
    world.initiator.compare_swap(now_ns, 2, 8, 0, 6).unwrap();
    world.initiator.compare_swap(now_ns, 3, 8, 5, 7).unwrap();
    world.initiator.fetch_add(now_ns, 4, 8, u64::MAX).unwrap();
    world.initiator.read(now_ns, 5, 8, 8).unwrap();
    world.run_until(|world| world.done.len() == 5);
    for (token, value) in [(1, 0u64), (2, 5), (3, 5), (4, 7), (5, 6)] {
        assert_eq!(world.done[&token], Ok(value.to_le_bytes().to_vec()), "access {token}");
    }
}

#[test]
fn unaligned_atomic_is_rejected() {
    let mut world = settled(1, Faults::default());
    let (now_ns, peer) = (world.now_ns, world.peers[0]);
    let unaligned = FabricError::Unaligned { window_addr: 4 };
    assert_eq!(world.initiator.fetch_add(now_ns, 1, 4, 1), Err(unaligned));
    // The address at the donor decides.
    world.initiator.map_window(1 << 40, 64, peer, 4, GRANT, KEY).unwrap();
    assert_eq!(world.initiator.fetch_add(now_ns, 1, (1 << 40) + 4, 1), Ok(()));
    assert!(world.initiator.fetch_add(now_ns, 2, 1 << 40, 1).is_err());
    let past_the_end = world.initiator.fetch_add(now_ns, 2, LENT_BYTES - 4, 1);
    assert!(matches!(past_the_end, Err(FabricError::NotMapped { .. })));
}

/// A caller that does not check is refused by the donor.
#[test]
fn donor_refuses_invalid_atomics() {
    let mut world = World::new(7, 1, 64, Faults::default());
    let (mut buf, now_ns) = ([0; MAX_FRAME_BYTES], world.now_ns);
    let (_, len) = world.initiator.poll_transmit(now_ns, &mut buf).expect("a Hello");
    let donor = &mut world.donors[0];
    donor.target.handle_frame(now_ns, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
    let (_, len) = donor.target.poll_transmit(now_ns, &mut buf).expect("a Welcome");
    let link = venice_wire::Frame::parse(&buf[..len]).unwrap().transaction();
    let bad = [
        (Opcode::FetchAdd, 4, 8, 8),
        (Opcode::FetchAdd, 8, 16, 8),
        (Opcode::FetchAdd, 8, 8, 4),
        (Opcode::CompareSwap, 8, 8, 8),
        (Opcode::CompareSwap, 8, 0, 8),
    ];
    for (n, (opcode, address, payload_len, access_len)) in bad.into_iter().enumerate() {
        let header = HeaderRepr {
            link: venice_wire::LinkId(link),
            sequence: Sequence(n as u32),
            transaction: n as u32,
            access_len,
            address,
            grant: GRANT,
            key: KEY,
            ..HeaderRepr::new(Channel::Crma, opcode, RECIPIENT, donor_node(0))
        };
        let len = header.emit(&vec![1; payload_len], &mut buf).unwrap();
        donor.target.handle_frame(now_ns, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
        let (_, len) = donor.target.poll_transmit(now_ns, &mut buf).expect("an answer");
        let answer = venice_wire::Frame::parse(&buf[..len]).unwrap();
        assert_eq!(
            (answer.opcode(), answer.detail()),
            (Opcode::Refused, Refusal::Malformed.code())
        );
    }
    assert!(donor.memory.written.is_empty());
}

/// Posted writes are bound by the link, not by completion slots, and a fence waits for all donors.
#[test]
fn fence_waits_for_every_donor() {
    let mut world = settled(2, Faults { lost: 100, ..Faults::default() });
    let mut posted = 0;
    while posted < 1000 {
        let at = (posted % 2) * LENT_BYTES + posted / 2 * 8;
        if world.initiator.post(world.now_ns, at, &(posted + 1).to_le_bytes()).is_ok() {
            posted += 1;
        } else {
            world.step();
        }
    }
    world.initiator.fence(world.now_ns, 1).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.done[&1], Ok(vec![]));
    for (n, donor) in world.donors.iter().enumerate() {
        for (at, word) in donor.memory.bytes[..4000].chunks(8).enumerate() {
            assert_eq!(u64::from_le_bytes(word.try_into().unwrap()), at as u64 * 2 + n as u64 + 1);
        }
    }
}

#[test]
fn empty_fence_completes_at_once() {
    let mut world = settled(1, Faults::default());
    world.initiator.fence(world.now_ns, 1).unwrap();
    world.collect();
    assert_eq!(world.done[&1], Ok(vec![]));
}

#[test]
fn refused_post_fails_its_fence() {
    let mut world = settled(1, Faults::default());
    world.initiator.map_window(1 << 40, 8, world.peers[0], LENT_BYTES, GRANT, KEY).unwrap();
    let now_ns = world.now_ns;
    world.initiator.post(now_ns, 0, &[1]).unwrap();
    world.initiator.fence(now_ns, 1).unwrap();
    world.initiator.post(now_ns, 1 << 40, &[2]).unwrap();
    world.initiator.post(now_ns, 8, &[3]).unwrap();
    world.initiator.fence(now_ns, 2).unwrap();
    world.initiator.fence(now_ns, 3).unwrap();
    world.run_until(|world| world.done.len() == 3);
    let refused = Err(AccessError::Refused(Refusal::OutOfRange));
    assert_eq!(
        (&world.done[&1], &world.done[&2], &world.done[&3]),
        (&Ok(vec![]), &refused, &Ok(vec![]))
    );
    assert_eq!(world.donors[0].memory.bytes[8], 3, "what came after it was carried out");
}

/// The donor dies after the writes were posted; the fence is given long after.
#[test]
fn fence_reports_dead_donor() {
    let mut world = World::with_link(3, 2, LinkConfig::default(), Faults::default());
    world.run_for(SECOND);
    world.donors[0].is_alive = false;
    world.initiator.post(world.now_ns, 0, &[1]).unwrap();
    world.initiator.post(world.now_ns, LENT_BYTES, &[1]).unwrap();
    world.run_for(10 * SECOND);
    world.initiator.fence(world.now_ns, 1).unwrap();
    world.collect();
    let dead = DownReason::Silent;
    assert_eq!(world.done[&1], Err(AccessError::PeerDown(dead)));
    let refused = world.initiator.post(world.now_ns, 0, &[1]);
    assert_eq!(refused, Err(FabricError::PeerDown(dead)), "reported at once, not by a fence");
    world.initiator.fence(world.now_ns, 2).unwrap();
    world.collect();
    assert_eq!(world.done[&2], Ok(vec![]));
}
