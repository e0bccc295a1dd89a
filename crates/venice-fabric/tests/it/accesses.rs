//! Cost, refusals and limits of accesses.

use crate::world::{Faults, GRANT, KEY, LENT_BYTES, MS, US, World};
use venice_fabric::{AccessError, DownReason, FabricError, PeerState, Refusal};
use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES};

/// A world with the links up and no acknowledgement owed.
fn settled_world(donors: usize, window: u16) -> World {
    let mut world = World::new(1, donors, window, Faults::default());
    world.run_for(100 * MS);
    world
}

#[test]
fn page_read_takes_two_datagrams() {
    let mut world = settled_world(1, 64);
    let (sent, start_ns) = (world.network.sent, world.now_ns);
    for n in 0..10 {
        world.initiator.read(world.now_ns, n, n * 4096, 4096).unwrap();
        world.run_until(|world| world.done.contains_key(&n));
    }
    assert_eq!(world.network.sent - sent, 20);
    assert_eq!(world.now_ns - start_ns, 10 * 20 * US, "ten round trips");
    // The acknowledgement of the last answer is sent on its own.
    world.run_for(10 * MS);
    assert_eq!(world.network.sent - sent, 21);
}

#[test]
fn write_burst_gets_one_answer() {
    let mut world = settled_world(1, 64);
    let sent = world.network.sent;
    for n in 0..16 {
        world.initiator.write(world.now_ns, n, n * 4096, &[7; 4096]).unwrap();
    }
    world.run_until(|world| world.done.len() == 16);
    assert_eq!(world.network.sent - sent, 17);
    assert!(world.done.values().all(Result::is_ok));
    assert!(world.donors[0].memory.bytes.iter().all(|&byte| byte == 7));
}

#[test]
fn refusal_names_reason_keeps_link() {
    let mut world = settled_world(1, 64);
    let (peer, base) = (world.peers[0], 1 << 40);
    let wrong_key = GrantKey(KEY.0 ^ 1);
    for (n, remote_addr, grant, key) in [
        (0, 0, GrantId(99), KEY),
        (1, 0, GRANT, wrong_key),
        (2, LENT_BYTES - 4, GRANT, KEY),
        (3, u64::MAX - 4096, GRANT, KEY),
    ] {
        let window = base + n * 4096;
        world.initiator.map_window(window, 4096, peer, remote_addr, grant, key).unwrap();
    }
    let expected =
        [Refusal::UnknownGrant, Refusal::WrongKey, Refusal::OutOfRange, Refusal::OutOfRange];
    for (n, _) in expected.iter().enumerate() {
        let (n, window) = (n as u64, base + n as u64 * 4096);
        world.initiator.read(world.now_ns, n, window, 8).unwrap();
        // A good write before and after each bad one: neither may be affected.
        world.initiator.write(world.now_ns, 10 + n, n * 8, &[1; 8]).unwrap();
        world.initiator.write(world.now_ns, 20 + n, window, &[2; 8]).unwrap();
        world.initiator.write(world.now_ns, 30 + n, 64 + n * 8, &[3; 8]).unwrap();
    }
    world.run_until(|world| world.done.len() == 16);
    for (n, refusal) in expected.into_iter().enumerate() {
        let n = n as u64;
        let refused = Err(AccessError::Refused(refusal));
        assert_eq!((&world.done[&n], &world.done[&(20 + n)]), (&refused, &refused));
        assert_eq!((&world.done[&(10 + n)], &world.done[&(30 + n)]), (&Ok(vec![]), &Ok(vec![])));
    }
    assert_eq!(world.donors[0].memory.written.len(), 8);
    assert_eq!(world.donors[0].memory.reads, 0);
    assert_eq!(world.initiator.peer_state(peer), PeerState::Up);
}

/// A refusal also answers the good writes before it, which then must not be answered again.
#[test]
fn refusal_ends_write_burst() {
    let mut world = settled_world(1, 64);
    let past_the_end = LENT_BYTES;
    world.initiator.map_window(1 << 40, 8, world.peers[0], past_the_end, GRANT, KEY).unwrap();
    world.initiator.write(world.now_ns, 1, 0, &[1; 8]).unwrap();
    world.initiator.write(world.now_ns, 2, 1 << 40, &[2; 8]).unwrap();
    world.run_until(|world| world.done.len() == 2);
    assert_eq!(world.done[&1], Ok(vec![]));
    assert_eq!(world.done[&2], Err(AccessError::Refused(Refusal::OutOfRange)));
    world.run_for(MS);
    assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Up);
}

#[test]
fn invalid_accesses_are_rejected() {
    let mut world = settled_world(2, 64);
    let end = 2 * LENT_BYTES;
    let initiator = &mut world.initiator;
    for len in [0, 4097, u32::MAX] {
        let refused = initiator.read(0, 0, 0, len).unwrap_err();
        assert!(matches!(refused, FabricError::BadLength { .. }));
    }
    assert!(matches!(initiator.write(0, 0, 0, &[]), Err(FabricError::BadLength { .. })));
    for (at, len) in [(end, 1), (end - 1, 2), (LENT_BYTES - 1, 2), (u64::MAX, 1)] {
        let len_bytes = u64::from(len);
        assert_eq!(
            initiator.read(0, 0, at, len),
            Err(FabricError::NotMapped { window_addr: at, len_bytes })
        );
    }
    let overlap = initiator.map_window(LENT_BYTES - 1, 2, world.peers[0], 0, GRANT, KEY);
    assert_eq!(overlap, Err(FabricError::Overlap { window_addr: 0 }));
    let empty = initiator.rdma_read(0, 0, 0, Vec::new()).unwrap_err();
    assert!(matches!(empty.error, FabricError::BadLength { .. }));
    assert!(!world.initiator.has_rdma_outstanding());
}

#[test]
fn full_queues_apply_back_pressure() {
    let mut world = settled_world(1, 8);
    for token in 0..20 {
        let taken = world.initiator.write(world.now_ns, token, token, &[token as u8]);
        assert_eq!(taken, if token < 8 { Ok(()) } else { Err(FabricError::WouldBlock) });
    }
    world.run_until(|world| world.done.len() == 8);
    assert_eq!(world.donors[0].memory.bytes[..8], [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(world.initiator.write(world.now_ns, 99, 0, &[9]).is_ok());
}

#[test]
fn unpolled_completions_block_accesses() {
    let mut world = settled_world(1, 64);
    let mut taken = 0;
    for _ in 0..2000 {
        match world.initiator.read(world.now_ns, taken, 0, 1) {
            Ok(()) => taken += 1,
            Err(error) => assert_eq!(error, FabricError::WouldBlock),
        }
        // Moves frames, but polls no completion.
        world.transmit();
        world.now_ns += 10 * US;
        world.deliver();
    }
    assert_eq!(taken, 256);
    world.run_until(|world| world.done.len() == 256);
    assert_eq!(world.initiator.read(world.now_ns, 999, 0, 1), Ok(()));
}

#[test]
fn bulk_transfer_spans_donors() {
    let mut world = settled_world(2, 16);
    let bytes: Vec<u8> = (0..2 * LENT_BYTES).map(|n| (n / 7) as u8).collect();
    world.initiator.rdma_write(world.now_ns, 1, 0, bytes.clone()).unwrap();
    world.run_until(|world| world.bulk_done.contains_key(&1));
    let back = vec![0; bytes.len() - 5];
    world.initiator.rdma_read(world.now_ns, 2, 5, back).unwrap();
    world.run_until(|world| world.bulk_done.contains_key(&2));
    assert!(world.bulk_done[&2].as_ref() == Ok(&bytes[5..].to_vec()));

    let past_the_end = vec![0; LENT_BYTES as usize + 1];
    world.initiator.rdma_write(world.now_ns, 3, LENT_BYTES, past_the_end).unwrap();
    world.run_until(|world| world.bulk_done.contains_key(&3));
    assert_eq!(world.bulk_done[&3], Err(AccessError::NotMapped));
}

#[test]
fn single_read_overtakes_bulk() {
    let mut world = settled_world(1, 16);
    for token in 0..4 {
        let buffer = vec![1; LENT_BYTES as usize];
        world.initiator.rdma_write(world.now_ns, token, 0, buffer).unwrap();
    }
    world.initiator.read(world.now_ns, 9, 0, 8).unwrap();
    world.run_until(|world| world.done.contains_key(&9));
    assert!(world.bulk_done.is_empty(), "64 chunks take longer than one read");
    world.run_until(|world| world.bulk_done.len() == 4);
}

#[test]
fn donors_share_wire_in_turns() {
    let mut world = settled_world(2, 16);
    for n in 0..16 {
        let window_addr = (n / 8) * LENT_BYTES;
        world.initiator.write(world.now_ns, n, window_addr, &[1]).unwrap();
    }
    let mut buf = [0; MAX_FRAME_BYTES];
    let order: Vec<_> = (0..16)
        .map(|_| world.initiator.poll_transmit(world.now_ns, &mut buf).expect("16 queued").0)
        .collect();
    assert!(order.windows(2).all(|pair| pair[0] != pair[1]), "{order:?}");
}

#[test]
fn closed_peer_fails_outstanding_accesses() {
    let mut world = settled_world(1, 8);
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    world.initiator.rdma_read(world.now_ns, 2, 0, vec![0; LENT_BYTES as usize]).unwrap();
    world.initiator.close_peer(world.peers[0]);
    world.collect();
    let closed = Err(AccessError::PeerDown(DownReason::Closed));
    assert_eq!((&world.done[&1], &world.bulk_done[&2]), (&closed, &closed));
    assert_eq!(world.donors[0].target.links(), 1);
    world.run_for(MS);
    assert_eq!(world.donors[0].target.links(), 0);
}

#[test]
fn unmapped_range_rejects_accesses() {
    let mut world = settled_world(1, 8);
    world.initiator.write(world.now_ns, 1, 0, &[5]).unwrap();
    world.initiator.unmap_window(0).unwrap();
    let refused = world.initiator.read(world.now_ns, 2, 0, 1);
    assert_eq!(refused, Err(FabricError::NotMapped { window_addr: 0, len_bytes: 1 }));
    assert!(world.initiator.unmap_window(0).is_err());
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.done[&1], Ok(vec![]), "it was accepted before");
}
