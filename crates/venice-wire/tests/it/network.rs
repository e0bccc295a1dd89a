//! Packets and hop datagrams as bytes: golden vectors, round trips, and invalid input.

use proptest::prelude::*;
use venice_wire::{
    Endpoint, GREETING_BYTES, Greeting, HOP_HEADER_BYTES, HOP_UNCHECKED_FLAG, Hop, HopKind,
    HopRepr, MAX_HOP_BYTES, MAX_PACKET_BYTES, MAX_PACKET_PAYLOAD_BYTES, MAX_ROUTE_HOPS, NodeId,
    Packet, PacketAddr, PacketRepr, Sequence, SourceRoute, SwitchPort, WireError, advance_packet,
};

/// Written by hand from `docs/reference/wire.md`; other implementations test against the same bytes.
#[rustfmt::skip]
const GOLDEN_PACKET: [u8; 37] = [
    b'V', b'P', 1, 0,       // magic, version, flags
    9, 2, 1, 0,             // hop limit, route length, route next, reserved
    0x01, 0x02, 0x03, 0x04, // source
    0x11, 0x12, 0x13, 0x14, // destination
    0x21, 0x22, 0x23, 0x24, // source endpoint
    0x31, 0x32, 0x33, 0x34, // destination endpoint
    5, 0, 0, 0,             // payload length, reserved
    0x41, 0x42, 0x51, 0x52, // route: two ports
    b'h', b'e', b'l', b'l', b'o',
];

fn golden_packet() -> PacketRepr {
    let addr = |node, endpoint| PacketAddr { node: NodeId(node), endpoint: Endpoint(endpoint) };
    PacketRepr {
        hop_limit: 9,
        route: SourceRoute::new(&[SwitchPort(0x4241), SwitchPort(0x5251)]).unwrap(),
        route_next: 1,
        ..PacketRepr::new(addr(0x0403_0201, 0x2423_2221), addr(0x1413_1211, 0x3433_3231))
    }
}

#[rustfmt::skip]
const GOLDEN_HOP: [u8; 43] = [
    b'V', b'H', 1, 1,       // magic, version, kind
    1, 2, 3, 0,             // flags, virtual channel, payload length
    0x11, 0x12, 0x13, 0x14, // link
    0x8b, 0x6f, 0x9d, 0xfa, // checksum
    0x31, 0x32, 0x33, 0x34, // sequence
    0x41, 0x42, 0x43, 0x44, // ack
    0x51, 0x52, 0x53, 0x54, 0x55, 0x56, 0x57, 0x58, // credits of four channels
    0x61, 0x62, 0x63, 0x64, 0x65, 0x66, 0x67, 0x68, // word
    b'a', b'b', b'c',
];

fn golden_hop() -> HopRepr {
    HopRepr {
        flags: 1,
        channel: 2,
        sequence: Sequence(0x3433_3231),
        ack: Sequence(0x4443_4241),
        credits: [0x5251, 0x5453, 0x5655, 0x5857],
        word: 0x6867_6665_6463_6261,
        ..HopRepr::new(HopKind::Data, 0x1413_1211)
    }
}

fn emit_packet(repr: &PacketRepr, payload: &[u8]) -> Vec<u8> {
    let mut buf = vec![0xaa; MAX_PACKET_BYTES];
    let len = repr.emit(payload, &mut buf).expect("within the limits");
    buf.truncate(len);
    buf
}

fn emit_hop(repr: &HopRepr, payload: &[u8]) -> Vec<u8> {
    let mut buf = vec![0xaa; MAX_HOP_BYTES];
    let len = repr.emit(payload, &mut buf).expect("within the limits");
    buf.truncate(len);
    buf
}

/// CRC-32C bit by bit, from its definition.
fn crc32c_by_definition(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}

#[test]
fn packet_matches_golden_bytes() {
    assert_eq!(emit_packet(&golden_packet(), b"hello"), GOLDEN_PACKET);
    let packet = Packet::parse(&GOLDEN_PACKET).unwrap();
    assert_eq!(packet.repr(), golden_packet());
    assert_eq!(packet.payload(), b"hello");
    assert_eq!(packet.next_port(), Some(SwitchPort(0x5251)));
}

#[test]
fn advance_changes_two_bytes() {
    let mut bytes = GOLDEN_PACKET;
    advance_packet(&mut bytes);
    let packet = Packet::parse(&bytes).unwrap();
    assert_eq!((packet.hop_limit(), packet.route_next(), packet.next_port()), (8, 2, None));
    advance_packet(&mut bytes);
    assert_eq!((bytes[4], bytes[6]), (7, 2), "the route has come to its end");
}

#[test]
fn hop_matches_golden_bytes() {
    let covered = GOLDEN_HOP[..12].iter().chain(&GOLDEN_HOP[16..]).copied();
    assert_eq!(crc32c_by_definition(covered).to_le_bytes(), GOLDEN_HOP[12..16]);
    assert_eq!(emit_hop(&golden_hop(), b"abc"), GOLDEN_HOP);
    let hop = Hop::parse(&GOLDEN_HOP, false).unwrap();
    assert_eq!((hop.repr(), hop.payload()), (golden_hop(), b"abc".as_slice()));
}

#[test]
fn unchecked_hop_needs_permitting_port() {
    let unchecked = HopRepr { flags: HOP_UNCHECKED_FLAG, ..golden_hop() };
    let mut bytes = emit_hop(&unchecked, b"abc");
    assert_eq!(bytes[12..16], [0; 4]);
    assert_eq!(Hop::parse(&bytes, false).unwrap_err(), WireError::BadChecksum);
    assert_eq!(Hop::parse(&bytes, true).unwrap().repr(), unchecked);
    bytes[4] = 0;
    assert_eq!(Hop::parse(&bytes, true).unwrap_err(), WireError::BadChecksum);
}

#[test]
fn damage_yields_specific_error() {
    let packet = |at: usize, value: u8| {
        let mut bytes = GOLDEN_PACKET;
        bytes[at] = value;
        Packet::parse(&bytes).unwrap_err()
    };
    assert_eq!(packet(1, b'N'), WireError::BadMagic(u16::from_le_bytes(*b"VN")));
    assert_eq!(packet(2, 2), WireError::UnsupportedVersion(2));
    assert_eq!(packet(5, 33), WireError::BadRoute { len: 33, next: 1 });
    assert_eq!(packet(6, 3), WireError::BadRoute { len: 2, next: 3 });
    assert_eq!(packet(24, 4), WireError::TrailingBytes { len: 37, needed: 36 });
    assert_eq!(packet(25, 0xff), WireError::PayloadTooLong(0xff05));
    let hop = |at: usize, value: u8| {
        let mut bytes = GOLDEN_HOP;
        bytes[at] = value;
        let covered = bytes[..12].iter().chain(&bytes[16..]).copied();
        let checksum = crc32c_by_definition(covered).to_le_bytes();
        bytes[12..16].copy_from_slice(&checksum);
        Hop::parse(&bytes, false).unwrap_err()
    };
    assert_eq!(hop(3, 99), WireError::UnknownHopKind(99));
    assert_eq!(hop(5, 4), WireError::BadVirtualChannel(4));
    assert_eq!(hop(6, 4), WireError::Truncated { len: 43, needed: 44 });
    assert_eq!(
        Greeting::parse(&[0; GREETING_BYTES - 1]).unwrap_err(),
        WireError::Truncated { len: GREETING_BYTES - 1, needed: GREETING_BYTES }
    );
}

#[test]
fn emit_rejects_oversized_values() {
    let long = vec![0; MAX_PACKET_PAYLOAD_BYTES + 1];
    let mut buf = vec![0; 8192];
    let error = golden_packet().emit(&long, &mut buf).unwrap_err();
    assert_eq!(error, WireError::PayloadTooLong(MAX_PACKET_PAYLOAD_BYTES + 1));
    let error = golden_packet().emit(b"hello", &mut [0; 36]).unwrap_err();
    assert_eq!(error, WireError::BufferTooSmall { len: 36, needed: 37 });
    let beyond = PacketRepr { route_next: 3, ..golden_packet() };
    assert_eq!(beyond.emit(b"", &mut buf).unwrap_err(), WireError::BadRoute { len: 2, next: 3 });
    let error = HopRepr { channel: 4, ..golden_hop() }.emit(b"", &mut buf).unwrap_err();
    assert_eq!(error, WireError::BadVirtualChannel(4));
    let error = golden_hop().emit(&vec![0; MAX_PACKET_BYTES + 1], &mut buf).unwrap_err();
    assert_eq!(error, WireError::PayloadTooLong(MAX_PACKET_BYTES + 1));
    assert!(SourceRoute::new(&[SwitchPort(1); MAX_ROUTE_HOPS + 1]).is_none());
}

prop_compose! {
    fn any_packet()(
        (flags, hop_limit) in any::<(u8, u8)>(),
        (from, from_endpoint, to, to_endpoint) in any::<(u32, u32, u32, u32)>(),
        ports in prop::collection::vec(any::<u16>(), 0..=MAX_ROUTE_HOPS),
        next in any::<prop::sample::Index>(),
    ) -> PacketRepr {
        let ports: Vec<_> = ports.into_iter().map(SwitchPort).collect();
        let addr = |node, endpoint| PacketAddr { node: NodeId(node), endpoint: Endpoint(endpoint) };
        PacketRepr {
            flags,
            hop_limit,
            source: addr(from, from_endpoint),
            destination: addr(to, to_endpoint),
            route: SourceRoute::new(&ports).unwrap(),
            route_next: next.index(ports.len() + 1) as u8,
        }
    }
}

prop_compose! {
    fn any_hop()(
        kind in prop::sample::select(vec![
            HopKind::Data, HopKind::Ack, HopKind::Nak, HopKind::Ping, HopKind::Pong,
            HopKind::Hello, HopKind::Welcome, HopKind::LinkState,
        ]),
        (flags, channel) in (any::<u8>(), 0u8..4),
        (link, sequence, ack, word) in any::<(u32, u32, u32, u64)>(),
        credits in any::<[u16; 4]>(),
    ) -> HopRepr {
        let (sequence, ack) = (Sequence(sequence), Sequence(ack));
        HopRepr { kind, flags, channel, link, sequence, ack, credits, word }
    }
}

proptest! {
    #[test]
    fn packet_roundtrips(
        repr in any_packet(),
        payload in prop::collection::vec(any::<u8>(), 0..=MAX_PACKET_PAYLOAD_BYTES),
    ) {
        let bytes = emit_packet(&repr, &payload);
        let packet = Packet::parse(&bytes).unwrap();
        prop_assert_eq!(packet.repr(), repr);
        prop_assert_eq!(packet.payload(), payload);
    }

    #[test]
    fn hop_roundtrips(
        repr in any_hop(),
        payload in prop::collection::vec(any::<u8>(), 0..=300),
    ) {
        let bytes = emit_hop(&repr, &payload);
        let hop = Hop::parse(&bytes, true).unwrap();
        prop_assert_eq!(hop.repr(), repr);
        prop_assert_eq!(hop.payload(), payload);
    }

    #[test]
    fn greeting_roundtrips(
        (node, window) in any::<(u32, u16)>(),
        (incarnation, challenge, answer) in any::<(u64, u64, u64)>(),
    ) {
        let greeting = Greeting { node: NodeId(node), window, incarnation, challenge, answer };
        prop_assert_eq!(Greeting::parse(&greeting.to_bytes()).unwrap(), greeting);
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..=200),
        as_packet in any::<bool>(),
    ) {
        let _ = (Packet::parse(&bytes), Hop::parse(&bytes, true), Greeting::parse(&bytes));
        if bytes.len() >= HOP_HEADER_BYTES {
            let len = bytes.len();
            if as_packet {
                bytes[..3].copy_from_slice(b"VP\x01");
                bytes[5] %= 8;
                let payload = (len - 28).saturating_sub(2 * usize::from(bytes[5])) as u16;
                bytes[24..26].copy_from_slice(&payload.to_le_bytes());
                if let Ok(packet) = Packet::parse(&bytes) {
                    prop_assert_eq!(packet.payload().len(), usize::from(payload));
                    let _ = (packet.repr(), packet.next_port());
                }
            } else {
                bytes[..3].copy_from_slice(b"VH\x01");
                (bytes[3], bytes[4]) = (bytes[3] % 10, HOP_UNCHECKED_FLAG);
                bytes[6..8].copy_from_slice(&((len - HOP_HEADER_BYTES) as u16).to_le_bytes());
                if let Ok(hop) = Hop::parse(&bytes, true) {
                    let _ = (hop.repr(), hop.payload());
                }
            }
        }
    }

    #[test]
    fn changed_hop_byte_is_detected(
        repr in any_hop(),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
    ) {
        let repr = HopRepr { flags: repr.flags & !HOP_UNCHECKED_FLAG, ..repr };
        let mut bytes = emit_hop(&repr, b"payload");
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert!(Hop::parse(&bytes, false).is_err());
    }
}
