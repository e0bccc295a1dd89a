//! Minimisation of a failing scenario: it gets smaller as long as it fails in the same way.

use crate::checkers::Checker;
use crate::rack::{self, Options, Sabotage};
use crate::report::Report;
use crate::scenario::{Impairment, Scenario};
use venice_simkernel::minimise;
use venice_simkernel::units::Share;

/// Minimises a failing scenario: fewer faults, fewer nodes, less work, more reliable links. Stops
/// after `tries` runs; returns the smallest that failed and its report. `None` if the scenario does
/// not fail.
pub fn minimise(
    scenario: &Scenario,
    sabotage: Option<Sabotage>,
    tries: u32,
) -> Option<(Scenario, Report)> {
    minimise::minimise(scenario, tries, |scenario| {
        rack::run(scenario, Options { sabotage, ..Options::default() }).ok()
    })
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
    for nodes in [2, scenario.nodes / 2, scenario.nodes.saturating_sub(1)] {
        with(&|it| {
            it.nodes = nodes.max(2);
            it.workload.donors = it.workload.donors.min(it.nodes - 1);
            it.faults.retain(|fault| fault.nodes().iter().all(|&node| node < nodes));
        });
    }
    with(&|it| it.topology = "all-to-all".into());
    with(&|it| it.workload.donors = 1);
    with(&|it| it.workload.accesses = (it.workload.accesses / 2).max(1));
    with(&|it| it.impairment = Impairment::default());
    let shares: [fn(&mut Impairment) -> &mut Share; 5] = [
        |it| &mut it.loss,
        |it| &mut it.duplicate,
        |it| &mut it.corrupt,
        |it| &mut it.reorder,
        |it| &mut it.stale,
    ];
    for share in shares {
        with(&|it| *share(&mut it.impairment) = Share(0));
    }
    smaller
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Bounds;

    #[test]
    fn failing_scenario_gets_smaller() {
        let bounds = Bounds { max_nodes: 12, ..Bounds::default() };
        let sabotage = Some(Sabotage::DropWrite);
        let failing = (0..).map(|seed| Scenario::random(seed, &bounds)).find(|scenario| {
            let options = Options { sabotage, ..Options::default() };
            rack::run(scenario, options).is_ok_and(|report| !report.is_ok())
        });
        let failing = failing.expect("one of them fails");
        let (smallest, report) = minimise(&failing, sabotage, 100).expect("it fails");
        assert!(!report.is_ok());
        assert!(smallest.nodes < failing.nodes && smallest.faults.is_empty(), "{smallest:?}");
    }

    #[test]
    fn passing_scenario_is_not_minimised() {
        assert_eq!(minimise(&Scenario::default(), None, 10), None);
    }
}
