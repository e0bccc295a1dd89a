//! Whole racks under random workloads and random faults, each from its seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::common::found_once;
use venice_sim::rack::{self, Options};
use venice_sim::report::Report;
use venice_sim::scenario::{Bounds, Scenario};
use venice_testkit::seeds::{on_all_processors, seeds};

/// Racks of `make test-all`; each commit's `make test` runs a share of them, `make soak` fresh ones.
const SEEDS: u64 = 800;

fn run(seed: u64, bounds: &Bounds) -> Report {
    let scenario = Scenario::random(seed, bounds);
    let report = rack::run(&scenario, Options::default()).expect("a random scenario is valid");
    assert!(report.is_ok(), "seed {seed}: {:#?}\n{}", report.violations, scenario.to_toml());
    report
}

#[test]
fn racks_keep_every_promise() {
    let started = Instant::now();
    let accesses = AtomicU64::new(0);
    on_all_processors(seeds(SEEDS), |seed| {
        let report = run(seed, &Bounds::default());
        accesses.fetch_add(report.succeeded(), Ordering::Relaxed);
    });
    println!("{:?}: {} accesses in {:?}", seeds(SEEDS), accesses.into_inner(), started.elapsed());
}

#[test]
fn largest_racks_keep_every_promise() {
    let bounds = Bounds { min_nodes: 64, max_nodes: 64, ..Bounds::default() };
    for seed in 0..4 {
        let report = run(seed, &bounds);
        assert_eq!(report.nodes, 64);
    }
}

#[test]
fn seed_determines_the_run() {
    for seed in 0..20 {
        let (once, again) = (run(seed, &Bounds::default()), run(seed, &Bounds::default()));
        assert_eq!(once, again);
        assert_ne!(once.trace_hash, run(seed + 1, &Bounds::default()).trace_hash);
    }
}

/// The folder's contents are described in `tests/scenarios/README.md`.
#[test]
fn once_failed_scenarios_pass() {
    for (path, text) in found_once("scenarios") {
        let scenario = Scenario::from_toml(&text).unwrap_or_else(|why| panic!("{path:?}: {why}"));
        let report = rack::run(&scenario, Options::default()).expect("it was checked");
        assert!(report.is_ok(), "{path:?}: {:#?}", report.violations);
    }
}
