//! Writes the kept corpus of `decoders`: one sound input for each decoder.
//!
//! `cargo run --example decoder_seeds`, in `fuzz/`

use venice_wire::{
    Channel, Endpoint, GrantId, Greeting, HOP_UNCHECKED_FLAG, HeaderRepr, HopKind, HopRepr,
    KeyName, NodeId, Opcode, PacketAddr, PacketRepr, SealAlgorithm, SealDirection, SealedHeader,
    UNCHECKED_FLAG,
};

fn main() {
    let dir = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/decoders");
    std::fs::create_dir_all(&dir).unwrap();
    let put = |name: &str, bytes: &[u8]| std::fs::write(dir.join(name), bytes).unwrap();
    let mut buf = [0; 5000];
    let header = HeaderRepr {
        access_len: 5,
        address: 4096,
        ..HeaderRepr::new(Channel::Crma, Opcode::Write, NodeId(1), NodeId(2))
    };
    let len = header.emit(b"hello", &mut buf).unwrap();
    put("frame", &buf[..len]);
    let len = HeaderRepr { flags: UNCHECKED_FLAG, ..header }.emit(b"hello", &mut buf).unwrap();
    put("frame-unchecked", &buf[..len]);
    let hello = HeaderRepr {
        flags: UNCHECKED_FLAG,
        ..HeaderRepr::new(Channel::Link, Opcode::Hello, NodeId(1), NodeId(2))
    };
    let len = hello.emit(&[], &mut buf).unwrap();
    put("frame-hello", &buf[..len]);
    let addr = |n| PacketAddr { node: NodeId(n), endpoint: Endpoint(n) };
    let packet = PacketRepr::new(addr(1), addr(2));
    let len = packet.emit(b"a frame", &mut buf).unwrap();
    put("packet", &buf[..len]);
    for (name, flags) in [("hop", 0), ("hop-unchecked", HOP_UNCHECKED_FLAG)] {
        let hop = HopRepr { flags, ..HopRepr::new(HopKind::Data, 7) };
        let len = hop.emit(b"a packet", &mut buf).unwrap();
        put(name, &buf[..len]);
    }
    let greeting =
        Greeting { node: NodeId(1), window: 64, incarnation: 2, challenge: 3, answer: 4 };
    let sealed = SealedHeader {
        algorithm: SealAlgorithm::Aes256Gcm,
        direction: SealDirection::ToOwner,
        key: KeyName::Grant(GrantId(1)),
        salt: 2,
        counter: 3,
        pieces: 1,
        piece: 0,
    };
    put("sealed", &sealed.to_bytes());
    put("greeting", &greeting.to_bytes());
}
