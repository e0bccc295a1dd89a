//! The modes of a port and their effect on a link: checksums, replay, credits; and a port that
//! breaks its promise.

use crate::world::{
    Faults, GRANT, KEY, MS, RECIPIENT, RECIPIENT_ADDR, SECOND, US, World, donor_node,
};
use venice_fabric::{
    AccessError, DownReason, LinkConfig, PeerAddr, PeerState, Target, TargetConfig,
};
use venice_wire::{
    Channel, Frame, HeaderRepr, Integrity, MAX_FRAME_BYTES, Opcode, Sequence, UNCHECKED_FLAG,
};

fn settled(link: LinkConfig) -> World {
    let mut world = World::with_link(1, 1, link, Faults::default());
    world.run_for(100 * MS);
    assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Up);
    world
}

/// On a reliable port no end waits for an acknowledgement: a read stays two frames.
#[test]
fn reliable_port_sends_no_bare_acks() {
    let mut world = settled(LinkConfig::reliable());
    let (sent, start_ns) = (world.network.sent, world.now_ns);
    for n in 0..3 {
        world.initiator.read(world.now_ns, n, n * 4096, 4096).unwrap();
        world.run_until(|world| world.done.contains_key(&n));
    }
    assert_eq!(world.now_ns - start_ns, 3 * 20 * US);
    world.run_for(100 * MS);
    assert_eq!(world.network.sent - sent, 6);
    assert_eq!(world.initiator.poll_timeout().map(|at_ns| at_ns > world.now_ns), Some(true));
}

/// The smaller window of the two counts, and credit returns without a timer.
#[test]
fn credits_return_on_reliable_port() {
    for (here, there) in [(4, 64), (64, 4), (4, 4), (1024, 64)] {
        let mut world = settled(LinkConfig { window: here, ..LinkConfig::reliable() });
        let link = LinkConfig { window: there, ..LinkConfig::reliable() };
        let config = TargetConfig { link, ..TargetConfig::new(donor_node(0), 5) };
        world.donors[0].target = Target::new(config);
        world.initiator.close_peer(world.peers[0]);
        world.run_for(MS);
        world.restart_initiator();
        for n in 0..400u64 {
            let write = |world: &mut World| {
                let at = n % 64 * 8;
                world.initiator.write(world.now_ns, n, at, &n.to_le_bytes()).is_ok()
            };
            while !write(&mut world) {
                assert!(world.step());
            }
        }
        world.run_until(|world| world.done.len() == 400);
        assert!(world.done.values().all(Result::is_ok), "windows {here} and {there}");
        assert_eq!(world.donors[0].memory.written.len(), 400);
    }
}

#[test]
fn unchecked_frames_are_dropped() {
    let mut world = World::with_link(1, 1, LinkConfig::default(), Faults::default());
    let hello = HeaderRepr {
        flags: UNCHECKED_FLAG,
        access_len: 64,
        ..HeaderRepr::new(Channel::Link, Opcode::Hello, RECIPIENT, donor_node(0))
    };
    let mut buf = [0; MAX_FRAME_BYTES];
    let len = hello.emit(&[], &mut buf).unwrap();
    let donor = &mut world.donors[0];
    donor.target.handle_frame(0, PeerAddr(5), &buf[..len], &mut donor.memory);
    world.initiator.handle_frame(0, world.peers[0], &buf[..len]);
    assert_eq!((donor.target.dropped().unchecked, donor.target.links()), (1, 0));
    assert_eq!(world.initiator.dropped().unchecked, 1);
}

/// A checksum that is present is verified even where none is required.
#[test]
fn optional_checksum_is_verified() {
    let mut world = World::with_link(
        1,
        1,
        LinkConfig { checksum: false, ..LinkConfig::default() },
        Faults { ..Faults::default() },
    );
    let hello = HeaderRepr {
        access_len: 64,
        ..HeaderRepr::new(Channel::Link, Opcode::Hello, RECIPIENT, donor_node(0))
    };
    let mut buf = [0; MAX_FRAME_BYTES];
    let len = hello.emit(&[], &mut buf).unwrap();
    let donor = &mut world.donors[0];
    buf[40] ^= 1;
    donor.target.handle_frame(0, PeerAddr(5), &buf[..len], &mut donor.memory);
    assert_eq!((donor.target.dropped().bad_checksum, donor.target.links()), (1, 0));
    buf[40] ^= 1;
    donor.target.handle_frame(0, PeerAddr(5), &buf[..len], &mut donor.memory);
    assert_eq!(donor.target.links(), 1);
    let (_, len) = donor.target.poll_transmit(0, &mut buf).unwrap();
    assert!(Frame::parse(&buf[..len]).is_err(), "its own frames carry none");
    assert!(Frame::parse_with(&buf[..len], Integrity::Port).is_ok());
}

#[test]
fn replay_mismatch_is_reported() {
    for (here, there) in [(true, false), (false, true)] {
        let link = LinkConfig { replay: here, ..LinkConfig::default() };
        let mut world = World::with_link(1, 1, link, Faults::default());
        let link = LinkConfig { replay: there, ..LinkConfig::default() };
        let config = TargetConfig { link, ..TargetConfig::new(donor_node(0), 5) };
        world.donors[0].target = Target::new(config);
        world.initiator.read(world.now_ns, 1, 0, 8).unwrap();
        world.run_until(|world| world.done.contains_key(&1));
        assert_eq!(world.done[&1], Err(AccessError::PeerDown(DownReason::Incompatible)));
    }
}

/// A port that promised order and breaks it: the link goes down, and no result is invented.
#[test]
fn loss_on_reliable_port_downs_link() {
    let mut world = settled(LinkConfig::reliable());
    world.network.faults.lost = 1000;
    world.initiator.write(world.now_ns, 1, 0, &[1; 8]).unwrap();
    world.transmit();
    world.network.faults.lost = 0;
    world.initiator.write(world.now_ns, 2, 8, &[2; 8]).unwrap();
    world.run_until(|world| world.done.len() == 2);
    assert!(
        world
            .done
            .values()
            .all(|outcome| { *outcome == Err(AccessError::PeerDown(DownReason::LinkLost)) })
    );
    assert!(world.donors[0].memory.written.is_empty());
}

/// Accesses queued before the donor's small window is known: no more reads are in flight than it
/// can answer, on any port.
#[test]
fn early_requests_respect_donor_window() {
    for link in [LinkConfig::reliable(), LinkConfig::default()] {
        let mut world = World::with_link(1, 1, link.clone(), Faults::default());
        let link = LinkConfig { window: 4, ..link };
        let config = TargetConfig { link, ..TargetConfig::new(donor_node(0), 5) };
        world.donors[0].target = Target::new(config);
        let mut taken = 0;
        while world.initiator.read(world.now_ns, taken, taken * 8, 8).is_ok() {
            taken += 1;
        }
        assert!(taken > 0);
        world.run_until(|world| world.done.len() as u64 == taken);
        assert!(world.done.values().all(Result::is_ok));
        let (_, _, there) = world.donors[0].target.link_stats().next().unwrap();
        let here = world.initiator.peer_stats(world.peers[0]);
        assert_eq!((there.overruns, here.overruns, here.replayed), (0, 0, 0));
    }
}

/// A caller that exceeds its credit: the excess is dropped and counted.
#[test]
fn overrun_is_dropped_and_counted() {
    let mut world = World::new(7, 1, 4, Faults::default());
    let mut buf = [0; MAX_FRAME_BYTES];
    let (_, len) = world.initiator.poll_transmit(world.now_ns, &mut buf).expect("a Hello");
    let donor = &mut world.donors[0];
    donor.target.handle_frame(0, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
    let (_, len) = donor.target.poll_transmit(0, &mut buf).expect("a Welcome");
    let link = Frame::parse(&buf[..len]).unwrap().transaction();
    // Far beyond the window; then reads whose answers are not acknowledged.
    for sequence in [100, 0, 1, 2, 3, 4, 5] {
        let read = HeaderRepr {
            link: venice_wire::LinkId(link),
            sequence: Sequence(sequence),
            transaction: sequence,
            access_len: 8,
            grant: GRANT,
            key: KEY,
            ..HeaderRepr::new(Channel::Crma, Opcode::Read, RECIPIENT, donor_node(0))
        };
        let len = read.emit(&[], &mut buf).unwrap();
        donor.target.handle_frame(0, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
    }
    let (_, _, stats) = donor.target.link_stats().next().unwrap();
    assert_eq!((stats.received, stats.overruns), (4, 3));
    assert_eq!(donor.memory.reads, 4);
}

/// Cut for most of the silence bound, with the maximum outstanding: nothing is lost or duplicated,
/// and the link stays up.
#[test]
fn short_outage_loses_nothing() {
    let mut world = settled(LinkConfig::default());
    let mut token = 0;
    for outage in 0..5 {
        while world.initiator.write(world.now_ns, token, token * 8, &token.to_le_bytes()).is_ok() {
            token += 1;
        }
        world.step();
        world.network.faults.lost = 1000;
        world.run_for(1700 * MS);
        world.network.faults.lost = 0;
        world.run_until(|world| world.done.len() as u64 == token);
        assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Up, "outage {outage}");
    }
    assert!(world.done.values().all(Result::is_ok));
    let written: Vec<u64> = world.donors[0].memory.written.iter().map(|(at, _)| at / 8).collect();
    assert!(written.into_iter().eq(0..token), "once and in order");
    let stats = world.initiator.peer_stats(world.peers[0]);
    assert!(stats.pings_lost > 0 && stats.replay_timeouts > 0 && stats.loss_ratio() > 0.0);
}

/// A donor that was down can be added again and works.
#[test]
fn downed_donor_can_be_readded() {
    let mut world = settled(LinkConfig::default());
    world.network.faults.lost = 1000;
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.done[&1], Err(AccessError::PeerDown(DownReason::Silent)));
    world.network.faults.lost = 0;
    world.run_for(SECOND);
    let peer = world.initiator.add_peer(donor_node(0), world.now_ns);
    world.peers[0] = peer;
    world.initiator.unmap_window(0).unwrap();
    world.initiator.map_window(0, 4096, peer, 0, GRANT, KEY).unwrap();
    world.initiator.write(world.now_ns, 2, 0, &[2]).unwrap();
    world.run_until(|world| world.done.contains_key(&2));
    assert_eq!((&world.done[&2], world.donors[0].memory.bytes[0]), (&Ok(vec![]), 2));
}

#[test]
fn keepalive_feeds_topology_table() {
    let mut world = settled(LinkConfig::default());
    world.run_for(5 * SECOND);
    let stats = world.initiator.peer_stats(world.peers[0]);
    assert_eq!((stats.keepalive_ns, stats.keepalive_min_ns), (Some(20 * US), Some(20 * US)));
    assert!(stats.pings > 10 && stats.pings_lost == 0 && stats.loss_ratio() == 0.0);
    let there = world.donors[0].target.link_stats().count();
    assert_eq!(there, 1);
}
