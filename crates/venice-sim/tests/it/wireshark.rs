//! The Wireshark dissector shows all fields, checksums and damages of a capture.

use std::fs::File;
use std::path::Path;
use std::process::Command;

use venice_sim::network::{Datagram, End};
use venice_sim::pcap::Capture;
use venice_sim::rack::{self, Options, Tap};
use venice_sim::scenario::Scenario;
use venice_wire::{Frame, Hop, Packet, REPLAY_FLAG};

/// Returns tshark's values of these fields for each frame, empty where there is none.
fn tshark(capture: &Path, fields: &[&str]) -> Vec<Vec<String>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/wireshark/venice.lua");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{script}")).arg("-r").arg(capture);
    command.args(["-T", "fields", "-E", "separator=\t"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark is installed by scripts/setup.sh");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    let text = String::from_utf8(output.stdout).expect("tshark writes UTF-8");
    text.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect()
}

/// Writes a capture, and keeps its frames.
struct Both {
    capture: Capture<File>,
    frames: Vec<(Datagram, Option<String>)>,
}

impl Tap for Both {
    fn frame(&mut self, at_ns: u64, datagram: &Datagram, remark: Option<&str>) {
        self.capture.frame(at_ns, datagram, remark);
        self.frames.push((datagram.clone(), remark.map(str::to_string)));
    }
}

/// Captures a run of a scenario; returns the frames.
fn capture(toml: &str, path: &Path) -> Vec<(Datagram, Option<String>)> {
    let scenario = Scenario::from_toml(toml).unwrap();
    let capture = Capture::new(File::create(path).unwrap(), None).unwrap();
    let mut both = Both { capture, frames: Vec::new() };
    let report = rack::run(&scenario, Options { tap: Some(&mut both), ..Options::default() });
    assert!(report.unwrap().is_ok());
    assert_eq!(both.capture.finish().unwrap(), both.frames.len() as u64);
    both.frames
}

#[test]
fn frames_are_dissected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("rack.pcapng");
    let toml = "nodes = 4\n[workload]\naccesses = 40\n\
                [impairment]\nloss = \"2%\"\ncorrupt = \"3%\"\nduplicate = \"2%\"\n";
    let frames = capture(toml, &path);
    let fields = [
        "venice.src",
        "venice.opcode",
        "venice.sequence",
        "venice.transaction",
        "venice.address",
        "venice.flags.replay",
        "venice.checksum.status",
        "frame.comment",
    ];
    let shown = tshark(&path, &fields);
    assert_eq!(shown.len(), frames.len());
    let mut whole = 0;
    for ((datagram, remark), shown) in frames.iter().zip(&shown) {
        let remark = remark.clone().unwrap_or_default();
        assert_eq!(shown.last(), Some(&remark));
        let Ok(frame) = Frame::parse(&datagram.bytes) else {
            assert!(remark.contains("corrupted") && shown[6] != "1", "{shown:?}");
            continue;
        };
        whole += 1;
        let expected = [
            frame.source().to_string(),
            (frame.opcode() as u8).to_string(),
            frame.sequence().0.to_string(),
            frame.transaction().to_string(),
            format!("{:#018x}", frame.address()),
            u8::from(frame.flags() & REPLAY_FLAG != 0).to_string(),
            "1".to_string(),
        ];
        assert_eq!(shown[..7], expected);
    }
    assert!(whole > 200 && whole < frames.len(), "{whole} of {}", frames.len());
}

#[test]
fn frames_inside_hop_datagrams_are_dissected() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mesh.pcapng");
    let toml = "nodes = 8\ntopology = \"mesh:2x2x2\"\n[workload]\naccesses = 10\n";
    let frames = capture(toml, &path);
    let fields = ["venice.hop.kind", "venice.packet.dst", "venice.opcode", "_ws.expert"];
    let shown = tshark(&path, &fields);
    assert_eq!(shown.len(), frames.len());
    let mut inner = 0;
    for ((datagram, _), shown) in frames.iter().zip(&shown) {
        let hop = Hop::parse(&datagram.bytes, false).unwrap();
        let mut expected = [datagram.bytes[3].to_string(), String::new(), String::new()];
        if let Ok(packet) = Packet::parse(hop.payload()) {
            let frame = Frame::parse(packet.payload()).unwrap();
            expected[1] = packet.destination().node.to_string();
            expected[2] = (frame.opcode() as u8).to_string();
            inner += 1;
        }
        assert_eq!(shown[..3], expected, "{shown:?}");
    }
    assert!(inner > 100, "{inner}");
}

/// The golden vector of `venice-wire`, written by hand from `docs/reference/wire.md`.
#[rustfmt::skip]
const GOLDEN_WRITE: [u8; 69] = [
    b'V', b'N', 1, 1, 18, 1, 5, 0, 0x01, 0x02, 0x03, 0x04, 0x11, 0x12, 0x13, 0x14,
    0x21, 0x22, 0x23, 0x24, 0x63, 0x8b, 0x74, 0xfe, 0x31, 0x32, 0x33, 0x34, 0x41, 0x42, 0x43, 0x44,
    0x51, 0x52, 0x53, 0x54, 0x05, 0x00, 0x61, 0x62, 0x71, 0x72, 0x73, 0x74, 0x75, 0x76, 0x77, 0x78,
    0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87, 0x88, 0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98,
    b'h', b'e', b'l', b'l', b'o',
];

#[test]
fn golden_and_malformed_frames() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("golden.pcapng");
    let mut capture = Capture::new(File::create(&path).unwrap(), None).unwrap();
    let sealed = sealed(3, 64);
    let mut wrong = GOLDEN_WRITE;
    wrong[68] ^= 1;
    let mut unknown = GOLDEN_WRITE;
    unknown[4] = 99;
    let all: [&[u8]; 5] = [&GOLDEN_WRITE, &wrong, &GOLDEN_WRITE[..66], &unknown, &sealed];
    for (n, bytes) in all.into_iter().enumerate() {
        let (from_end, to_end) = (End::Recipient, End::Donor);
        let datagram = Datagram { from: 0, from_end, to: 1, to_end, bytes: bytes.to_vec() };
        capture.frame(n as u64, &datagram, None);
    }
    capture.finish().unwrap();
    let fields = [
        "venice.channel",
        "venice.opcode",
        "venice.src",
        "venice.dst",
        "venice.link",
        "venice.sequence",
        "venice.ack",
        "venice.transaction",
        "venice.access_len",
        "venice.detail",
        "venice.address",
        "venice.grant",
        "venice.key",
        "venice.payload",
        "venice.checksum.status",
    ];
    let shown = tshark(&path, &fields);
    let golden = [
        "1",
        "18",
        "67305985",
        "336794129",
        "0x24232221",
        "875770417",
        "1145258561",
        "1414746705",
        "5",
        "25185",
        "0x7877767574737271",
        "9837979819026121345",
        "0x9897969594939291",
        "68656c6c6f",
        "1",
    ];
    assert_eq!(shown[0], golden);
    assert_eq!(shown[1][14], "0", "a wrong checksum is shown as such");
    let experts =
        tshark(&path, &["_ws.expert.message", "venice.sealed.key_id", "venice.sealed.counter"]);
    assert!(experts[2][0].contains("says 69 bytes and has 66"), "{experts:?}");
    assert!(experts[3][0].contains("no such opcode"), "{experts:?}");
    assert_eq!(experts[4][1..], ["7", "3"]);
}

/// Builds a sealed datagram of `text_len` bytes, with number `number` under a key and a salt of its
/// own.
fn sealed(number: u8, text_len: usize) -> Vec<u8> {
    let mut datagram = vec![b'V', b'S', 1, 1, 1, 0, 0x11, 0];
    datagram.extend([7, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, number, 0, 0, 0, 0, 0, 0, 0]);
    datagram.extend(vec![0xee; text_len + 16]);
    datagram
}

#[test]
fn trains_are_split() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trains.pcapng");
    let mut capture = Capture::new(File::create(&path).unwrap(), None).unwrap();
    let frames = GOLDEN_WRITE.repeat(3);
    let cut_short = &frames[..frames.len() - 2];
    let in_a_row = [sealed(3, 64), sealed(4, 64), sealed(5, 9)].concat();
    // Encrypted text that looks like a header is not one.
    let mut alone = sealed(3, 100);
    let header: Vec<u8> = alone[..32].to_vec();
    alone[60..92].copy_from_slice(&header);
    for (n, bytes) in [&frames, cut_short, &in_a_row, &alone].into_iter().enumerate() {
        let (from_end, to_end) = (End::Recipient, End::Donor);
        let datagram = Datagram { from: 0, from_end, to: 1, to_end, bytes: bytes.to_vec() };
        capture.frame(n as u64, &datagram, None);
    }
    capture.finish().unwrap();
    let fields =
        ["venice.checksum.status", "venice.sealed.counter", "_ws.expert.message", "_ws.col.Info"];
    let shown = tshark(&path, &fields);
    assert_eq!(shown[0][..2], ["1,1,1", ""]);
    assert!(!shown[0][2].contains("says"), "{shown:?}");
    assert!(shown[0][3].starts_with("train of 3: Write"), "{shown:?}");
    assert_eq!(shown[1][0], "1,1");
    assert!(shown[1][2].contains("says 69 bytes and has 67"), "{shown:?}");
    assert_eq!(shown[2][..3], ["", "3,4,5", ""]);
    assert_eq!(shown[3][..3], ["", "3", ""]);
}
