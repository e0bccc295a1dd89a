//! The report of Figure 16a.

use std::fmt;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use venice_measure::machine::Machine;
use venice_wire::ByteSize;

use crate::plot::{BarChart, BarSeries, Plot, Unit};
use crate::report_table::ReportTable;

/// Statement of the paper (Venice, section 7.1.2): its bars are a picture.
const PAPER: &str = "paper: performance improves almost linearly with the number of accelerators, remote \
                     ones like local ones; FFT of 512 MB on up to 3 accelerators on FPGAs.";

/// Place of the accelerators.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// In the program itself.
    Local,
    /// At hosts of other nodes, whose mailboxes are mapped.
    Shm,
    /// At hosts of other nodes, over a virtual wire.
    Udp,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Shm => "remote, shm",
            Self::Udp => "remote, udp",
        })
    }
}

/// One run.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunReport {
    /// Time of all tasks in seconds.
    pub seconds: f64,
    /// Tasks whose computing took longer than the model's time.
    pub late: u64,
    /// Transforms that were checked.
    pub checked: u64,
    /// Transforms that are wrong.
    pub wrong: u64,
}

/// The runs of one number of accelerators at one place.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CaseReport {
    /// Place of the accelerators.
    pub place: Place,
    /// Number of accelerators.
    pub accelerators: u32,
    /// Each run, in order.
    pub runs: Vec<RunReport>,
    /// Median time in seconds.
    pub seconds: f64,
    /// Time of one accelerator at this place, divided by this one.
    pub speed_up: Option<f64>,
    /// Time of as many local accelerators, divided by this one.
    pub of_local: Option<f64>,
}

/// The whole figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figure16aReport {
    /// This machine.
    pub machine: Machine,
    /// Bytes that were transformed.
    pub size_bytes: u64,
    /// Bytes of a task.
    pub task_bytes: u64,
    /// Rate of an accelerator in bytes a second.
    pub bytes_per_s: u64,
    /// True if not all was measured.
    pub interrupted: bool,
    /// The cases.
    pub cases: Vec<CaseReport>,
}

impl Figure16aReport {
    /// Fills in medians and ratios.
    pub(super) fn finish(&mut self) {
        for case in &mut self.cases {
            let mut seconds: Vec<f64> = case.runs.iter().map(|run| run.seconds).collect();
            seconds.sort_by(f64::total_cmp);
            case.seconds = seconds.get(seconds.len() / 2).copied().unwrap_or(f64::NAN);
        }
        let times: Vec<_> =
            self.cases.iter().map(|it| (it.place, it.accelerators, it.seconds)).collect();
        let time = |place, count| {
            let found = times.iter().find(|(at, of, _)| (*at, *of) == (place, count));
            found.map(|(_, _, seconds)| *seconds)
        };
        for case in &mut self.cases {
            case.speed_up = time(case.place, 1).map(|one| one / case.seconds);
            case.of_local = time(Place::Local, case.accelerators).map(|it| it / case.seconds);
        }
    }

    /// Returns how many transforms were checked, and how many were wrong.
    pub(super) fn checked(&self) -> (u64, u64) {
        let runs = self.cases.iter().flat_map(|case| &case.runs);
        runs.fold((0, 0), |(checked, wrong), run| (checked + run.checked, wrong + run.wrong))
    }

    pub(super) fn table(&self) -> ReportTable {
        let title = "Figure 16a: transforms on 1 to N accelerators, local and remote";
        let head = ["place", "accelerators", "time", "T1/TN", "of N", "of local", "late tasks"];
        let mut table = ReportTable::new(title, &head, 1);
        let percent =
            |share: Option<f64>| share.map_or("-".into(), |it| format!("{:.1} %", it * 100.0));
        for case in &self.cases {
            let count = f64::from(case.accelerators);
            table.rows.push(vec![
                case.place.to_string(),
                case.accelerators.to_string(),
                format!("{:.3} s", case.seconds),
                case.speed_up.map_or("-".into(), |it| format!("{it:.3}")),
                percent(case.speed_up.map(|it| it / count)),
                percent(case.of_local),
                case.runs.iter().map(|run| run.late).sum::<u64>().to_string(),
            ]);
        }
        let (size, task) = (ByteSize(self.size_bytes), ByteSize(self.task_bytes));
        let rate = Unit::BytesPerSecond.write(self.bytes_per_s as f64);
        table.notes.push(format!(
            "{size} in tasks of {task}; an emulated accelerator computes all of it and takes its time at \
             {rate}. Late tasks took the processor longer."
        ));
        table.notes.push(PAPER.to_owned());
        table
    }

    /// Draws performance relative to one local accelerator.
    ///
    /// # Errors
    /// When the drawing library fails.
    pub(super) fn plot(&self) -> Result<Option<Plot>> {
        let counts: Vec<u32> = {
            let mut counts: Vec<_> = self.cases.iter().map(|case| case.accelerators).collect();
            counts.sort_unstable();
            counts.dedup();
            counts
        };
        let case = |place: Place, count: u32| {
            self.cases.iter().find(|it| (it.place, it.accelerators) == (place, count))
        };
        let one = case(Place::Local, 1).map(|it| it.seconds);
        let series = [Place::Local, Place::Shm, Place::Udp].into_iter().map(|place| BarSeries {
            name: place.to_string(),
            values: counts.iter().map(|count| Some(one? / case(place, *count)?.seconds)).collect(),
            is_peer: false,
        });
        let linear = BarSeries {
            name: "linear".to_owned(),
            values: counts.iter().map(|count| Some(f64::from(*count))).collect(),
            is_peer: true,
        };
        let chart = BarChart {
            title: "Figure 16a: performance relative to one local accelerator".to_owned(),
            x: "accelerators",
            y: ("times one local accelerator", Unit::Plain),
            groups: counts.iter().map(u32::to_string).collect(),
            series: series.chain([linear]).collect(),
        };
        Ok(chart.svg()?.map(|svg| Plot { name: "figure-16a".to_owned(), svg }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_stand_beside_the_paper() {
        let run = |seconds| RunReport { seconds, late: 1, checked: 4, wrong: 0 };
        let case = |place, accelerators, seconds: &[f64]| CaseReport {
            place,
            accelerators,
            runs: seconds.iter().map(|it| run(*it)).collect(),
            seconds: 0.0,
            speed_up: None,
            of_local: None,
        };
        let mut report = Figure16aReport {
            machine: Machine::describe(),
            size_bytes: 512 << 20,
            task_bytes: 4 << 20,
            bytes_per_s: 64_000_000,
            interrupted: false,
            cases: vec![
                case(Place::Local, 1, &[8.0, 8.0, 9.0]),
                case(Place::Local, 4, &[2.0]),
                case(Place::Shm, 4, &[2.5]),
            ],
        };
        report.finish();
        assert_eq!((report.cases[1].speed_up, report.cases[1].of_local), (Some(4.0), Some(1.0)));
        assert_eq!((report.cases[2].speed_up, report.cases[2].of_local), (None, Some(0.8)));
        let text = report.table().text();
        assert!(text.contains("almost linearly") && text.contains("80.0 %"), "{text}");
        assert_eq!(report.checked(), (20, 0));
        assert!(report.plot().unwrap().unwrap().svg.contains("Figure 16a"));
    }
}
