//! Report types of `venice bench incast`, with their text form.

use serde::{Deserialize, Serialize};
use venice_measure::machine::Machine;
use venice_measure::report::table;
use venice_simkernel::units::{BitRate, Bytes};
use venice_warehouse::host::profile::Head;

use super::{Case, Congestion, Row};

/// A ratio is good within so much.
const NEAR: f64 = 0.15;

/// The report that `venice bench incast --json` writes.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct IncastReport {
    /// Machine it ran on.
    pub machine: Machine,
    /// Load of the machine before the run.
    pub load: f64,
    /// Rate of each link.
    pub rate: BitRate,
    /// Room of the switch's output.
    pub buffer: Bytes,
    /// Origin of the simulated kernel's costs.
    pub profile: Head,
    /// Runs of each case on Linux.
    pub repetitions: u32,
    /// Seeds of each case in the simulator.
    pub seeds: u64,
    /// True if an interrupt or an error ended the run early.
    pub interrupted: bool,
    /// The cases that both sides have run.
    pub rows: Vec<RowReport>,
}

/// A case on both sides.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RowReport {
    /// The case.
    pub case: Case,
    /// Linux.
    pub linux: Side,
    /// The simulator.
    pub simulated: Side,
    /// The simulator's median goodput by Linux's.
    pub ratio: f64,
    /// The ratio is within 15 % of 1.
    pub is_near: bool,
}

/// The figures of one side.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Side {
    /// Bytes received in each run.
    pub bytes: u64,
    /// Median goodput, in Mb/s.
    pub goodput_mbps: f64,
    /// The least and the most of all runs.
    pub range_mbps: (f64, f64),
    /// Median of the packets that the client's output of the switch dropped in a run.
    pub drops: f64,
}

impl Side {
    fn of(bytes: u64, mut goodputs: Vec<f64>, mut drops: Vec<f64>) -> Option<Self> {
        goodputs.sort_by(f64::total_cmp);
        drops.sort_by(f64::total_cmp);
        let (least, most) = (*goodputs.first()?, *goodputs.last()?);
        let middle = |of: &[f64]| (of[(of.len() - 1) / 2] + of[of.len() / 2]) / 2.0;
        let goodput_mbps = middle(&goodputs);
        Some(Self { bytes, goodput_mbps, range_mbps: (least, most), drops: middle(&drops) })
    }
}

/// Returns the figures of a row; `None` if a side has none.
pub(super) fn row(row: &Row) -> Option<RowReport> {
    let mbps = |ran: &super::linux::Ran| ran.bytes as f64 * 8.0 / 1e6 / ran.seconds.max(1e-9);
    let linux = Side::of(
        row.linux.first()?.bytes,
        row.linux.iter().map(mbps).collect(),
        row.linux.iter().map(|ran| ran.drops as f64).collect(),
    )?;
    let simulated = Side::of(
        row.simulated.first()?.bytes,
        row.simulated.iter().map(|ran| ran.goodput_mbps).collect(),
        row.simulated.iter().map(|ran| ran.drops as f64).collect(),
    )?;
    let ratio = simulated.goodput_mbps / linux.goodput_mbps.max(1e-9);
    let is_near = (ratio - 1.0).abs() <= NEAR;
    Some(RowReport { case: row.case, linux, simulated, ratio, is_near })
}

/// Renders the table.
pub(super) fn text(report: &IncastReport) -> String {
    let head = [
        "congestion",
        "RTO min",
        "servers",
        "Linux Mb/s",
        "least–most",
        "drops",
        "simulator Mb/s",
        "least–most",
        "drops",
        "ratio",
        "within 15 %",
    ];
    let mut rows = table(&head, 2);
    for row in &report.rows {
        let congestion = match row.case.congestion {
            Congestion::Reno => "reno",
            Congestion::Cubic => "cubic",
        };
        let side = |side: &Side| {
            let (least, most) = side.range_mbps;
            let range = format!("{least:.1}–{most:.1}");
            [format!("{:.1}", side.goodput_mbps), range, format!("{:.0}", side.drops)]
        };
        let first =
            [congestion.to_owned(), row.case.rto_min.to_string(), row.case.servers.to_string()];
        let verdict = if row.is_near { "yes" } else { "no" };
        let last = [format!("{:.2}", row.ratio), verdict.to_owned()];
        let sides = [side(&row.linux), side(&row.simulated)].concat();
        rows.add_row(first.into_iter().chain(sides).chain(last));
    }
    let near = report.rows.iter().filter(|row| row.is_near).count();
    let about = report.rows.first().map_or_else(String::new, |row| {
        let Case { block, share, client, rounds, .. } = row.case;
        let (share, client) = (super::simulated::share(share), super::simulated::client(client));
        format!("{rounds} blocks of {block} {share}, client {client}; ")
    });
    format!(
        "Incast, {} links, {} of buffer at the client's port; {about}medians of {} runs and {} seeds\n\
         {}, load {:.1}; profile of {}, {}\n\n{rows}\n\n{near} of {} within 15 %",
        report.rate,
        report.buffer,
        report.repetitions,
        report.seeds,
        report.machine.line(),
        report.load,
        report.profile.kernel,
        report.profile.date,
        report.rows.len()
    )
}

#[cfg(test)]
mod tests {
    use super::super::{linux, simulated};
    use super::*;

    #[test]
    fn ratio_is_of_medians() {
        let linux = |seconds: f64| linux::Ran { bytes: 1_000_000, seconds, drops: 7 };
        let simulated =
            |goodput_mbps: f64| simulated::Ran { bytes: 1_000_000, goodput_mbps, drops: 9 };
        let measured = Row {
            case: Case::default(),
            linux: vec![linux(0.1), linux(0.2), linux(8.0)],
            simulated: vec![simulated(44.0), simulated(900.0), simulated(1.0)],
        };
        let found = row(&measured).unwrap();
        assert_eq!((found.linux.goodput_mbps, found.simulated.goodput_mbps), (40.0, 44.0));
        assert_eq!(found.linux.range_mbps, (1.0, 80.0));
        assert!((found.ratio - 1.1).abs() < 1e-9 && found.is_near);
        let none = Row { simulated: Vec::new(), ..measured };
        assert!(row(&none).is_none());
    }
}
