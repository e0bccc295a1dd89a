//! The mapping tables of both ends: limits, mappings removed from either side, and agreement of
//! both tables when the network is quiet.

use std::collections::BTreeSet;

use crate::world::{Faults, GRANT, KEY, LENT_BYTES, MS, RECIPIENT, SECOND, US, World, donor_node};
use proptest::prelude::*;
use venice_fabric::{
    AccessError, DownReason, FabricError, InitiatorConfig, PeerState, Refusal, Revocation, Target,
    TargetConfig,
};
use venice_wire::GrantId;

fn settled(faults: Faults) -> World {
    let mut world = World::new(1, 1, 16, Faults::default());
    world.run_for(100 * MS);
    world.network.faults = faults;
    world
}

/// The donor's entries, and the entries the recipient believes open.
fn tables(world: &World) -> (BTreeSet<GrantId>, BTreeSet<GrantId>) {
    let donors = world.donors[0].target.mappings().map(|mapping| mapping.grant).collect();
    let opened = world.initiator.mappings().filter(|window| window.is_open);
    (donors, opened.map(|window| window.grant).collect())
}

fn quiet(world: &mut World) {
    world.network.faults = Faults::default();
    world.run_for(10 * SECOND);
}

#[test]
fn full_recipient_table_rejects_mapping() {
    let mut world = settled(Faults::default());
    let config = InitiatorConfig { max_windows: 3, ..InitiatorConfig::new(RECIPIENT, 4) };
    world.initiator = venice_fabric::Initiator::new(config);
    let peer = world.initiator.add_peer(donor_node(0), world.now_ns);
    for n in 0..3 {
        world.initiator.map_window(n * 8, 8, peer, 0, GRANT, KEY).unwrap();
    }
    let refused = world.initiator.map_window(24, 8, peer, 0, GRANT, KEY);
    assert_eq!(refused, Err(FabricError::TableFull { limit: 3 }));
    world.initiator.unmap_window(8).unwrap();
    world.initiator.map_window(24, 8, peer, 0, GRANT, KEY).unwrap();
    assert_eq!(world.initiator.ramt_stats().windows, 3);
}

#[test]
fn full_donor_table_refuses_access() {
    let mut world = settled(Faults::default());
    let config = TargetConfig { max_grants_per_link: 2, ..TargetConfig::new(donor_node(0), 4) };
    world.donors[0].target = Target::new(config);
    world.restart_initiator();
    let peer = world.peers[0];
    for n in 1..4 {
        world.donors[0].memory.grants.push(GrantId(100 + n));
        world.initiator.map_window(n << 40, 8, peer, 0, GrantId(100 + n), KEY).unwrap();
        world.initiator.write(world.now_ns, n, n << 40, &[1]).unwrap();
    }
    world.run_until(|world| world.done.len() == 3);
    let full = Err(AccessError::Refused(Refusal::TableFull));
    assert_eq!((&world.done[&2], &world.done[&3]), (&Ok(vec![]), &full));
    // One grant less there, and there is room.
    world.initiator.unmap_window(1 << 40).unwrap();
    world.initiator.write(world.now_ns, 4, 3 << 40, &[1]).unwrap();
    world.run_until(|world| world.done.contains_key(&4));
    assert_eq!(world.done[&4], Ok(vec![]));
    assert_eq!(tables(&world).0, BTreeSet::from([GrantId(102), GrantId(103)]));
}

#[test]
fn donor_entry_lasts_from_access_to_unmap() {
    let mut world = settled(Faults::default());
    let peer = world.peers[0];
    world.initiator.map_window(1 << 40, 8, peer, 0, GRANT, KEY).unwrap();
    assert_eq!(tables(&world), (BTreeSet::new(), BTreeSet::new()));
    world.initiator.read(world.now_ns, 1, 0, 8).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    let entered = BTreeSet::from([GRANT]);
    assert_eq!(tables(&world), (entered.clone(), entered.clone()));
    world.initiator.unmap_window(0).unwrap();
    world.run_for(MS);
    assert_eq!(tables(&world), (entered.clone(), entered), "one window is left");
    world.initiator.unmap_window(1 << 40).unwrap();
    world.run_for(MS);
    assert_eq!(tables(&world), (BTreeSet::new(), BTreeSet::new()));
}

/// Outstanding accesses are carried out, then the mappings go, then the donor is notified.
#[test]
fn revoked_grant_drains_and_unmaps() {
    let mut world = settled(Faults::default());
    world.initiator.write(world.now_ns, 0, 0, &[1]).unwrap();
    world.run_until(|world| world.done.len() == 1);
    assert_eq!(world.donors[0].target.revoke(world.now_ns, GrantId(77)), 0, "it is not in use");
    assert_eq!(world.donors[0].target.revoke(world.now_ns, GRANT), 1);
    for token in 1..8 {
        world.initiator.write(world.now_ns, token, 8 * token, &[token as u8]).unwrap();
    }
    let bulk = vec![3; LENT_BYTES as usize];
    world.initiator.rdma_write(world.now_ns, 9, 0, bulk).unwrap();
    let mapping = world.donors[0].target.mappings().next().unwrap();
    assert!(mapping.is_revoking && mapping.grant == GRANT && mapping.node == RECIPIENT);
    let is_refused = |world: &mut World| {
        let refused = world.initiator.read(world.now_ns, 99, 0, 1);
        refused == Err(FabricError::Revoked { window_addr: 0 })
    };
    while !is_refused(&mut world) {
        assert!(world.done.len() < 9 && world.step());
    }
    world.run_until(|world| world.donors[0].target.mappings().count() == 0);
    assert!(world.done.len() >= 8 && world.done.values().all(Result::is_ok), "they were taken");
    assert_eq!(world.bulk_done[&9], Err(AccessError::Revoked));
    let told = Revocation { peer: world.peers[0], grant: GRANT, windows: 1 };
    assert_eq!(world.initiator.poll_revoked(), Some(told));
    assert_eq!((world.initiator.poll_revoked(), world.initiator.mappings().count()), (None, 0));
    let gone = world.initiator.read(world.now_ns, 100, 0, 1);
    assert!(matches!(gone, Err(FabricError::NotMapped { .. })));
    // Mapped again by mistake: the donor still refuses.
    world.initiator.map_window(0, 8, world.peers[0], 0, GRANT, KEY).unwrap();
    world.initiator.read(world.now_ns, 101, 0, 1).unwrap();
    world.run_until(|world| world.done.contains_key(&101));
    assert_eq!(world.done[&101], Err(AccessError::Refused(Refusal::UnknownGrant)));
}

/// The link was forgotten while idle and opened anew: the tables still agree, after the next access
/// at the latest.
#[test]
fn tables_agree_after_link_reopens() {
    let mut world = settled(Faults::default());
    world.initiator.write(world.now_ns, 1, 0, b"before").unwrap();
    world.run_for(SECOND);
    world.now_ns += 120 * SECOND;
    world.donors[0].target.handle_timeout(world.now_ns);
    world.run_for(SECOND);
    assert_eq!(tables(&world), (BTreeSet::new(), BTreeSet::new()));
    world.initiator.read(world.now_ns, 2, 0, 6).unwrap();
    world.run_until(|world| world.done.contains_key(&2));
    assert_eq!(tables(&world), (BTreeSet::from([GRANT]), BTreeSet::from([GRANT])));
}

#[test]
fn donor_death_during_revocation_unmaps() {
    let mut world = settled(Faults::default());
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    world.run_until(|world| world.done.len() == 1);
    world.initiator.read(world.now_ns, 2, 0, 1).unwrap();
    world.donors[0].target.revoke(world.now_ns, GRANT);
    world.step();
    world.initiator.close_peer(world.peers[0]);
    world.collect();
    world.run_for(SECOND);
    let state = world.initiator.peer_state(world.peers[0]);
    assert_eq!(state, PeerState::Down { reason: DownReason::Closed });
    assert!(world.initiator.mappings().all(|window| !window.is_open));
}

#[derive(Clone, Debug)]
enum Op {
    Map { place: u64, grant: u64 },
    Unmap { place: u64 },
    Access { place: u64 },
    Post { place: u64 },
    Bulk { place: u64 },
    Revoke { grant: u64 },
    Pause { us: u64 },
}

fn any_op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0..6u64, 0..4u64).prop_map(|(place, grant)| Op::Map { place, grant }),
        2 => (0..6u64).prop_map(|place| Op::Unmap { place }),
        6 => (0..6u64).prop_map(|place| Op::Access { place }),
        2 => (0..6u64).prop_map(|place| Op::Post { place }),
        2 => (0..6u64).prop_map(|place| Op::Bulk { place }),
        1 => (0..4u64).prop_map(|grant| Op::Revoke { grant }),
        3 => (0..400u64).prop_map(|us| Op::Pause { us }),
    ]
}

prop_compose! {
    fn any_faults()(
        lost in prop_oneof![Just(0), Just(300)],
        repeated in prop_oneof![Just(0), Just(200)],
        delayed in prop_oneof![Just(0), Just(300)],
        stale in prop_oneof![Just(0), Just(100)],
    ) -> Faults {
        Faults { lost, repeated, delayed, damaged: 0, stale }
    }
}

const PLACE_BYTES: u64 = 20_000;

fn apply(world: &mut World, op: &Op, token: u64, taken: &mut u64, revoked: &mut BTreeSet<u64>) {
    let (peer, now_ns) = (world.peers[0], world.now_ns);
    let addr = |place: u64| (1 << 40) + place * PLACE_BYTES;
    let initiator = &mut world.initiator;
    match *op {
        Op::Map { place, grant } => {
            // An existing mapping, or a grant being revoked: both are reported.
            let _ = initiator.map_window(addr(place), PLACE_BYTES, peer, 0, GrantId(grant), KEY);
        }
        Op::Unmap { place } => drop(initiator.unmap_window(addr(place))),
        Op::Access { place } => {
            *taken += u64::from(initiator.read(now_ns, token, addr(place), 8).is_ok());
        }
        Op::Post { place } => drop(initiator.post(now_ns, addr(place), &[1; 100])),
        Op::Bulk { place } => {
            let buffer = vec![1; PLACE_BYTES as usize];
            drop(initiator.rdma_write(now_ns, token, addr(place), buffer));
        }
        Op::Revoke { grant } => {
            world.donors[0].target.revoke(now_ns, GrantId(grant));
            revoked.insert(grant);
        }
        Op::Pause { us } => world.run_for(us * US),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn tables_agree_when_quiet(
        seed in any::<u64>(),
        faults in any_faults(),
        ops in prop::collection::vec(any_op(), 1..80),
    ) {
        let mut world = World::new(seed, 1, 8, faults);
        world.donors[0].memory.grants = (0..4).map(GrantId).collect();
        let (mut taken, mut revoked) = (0, BTreeSet::new());
        for (token, op) in ops.iter().enumerate() {
            apply(&mut world, op, token as u64, &mut taken, &mut revoked);
        }
        quiet(&mut world);
        prop_assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Up);
        prop_assert_eq!(world.done.len() as u64, taken, "every access has completed");
        prop_assert!(!world.initiator.has_rdma_outstanding());
        let (at_donor, at_recipient) = tables(&world);
        prop_assert_eq!(&at_donor, &at_recipient);
        prop_assert!(at_donor.iter().all(|grant| !revoked.contains(&grant.0)));
        // Only keep-alives are sent.
        let sent = world.network.sent;
        world.run_for(SECOND);
        prop_assert!(world.network.sent - sent <= 10);
    }
}
