//! Report types of `venice bench shares`, with their text form.

use serde::{Deserialize, Serialize};

use super::program::{Had, Work};
use super::{Case, Program};
use venice_measure::machine::Machine;
use venice_measure::report::{grouped, micros, table};

/// The report that `venice bench shares --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SharesReport {
    /// Machine it ran on.
    pub machine: Machine,
    /// `veth` (another network namespace, behind a bridge) or `loopback`.
    pub path: String,
    /// Duration of a case in seconds.
    pub seconds: f64,
    /// Requested repetitions of each case.
    pub repetitions: u32,
    /// True if an interrupt ended the run early.
    pub interrupted: bool,
    /// The cases.
    pub cases: Vec<CaseReport>,
}

/// Programs that ran beside each other.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Name of the case.
    pub case: String,
    /// The programs.
    pub programs: Vec<ProgramReport>,
}

/// Medians of one program over the repetitions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ProgramReport {
    /// Workload.
    pub work: Work,
    /// Number of links.
    pub links: u32,
    /// Pages a second.
    pub pages_per_s: f64,
    /// Share of all pages moved in the case.
    pub share: f64,
    /// Median latency of a page, in microseconds.
    pub p50_us: f64,
    /// The 99th percentile, in microseconds.
    pub p99_us: f64,
}

/// Computes medians over the rounds, each with the figures of all programs.
pub(super) fn case(case: &Case, rounds: &[Vec<Had>], seconds: f64) -> CaseReport {
    let program = |(at, program): (usize, &Program)| {
        let of =
            |of: &dyn Fn(&[Had]) -> f64| median(rounds.iter().map(|round| of(round)).collect());
        let all = |round: &[Had]| round.iter().map(|had| had.pages as f64).sum::<f64>();
        ProgramReport {
            work: program.work,
            links: program.links,
            pages_per_s: of(&|round| round[at].pages as f64 / seconds),
            share: of(&|round| round[at].pages as f64 / all(round)),
            p50_us: of(&|round| round[at].p50_us),
            p99_us: of(&|round| round[at].p99_us),
        }
    };
    let programs = case.programs.iter().enumerate().map(program).collect();
    CaseReport { case: case.name.to_owned(), programs }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Renders the table.
pub(super) fn text(report: &SharesReport) -> String {
    let mut rows = table(&["case", "program", "links", "pages/s", "share", "p50 µs", "p99 µs"], 2);
    for case in &report.cases {
        for (at, program) in case.programs.iter().enumerate() {
            rows.add_row([
                if at == 0 { case.case.clone() } else { String::new() },
                program.work.name().to_owned(),
                program.links.to_string(),
                grouped(program.pages_per_s),
                format!("{:.0} %", program.share * 100.0),
                micros(program.p50_us),
                micros(program.p99_us),
            ]);
        }
    }
    format!(
        "Several programs at one donor, one thread, over udp ({}), sealed; medians of {} times {} s\n\
         {}\n\n{rows}",
        report.path,
        report.repetitions,
        report.seconds,
        report.machine.line(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_shares_are_over_rounds() {
        let programs =
            &[Program { work: Work::Reads, links: 1 }, Program { work: Work::Writes, links: 4 }];
        let had = |pages| Had { pages, p50_us: pages as f64, p99_us: 0.0 };
        let rounds = [[10, 30], [20, 20], [30, 30]].map(|round| round.map(had).to_vec());
        let found = case(&Case { name: "two", programs }, &rounds, 2.0);
        let [first, second] = &found.programs[..] else { panic!("{found:?}") };
        assert_eq!((first.pages_per_s, first.share, first.p50_us), (10.0, 0.5, 20.0));
        assert_eq!((second.pages_per_s, second.links), (15.0, 4));
    }
}
