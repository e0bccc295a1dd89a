//! Every decoder of the wire format on any bytes: none panics, and what is read is written back as
//! the same bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use venice_wire::{
    Frame, Greeting, Hop, Integrity, MAX_FRAME_BYTES, Packet, SealedHeader, UNCHECKED_FLAG,
};

fuzz_target!(|bytes: &[u8]| {
    let mut buf = [0; 2 * MAX_FRAME_BYTES];
    for integrity in [Integrity::Checksum, Integrity::Port, Integrity::ParsedBefore] {
        let Ok(frame) = Frame::parse_with(bytes, integrity) else { continue };
        let len = frame.repr().emit(frame.payload(), &mut buf).expect("it was read");
        let is_verified = frame.flags() & UNCHECKED_FLAG == 0;
        if is_verified && integrity != Integrity::ParsedBefore {
            assert_eq!(&buf[..len], bytes);
        } else {
            assert_eq!((&buf[..20], &buf[24..len]), (&bytes[..20], &bytes[24..]));
        }
    }
    if let Ok(packet) = Packet::parse(bytes) {
        let repr = packet.repr();
        let len = repr.emit(packet.payload(), &mut buf).expect("it was read");
        assert_eq!(Packet::parse(&buf[..len]).expect("it was written").repr(), repr);
    }
    for accept_unchecked in [false, true] {
        let Ok(hop) = Hop::parse(bytes, accept_unchecked) else { continue };
        let repr = hop.repr();
        let len = repr.emit(hop.payload(), &mut buf).expect("it was read");
        // One that says it has no checksum and has a right one is written without.
        assert_eq!(Hop::parse(&buf[..len], true).expect("it was written").repr(), repr);
    }
    if let Ok(greeting) = Greeting::parse(bytes) {
        assert_eq!(Greeting::parse(&greeting.to_bytes()), Ok(greeting));
    }
    if let Ok(header) = SealedHeader::parse(bytes) {
        assert_eq!(header.to_bytes()[..], bytes[..header.to_bytes().len()]);
    }
});
