//! `venice paper` from end to end: short runs of the figures that need more than `venice bench
//! memory`. Their rows are there, every answer was right, and the compared figures have a plausible
//! ratio.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use venice_e2e::programs::{Running, paged_mode_is_missing, venice_binary};

/// Runs `venice paper` with `arguments`; returns its JSON. Plots go into `plots` of `folder`.
fn paper(arguments: &[&str], folder: &Path) -> Value {
    let json = folder.join("figure.json");
    let mut command = Command::new(venice_binary());
    command.arg("paper").args(arguments);
    command.arg("--json").arg(&json).arg("--plots").arg(folder.join("plots"));
    Running::spawn(command, false).finish(Duration::from_secs(400)).expect_code(0);
    serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap()
}

#[test]
fn more_cache_memory_hits_more() {
    const TEST: &str = "more_cache_memory_hits_more";
    if paged_mode_is_missing(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sizes = ["--memory", "12MiB,32MiB", "--local", "8MiB", "--queries", "300"];
    let modes = ["--quick", "--modes", "venice-shm,venice-window"];
    let report = paper(&[&["14"], &sizes[..], &modes].concat(), folder.path());

    assert_eq!(report["wrong"], 0, "{report}");
    assert_eq!(report["unmeasured"].as_array().unwrap().len(), 0, "{report}");
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2 * 3, "two amounts in three modes");
    assert!(report["checked"].as_u64().unwrap() >= 6 * 300);
    for cell in cells {
        let number = |name: &str| cell[name].as_f64().unwrap();
        assert_eq!(number("hits") + number("misses"), 300.0, "{cell}");
        assert!(number("seconds") > 0.0, "{cell}");
        // 12 of 32 MiB, of which 95 % are hits: 36 %.
        let hit_rate = number("hits") / 300.0;
        let wanted = if number("memory_bytes") > 2e7 { 0.85..1.0 } else { 0.2..0.55 };
        assert!(wanted.contains(&hit_rate), "{cell}");
        if cell["mode"] == "venice-shm" {
            // Resident memory of the pager: its budget, and redis's other memory.
            assert!(number("resident_bytes") < 16e6, "{cell}");
        }
    }
    let donors = report["donors"].as_array().unwrap();
    assert!(donors.iter().any(|row| row["beside"].is_null()), "{report}");
    for file in ["index.html", "figure-14-time.svg", "figure-14-hits.svg"] {
        assert!(folder.path().join("plots").join(file).is_file(), "{file}");
    }
}

#[test]
fn graph_job_is_right_on_part_memory() {
    const TEST: &str = "graph_job_is_right_on_part_memory";
    if paged_mode_is_missing(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let graph = ["rack-11", "--graph", "150000x1200000", "--local", "0.5", "--limit", "300"];
    let report =
        paper(&[&graph[..], &["--modes", "venice-shm,venice-window"]].concat(), folder.path());

    assert_eq!(report["wrong"], 0, "{report}");
    assert_eq!(report["unmeasured"].as_array().unwrap().len(), 0, "{report}");
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 3, "local memory and two modes");
    assert_eq!(report["checked"].as_u64(), Some(3 * 3));
    for cell in cells {
        assert_eq!(cell["messages"], cells[0]["messages"], "{cell}");
        assert!(cell["slowdown"].as_f64().unwrap() > 0.0, "{cell}");
    }
    let heat = report["heat"].as_array().unwrap();
    assert_eq!(heat.len(), 24, "two samples a superstep");
    let sum = |sample: &Value| -> u64 {
        let partitions = sample.as_array().unwrap();
        assert_eq!(partitions.len(), 50);
        partitions.iter().map(|bytes| bytes.as_u64().unwrap()).sum()
    };
    // Messages fill the memory, then grow fewer.
    let sums: Vec<u64> = heat.iter().map(sum).collect();
    let peak = sums.iter().copied().max().unwrap();
    assert_eq!(report["peak_bytes"].as_u64(), Some(peak));
    assert!(peak as f64 > 1.2 * sums[0] as f64 && peak as f64 > 1.2 * sums[23] as f64, "{sums:?}");
    for file in ["index.html", "rack-11-heat.svg", "rack-11-slowdown.svg"] {
        assert!(folder.path().join("plots").join(file).is_file(), "{file}");
    }
}

#[test]
fn victim_store_answers_right() {
    const TEST: &str = "victim_store_answers_right";
    if paged_mode_is_missing(TEST) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let sizes = ["--size", "16MiB", "--value-sizes", "4KiB,512KiB", "--local", "0.75,0.25"];
    let figure = ["rack-9", "--quick", "--scale", "0.004", "--clients", "1,4", "--limit", "300"];
    let report = paper(&[&figure[..], &sizes].concat(), folder.path());

    assert_eq!(report["wrong"], 0, "{report}");
    assert_eq!(report["unmeasured"].as_array().unwrap().len(), 0, "{report}");
    let cells = report["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 2 * 2 * (2 + 6 * 2), "two sizes, 1 and 4 clients, modes by shares");
    for cell in cells {
        let number = |name: &str| cell[name].as_f64().unwrap();
        assert_eq!((number("operations"), &cell["cut_short"]), (400.0, &false.into()), "{cell}");
        assert!(number("read_us") > 0.0 && number("operations_per_s") > 0.0, "{cell}");
        let mode = cell["mode"].as_str().unwrap();
        let is_quarter = number("local_share") == 0.25;
        if mode.starts_with("victim-") {
            // The near share is as requested, and memcached has no more than that with some
            // reserve.
            assert!((number("near_share") - number("local_share")).abs() < 0.04, "{cell}");
            assert!(!is_quarter || number("resident_bytes") < 14e6, "{cell}");
        }
        if mode == "smaller" {
            assert!(!is_quarter || number("missed_share") > 0.4, "{cell}");
        } else {
            assert_eq!(number("missed_share"), 0.0, "{cell}");
        }
    }
    for figure in ["rack-9-victim-shm", "rack-10-victim-udp", "rack-10-venice-shm"] {
        let file = folder.path().join("plots").join(figure).with_extension("svg");
        assert!(file.is_file(), "{figure}");
    }
    assert!(folder.path().join("plots/index.html").is_file());
}

#[test]
fn invalid_figure_is_a_usage_error() {
    for arguments in [
        &["rack-9", "--local", "1"][..],
        &["rack-10", "--clients", "0"],
        &["rack-9", "--value-sizes", "2MiB"],
        &["14", "--memory", "32MiB", "--local", "64MiB"],
        &["14", "--memory", "32MiB"],
        &["14", "--scale", "2", "--memory", "32MiB", "--local", "8MiB"],
    ] {
        let mut command = Command::new(venice_binary());
        command.arg("paper").args(arguments);
        Running::spawn(command, false).finish(Duration::from_secs(60)).expect_code(2);
    }
}
