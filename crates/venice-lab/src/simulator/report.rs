//! Report types of `venice bench sim`, with their text form.

use std::fmt;

use serde::{Deserialize, Serialize};
use venice_wire::ByteSize;

use super::aims::Aim;
use super::case::{QueueKind, THINK_US, Workload};
use super::worker::{FLIT_BYTES, Measured};
use venice_measure::machine::Machine;
use venice_measure::report::{grouped, table};

/// The simulator, or a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// Venice.
    Venice,
    /// ns-3.
    Ns3,
}

/// The report that `venice bench sim --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SimReport {
    /// Machine it ran on.
    pub machine: Machine,
    /// Load average of the last minute when it began.
    pub load: f64,
    /// True for the small variant.
    pub quick: bool,
    /// Requested runs of each row; the report has the medians.
    pub rounds: u32,
    /// True if an interrupt ended the run early.
    pub interrupted: bool,
    /// Version of ns-3 that was measured.
    pub ns3: Option<String>,
    /// The reason why it was not.
    pub ns3_missing: Option<String>,
    /// The rows.
    pub rows: Vec<RowReport>,
    /// Workloads whose runs had different traces.
    pub different: Vec<String>,
    /// Aims.
    pub aims: Vec<Aim>,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
}

/// One workload on a number of threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RowReport {
    /// Its simulator.
    pub system: System,
    /// The workload.
    pub workload: Workload,
    /// Threads.
    pub threads: usize,
    /// Runs that were measured.
    pub runs: usize,
    /// Medians of the figures.
    pub figures: Measured,
    /// Events a second of the wall clock.
    pub events_per_s: f64,
    /// Packet-hops a second of the wall clock.
    pub packet_hops_per_s: f64,
    /// Flit-hops a second of the wall clock.
    pub flit_hops_per_s: f64,
    /// Requests a second of processor time.
    pub requests_per_cpu_s: f64,
    /// Processor time of an event, in nanoseconds.
    pub ns_per_event: f64,
    /// The same, relative to the same workload at 500 nodes on as many threads.
    pub relative_cost: Option<f64>,
}

/// Computes the medians of the runs of one row, which must not be empty.
pub(super) fn row(
    system: System,
    workload: Workload,
    threads: usize,
    runs: &[Measured],
) -> Option<RowReport> {
    let median = |of: fn(&Measured) -> f64| {
        let mut all: Vec<f64> = runs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all.get(all.len() / 2).copied()
    };
    let figures = Measured {
        setup_s: median(|run| run.setup_s)?,
        wall_s: median(|run| run.wall_s)?,
        cpu_s: median(|run| run.cpu_s)?,
        resident_bytes: median(|run| run.resident_bytes as f64)? as u64,
        ..runs.first()?.clone()
    };
    let wall = |count: u64| count as f64 / figures.wall_s;
    Some(RowReport {
        system,
        workload,
        threads,
        runs: runs.len(),
        events_per_s: wall(figures.events),
        packet_hops_per_s: wall(figures.packet_hops),
        flit_hops_per_s: wall(figures.flit_hops),
        requests_per_cpu_s: figures.requests as f64 / figures.cpu_s,
        ns_per_event: figures.cpu_s * 1e9 / figures.events as f64,
        relative_cost: None,
        figures,
    })
}

/// Relates the cost of an event to that at 500 nodes.
pub(super) fn relate(rows: &mut [RowReport]) {
    let at = |workload: &Workload| match workload {
        Workload::Memcached { transport, nodes, .. } => Some((*transport, *nodes)),
        Workload::Incast { .. } | Workload::Mesh { .. } | Workload::Queue { .. } => None,
    };
    let base: Vec<_> = rows
        .iter()
        .filter_map(|row| {
            let (transport, nodes) = at(&row.workload)?;
            (nodes == 500).then_some((row.system, row.threads, transport, row.ns_per_event))
        })
        .collect();
    for row in rows {
        let Some((transport, _)) = at(&row.workload) else { continue };
        let same = base.iter().find(|(system, threads, of, _)| {
            (*system, *threads, *of) == (row.system, row.threads, transport)
        });
        row.relative_cost = same.map(|(.., ns)| row.ns_per_event / ns);
    }
}

impl RowReport {
    /// Names the simulator, or the queue alone.
    fn by(&self) -> &'static str {
        match (self.system, &self.workload) {
            (System::Ns3, _) => "ns-3",
            (System::Venice, Workload::Queue { queue: QueueKind::BinaryHeap, .. }) => "BinaryHeap",
            (
                System::Venice,
                Workload::Queue { queue: QueueKind::Wheels, .. }
                | Workload::Memcached { .. }
                | Workload::Incast { .. }
                | Workload::Mesh { .. },
            ) => "venice",
        }
    }

    fn cells(&self) -> Vec<String> {
        let figures = &self.figures;
        let count = |value: f64| if value > 0.0 { grouped(value) } else { "-".to_owned() };
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        vec![
            self.workload.to_string(),
            self.by().to_owned(),
            count(figures.nodes.into()),
            self.threads.to_string(),
            count(figures.events as f64),
            grouped(self.events_per_s),
            count(self.packet_hops_per_s),
            count(self.flit_hops_per_s),
            count(self.requests_per_cpu_s),
            format!("{:.0}", self.ns_per_event),
            or_dash(self.relative_cost.map(|relative| format!("{relative:.2}"))),
            ByteSize(figures.resident_bytes >> 20 << 20).to_string(),
            format!("{:.2}", figures.cpu_s),
            format!("{:.2}", figures.wall_s),
            or_dash(figures.trace_hash.as_ref().map(|hash| hash.chars().take(8).collect())),
        ]
    }
}

const HEAD: [&str; 15] = [
    "workload",
    "by",
    "nodes",
    "threads",
    "events",
    "events/s",
    "packet-hops/s",
    "flit-hops/s",
    "requests/CPU s",
    "CPU ns/event",
    "to 500 nodes",
    "resident",
    "CPU s",
    "wall s",
    "trace",
];

impl fmt::Display for SimReport {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            to,
            "The simulator's speed; medians of {} runs in turns, each in a process of its own\n{}, \
             load {:.1}\n",
            self.rounds,
            self.machine.line(),
            self.load
        )?;
        let mut rows = table(&HEAD, 2);
        self.rows.iter().for_each(|row| {
            rows.add_row(row.cells());
        });
        writeln!(to, "{rows}\n")?;
        for line in self.remarks() {
            writeln!(to, "{line}")?;
        }
        if !self.aims.is_empty() {
            writeln!(to, "\n{}", self.aim_table())?;
        }
        write!(to, "{:.0} s in all", self.seconds)
    }
}

impl SimReport {
    fn remarks(&self) -> Vec<String> {
        let mut lines = vec![
            "Rates are of the run alone, without set-up, by the wall clock unless CPU is said. A hop of \
             a packet is a switch that it has passed, in the mesh a link."
                .to_owned(),
            format!(
                "A flit is {FLIT_BYTES} bytes of a frame. The mesh runs under its checkers; \
                 memcached's clients think {THINK_US} µs."
            ),
        ];
        match (&self.ns3, &self.ns3_missing) {
            (Some(version), _) => lines.push(format!(
                "ns-{version}: fixed 10 µs of service, no operating system; fewer requests, as its \
                 rates do not depend on them."
            )),
            (None, Some(reason)) => lines.push(format!("ns-3: not measured, {reason}")),
            (None, None) => {}
        }
        lines.extend(self.different.iter().map(|what| format!("DIFFERENT TRACES: {what}")));
        lines
    }

    fn aim_table(&self) -> String {
        let mut rows = table(&["aim", "measured", "aim at", "ratio", "verdict"], 1);
        let number =
            |value: f64| if value < 1000.0 { format!("{value:.2}") } else { grouped(value) };
        for aim in &self.aims {
            let order = if aim.at_least { "≥" } else { "≤" };
            rows.add_row([
                aim.name.clone(),
                number(aim.measured),
                format!("{order} {}", number(aim.aim)),
                format!("{:.2}", aim.ratio),
                if aim.met() { "met" } else { "MISSED" }.to_owned(),
            ]);
        }
        rows.to_string()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::case::Transport;
    use super::*;

    pub(in super::super) fn memcached(nodes: u32) -> Workload {
        Workload::Memcached { transport: Transport::Udp, nodes, requests: 10 }
    }

    /// Builds a row of so many events, half as many hops and a tenth as many requests.
    pub(in super::super) fn row(
        system: System,
        workload: Workload,
        threads: usize,
        events: u64,
        seconds: f64,
    ) -> RowReport {
        let run = Measured {
            nodes: workload.nodes(),
            events,
            packet_hops: events / 2,
            requests: events / 10,
            wall_s: seconds,
            cpu_s: seconds,
            resident_bytes: 1_000_000_000,
            trace_hash: Some("0123456789abcdef".to_owned()),
            ..Measured::default()
        };
        super::row(system, workload, threads, &[run]).unwrap()
    }

    fn sample() -> SimReport {
        let mut rows = vec![
            row(System::Venice, memcached(500), 1, 1_000_000, 0.25),
            row(System::Ns3, memcached(500), 1, 1_000_000, 4.0),
        ];
        relate(&mut rows);
        SimReport {
            machine: Machine::describe(),
            load: 0.5,
            quick: true,
            rounds: 1,
            interrupted: false,
            ns3: None,
            ns3_missing: Some("g++ is not installed".to_owned()),
            aims: super::super::aims::evaluate(&rows),
            rows,
            different: vec!["memcached, UDP".to_owned()],
            seconds: 1.0,
        }
    }

    #[test]
    fn figures_are_medians() {
        let run = |wall_s, cpu_s| Measured { events: 100, wall_s, cpu_s, ..Measured::default() };
        let runs = [run(3.0, 1.0), run(1.0, 2.0), run(2.0, 4.0)];
        let row = super::row(System::Venice, memcached(500), 2, &runs).unwrap();
        assert_eq!((row.figures.wall_s, row.figures.cpu_s), (2.0, 2.0));
        assert_eq!((row.events_per_s, row.ns_per_event, row.runs), (50.0, 2e7, 3));
        assert_eq!(super::row(System::Venice, memcached(500), 2, &[]), None);
    }

    #[test]
    fn report_survives_json() {
        let report = sample();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["rows"][1]["system"], "ns3");
        assert_eq!(json["rows"][0]["workload"]["kind"], "memcached");
        assert_eq!(serde_json::from_value::<SimReport>(json).unwrap(), report);
    }

    #[test]
    fn text_names_what_is_missing() {
        let text = sample().to_string();
        for wanted in [
            "memcached, UDP",
            "4 000 000",
            "ns-3: not measured, g++ is not installed",
            "DIFFERENT TRACES: memcached, UDP",
            "01234567",
        ] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
    }
}
