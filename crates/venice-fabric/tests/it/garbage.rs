//! Invalid frames from the network cause no panic, no wrong write and no hang.

use crate::world::{Faults, GRANT, KEY, MS, RECIPIENT, RECIPIENT_ADDR, SECOND, World, donor_node};
use proptest::prelude::*;
use venice_fabric::{FabricError, PeerAddr, PeerState};
use venice_wire::{
    Channel, GrantId, GrantKey, HeaderRepr, LinkId, MAX_FRAME_BYTES, NodeId, Opcode, Sequence,
};

fn any_opcode() -> impl Strategy<Value = (Channel, Opcode)> {
    use Opcode::*;
    let link = prop::sample::select(vec![Hello, Welcome, Reset, Ack, Nak, Ping, Pong, Revoked]);
    let access = prop::sample::select(vec![Read, Data, Write, Done, Refused]);
    prop_oneof![
        link.prop_map(|opcode| (Channel::Link, opcode)),
        (prop::sample::select(vec![Channel::Crma, Channel::Rdma]), access),
        prop::sample::select(vec![FetchAdd, CompareSwap, Unmap]).prop_map(|op| (Channel::Crma, op)),
    ]
}

/// Numbers near the edges, and any others.
fn small_or_any() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 0..8u32, 1 => (u32::MAX - 4)..=u32::MAX, 1 => any::<u32>()]
}

prop_compose! {
    /// A well-formed frame with fields that may be valid; the link's number is left open.
    fn any_frame()(
        (channel, opcode) in any_opcode(),
        (sequence, ack, transaction) in (small_or_any(), small_or_any(), small_or_any()),
        access_len in prop_oneof![Just(0u16), Just(4u16), Just(4096u16), any::<u16>()],
        detail in any::<u16>(),
        address in prop_oneof![Just(0u64), 0..100_000u64, any::<u64>()],
        right_key in any::<bool>(),
        payload_len in prop_oneof![Just(0usize), Just(4), Just(4096), 0..4096usize],
    ) -> (HeaderRepr, usize) {
        let key = if right_key { KEY } else { GrantKey(1) };
        let header = HeaderRepr {
            sequence: Sequence(sequence),
            ack: Sequence(ack),
            transaction,
            access_len,
            detail,
            address,
            grant: GRANT,
            key,
            ..HeaderRepr::new(channel, opcode, NodeId(0), NodeId(0))
        };
        (header, payload_len)
    }
}

fn emit(header: HeaderRepr, payload_len: usize) -> Vec<u8> {
    let mut buf = vec![0; MAX_FRAME_BYTES];
    let len = header.emit(&vec![0xee; payload_len], &mut buf).unwrap();
    buf.truncate(len);
    buf
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// The donor receives garbage on a live link, from its caller's own address.
    #[test]
    fn donor_survives_garbage_frames(
        frames in prop::collection::vec((any_frame(), any::<bool>()), 1..40),
    ) {
        let mut world = World::new(7, 1, 8, Faults::default());
        let link = open_link(&mut world);
        for ((header, payload_len), is_on_link) in frames {
            let link = if is_on_link { link } else { LinkId(header.transaction) };
            let (source, destination) = (RECIPIENT, donor_node(0));
            let bytes = emit(HeaderRepr { link, source, destination, ..header }, payload_len);
            let donor = &mut world.donors[0];
            donor.target.handle_frame(world.now_ns, RECIPIENT_ADDR, &bytes, &mut donor.memory);
            world.step();
        }
        world.run_for(SECOND);
    }

    /// The initiator receives garbage from its donor: at worst it declares the donor down.
    #[test]
    fn initiator_survives_garbage_frames(
        frames in prop::collection::vec((any_frame(), any::<bool>()), 1..40),
    ) {
        let mut world = World::new(7, 1, 8, Faults::default());
        let link = open_link(&mut world);
        let mut taken = 0;
        for ((header, payload_len), is_on_link) in frames {
            match world.initiator.read(world.now_ns, taken, 0, 4) {
                Ok(()) => taken += 1,
                Err(FabricError::WouldBlock | FabricError::PeerDown(_)) => {}
                // Garbage may announce a revocation.
                Err(FabricError::Revoked { .. } | FabricError::NotMapped { .. }) => {}
                Err(error) => panic!("{error}"),
            }
            let link = if is_on_link { link } else { LinkId(header.transaction) };
            let (source, destination) = (donor_node(0), RECIPIENT);
            let bytes = emit(HeaderRepr { link, source, destination, ..header }, payload_len);
            world.initiator.handle_frame(world.now_ns, world.peers[0], &bytes);
            world.step();
        }
        world.run_until(|world| world.done.len() as u64 == taken);
    }

    #[test]
    fn random_bytes_change_nothing(
        datagrams in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..50),
    ) {
        let mut world = World::new(8, 1, 8, Faults::default());
        for bytes in datagrams {
            let donor = &mut world.donors[0];
            donor.target.handle_frame(0, PeerAddr(3), &bytes, &mut donor.memory);
            world.initiator.handle_frame(0, world.peers[0], &bytes);
            prop_assert_eq!(world.donors[0].target.links(), 0);
            prop_assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Connecting);
        }
    }
}

/// Performs the handshake frame by frame, so that the test has the link's number.
fn open_link(world: &mut World) -> LinkId {
    let mut buf = [0; MAX_FRAME_BYTES];
    let now_ns = world.now_ns;
    let (_, len) = world.initiator.poll_transmit(now_ns, &mut buf).expect("a Hello");
    let donor = &mut world.donors[0];
    donor.target.handle_frame(now_ns, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
    let (_, len) = donor.target.poll_transmit(now_ns, &mut buf).expect("a Welcome");
    world.initiator.handle_frame(now_ns, world.peers[0], &buf[..len]);
    let welcome = venice_wire::Frame::parse(&buf[..len]).unwrap();
    let link = LinkId(welcome.transaction());
    world.run_for(MS);
    assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Up);
    link
}

/// Sequenced frames with a wrong range or key are refused, whatever the link.
#[test]
fn wrong_key_writes_nothing() {
    let mut world = World::new(7, 1, 8, Faults::default());
    let link = open_link(&mut world);
    for n in 0..100u32 {
        let header = HeaderRepr {
            link,
            sequence: Sequence(n),
            transaction: n,
            access_len: 8,
            grant: if n % 2 == 0 { GRANT } else { GrantId(6) },
            key: GrantKey(KEY.0.wrapping_add(u64::from(n) + 1)),
            ..HeaderRepr::new(Channel::Crma, Opcode::Write, RECIPIENT, donor_node(0))
        };
        let donor = &mut world.donors[0];
        let bytes = emit(header, 8);
        donor.target.handle_frame(world.now_ns, RECIPIENT_ADDR, &bytes, &mut donor.memory);
    }
    assert!(world.donors[0].memory.written.is_empty());
    assert!(world.donors[0].memory.bytes.iter().all(|&byte| byte == 0));
}

/// Frames of a stranger on another caller's link are rejected: the address must match too.
#[test]
fn link_is_bound_to_address() {
    let mut world = World::new(7, 1, 8, Faults::default());
    let link = open_link(&mut world);
    let header = HeaderRepr {
        link,
        access_len: 8,
        grant: GRANT,
        key: KEY,
        ..HeaderRepr::new(Channel::Crma, Opcode::Write, RECIPIENT, donor_node(0))
    };
    let bytes = emit(header, 8);
    let donor = &mut world.donors[0];
    donor.target.handle_frame(world.now_ns, PeerAddr(666), &bytes, &mut donor.memory);
    assert!(donor.memory.written.is_empty());
    donor.target.handle_frame(world.now_ns, RECIPIENT_ADDR, &bytes, &mut donor.memory);
    assert_eq!(donor.memory.written.len(), 1, "the same frame from the right address");
}

/// A caller with more outstanding requests than there is room for answers, for example because it
/// does not know of a QPair that takes some: requests that wait for room are still carried out in
/// order, each once.
#[test]
fn delayed_requests_execute_once() {
    let mut world = World::new(7, 1, 4, Faults::default());
    let link = open_link(&mut world);
    let mut send = |(channel, opcode), sequence: u32, ack: u32| {
        let header = HeaderRepr {
            link,
            sequence: Sequence(sequence),
            ack: Sequence(ack),
            transaction: sequence,
            access_len: 8,
            grant: GRANT,
            key: KEY,
            ..HeaderRepr::new(channel, opcode, RECIPIENT, donor_node(0))
        };
        let donor = &mut world.donors[0];
        let (now_ns, bytes) = (world.now_ns, emit(header, 0));
        donor.target.handle_frame(now_ns, RECIPIENT_ADDR, &bytes, &mut donor.memory);
        while donor.target.poll_transmit(now_ns, &mut [0; MAX_FRAME_BYTES]).is_some() {}
        donor.memory.reads
    };
    let read = (Channel::Crma, Opcode::Read);
    let probe = (Channel::QPair, Opcode::Probe);
    for sequence in [0, 1, 2, 4, 5, 6] {
        send(read, sequence, 0);
    }
    assert_eq!(send(read, 3, 0), 4, "as many as there is room for");
    send(probe, 7, 0);
    assert_eq!(send(read, 4, 0), 4, "still no room");
    assert_eq!(send((Channel::Link, Opcode::Ack), 0, 4), 7, "now there is");
    for sequence in 4..7 {
        assert_eq!(send(read, sequence, 4), 7, "copies");
    }
    // One round of the window later nothing is left in the slots.
    for sequence in 8..16 {
        assert_eq!(send(read, sequence, sequence - 1), u64::from(sequence));
    }
}
