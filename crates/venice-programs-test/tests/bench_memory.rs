//! `venice bench memory` from end to end: its figures are there, and nothing came back wrong.

use std::process::Command;
use std::time::Duration;

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
        .args(["bench", "memory", "--quick", "--only", "memcached,grep,fft,btree"])
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
