//! Links that fail, stop answering, are forgotten, or are requested by many callers.

use crate::world::{
    Faults, GRANT, KEY, LENT_BYTES, MS, RECIPIENT_ADDR, SECOND, US, World, donor_node,
};
use venice_fabric::{
    AccessError, DownReason, LinkConfig, PeerAddr, PeerIndex, PeerState, Target, TargetConfig,
};
use venice_wire::{
    Channel, Frame, HeaderRepr, LinkId, MAX_FRAME_BYTES, NO_LINK_FREE, NodeId, Opcode,
};

/// A world with the links of the product.
fn default_world(faults: Faults) -> World {
    World::with_link(3, 1, LinkConfig::default(), faults)
}

fn down(reason: DownReason) -> PeerState {
    PeerState::Down { reason }
}

#[test]
fn dead_donor_is_detected() {
    let mut world = default_world(Faults::default());
    world.run_for(SECOND);
    world.donors[0].is_alive = false;
    let died_ns = world.now_ns;
    world.initiator.read(world.now_ns, 1, 0, 4096).unwrap();
    world.initiator.write(world.now_ns, 2, 0, &[1]).unwrap();
    world.initiator.rdma_read(world.now_ns, 3, 0, vec![0; 60_000]).unwrap();
    world.run_until(|world| world.done.len() == 2 && world.bulk_done.len() == 1);
    let failed = Err(AccessError::PeerDown(DownReason::Silent));
    assert!(world.done.values().chain(world.bulk_done.values()).all(|outcome| *outcome == failed));
    assert_eq!(world.initiator.peer_state(world.peers[0]), down(DownReason::Silent));
    // Two seconds from the last frame, which was up to a keep-alive earlier.
    let took_ns = world.now_ns - died_ns;
    assert!((1700 * MS..2600 * MS).contains(&took_ns), "{took_ns} ns of virtual time");
}

#[test]
fn absent_donor_is_detected() {
    let mut world = default_world(Faults { lost: 1000, ..Faults::default() });
    world.initiator.read(world.now_ns, 1, 0, 4096).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.initiator.peer_state(world.peers[0]), down(DownReason::NoAnswer));
    assert_eq!(world.done[&1], Err(AccessError::PeerDown(DownReason::NoAnswer)));
}

#[test]
fn dead_idle_donor_is_detected() {
    let mut world = default_world(Faults::default());
    world.run_for(10 * SECOND);
    assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Up);
    world.donors[0].is_alive = false;
    world.run_for(3 * SECOND);
    assert_eq!(world.initiator.peer_state(world.peers[0]), down(DownReason::Silent));
}

#[test]
fn first_answer_reveals_restart() {
    let mut world = default_world(Faults::default());
    world.run_for(SECOND);
    world.restart_donor(0);
    let start_ns = world.now_ns;
    world.initiator.read(world.now_ns, 1, 0, 8).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.done[&1], Err(AccessError::PeerDown(DownReason::Restarted)));
    assert_eq!(world.now_ns - start_ns, 20 * US);
}

/// The program is stopped by a debugger or Ctrl-Z and continues later: the clock jumps, and no side
/// is at fault.
#[test]
fn stopped_recipient_keeps_link() {
    let mut world = default_world(Faults::default());
    world.run_for(SECOND);
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    world.transmit();
    world.now_ns += 20 * SECOND;
    // The donor's clock continued, and it was awake.
    world.donors[0].target.handle_timeout(world.now_ns);
    world.initiator.handle_timeout(world.now_ns);
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.done[&1], Ok(vec![]));
    assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Up);
}

#[test]
fn forgotten_idle_link_reopens() {
    let mut world = default_world(Faults::default());
    world.initiator.write(world.now_ns, 1, 0, b"before").unwrap();
    world.run_for(SECOND);
    world.now_ns += 120 * SECOND;
    world.donors[0].target.handle_timeout(world.now_ns);
    assert_eq!(world.donors[0].target.links(), 0);
    world.run_for(SECOND);
    world.initiator.read(world.now_ns, 2, 0, 6).unwrap();
    world.run_until(|world| world.done.contains_key(&2));
    assert_eq!(world.done[&2], Ok(b"before".to_vec()));
}

#[test]
fn forgotten_busy_link_is_down() {
    let mut world = default_world(Faults::default());
    world.run_for(SECOND);
    world.now_ns += 120 * SECOND;
    world.donors[0].target.handle_timeout(world.now_ns);
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.done[&1], Err(AccessError::PeerDown(DownReason::LinkLost)));
    assert!(world.donors[0].memory.written.is_empty());
}

#[test]
fn keepalive_measures_idle_link() {
    let mut world = default_world(Faults::default());
    world.run_for(5 * SECOND);
    let stats = world.initiator.peer_stats(world.peers[0]);
    assert_eq!(stats.round_trip_ns, Some(20 * US));
    assert_eq!((stats.sent, stats.replayed), (0, 0));
}

#[test]
fn losses_appear_in_stats() {
    let mut world = World::new(9, 1, 64, Faults { lost: 200, ..Faults::default() });
    for token in 0..200 {
        world.initiator.write(world.now_ns, token, 0, &[1]).unwrap();
        world.run_until(|world| world.done.contains_key(&token));
    }
    let stats = world.initiator.peer_stats(world.peers[0]);
    assert_eq!(stats.sent, 200);
    assert!((20..200).contains(&stats.replayed), "{stats:?}");
}

/// One lost frame of a long burst is replayed after the Nak, not after the time-out.
#[test]
fn nak_fills_gap_before_timeout() {
    let mut world = World::new(4, 1, 64, Faults::default());
    world.run_for(100 * MS);
    let start_ns = world.now_ns;
    world.network.faults.lost = 1000;
    world.initiator.write(world.now_ns, 0, 0, &[1]).unwrap();
    world.transmit();
    world.network.faults.lost = 0;
    for token in 1..40 {
        world.initiator.write(world.now_ns, token, token, &[1]).unwrap();
    }
    world.run_until(|world| world.done.len() == 40);
    assert_eq!(world.now_ns - start_ns, 40 * US, "there, Nak, replay, answer");
    assert_eq!(world.initiator.peer_stats(world.peers[0]).replayed, 1);
}

fn header(opcode: Opcode) -> HeaderRepr {
    HeaderRepr::new(Channel::Link, opcode, NodeId(900), donor_node(0))
}

fn hello(proposal: u32) -> Vec<u8> {
    let address = u64::from(proposal);
    let link = LinkId(proposal);
    emitted(HeaderRepr { link, address, access_len: 64, ..header(Opcode::Hello) })
}

fn emitted(header: HeaderRepr) -> Vec<u8> {
    let mut buf = vec![0; MAX_FRAME_BYTES];
    let len = header.emit(&[], &mut buf).unwrap();
    buf.truncate(len);
    buf
}

#[test]
fn many_callers_keep_served_links() {
    let mut world = World::with_link(5, 1, LinkConfig::default(), Faults::default());
    let config = TargetConfig { max_links: 16, ..TargetConfig::new(donor_node(0), 8) };
    world.donors[0].target = Target::new(config);
    world.run_for(SECOND);
    let mut buf = [0; MAX_FRAME_BYTES];
    for n in 0..1000 {
        let donor = &mut world.donors[0];
        let stranger = PeerAddr(1000 + u64::from(n));
        donor.target.handle_frame(world.now_ns, stranger, &hello(n), &mut donor.memory);
        assert!(donor.target.links() <= 16);
        while let Some((to, _)) = donor.target.poll_transmit(world.now_ns, &mut buf) {
            assert!(to == stranger || to == RECIPIENT_ADDR);
        }
    }
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.done[&1], Ok(vec![]));
}

/// Opens links of strangers until the table of `donor` is full, each confirmed by a first frame.
fn fill_table(world: &mut World) {
    let mut buf = [0; MAX_FRAME_BYTES];
    for n in 0.. {
        let (now_ns, stranger) = (world.now_ns, PeerAddr(1000 + u64::from(n)));
        let donor = &mut world.donors[0];
        donor.target.handle_frame(now_ns, stranger, &hello(n), &mut donor.memory);
        let Some((_, len)) = donor.target.poll_transmit(now_ns, &mut buf) else { panic!("silent") };
        let answer = Frame::parse(&buf[..len]).unwrap();
        if answer.opcode() == Opcode::Reset {
            assert_eq!((answer.link(), answer.detail()), (LinkId(n), NO_LINK_FREE));
            return;
        }
        let link = LinkId(answer.transaction());
        let ping = HeaderRepr { transaction: 1, link, ..header(Opcode::Ping) };
        donor.target.handle_frame(now_ns, stranger, &emitted(ping), &mut donor.memory);
        while donor.target.poll_transmit(now_ns, &mut buf).is_some() {}
    }
}

#[test]
fn full_table_refuses_then_admits() {
    let mut world = World::with_link(5, 1, LinkConfig::default(), Faults::default());
    let config = TargetConfig { max_links: 16, ..TargetConfig::new(donor_node(0), 8) };
    world.donors[0].target = Target::new(config);
    fill_table(&mut world);
    assert_eq!(world.donors[0].target.links(), 16);
    // The links of others fall silent while it is refused, and one of them gives way.
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    assert_eq!(world.done[&1], Ok(vec![]));
}

#[test]
fn lasting_refusal_is_told() {
    let mut world = World::with_link(5, 1, LinkConfig::default(), Faults::default());
    let config = TargetConfig { max_links: 16, ..TargetConfig::new(donor_node(0), 8) };
    world.donors[0].target = Target::new(config);
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    while !world.done.contains_key(&1) {
        // Others take every place that becomes free.
        fill_table(&mut world);
        world.run_for(100 * MS);
    }
    assert_eq!(world.done[&1], Err(AccessError::PeerDown(DownReason::NoLinkFree)));
}

#[test]
fn link_ends_after_its_grant() {
    let mut world = default_world(Faults::default());
    world.run_for(SECOND);
    world.initiator.write(world.now_ns, 1, 0, &[1]).unwrap();
    world.run_until(|world| world.done.contains_key(&1));
    // The caller is gone without a word, and its lease ends.
    world.network.faults.lost = 1000;
    let donor = &mut world.donors[0];
    assert_eq!(donor.target.revoke(world.now_ns, GRANT), 1);
    world.run_for(5 * SECOND);
    assert_eq!(world.donors[0].target.links(), 0);
}

#[test]
fn repeated_hello_gets_same_welcome() {
    let mut world = World::new(6, 1, 8, Faults::default());
    let donor = &mut world.donors[0];
    let mut welcomes = Vec::new();
    for _ in 0..3 {
        donor.target.handle_frame(0, PeerAddr(5), &hello(1), &mut donor.memory);
        let mut buf = [0; MAX_FRAME_BYTES];
        while let Some((_, len)) = donor.target.poll_transmit(0, &mut buf) {
            welcomes.push(buf[..len].to_vec());
        }
    }
    assert_eq!(welcomes.len(), 3);
    assert!(welcomes.iter().all(|welcome| *welcome == welcomes[0]));
    assert_eq!(donor.target.links(), 1);
}

/// Like over sealed datagrams, where the new link has its own seal and so another address: the
/// donor cannot recognise the caller.
#[test]
fn late_frames_of_old_link_are_dropped() {
    let mut world = default_world(Faults::default());
    world.run_for(SECOND);
    let old_peer = world.peers[0];
    world.initiator.write(world.now_ns, 1, 0, &[0xaa; 8]).unwrap();
    let late = sent_by(&mut world);
    world.initiator.close_peer(old_peer);
    let lost = sent_by(&mut world);
    assert!(!late.is_empty() && !lost.is_empty());

    let new_peer = world.initiator.add_peer(donor_node(0), world.now_ns);
    world.initiator.unmap_window(0).unwrap();
    world.initiator.map_window(0, LENT_BYTES, new_peer, 0, GRANT, KEY).unwrap();
    let elsewhere = PeerAddr(99);
    world.initiator.write(world.now_ns, 2, 0, &[0xbb; 8]).unwrap();
    for _ in 0..4 {
        let frames = sent_by(&mut world);
        deliver(&mut world, elsewhere, new_peer, &frames);
    }
    assert_eq!(world.donors[0].memory.bytes[..8], [0xbb; 8]);
    deliver(&mut world, RECIPIENT_ADDR, old_peer, &late);
    assert_eq!(world.donors[0].memory.bytes[..8], [0xbb; 8]);
    assert_eq!(world.donors[0].target.links(), 1);
}

/// Returns the frames the initiator has to send; they are not delivered.
fn sent_by(world: &mut World) -> Vec<Vec<u8>> {
    let mut buf = [0; MAX_FRAME_BYTES];
    let mut frames = Vec::new();
    while let Some((_, len)) = world.initiator.poll_transmit(world.now_ns, &mut buf) {
        frames.push(buf[..len].to_vec());
    }
    frames
}

/// Delivers frames to the donor from `addr`, and its answers back.
fn deliver(world: &mut World, addr: PeerAddr, peer: PeerIndex, frames: &[Vec<u8>]) {
    let (now_ns, donor) = (world.now_ns, &mut world.donors[0]);
    let mut buf = [0; MAX_FRAME_BYTES];
    for frame in frames {
        donor.target.handle_frame(now_ns, addr, frame, &mut donor.memory);
        while let Some((to, len)) = donor.target.poll_transmit(now_ns, &mut buf) {
            if to == addr {
                world.initiator.handle_frame(now_ns, peer, &buf[..len]);
            }
        }
    }
}
