//! The demo against a real redis.

use std::path::PathBuf;

use venice_measure::demo::{DemoArgs, DemoReport, Mode, execute};
use venice_wire::ByteSize;

fn redis_is_installed() -> bool {
    ["/usr/bin", "/usr/local/bin", "/bin"]
        .iter()
        .any(|folder| PathBuf::from(folder).join("redis-server").is_file())
}

#[test]
fn small_demo_checks_values_and_cleans_up() {
    if !redis_is_installed() {
        eprintln!("SKIPPED: redis-server is not installed (apt-get install redis-server)");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("demo.json");
    execute(DemoArgs {
        size: ByteSize(16 << 20),
        local_share: 0.25,
        requests: 2_000,
        seconds_per_mode: 30.0,
        modes: vec![Mode::Local],
        swap_dir: folder.path().to_owned(),
        json: Some(json.clone()),
        keep: false,
    })
    .unwrap();

    let report: DemoReport = serde_json::from_str(&std::fs::read_to_string(json).unwrap()).unwrap();
    assert_eq!(report.dataset_bytes, 16 << 20);
    assert_eq!(report.values_wrong, 0);
    let local = &report.modes[0];
    assert_eq!((local.mode, local.requests, local.zipf_requests), (Mode::Local, 2_000, 2_000));
    // Every value once, and the requests with their warm-up twice.
    assert_eq!(local.values_checked, 16_384 + 2 * 2_400);
    assert!(local.resident_bytes_peak > report.dataset_bytes);
    assert!(report.local_bytes > report.dataset_bytes / 4);
    assert!(local.ops_per_s > 0.0 && local.p50_us <= local.p99_us);

    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "only the report was to stay: {left:?}");
}
