//! Grants that change hands, under crashes at every step, stops and clock jumps.

use std::sync::atomic::{AtomicU64, Ordering};

use venice_sim::control::{
    self, Bounds, Checker, Clocks, Fault, FaultKind, Impairment, Party, Report, Sabotage, Scenario,
    Workload,
};
use venice_simkernel::units::{Nanos, Share};
use venice_testkit::seeds::{on_all_processors, seeds};

const MS: u64 = 1_000_000;
/// Racks of `make test-all`.
const SEEDS: u64 = 3000;
/// Moments of a transfer at which a participant fails, in `make test-all`.
const MOMENTS: u64 = 2400;

/// Draws a rack whose programs transfer most of their grants.
fn scenario(seed: u64) -> Scenario {
    let drawn = Scenario::random(seed, &Bounds::default());
    let workload = Workload {
        think: Nanos(200 * MS),
        hold: Nanos(drawn.workload.hold.0.min(2_000 * MS)),
        transfer: Share(800_000),
        ..drawn.workload
    };
    Scenario { recipients: drawn.recipients.max(2), workload, ..drawn }
}

fn check(scenario: &Scenario, what: &str) -> Report {
    let report = control::run(scenario).expect("the scenario is valid");
    assert!(report.is_ok(), "{what}: {:#?}\n{}", report.violations, scenario.to_toml());
    report
}

#[test]
fn transfers_keep_every_promise() {
    let (transferred, claimed) = (AtomicU64::new(0), AtomicU64::new(0));
    on_all_processors(seeds(SEEDS), |seed| {
        let grants = check(&scenario(seed), &format!("seed {seed}")).grants;
        transferred.fetch_add(grants.transferred, Ordering::Relaxed);
        claimed.fetch_add(grants.claimed, Ordering::Relaxed);
    });
    let (transferred, claimed) = (transferred.into_inner(), claimed.into_inner());
    let count = seeds(SEEDS).count() as u64;
    println!("{count} racks: {transferred} grants transferred, {claimed} of them claimed");
    assert!(transferred > 3 * count && claimed > count / 2, "{transferred}, {claimed}");
}

/// A small rack whose first transfer is hit by a fault at every moment.
fn small(monitors: u16) -> Scenario {
    let workload = Workload {
        think: Nanos(300 * MS),
        hold: Nanos(600 * MS),
        max_slabs: 6,
        device: Share(300_000),
        copies: Share(500_000),
        die: Share(0),
        transfer: Share(1_000_000),
        ..Workload::default()
    };
    Scenario {
        seed: 11,
        donors: 2,
        recipients: 2,
        monitors,
        span: Nanos(8_000 * MS),
        network: Impairment { latency: Nanos(5 * MS), ..Impairment::default() },
        clocks: Clocks { apart: Nanos(600_000 * MS), drift: Share(200) },
        workload,
        ..Scenario::default()
    }
}

#[test]
fn failure_at_any_step_is_safe() {
    let moments = seeds(MOMENTS);
    let begins_ns = [1, 3].map(|monitors| {
        let grants = check(&small(monitors), "without a fault").grants;
        assert!(grants.transferred > 3 && grants.claimed > 0, "{grants:?}");
        grants.first_transfer_ns
    });
    on_all_processors(moments, |moment| {
        let which = (moment % 2) as usize;
        let monitors = [1, 3][which];
        let who = match moment / 2 % 6 {
            0 => Party::Recipient(0),
            1 => Party::Recipient(1),
            2 => Party::Donor(0),
            3 => Party::Donor(1),
            _ => Party::Monitor((moment / 12 % u64::from(monitors)) as u16),
        };
        let kind = match moment / 12 % 3 {
            0 => FaultKind::Crash { who },
            1 => FaultKind::Freeze { who },
            _ => FaultKind::Isolate { who },
        };
        // From before the prepare until after the claim.
        let at_ns = begins_ns[which].saturating_sub(120 * MS) + moment / 36 * 7 * MS;
        let lasts = Nanos([200 * MS, 3_000 * MS, 12_000 * MS][(moment / 36 % 3) as usize]);
        let faults = vec![Fault { at: Nanos(at_ns), lasts, kind }];
        check(&Scenario { faults, ..small(monitors) }, &format!("moment {moment}"));
    });
}

/// Runs seeds until the checker of transfers finds the bug.
fn assert_found(sabotage: Sabotage, checkers: &[Checker]) {
    let mut others = Vec::new();
    for seed in 0..60 {
        let report = control::run_sabotaged(&scenario(seed), Some(sabotage)).unwrap();
        match report.violations.first() {
            Some(found) if checkers.contains(&found.checker) => return,
            Some(found) => others.push(found.checker),
            None => {}
        }
    }
    panic!("{sabotage:?} is found by {others:?}, not by {checkers:?}");
}

#[test]
fn answer_to_old_owner() {
    assert_found(Sabotage::KeepOldKey, &[Checker::Transfers]);
}

#[test]
fn switch_before_record() {
    assert_found(Sabotage::SwitchEarly, &[Checker::Transfers]);
}

#[test]
fn confirmed_and_forgotten_switch() {
    assert_found(Sabotage::ForgetSwitch, &[Checker::Transfers]);
}
