//! Minimisation of a failing scenario: it gets smaller as long as it fails in the same way.

use super::scenario::{Clocks, Impairment};
use super::{Checker, Report, Scenario, run};
use venice_simkernel::minimise;
use venice_simkernel::units::Share;

/// Minimises a failing scenario: fewer faults, fewer participants, less work, a more reliable
/// network. Stops after `tries` runs; returns the smallest that failed and its report. `None` if
/// the scenario does not fail.
pub fn minimise(scenario: &Scenario, tries: u32) -> Option<(Scenario, Report)> {
    minimise::minimise(scenario, tries, |scenario| run(scenario).ok())
}

impl minimise::Scenario for Scenario {
    type Report = Report;
    type Failure = Checker;

    fn smaller(&self) -> Vec<Self> {
        candidates(self)
    }

    fn failure(report: &Report) -> Option<Checker> {
        report.violations.first().map(|violation| violation.checker)
    }
}

/// Returns slightly smaller scenarios, the largest steps first.
fn candidates(scenario: &Scenario) -> Vec<Scenario> {
    let mut smaller = Vec::new();
    let mut with = |change: &dyn Fn(&mut Scenario)| {
        let mut candidate = scenario.clone();
        change(&mut candidate);
        let all = candidate.clone();
        candidate.faults.retain(|fault| fault.parties().iter().all(|party| all.has(*party)));
        if candidate != *scenario && candidate.check().is_ok() {
            smaller.push(candidate);
        }
    };
    with(&|it| it.faults.clear());
    for n in 0..scenario.faults.len() {
        with(&|it| {
            it.faults.remove(n);
        });
    }
    with(&|it| it.monitors -= 1);
    with(&|it| it.donors = it.donors.div_ceil(2));
    with(&|it| it.donors -= 1);
    with(&|it| it.recipients = it.recipients.div_ceil(2));
    with(&|it| it.recipients -= 1);
    with(&|it| it.devices = false);
    with(&|it| it.span.0 = it.span.0 / 2 + 1);
    with(&|it| it.clocks = Clocks::default());
    with(&|it| it.network = Impairment::default());
    let shares: [fn(&mut Scenario) -> &mut Share; 10] = [
        |it| &mut it.network.loss,
        |it| &mut it.network.resets,
        |it| &mut it.network.late,
        |it| &mut it.workload.wait,
        |it| &mut it.workload.preempt,
        |it| &mut it.workload.copies,
        |it| &mut it.workload.device,
        |it| &mut it.workload.named,
        |it| &mut it.workload.die,
        |it| &mut it.workload.transfer,
    ];
    for share in shares {
        with(&|it| *share(it) = Share(0));
    }
    smaller
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Bounds;

    #[test]
    fn passing_scenario_is_not_minimised() {
        assert_eq!(minimise(&Scenario::random(0, &Bounds::default()), 10), None);
    }

    #[test]
    fn smaller_scenario_names_no_missing_participant() {
        for seed in 0..50 {
            for smaller in candidates(&Scenario::random(seed, &Bounds::default())) {
                assert_eq!(smaller.check(), Ok(()));
            }
        }
    }
}
