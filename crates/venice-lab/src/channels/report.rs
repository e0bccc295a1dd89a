//! Report types of `venice bench channels`; tables are in [`super::tables`], plots in
//! [`super::plots`], the page in [`super::page`].

use serde::{Deserialize, Serialize};

use super::aims::ChannelAim;
use super::contest::Cell;
use super::emulation::Accuracy;
use super::figure17::Figure17;
use super::figure18::Figure18;
use super::peers::Peer;
use super::series::Series;
use super::sweep::Emulated;
use super::turns::Turns;
use venice_measure::machine::Machine;

/// The report that `venice bench channels --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChannelsReport {
    /// Machine it was measured on.
    pub machine: Machine,
    /// Conditions of this run.
    pub conditions: Conditions,
    /// Third-party programs.
    pub peers: Vec<Peer>,
    /// Pairs of figures measured in turns.
    pub turns: Vec<Turns>,
    /// Latency and bandwidth by size.
    pub series: Vec<Series>,
    /// Aims of Venice.
    pub aims: Vec<ChannelAim>,
    /// Venice beside its peers, cell by cell.
    pub contest: Vec<Cell>,
    /// Accuracy of emulated links of several latencies and bandwidths.
    pub links: Vec<Emulated>,
    /// Accuracy of the emulated paper link, by operation and size.
    pub emulation: Vec<Accuracy>,
    /// Each application pattern on each channel.
    pub figure17: Option<Figure17>,
    /// Gain of credits by CRMA write.
    pub figure18: Option<Figure18>,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
}

/// Conditions of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    /// Seconds since 1970 at its start.
    pub started_unix_s: u64,
    /// True for a `--quick` run.
    pub quick: bool,
    /// True if an interrupt ended it early.
    pub interrupted: bool,
    /// Processors of the near and the far end.
    pub cpus: (usize, usize),
    /// Description of the wire.
    pub wire: String,
    /// Load average of the minute before.
    pub load: f64,
    /// Cost of a clock read, subtracted from latencies, in nanoseconds.
    pub clock_cost_ns: u64,
    /// Repetitions of each measurement; figures are medians.
    pub repetitions: usize,
    /// Length of a repetition in milliseconds.
    pub repetition_ms: u64,
}

impl ChannelsReport {
    /// Returns the lines above the tables.
    pub(super) fn header(&self) -> Vec<String> {
        let Conditions {
            cpus, wire, load, clock_cost_ns, repetitions, repetition_ms, quick, ..
        } = &self.conditions;
        let mut lines = vec![
            self.machine.line(),
            format!(
                "Near end on processor {}, far end on {}; the wire is {wire}; load before: {load:.2}.",
                cpus.0, cpus.1
            ),
            format!(
                "Each figure: the median of {repetitions} repetition(s) of {repetition_ms} ms{}; \
                 {clock_cost_ns} ns for a clock read subtracted.",
                if *quick { " (--quick: too short for reliable figures)" } else { "" },
            ),
        ];
        if self.conditions.interrupted {
            lines.push("INTERRUPTED: only the figures measured so far.".to_owned());
        }
        if *load > self.machine.cores as f64 / 2.0 {
            lines.push(
                "Other processes competed for the CPUs: spinning ends have measured the scheduler."
                    .to_owned(),
            );
        }
        let peers: Vec<String> = self
            .peers
            .iter()
            .map(|peer| {
                let version = peer.version.as_deref().unwrap_or("not installed");
                format!("{} {version}", peer.program)
            })
            .collect();
        lines.push(format!("Peers: {}.", peers.join(", ")));
        lines
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::series::{Latency, Medium, Operation, Point, System};
    use super::*;

    /// Builds a report with one series of each kind.
    pub(in crate::channels) fn sample() -> ChannelsReport {
        let points = |scale: f64| {
            [64u64, 4096]
                .map(|size_bytes| Point {
                    size_bytes,
                    latency: Some(Latency {
                        mean_ns: scale * 110.0,
                        p50_ns: Some(scale * 100.0),
                        p99_ns: Some(scale * 300.0),
                    }),
                    bandwidth_bytes_per_s: Some(1e9 / scale),
                })
                .to_vec()
        };
        let series = |system, medium, operation, variant: &str, scale| Series {
            points: points(scale),
            ..Series::new(system, medium, operation, variant)
        };
        let missing = Series::new(System::Ucx, Medium::Udp, Operation::Message, "tcp tag")
            .absent("not installed: apt-get install ucx-utils");
        let all = vec![
            series(System::Venice, Medium::Shm, Operation::Read, "", 1.0),
            series(System::Ucx, Medium::Shm, Operation::Read, "posix ucp_get", 2.0),
            series(System::Raw, Medium::Udp, Operation::RoundTrip, "TCP echo, spinning", 90.0),
            missing,
        ];
        let contest = super::super::contest::cells(&all);
        ChannelsReport {
            machine: Machine::describe(),
            conditions: Conditions {
                started_unix_s: 1,
                quick: true,
                interrupted: false,
                cpus: (0, 1),
                wire: "loopback (needs root)".into(),
                load: 0.1,
                clock_cost_ns: 25,
                repetitions: 1,
                repetition_ms: 12,
            },
            peers: vec![Peer { program: "ucx_perftest".into(), version: None }],
            aims: super::super::aims::evaluate(&all, &contest),
            contest,
            turns: vec![],
            series: all,
            links: vec![],
            emulation: vec![],
            figure17: None,
            figure18: None,
            seconds: 1.0,
        }
    }

    #[test]
    fn report_survives_json() {
        let report = sample();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["series"][0]["system"], "venice");
        assert_eq!(json["series"][0]["medium"], "shm");
        assert_eq!(json["series"][0]["points"][1]["size_bytes"], 4096);
        assert_eq!(json["series"][3]["absent"], "not installed: apt-get install ucx-utils");
        assert_eq!(json["contest"][0]["metric"], "latency");
        assert_eq!(serde_json::from_value::<ChannelsReport>(json).unwrap(), report);
    }

    #[test]
    fn every_cell_is_shown() {
        let text = super::super::tables::text(&sample());
        for wanted in [
            "Latency over shared memory",
            "UCX posix ucp_get",
            "100 ns / 300 ns",
            "not installed: apt-get install ucx-utils",
            "won 2.00×",
            "not in this run",
            "loopback (needs root)",
        ] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
    }
}
