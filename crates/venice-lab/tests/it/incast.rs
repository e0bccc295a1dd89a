//! `venice bench incast` from end to end: bytes of both sides, and what is left behind. Never a time.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use venice_lab::incast::IncastReport;

/// Says why the test cannot run here.
fn is_skipped(test: &str) -> bool {
    let can = |words: &[&str]| {
        let ran = Command::new("unshare").arg("--net").args(words).output();
        ran.is_ok_and(|output| output.status.success())
    };
    let missing = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !can(&["true"]) {
        "netns"
    } else if !can(&["ip", "link", "add", "venice-a", "type", "veth", "peer", "name", "venice-b"]) {
        "veth"
    } else if !can(&["ip", "link", "add", "venice-br", "type", "bridge"]) {
        "bridge"
    } else if !can(&[
        "tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", "1mbit", "burst", "2kb", "limit",
        "4kb",
    ]) {
        "tbf"
    } else {
        return false;
    };
    println!("SKIPPED: {test}: no {missing}");
    true
}

fn bench(folder: &Path, words: &str) -> Command {
    let profile = folder.join("host.toml");
    std::fs::write(&profile, "[profile]\nclock = '2GHz'\n").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_venice-lab"));
    command.args(["bench", "incast", "--rto-min", "10ms", "--congestion", "reno"]);
    command.args(words.split(' ')).arg("--profile").arg(profile).arg("--json").arg("-");
    command
}

/// The namespaces of a process.
fn namespaces_of(pid: u32) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/run/netns") else { return Vec::new() };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(&format!("venice-incast-{pid}-"))).collect()
}

#[test]
fn both_sides_receive_all_bytes() {
    if is_skipped("both_sides_receive_all_bytes") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for (client, share, servers_share) in
        [("epoll", "per-server", true), ("pthread", "striped", false)]
    {
        let words = format!(
            "--servers 1,2 --rounds 2 --repetitions 1 --block 16KiB --client {client} --share {share}"
        );
        let child = bench(folder.path(), &words).stdout(Stdio::piped()).spawn().unwrap();
        let pid = child.id();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let report: IncastReport = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report.rows.len(), 2);
        for row in &report.rows {
            let blocks = if servers_share { u64::from(row.case.servers) } else { 1 };
            let bytes = 2 * blocks * (16 << 10);
            assert_eq!((row.linux.bytes, row.simulated.bytes), (bytes, bytes), "{row:?}");
            assert!(row.linux.goodput_mbps > 0.0 && row.simulated.goodput_mbps > 0.0, "{row:?}");
        }
        assert!(namespaces_of(pid).is_empty());
    }
}

#[test]
fn interrupt_removes_namespaces() {
    if is_skipped("interrupt_removes_namespaces") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let words = "--servers 4 --rounds 100000 --repetitions 1 --block 1KiB";
    let mut child = bench(folder.path(), words).stdout(Stdio::null()).spawn().unwrap();
    let pid = child.id();
    let start = Instant::now();
    while namespaces_of(pid).len() < 6 {
        assert!(start.elapsed() < Duration::from_secs(60) && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(20));
    }
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(1));
    assert!(namespaces_of(pid).is_empty());
}
