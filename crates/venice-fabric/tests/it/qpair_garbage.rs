//! A peer that breaks every rule of the QPair channel, in sequence and with the right checksums: no
//! panic, no buffer overflow, and no message longer than permitted.

use crate::world::{Faults, MS, RECIPIENT, RECIPIENT_ADDR, SECOND, World, donor_node};
use proptest::prelude::*;
use venice_fabric::{
    CloseReason, EndConfig, MAX_MESSAGE_BYTES, PeerState, QPairConfig, QPairError, QPairEvent,
    QPairId, QPairs,
};
use venice_wire::{
    Channel, Frame, GrantId, GrantKey, HeaderRepr, LinkId, MAX_FRAME_BYTES, Opcode, Sequence,
};

const SERVICES: u32 = 3;

#[derive(Clone, Debug)]
enum Payload {
    Nothing,
    Greeting { bytes: u32, messages: u32, flags: u32, service: u32 },
    Credit { bytes: u64, messages: u64 },
    Message { claimed: u32, len: usize },
    Any(Vec<u8>),
}

impl Payload {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Greeting { bytes, messages, flags, service } => {
                let mut greeting = vec![0; 32];
                greeting[..4].copy_from_slice(&bytes.to_le_bytes());
                greeting[4..8].copy_from_slice(&messages.to_le_bytes());
                greeting[24..28].copy_from_slice(&flags.to_le_bytes());
                greeting[28..32].copy_from_slice(&service.to_le_bytes());
                greeting
            }
            Self::Credit { bytes, messages } => {
                [bytes.to_le_bytes(), messages.to_le_bytes()].concat()
            }
            Self::Message { claimed, len } => {
                let mut message = claimed.to_le_bytes().to_vec();
                message.resize(4 + len, 0xcd);
                message
            }
            Self::Any(bytes) => bytes.clone(),
        }
    }
}

fn edge() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 0..5000u64, 1 => (u64::MAX - 3)..=u64::MAX, 1 => any::<u64>()]
}

fn any_payload() -> impl Strategy<Value = Payload> {
    let greeting = (
        prop_oneof![3 => 1..100_000u32, 1 => any::<u32>()],
        prop_oneof![3 => 1..100u32, 1 => any::<u32>()],
        prop_oneof![3 => 0..4u32, 1 => any::<u32>()],
        0..=SERVICES,
    );
    prop_oneof![
        1 => Just(Payload::Nothing),
        4 => greeting.prop_map(|(bytes, messages, flags, service)| Payload::Greeting {
            bytes,
            messages,
            flags,
            service,
        }),
        2 => (edge(), edge()).prop_map(|(bytes, messages)| Payload::Credit { bytes, messages }),
        4 => (prop_oneof![3 => 0..4000u32, 1 => any::<u32>()], 0..4092usize)
            .prop_map(|(claimed, len)| Payload::Message { claimed, len }),
        1 => prop::collection::vec(any::<u8>(), 0..100).prop_map(Payload::Any),
    ]
}

prop_compose! {
    fn any_frame()(
        opcode in prop::sample::select(vec![
            Opcode::Connect, Opcode::Connect, Opcode::Connect, Opcode::Accept, Opcode::Reject,
            Opcode::Segment, Opcode::Segment, Opcode::Segment, Opcode::Segment, Opcode::Credit,
            Opcode::Close, Opcode::Abort, Opcode::Probe, Opcode::Put,
        ]),
        slot in 0..4u32,
        generation in 0..3u32,
        sender in 0..4u64,
        detail in prop_oneof![3 => 0..5u16, 1 => any::<u16>()],
        right_key in any::<bool>(),
        payload in any_payload(),
    ) -> (HeaderRepr, Payload) {
        let channel = if opcode == Opcode::Put { Channel::Crma } else { Channel::QPair };
        let address = if opcode == Opcode::Put { u64::from(slot) * 16 } else { sender };
        let header = HeaderRepr {
            transaction: generation << 16 | slot,
            address,
            detail,
            grant: GrantId(if right_key { u64::MAX } else { 1 }),
            key: GrantKey(sender),
            ..HeaderRepr::new(channel, opcode, RECIPIENT, RECIPIENT)
        };
        (header, payload)
    }
}

/// Reads everything and answers; `ids` collects the ends.
fn serve(qpairs: &mut QPairs, now_ns: u64, ids: &mut Vec<QPairId>) {
    let end = EndConfig { recv_bytes: 4096, send_bytes: 4096, ..EndConfig::default() };
    while let Some(event) = qpairs.poll_event() {
        match event {
            QPairEvent::Incoming { qpair, .. } if ids.len() < 6 => {
                if qpairs.accept(qpair, end).is_ok() {
                    ids.push(qpair);
                } else {
                    qpairs.close(qpair);
                }
            }
            QPairEvent::Incoming { qpair, .. } => drop(qpairs.refuse(qpair)),
            QPairEvent::Closed { qpair, reason } => {
                assert_ne!(reason, CloseReason::Finished, "no end has finished");
                qpairs.close(qpair);
                ids.retain(|&id| id != qpair);
            }
            _ => {}
        }
    }
    let mut buf = vec![0; MAX_MESSAGE_BYTES];
    for &id in ids.iter() {
        let _ = qpairs.send(now_ns, id, &[1; 300]);
        let _ = qpairs.write(now_ns, id, &[1; 300]);
        match qpairs.recv(id, &mut buf) {
            Err(QPairError::WrongKind) => drop(qpairs.read(id, &mut buf)),
            outcome => assert!(!matches!(outcome, Err(QPairError::BufferTooSmall { .. }))),
        }
    }
}

/// A world whose link is up, and the link's number.
fn open_world() -> (World, LinkId) {
    let mut world = World::new(7, 1, 8, Faults::default());
    let mut buf = [0; MAX_FRAME_BYTES];
    let now_ns = world.now_ns;
    let (_, len) = world.initiator.poll_transmit(now_ns, &mut buf).expect("a Hello");
    let donor = &mut world.donors[0];
    donor.target.handle_frame(now_ns, RECIPIENT_ADDR, &buf[..len], &mut donor.memory);
    let (_, len) = donor.target.poll_transmit(now_ns, &mut buf).expect("a Welcome");
    world.initiator.handle_frame(now_ns, world.peers[0], &buf[..len]);
    let link = LinkId(Frame::parse(&buf[..len]).unwrap().transaction());
    world.run_for(MS);
    assert_eq!(world.initiator.peer_state(world.peers[0]), PeerState::Up);
    (world, link)
}

/// Returns the next frame of an attacker that obeys the rules of the link, and no others.
fn emit(header: HeaderRepr, payload: &Payload, link: LinkId, position: &mut u32) -> Vec<u8> {
    let mut buf = vec![0; MAX_FRAME_BYTES];
    let header = HeaderRepr { link, sequence: Sequence(*position), ..header };
    *position += u32::from(header.opcode.is_sequenced());
    let len = header.emit(&payload.bytes(), &mut buf).unwrap();
    buf.truncate(len);
    buf
}

#[test]
fn mismatched_accept_ends_qpair() {
    let (mut world, link) = open_world();
    let (now_ns, peer) = (world.now_ns, world.peers[0]);
    let asked = world.initiator.qpair_connect(now_ns, peer, 9, QPairConfig::messages()).unwrap();
    let mut buf = [0; MAX_FRAME_BYTES];
    let mut number = None;
    while let Some((_, len)) = world.initiator.poll_transmit(now_ns, &mut buf) {
        let frame = Frame::parse(&buf[..len]).unwrap();
        number = number.or((frame.opcode() == Opcode::Connect).then(|| frame.address() as u32));
    }
    // A stream, where messages were requested.
    let stream = Payload::Greeting { bytes: 4096, messages: 8, flags: 1, service: 0 };
    let accept = HeaderRepr {
        transaction: number.expect("it asked"),
        address: 5,
        ..HeaderRepr::new(Channel::QPair, Opcode::Accept, donor_node(0), RECIPIENT)
    };
    let messages = Payload::Greeting { bytes: 4096, messages: 8, flags: 0, service: 0 };
    let mut position = 0;
    for payload in [stream, messages] {
        let bytes = emit(accept, &payload, link, &mut position);
        world.initiator.handle_frame(now_ns, peer, &bytes);
    }
    let closed = QPairEvent::Closed { qpair: asked, reason: CloseReason::Protocol };
    assert_eq!(world.initiator.qpairs_mut().poll_event(), Some(closed));
    assert_eq!(world.initiator.qpairs_mut().poll_event(), None, "and it is not open");
    let mut opcodes = Vec::new();
    while let Some((_, len)) = world.initiator.poll_transmit(now_ns, &mut buf) {
        opcodes.push(Frame::parse(&buf[..len]).unwrap().opcode());
    }
    assert!(opcodes.contains(&Opcode::Abort), "the other end is notified: {opcodes:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn target_survives_garbage(frames in prop::collection::vec(any_frame(), 1..80)) {
        let (mut world, link) = open_world();
        let (mut ids, mut position) = (Vec::new(), 0);
        for service in 0..SERVICES {
            world.donors[0].target.qpairs_mut().listen(service, 2).unwrap();
        }
        for (header, payload) in &frames {
            let header = HeaderRepr { destination: donor_node(0), ..*header };
            let bytes = emit(header, payload, link, &mut position);
            let donor = &mut world.donors[0];
            donor.target.handle_frame(world.now_ns, RECIPIENT_ADDR, &bytes, &mut donor.memory);
            serve(donor.target.qpairs_mut(), world.now_ns, &mut ids);
            world.step();
        }
        world.run_for(SECOND);
        prop_assert!(world.donors[0].memory.written.is_empty(), "a Put is for credits alone");
        prop_assert!(world.donors[0].target.qpairs().count() <= 6 + 2 * SERVICES as usize);
    }

    #[test]
    fn initiator_survives_garbage(frames in prop::collection::vec(any_frame(), 1..80)) {
        let (mut world, link) = open_world();
        let (mut ids, mut position) = (Vec::new(), 0);
        for service in 0..SERVICES {
            world.initiator.qpairs_mut().listen(service, 2).unwrap();
            let (now_ns, peer) = (world.now_ns, world.peers[0]);
            let asked = world.initiator.qpair_connect(now_ns, peer, 9, QPairConfig::messages());
            ids.push(asked.unwrap());
        }
        for (header, payload) in &frames {
            let source = donor_node(0);
            let header = HeaderRepr { source, destination: RECIPIENT, ..*header };
            let bytes = emit(header, payload, link, &mut position);
            world.initiator.handle_frame(world.now_ns, world.peers[0], &bytes);
            serve(world.initiator.qpairs_mut(), world.now_ns, &mut ids);
            // The real donor receives nothing: only the attacker answers.
            let mut buf = [0; MAX_FRAME_BYTES];
            while world.initiator.poll_transmit(world.now_ns, &mut buf).is_some() {}
            world.now_ns += MS;
        }
        let state = world.initiator.peer_state(world.peers[0]);
        prop_assert_eq!(state, PeerState::Up, "the fault of one QPair leaves the link up");
    }
}
