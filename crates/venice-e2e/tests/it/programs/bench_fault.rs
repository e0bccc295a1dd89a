//! `venice bench fault` from end to end, on little memory: every case of every way has figures, and
//! each word read was right.

use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use venice_e2e::programs::{Running, paged_mode_is_missing, venice_binary};

const LOCAL_BYTES: u64 = 8 << 20;

#[test]
fn small_run_has_figures_for_every_case() {
    if paged_mode_is_missing("small_run_has_figures_for_every_case") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("fault.json");
    let mut command = Command::new(venice_binary());
    command
        .args(["bench", "fault", "--size", "32MiB", "--local", "8MiB", "--seconds", "0.05"])
        .args(["--ways", "resident,uffd-floor,venice-shm", "--json"])
        .arg(&json);
    let outcome = Running::spawn(command, false).finish(Duration::from_secs(120));
    outcome.expect_code(0);
    let report: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    for left_out in ["failed", "skipped"] {
        assert_eq!(report[left_out], Value::Array(vec![]), "{report}");
    }

    let cases = |name: &str| -> Vec<Value> {
        let ways = report["ways"].as_array().unwrap();
        let way = ways.iter().find(|way| way["way"] == name).unwrap_or_else(|| panic!("{report}"));
        way["cases"].as_array().unwrap().clone()
    };
    // Reads and writes by one thread and by two: at random, in order, and, for paging ways, in
    // runs.
    let all = [("resident", 2 * 4), ("uffd-floor", 2 * 4), ("venice-shm", 3 * 4)];
    for (way, count) in all {
        let cases = cases(way);
        assert_eq!(cases.len(), count, "{way}: {cases:?}");
        for case in &cases {
            assert!(case["accesses"].as_u64().unwrap() > 0, "{way}: {case}");
            assert_eq!(case["wrong"], 0, "{way}: {case}");
            let [p50, p99] = ["p50_us", "p99_us"].map(|name| case[name].as_f64().unwrap());
            assert!(p50 <= p99, "{way}: {case}");
        }
    }
    // Three quarters of the pages were far; plain memory was all resident.
    let faults =
        |way: &str| -> u64 { cases(way).iter().map(|case| case["faults"].as_u64().unwrap()).sum() };
    assert!(faults("venice-shm") > 1000, "{report}");
    let peak_bytes = |way: &str| {
        cases(way).iter().map(|case| case["resident_bytes_peak"].as_u64().unwrap()).max().unwrap()
    };
    assert!(peak_bytes("resident") >= 32 << 20, "{report}");
    assert!(peak_bytes("venice-shm") < 2 * LOCAL_BYTES, "{report}");
    // The aims are evaluated against the floor of the same run.
    let aims = report["aims"].as_array().unwrap();
    let is_judged =
        |name: &str| aims.iter().any(|aim| aim["name"].as_str().unwrap().contains(name));
    assert!(
        is_judged("p50 / floor p50") && is_judged("sequential read over shm / floor"),
        "{report}"
    );
}

#[test]
fn invalid_sizes_are_usage_errors() {
    for arguments in [
        ["--size", "64MiB", "--local", "64MiB"],
        ["--size", "1MiB", "--local", "512KiB"],
        ["--size", "900TiB", "--local", "8MiB"],
    ] {
        let mut command = Command::new(venice_binary());
        command.args(["bench", "fault"]).args(arguments);
        Running::spawn(command, false).finish(Duration::from_secs(60)).expect_code(2);
    }
}
