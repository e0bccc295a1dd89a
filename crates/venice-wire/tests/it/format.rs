//! The frame format as bytes: golden vectors, round trips, and invalid input.

use proptest::prelude::*;
use venice_wire::{
    Channel, Frame, GrantId, GrantKey, HEADER_BYTES, HeaderRepr, Integrity, LinkId,
    MAX_FRAME_BYTES, MAX_PAYLOAD_BYTES, NodeId, Opcode, REPLAY_FLAG, Sequence, UNCHECKED_FLAG,
    WireError,
};

/// A header with a different value in every byte that can differ.
fn golden_header() -> HeaderRepr {
    HeaderRepr {
        channel: Channel::Crma,
        opcode: Opcode::Write,
        flags: REPLAY_FLAG,
        source: NodeId(0x0403_0201),
        destination: NodeId(0x1413_1211),
        link: LinkId(0x2423_2221),
        sequence: Sequence(0x3433_3231),
        ack: Sequence(0x4443_4241),
        transaction: 0x5453_5251,
        access_len: 0x0005,
        detail: 0x6261,
        address: 0x7877_7675_7473_7271,
        grant: GrantId(0x8887_8685_8483_8281),
        key: GrantKey(0x9897_9695_9493_9291),
    }
}

/// Written by hand from `docs/reference/wire.md`; other implementations test against the same bytes.
#[rustfmt::skip]
const GOLDEN_WRITE: [u8; 69] = [
    b'V', b'N', 1, 1,                               // magic, version, channel
    18, 1, 5, 0,                                    // opcode, flags, payload length
    0x01, 0x02, 0x03, 0x04,                         // source
    0x11, 0x12, 0x13, 0x14,                         // destination
    0x21, 0x22, 0x23, 0x24,                         // link
    0x63, 0x8b, 0x74, 0xfe,                         // checksum
    0x31, 0x32, 0x33, 0x34,                         // sequence
    0x41, 0x42, 0x43, 0x44,                         // ack
    0x51, 0x52, 0x53, 0x54,                         // transaction
    0x05, 0x00, 0x61, 0x62,                         // access length, detail
    0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78, // address
    0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, // grant
    0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, // key
    b'h', b'e', b'l', b'l', b'o',                   // payload
];
/// CRC-32C bit by bit, from its definition, to check the library in use.
fn crc32c_by_definition(bytes: impl Iterator<Item = u8>) -> u32 {
    !bytes.fold(!0u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0x82f6_3b78 * (crc & 1)))
    })
}

fn emit(header: &HeaderRepr, payload: &[u8]) -> Vec<u8> {
    let mut buf = vec![0xaa; MAX_FRAME_BYTES];
    let len = header.emit(payload, &mut buf).expect("a frame within the limits");
    buf.truncate(len);
    buf
}

/// Puts the right checksum on bytes that were changed on purpose.
fn reseal(bytes: &mut [u8]) {
    let covered = bytes[..20].iter().chain(&bytes[24..]).copied();
    let checksum = crc32c_by_definition(covered);
    bytes[20..24].copy_from_slice(&checksum.to_le_bytes());
}

#[test]
fn emit_matches_golden_bytes() {
    let mut by_definition = GOLDEN_WRITE;
    reseal(&mut by_definition);
    assert_eq!(by_definition, GOLDEN_WRITE, "the golden checksum itself");
    assert_eq!(emit(&golden_header(), b"hello"), GOLDEN_WRITE);
}

#[test]
fn parse_matches_golden_fields() {
    let frame = Frame::parse(&GOLDEN_WRITE).unwrap();
    assert_eq!(frame.repr(), golden_header());
    assert_eq!(frame.payload(), b"hello");
    assert_eq!(frame.as_bytes(), GOLDEN_WRITE);
}

#[test]
fn hello_matches_golden_bytes() {
    let header = HeaderRepr {
        link: LinkId(7),
        access_len: 64,
        address: 0x0123_4567_89ab_cdef,
        ..HeaderRepr::new(Channel::Link, Opcode::Hello, NodeId(1), NodeId(2))
    };
    let mut expected = [0; HEADER_BYTES];
    expected[..8].copy_from_slice(&[b'V', b'N', 1, 0, 1, 0, 0, 0]);
    (expected[8], expected[12], expected[16], expected[36]) = (1, 2, 7, 64);
    expected[40..48].copy_from_slice(&[0xef, 0xcd, 0xab, 0x89, 0x67, 0x45, 0x23, 0x01]);
    reseal(&mut expected);
    assert_eq!(emit(&header, &[]), expected);
}

#[test]
fn damage_yields_specific_error() {
    let damaged = |at: usize, value: u8| {
        let mut bytes = GOLDEN_WRITE;
        bytes[at] = value;
        Frame::parse(&bytes).unwrap_err()
    };
    assert_eq!(damaged(0, b'X'), WireError::BadMagic(u16::from_le_bytes(*b"XN")));
    assert_eq!(damaged(2, 9), WireError::UnsupportedVersion(9));
    assert_eq!(damaged(6, 4), WireError::TrailingBytes { len: 69, needed: 68 });
    assert_eq!(damaged(6, 6), WireError::Truncated { len: 69, needed: 70 });
    assert_eq!(damaged(7, 0xff), WireError::PayloadTooLong(0xff05));
    assert_eq!(damaged(68, b'0'), WireError::BadChecksum);
    let short = &GOLDEN_WRITE[..63];
    assert_eq!(Frame::parse(short).unwrap_err(), WireError::Truncated { len: 63, needed: 64 });
}

#[test]
fn opcode_is_checked_per_channel() {
    for (channel, opcode) in [(1, 1), (0, 16), (2, 7), (2, 21), (9, 16), (1, 0), (1, 99)] {
        let mut bytes = GOLDEN_WRITE;
        (bytes[3], bytes[4]) = (channel, opcode);
        reseal(&mut bytes);
        assert_eq!(Frame::parse(&bytes).unwrap_err(), WireError::UnknownOpcode { channel, opcode });
    }
    let header = HeaderRepr { opcode: Opcode::Ack, ..golden_header() };
    let error = header.emit(&[], &mut [0; 64]).unwrap_err();
    assert_eq!(error, WireError::UnknownOpcode { channel: 1, opcode: 4 });
}

#[test]
fn unnamed_flags_are_ignored() {
    let mut bytes = GOLDEN_WRITE;
    bytes[5] = 0xfd;
    reseal(&mut bytes);
    assert_eq!(Frame::parse(&bytes).unwrap().flags(), 0xfd);
}

/// Only a port that guarantees integrity accepts a frame without a checksum, and it still verifies
/// one that is present.
#[test]
fn unchecked_frame_needs_permitting_port() {
    let header = HeaderRepr { flags: UNCHECKED_FLAG, ..golden_header() };
    let mut bytes = emit(&header, b"hello");
    assert_eq!(bytes[20..24], [0; 4]);
    assert_eq!(Frame::parse(&bytes).unwrap_err(), WireError::Unchecked);
    let frame = Frame::parse_with(&bytes, Integrity::Port).unwrap();
    assert_eq!((frame.repr(), frame.payload()), (header, b"hello".as_slice()));

    bytes[5] = 0;
    assert_eq!(Frame::parse_with(&bytes, Integrity::Port).unwrap_err(), WireError::BadChecksum);
    reseal(&mut bytes);
    assert!(Frame::parse_with(&bytes, Integrity::Port).is_ok());
    bytes[68] ^= 1;
    assert_eq!(Frame::parse_with(&bytes, Integrity::Port).unwrap_err(), WireError::BadChecksum);
    assert!(Frame::parse_with(&bytes, Integrity::ParsedBefore).is_ok());
}

#[test]
fn emit_rejects_oversized_frames() {
    let header = golden_header();
    let long = vec![0; MAX_PAYLOAD_BYTES + 1];
    assert_eq!(
        header.emit(&long, &mut vec![0; 8192]).unwrap_err(),
        WireError::PayloadTooLong(MAX_PAYLOAD_BYTES + 1)
    );
    assert_eq!(
        header.emit(b"hello", &mut [0; 68]).unwrap_err(),
        WireError::BufferTooSmall { len: 68, needed: 69 }
    );
}

fn any_kind() -> impl Strategy<Value = (Channel, Opcode)> {
    use Opcode::*;
    let link = prop::sample::select(vec![Hello, Welcome, Reset, Ack, Nak, Ping, Pong, Revoked]);
    let access = prop::sample::select(vec![Read, Data, Write, Done, Refused]);
    let qpair =
        prop::sample::select(vec![Connect, Accept, Reject, Segment, Credit, Close, Abort, Probe]);
    prop_oneof![
        link.prop_map(|opcode| (Channel::Link, opcode)),
        qpair.prop_map(|opcode| (Channel::QPair, opcode)),
        Just((Channel::Crma, Put)),
        (prop::sample::select(vec![Channel::Crma, Channel::Rdma]), access),
        prop::sample::select(vec![FetchAdd, CompareSwap, Unmap]).prop_map(|op| (Channel::Crma, op)),
    ]
}

prop_compose! {
    fn any_header()(
        (channel, opcode) in any_kind(),
        (flags, access_len, detail) in any::<(u8, u16, u16)>(),
        (source, destination, link) in any::<(u32, u32, u32)>(),
        (sequence, ack, transaction) in any::<(u32, u32, u32)>(),
        (address, grant, key) in any::<(u64, u64, u64)>(),
    ) -> HeaderRepr {
        HeaderRepr {
            channel,
            opcode,
            flags,
            source: NodeId(source),
            destination: NodeId(destination),
            link: LinkId(link),
            sequence: Sequence(sequence),
            ack: Sequence(ack),
            transaction,
            access_len,
            detail,
            address,
            grant: GrantId(grant),
            key: GrantKey(key),
        }
    }
}

proptest! {
    #[test]
    fn frame_roundtrips(
        header in any_header(),
        payload in prop::collection::vec(any::<u8>(), 0..=MAX_PAYLOAD_BYTES),
    ) {
        let bytes = emit(&header, &payload);
        let frame = Frame::parse_with(&bytes, Integrity::Port).unwrap();
        prop_assert_eq!(frame.repr(), header);
        prop_assert_eq!(frame.payload(), payload);
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..=200)) {
        let _ = Frame::parse(&bytes);
    }

    /// Random bytes hardly ever pass the checksum; these do.
    #[test]
    fn checksummed_garbage_never_panics(
        mut bytes in prop::collection::vec(any::<u8>(), HEADER_BYTES..=200),
    ) {
        let payload_len = (bytes.len() - HEADER_BYTES) as u16;
        bytes[..3].copy_from_slice(&[b'V', b'N', 1]);
        bytes[3] %= 4;
        bytes[4] %= 48;
        bytes[6..8].copy_from_slice(&payload_len.to_le_bytes());
        reseal(&mut bytes);
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert_eq!(emit(&frame.repr(), frame.payload()), bytes);
        }
    }

    /// CRC-32C finds every burst of up to 32 bits, so it finds every changed byte or pair.
    #[test]
    fn changed_byte_is_detected(
        header in any_header(),
        payload in prop::collection::vec(any::<u8>(), 0..=64),
        at in any::<prop::sample::Index>(),
        change in 1u8..,
    ) {
        let mut bytes = emit(&header, &payload);
        let at = at.index(bytes.len());
        bytes[at] ^= change;
        prop_assert!(Frame::parse(&bytes).is_err());
    }
}
