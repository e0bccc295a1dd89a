//! `venice bench memory` from end to end: its figures are there, and no result was wrong.

use std::fs::File;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use venice_e2e::programs::{Running, paged_mode_is_missing, venice_binary};
use venice_testkit::wait::wait_until;

#[test]
fn quick_run_has_figures_and_no_wrong_byte() {
    const TEST: &str = "quick_run_has_figures_and_no_wrong_byte";
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
    // Digests of three programs in two modes, and memcached's values, each at least once.
    assert!(report["checked"].as_u64().unwrap() > 3 * 512 + 2 * 3 * 2);
    assert_eq!(report["unmeasured"].as_array().unwrap().len(), 0, "{report}");
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 5 * 3, "five cases in three modes");
    for cell in cells {
        let local_bytes = cell["local_bytes"].as_u64().unwrap();
        assert!(cell["slowdown"].as_f64().unwrap() > 0.0, "{cell}");
        assert!(cell["seconds"].as_f64().unwrap() > 0.0, "{cell}");
        // The resident memory is far below the whole, plus the driver's and the program's own
        // needs.
        assert!(cell["resident_bytes"].as_u64().unwrap() < local_bytes + (8 << 20), "{cell}");
    }
    for file in ["index.html", "memory-fft.svg", "memory-memcached-64kib-3-clients.svg"] {
        assert!(plots.join(file).is_file(), "{file}");
    }
}

/// Locks the machine's swap, which all programs share: the holder is the only test that swaps.
fn alone_on_swap(test: &str) -> Option<File> {
    let controllers = std::fs::read_to_string("/sys/fs/cgroup/cgroup.controllers");
    let in_v2 = || controllers.is_ok_and(|all| all.split_whitespace().any(|one| one == "memory"));
    let lacks = if !rustix::process::geteuid().is_root() {
        "root"
    } else if !Path::new("/sys/fs/cgroup/memory").is_dir() && !in_v2() {
        "memory-cgroup"
    } else if !Path::new("/dev/fuse").exists() {
        "fuse"
    } else if !Path::new("/dev/loop-control").exists() {
        "loop"
    } else {
        let path = std::env::temp_dir().join("venice-swap-tests.lock");
        let lock = File::options().create(true).truncate(false).write(true).open(path).unwrap();
        lock.lock().unwrap();
        return Some(lock);
    };
    println!("SKIPPED: {test}: no {lacks}");
    None
}

#[test]
fn swap_mode_has_figures() {
    let Some(_alone) = alone_on_swap("swap_mode_has_figures") else { return };
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("memory.json");
    let mut command = Command::new(venice_binary());
    command
        .args(["bench", "memory", "--quick", "--only", "grep", "--modes", "venice-swap-shm"])
        .args(["--size", "32MiB", "--local", "0.5", "--limit", "120", "--json"])
        .arg(&json);
    Running::spawn(command, false).finish(Duration::from_secs(240)).expect_code(0);

    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    assert_eq!((&report["wrong"], &report["unmeasured"]), (&0.into(), &Value::Array(vec![])));
    assert!(report["checked"].as_u64().unwrap() > 0, "{report}");
    let cells = report["cells"].as_array().unwrap();
    let modes: Vec<&str> = cells.iter().filter_map(|cell| cell["mode"].as_str()).collect();
    assert_eq!(modes, ["local", "venice-swap-shm"], "{report}");
    // It was limited to half of its memory.
    let [local, swapped] = [&cells[0], &cells[1]].map(|cell| cell["resident_bytes"].as_u64());
    assert!(swapped.unwrap() * 4 < local.unwrap() * 3, "{report}");
    assert!(cells[1]["slowdown"].as_f64().unwrap() > 0.0, "{report}");
}

#[test]
fn interrupted_run_prints_its_figures() {
    const TEST: &str = "interrupted_run_prints_its_figures";
    if paged_mode_is_missing(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("memory.json");
    let mut command = Command::new(venice_binary());
    // There are far more modes and shares than the time allows.
    command
        .args(["bench", "memory", "--only", "grep", "--modes", "venice-shm,venice-window"])
        .args(["--size", "32MiB", "--rounds", "20", "--local", "1,0.9,0.8,0.7,0.6,0.5,0.4,0.3"])
        .arg("--json")
        .arg(&json);
    let running = Running::spawn(command, false);
    // The first run on a rack follows the one on local memory.
    let is_on_rack = |pid: &u32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains("\0run\0--local\0")
    };
    wait_until("a run on a rack", Duration::from_secs(300), || {
        running.descendants().iter().any(is_on_rack)
    });
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
fn invalid_arguments_are_usage_errors() {
    for arguments in [["--clients", "0"], ["--size", "1KiB"], ["--value-sizes", "2MiB"]] {
        let mut command = Command::new(venice_binary());
        command.args(["bench", "memory"]).args(arguments);
        Running::spawn(command, false).finish(Duration::from_secs(60)).expect_code(2);
    }
}
