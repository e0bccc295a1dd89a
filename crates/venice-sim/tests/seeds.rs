//! Whole racks under random workloads and random faults, each from its seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

use venice_sim::rack::{self, Options};
use venice_sim::report::Report;
use venice_sim::scenario::{Bounds, Scenario};

/// Seconds of processor time for each of two threads: thousands of seeds. On a machine so slow that
/// they do not suffice, what was not run is said.
const LIMIT_S: i64 = 40;
const SEEDS: u64 = 3000;

fn run(seed: u64, bounds: &Bounds) -> Report {
    let scenario = Scenario::random(seed, bounds);
    let report = rack::run(&scenario, Options::default()).expect("a random scenario is valid");
    assert!(report.is_ok(), "seed {seed}: {:#?}\n{}", report.violations, scenario.to_toml());
    report
}

#[test]
fn racks_of_all_kinds_keep_every_promise() {
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let accesses = AtomicU64::new(0);
    let work = || {
        while clock_gettime(ClockId::ThreadCPUTime).tv_sec < LIMIT_S {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= SEEDS {
                return;
            }
            let report = run(seed, &Bounds::default());
            accesses.fetch_add(report.succeeded(), Ordering::Relaxed);
        }
    };
    thread::scope(|scope| (0..2).for_each(|_| drop(scope.spawn(work))));
    let (ran, took) = (next.into_inner().min(SEEDS), started.elapsed());
    println!("{ran} seeds, {} accesses in {took:?}", accesses.into_inner());
}

#[test]
fn the_largest_racks_do_too() {
    let bounds = Bounds { min_nodes: 64, max_nodes: 64, ..Bounds::default() };
    for seed in 0..4 {
        let report = run(seed, &bounds);
        assert_eq!(report.nodes, 64);
    }
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    for seed in 0..20 {
        let (once, again) = (run(seed, &Bounds::default()), run(seed, &Bounds::default()));
        assert_eq!(once, again);
        assert_ne!(once.trace_hash, run(seed + 1, &Bounds::default()).trace_hash);
    }
}

/// Seeds that found something once.
#[test]
fn what_was_found_stays_mended() {
    // 1: a repeated frame counted as an overrun when no answer could be queued.
    // 219: more requests queued before the handshake than the other side could buffer.
    for seed in [1, 219] {
        run(seed, &Bounds::default());
    }
}
