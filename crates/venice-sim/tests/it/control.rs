//! Control planes of racks under random work and random faults, each from its seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::common::found_once;
use venice_sim::control::{self, Bounds, Report, Scenario};

/// Racks of each test run, always the same; `make soak` runs fresh ones.
const SEEDS: u64 = 2000;

fn run(seed: u64) -> Report {
    check(&Scenario::random(seed, &Bounds::default()), &format!("--seed {seed}"))
}

fn check(scenario: &Scenario, flags: &str) -> Report {
    let report = control::run(scenario).expect("a random scenario is valid");
    assert!(
        report.is_ok(),
        "replay it with: venice sim control --random {flags}\n{:#?}\n{}",
        report.violations,
        scenario.to_toml()
    );
    report
}

#[test]
fn control_planes_keep_every_promise() {
    let started = Instant::now();
    let (next, grants, passes) = (AtomicU64::new(0), AtomicU64::new(0), AtomicU64::new(0));
    let work = || {
        while let seed @ 0..SEEDS = next.fetch_add(1, Ordering::Relaxed) {
            let counts = run(seed).grants;
            grants.fetch_add(counts.memory + counts.devices, Ordering::Relaxed);
            passes.fetch_add(counts.passes, Ordering::Relaxed);
        }
    };
    let threads = thread::available_parallelism().map_or(2, usize::from);
    thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let (grants, passes) = (grants.into_inner(), passes.into_inner());
    println!("{SEEDS} seeds, {grants} grants, {passes} passes in {:?}", started.elapsed());
    assert!(grants > 10 * SEEDS && passes > SEEDS / 20, "too few events: {grants}, {passes}");
}

fn run_large(seed: u64, (monitors, donors, recipients): (u16, u16, u16)) {
    let bounds = Bounds { min_monitors: monitors, max_monitors: monitors, ..Bounds::default() };
    let scenario = Scenario { donors, recipients, ..Scenario::random(seed, &bounds) };
    let size = format!("--monitors {monitors} --donors {donors} --recipients {recipients}");
    check(&scenario, &format!("{size} --seed {seed}"));
}

#[test]
fn large_control_planes_keep_every_promise() {
    for seed in (0..60).chain([479]) {
        run_large(seed, (3, 16, 24));
    }
}

/// Monitor Nodes answer more slowly than most callers wait.
#[test]
fn overloaded_monitor_nodes_keep_every_promise() {
    run_large(232, (3, 5, 40));
    run_large(317, (2, 16, 24));
    for seed in 0..10 {
        run_large(seed, (2, 8, 40));
    }
}

#[test]
fn seed_determines_the_run() {
    for seed in 0..40 {
        let (once, again) = (run(seed), run(seed));
        assert_eq!(once, again);
        assert_ne!(once.trace_hash, run(seed + 1).trace_hash);
    }
}

#[test]
fn healthy_rack_answers_fast() {
    for monitors in [1, 3] {
        let report = control::run(&Scenario { monitors, ..Scenario::default() }).unwrap();
        assert!(report.is_ok(), "{:#?}", report.violations);
        assert!(report.grants.memory > 20 && report.grants.ended_early == 0, "{report:?}");
        assert!(report.grants.longest_answer_ns < 5_000_000_000, "{report:?}");
    }
}

/// The folder's contents are described in `tests/control-scenarios/README.md`.
#[test]
fn once_failed_scenarios_pass() {
    for (path, text) in found_once("control-scenarios") {
        let scenario = Scenario::from_toml(&text).unwrap_or_else(|why| panic!("{path:?}: {why}"));
        let report = control::run(&scenario).expect("it was checked");
        assert!(report.is_ok(), "{path:?}: {:#?}", report.violations);
    }
}
