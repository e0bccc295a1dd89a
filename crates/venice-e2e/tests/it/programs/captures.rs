//! Captures of a real rack in Wireshark: the dissector recognises everything, and sealed datagrams
//! are shown as sealed.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;
use venice_e2e::programs::{Rack, paged_mode_is_missing, wait_for};

const LIMIT: Duration = Duration::from_secs(120);
/// Options that put the program's memory two hops away.
const FAR: [&str; 8] =
    ["--local", "8MiB", "--remote", "48MiB", "--node", "node1", "--donor", "node3"];
const PROGRAM: &str = "x = bytearray(b'venice') * (4 << 20); print(sum(x[::4096]))";
/// Enough datagrams to include every kind; tshark checks some thousand checksums a second.
const DATAGRAMS: &str = "1500";
const FIELDS: [&str; 5] = [
    "venice.magic",
    "venice.opcode",
    "venice.checksum.status",
    "venice.sealed.tag",
    "_ws.expert.message",
];

/// Returns tshark's values of [`FIELDS`] for a program's datagrams in a rack started with
/// `options`: a row for each datagram or train.
fn captured(options: &[&str]) -> Vec<Vec<String>> {
    let rack = Rack::wired("mesh:3", 64, options);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let file = dir.path().join("rack.pcapng");
    let mut dumpcap = capture(&rack, &file);
    let mut python = Command::new("/usr/bin/python3");
    python.args(["-c", PROGRAM]);
    rack.run(&FAR, &python).finish(LIMIT).expect_code(0);
    // It ends by itself, unless there were fewer datagrams.
    let _ = kill_process(Pid::from_child(&dumpcap), Signal::INT);
    dumpcap.wait().expect("dumpcap ends");
    tshark(&file)
}

/// Captures the traffic of the rack's relays only. The nodes' own UDP ports, which programs do not
/// use here, would add only the bursts that measure the links.
fn capture(rack: &Rack, file: &Path) -> Child {
    let nodes = rack.json(&["nodes"]);
    let nodes = nodes.as_array().expect("a list");
    let addresses = nodes.iter().map(|node| &node["relay_addr"]);
    let port = |address: &Value| {
        let port = address.as_str().and_then(|text| text.rsplit(':').next());
        format!("udp port {}", port.expect("an address has a port"))
    };
    let filter = addresses.map(port).collect::<Vec<_>>().join(" or ");
    let child = Command::new("dumpcap")
        .args(["-q", "-i", "lo", "-c", DATAGRAMS, "-f", &filter, "-w"])
        .arg(file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("dumpcap comes with tshark");
    // Relays send all the time: once a datagram is in the file, the capture works.
    wait_for("dumpcap to capture", LIMIT, || {
        std::fs::metadata(file).is_ok_and(|file| file.len() > 1000).then_some(())
    });
    child
}

fn tshark(file: &Path) -> Vec<Vec<String>> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/wireshark/venice.lua");
    let mut command = Command::new("tshark");
    command.arg("-X").arg(format!("lua_script:{script}")).arg("-r").arg(file);
    command.args(["-T", "fields", "-E", "separator=\t", "-E", "aggregator=|"]);
    FIELDS.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = command.output().expect("tshark is installed by scripts/setup.sh");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    let text = String::from_utf8(output.stdout).expect("tshark writes UTF-8");
    text.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect()
}

/// Returns every value of a field.
fn values(rows: &[Vec<String>], field: &str) -> BTreeSet<String> {
    let at = FIELDS.iter().position(|name| *name == field).expect("a field asked for");
    let values = rows.iter().flat_map(|row| row[at].split('|')).filter(|value| !value.is_empty());
    values.map(str::to_string).collect()
}

/// Returns the remarks of Wireshark's experts, without its guess at datagrams to ports 33434 to
/// 33534, one of which the system may have given to an agent.
fn remarks(rows: &[Vec<String>]) -> BTreeSet<String> {
    let mut remarks = values(rows, "_ws.expert.message");
    remarks.retain(|text| !text.starts_with("Possible traceroute"));
    remarks
}

fn cannot_capture(test: &str) -> bool {
    if geteuid().is_root() {
        return paged_mode_is_missing(test);
    }
    println!("SKIPPED: {test}: no root");
    true
}

#[test]
fn plain_rack_is_fully_dissected() {
    if cannot_capture("plain_rack_is_fully_dissected") {
        return;
    }
    let rows = captured(&["--plain"]);
    assert_eq!(values(&rows, "venice.magic"), ["VH", "VN", "VP"].map(String::from).into());
    assert_eq!(values(&rows, "venice.checksum.status"), ["1".to_string()].into());
    let opcodes = values(&rows, "venice.opcode");
    for opcode in ["16", "17", "18"] {
        assert!(opcodes.contains(opcode), "no opcode {opcode} of Read, Data, Write: {opcodes:?}");
    }
    // A busy machine retransmits, which gives a remark.
    let odd = remarks(&rows);
    assert!(odd.iter().all(|text| text == "Sent before"), "{odd:?}");
}

#[test]
fn sealed_rack_is_shown_as_sealed() {
    if cannot_capture("sealed_rack_is_shown_as_sealed") {
        return;
    }
    let rows = captured(&[]);
    // Packets between a program and its node's relay carry their addresses outside the seal.
    assert_eq!(values(&rows, "venice.magic"), ["VP", "VS"].map(String::from).into());
    assert_eq!(values(&rows, "venice.opcode"), BTreeSet::new());
    assert_eq!(remarks(&rows), BTreeSet::new());
    let sealed = |row: &&Vec<String>| row[0].contains("VS") && !row[3].is_empty();
    assert_eq!(rows.iter().filter(sealed).count(), rows.len());
}
