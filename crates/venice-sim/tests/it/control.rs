//! Control planes of racks under random work and random faults, each from its seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use crate::common::found_once;
use venice_sim::control::{self, Bounds, Report, Scenario};

/// Racks that every run of the tests tries: the same ones each time. Fresh ones are for
/// `make soak`.
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
fn control_planes_of_all_kinds_keep_every_promise() {
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
    assert!(grants > 10 * SEEDS && passes > SEEDS / 20, "too little happens: {grants}, {passes}");
}

fn run_large(seed: u64, (monitors, donors, recipients): (u16, u16, u16)) {
    let bounds = Bounds { min_monitors: monitors, max_monitors: monitors, ..Bounds::default() };
    let scenario = Scenario { donors, recipients, ..Scenario::random(seed, &bounds) };
    let size = format!("--monitors {monitors} --donors {donors} --recipients {recipients}");
    check(&scenario, &format!("{size} --seed {seed}"));
}

#[test]
fn many_donors_and_recipients_do_too() {
    for seed in (0..60).chain([479]) {
        run_large(seed, (3, 16, 24));
    }
}

/// Monitor Nodes that take longer for an answer than most who ask have patience.
#[test]
fn more_than_the_monitor_nodes_can_serve_at_a_time_do_too() {
    run_large(232, (3, 5, 40));
    run_large(317, (2, 16, 24));
    for seed in 0..10 {
        run_large(seed, (2, 8, 40));
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    for seed in 0..40 {
        let (once, again) = (run(seed), run(seed));
        assert_eq!(once, again);
        assert_ne!(once.trace_hash, run(seed + 1).trace_hash);
    }
}

#[test]
fn without_trouble_nothing_is_lost_and_nobody_waits_long() {
    for monitors in [1, 3] {
        let report = control::run(&Scenario { monitors, ..Scenario::default() }).unwrap();
        assert!(report.is_ok(), "{:#?}", report.violations);
        assert!(report.grants.memory > 20 && report.grants.ended_early == 0, "{report:?}");
        assert!(report.grants.longest_answer_ns < 5_000_000_000, "{report:?}");
    }
}

/// See `tests/control-scenarios/README.md`.
#[test]
fn what_was_found_stays_mended() {
    for (path, text) in found_once("control-scenarios") {
        let scenario = Scenario::from_toml(&text).unwrap_or_else(|why| panic!("{path:?}: {why}"));
        let report = control::run(&scenario).expect("it was checked");
        assert!(report.is_ok(), "{path:?}: {:#?}", report.violations);
    }
}
