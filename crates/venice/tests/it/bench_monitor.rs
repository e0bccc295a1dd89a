//! `venice bench monitor` as a user starts it, with a short run.

use crate::common::Place;
use serde_json::Value;

/// Measures a second of 30 agents. Retries if the machine stalled for so long that the Monitor Node
/// lost its turn in etcd.
fn measured(store: &str) -> Value {
    let words = ["bench", "monitor", "--agents", "30", "--donors", "3", "--requests", "20"];
    let words = [&words[..], &["--seconds", "1", "--store", store, "--json", "-"]].concat();
    let said = (0..3).map(|_| Place::new().venice(&words)).find(|said| said.code() == 0);
    let report = said.expect("one of three attempts comes to an end").json();
    report["stores"][0].clone()
}

#[test]
fn short_run_measures_each_store() {
    for (name, has_process) in [("file", false), ("etcd", true)] {
        let store = measured(name);
        assert_eq!(store["store"], name);
        for what in ["heartbeats", "requests", "releases"] {
            assert!(store[what]["count"].as_u64().unwrap() > 0, "{what}: {store}");
            let of = |at: &str| store[what][at].as_f64().unwrap();
            assert!(of("p50_ms") > 0.0 && of("p50_ms") <= of("p99_ms"), "{what}: {store}");
        }
        assert!(store["resident_bytes"].as_u64().unwrap() > 0, "{store}");
        assert!(store["refused"].is_u64(), "{store}");
        assert_eq!(store["store_cores"].is_number(), has_process, "{store}");
    }
}

#[test]
fn invalid_arguments_are_refused() {
    let place = Place::new();
    for (words, said) in [
        (["--agents", "0"], "--agents: expected 1 to 50000"),
        (["--donors", "0"], "memory needs a donor"),
        (["--seconds", "0.5"], "--seconds: expected 1 or more"),
        (["--requests", "20000"], "--requests: expected 10000 or less"),
        (["--store", "paper"], "possible values: file, etcd"),
    ] {
        let refused = place.venice(&[&["bench", "monitor"], &words[..]].concat());
        assert_eq!(refused.code(), 2, "{words:?}: {}", refused.err);
        assert!(refused.err.contains(said), "{words:?}: {}", refused.err);
    }
}
