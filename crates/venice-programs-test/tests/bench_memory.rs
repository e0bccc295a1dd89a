//! `venice bench memory` from end to end: its figures are there, and nothing came back wrong.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use venice_programs_test::{Running, paged_mode_is_missing, venice_binary};

#[test]
fn a_quick_run_has_a_figure_for_every_mode_and_not_a_wrong_byte() {
    const TEST: &str = "a_quick_run_has_a_figure_for_every_mode_and_not_a_wrong_byte";
    if paged_mode_is_missing(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("memory.json");
    let plots = folder.path().join("plots");
    let mut command = Command::new(venice_binary());
    command
        .args(["bench", "memory", "--quick", "--only", "memcached,grep,fft,berkeley-db"])
        .args(["--modes", "venice-shm,venice-window", "--limit", "300"])
        .args(["--size", "32MiB", "--fft", "16MiB", "--value-sizes", "64KiB"])
        .args(["--requests", "100", "--clients", "1,3"])
        .arg("--json")
        .arg(&json)
        .arg("--plots")
        .arg(&plots);
    let outcome = Running::spawn(command, false).finish(Duration::from_secs(300));
    outcome.expect_code(0);

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!(report["wrong"], 0, "{report}");
    // Digests of three programs in two modes, and memcached's values, each once at least.
    assert!(report["checked"].as_u64().unwrap() > 3 * 512 + 2 * 3 * 2);
    assert_eq!(report["unmeasured"].as_array().unwrap().len(), 0, "{report}");
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 5 * 3, "five cases in three modes");
    for cell in cells {
        let local_bytes = cell["local_bytes"].as_u64().unwrap();
        assert!(cell["slowdown"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["seconds"].as_f64().unwrap() > 0.0, "{cell}");
        // Far from all of it, but for what the driver and the program itself need besides.
        assert!(cell["resident_bytes"].as_u64().unwrap() < local_bytes + (8 << 20), "{cell}");
    }
    for file in ["index.html", "memory-fft.svg", "memory-memcached-64kib-3-clients.svg"] {
        assert!(plots.join(file).is_file(), "{file}");
    }
}

#[test]
fn an_interrupted_run_tells_what_it_has() {
    const TEST: &str = "an_interrupted_run_tells_what_it_has";
    if paged_mode_is_missing(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("memory.json");
    let mut command = Command::new(venice_binary());
    // Far more modes and shares than there is time for.
    command
        .args(["bench", "memory", "--only", "grep", "--modes", "venice-shm,venice-window"])
        .args(["--size", "32MiB", "--rounds", "20", "--local", "1,0.9,0.8,0.7,0.6,0.5,0.4,0.3"])
        .arg("--json")
        .arg(&json);
    let running = Running::spawn(command, false);
    // The first run on a rack comes after the one on local memory.
    let is_on_rack = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("\0run\0--local\0")
    };
    let start = Instant::now();
    while !running.descendants().iter().any(is_on_rack) {
        assert!(start.elapsed() < Duration::from_secs(300), "nothing ran on a rack");
        std::thread::sleep(Duration::from_millis(20));
    }
    running.signal(rustix::process::Signal::INT);
    let outcome = running.finish(Duration::from_secs(120));
    outcome.expect_code(1);
    let said = String::from_utf8_lossy(&outcome.stdout);
    assert!(said.contains("INTERRUPTED"), "{said}");
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((&report["interrupted"], &report["wrong"]), (&true.into(), &0.into()));
    let cells = report["cells"].as_array().unwrap().len();
    assert!((1..17).contains(&cells), "{cells} cells");
}

#[test]
fn arguments_that_make_no_sense_are_a_matter_of_usage() {
    for arguments in [["--clients", "0"], ["--size", "1KiB"], ["--value-sizes", "2MiB"]] {
        let mut command = Command::new(venice_binary());
        command.args(["bench", "memory"]).args(arguments);
        Running::spawn(command, false).finish(Duration::from_secs(60)).expect_code(2);
    }
}
