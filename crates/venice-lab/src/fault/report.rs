//! Report types of `venice bench fault`, with their text form.

use serde::{Deserialize, Serialize};
use venice_wire::ByteSize;

use super::FaultArgs;
use super::aims::Aim;
use super::touch::CaseReport;
use super::udp_round_trip::{RoundTrip, TripLatency};
use super::way::{FailedWay, SkippedWay, Way, WayReport};
use venice_measure::machine::Machine;
use venice_measure::report::{grouped, micros, table};

/// The report that `venice bench fault --json` writes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FaultReport {
    /// Machine it was measured on.
    pub machine: Machine,
    /// Bytes touched.
    pub region_bytes: u64,
    /// Bytes that could be resident at a time.
    pub local_bytes: u64,
    /// Length of a case in seconds.
    pub seconds_per_case: f64,
    /// The bare exchange of datagrams, unless it failed.
    pub udp_round_trip: Option<RoundTrip>,
    /// The ways that were measured.
    pub ways: Vec<WayReport>,
    /// Ways that this machine does not support.
    pub skipped: Vec<SkippedWay>,
    /// Ways that failed.
    pub failed: Vec<FailedWay>,
    /// Aims of Venice.
    pub aims: Vec<Aim>,
    /// Duration of the whole run in seconds.
    pub seconds: f64,
}

impl FaultReport {
    pub(crate) fn new(
        args: &FaultArgs,
        machine: Machine,
        udp_round_trip: Option<RoundTrip>,
    ) -> Self {
        Self {
            machine,
            region_bytes: args.size.0,
            local_bytes: args.local.0,
            seconds_per_case: args.seconds,
            udp_round_trip,
            ways: Vec::new(),
            skipped: Vec::new(),
            failed: Vec::new(),
            aims: Vec::new(),
            seconds: 0.0,
        }
    }

    /// Renders the tables and the lines around them.
    pub(crate) fn text(&self) -> String {
        let mut text = format!(
            "{}\n{} touched, {} of it resident in the ways that page; latency of each touch.\n\n{}\n",
            self.machine.line(),
            ByteSize(self.region_bytes),
            ByteSize(self.local_bytes),
            self.case_table(),
        );
        for way in &self.ways {
            let peak = way.cases.iter().map(|case| case.resident_bytes_peak).max().unwrap_or(0);
            let detail = way.detail.as_ref().map(|text| format!("; {text}")).unwrap_or_default();
            text += &format!("{}: peak resident {}{detail}\n", way.way, ByteSize(peak));
        }
        for skipped in &self.skipped {
            text += &format!("{}: SKIPPED, {}\n", skipped.way, skipped.reason);
        }
        for failed in &self.failed {
            text += &format!("{}: FAILED, {}\n", failed.way, failed.reason);
        }
        if let Some(trip) = &self.udp_round_trip {
            text += &trip_line(trip);
        }
        text + &self.aim_lines() + &format!("{:.0} s in all", self.seconds)
    }

    fn case_table(&self) -> String {
        let mut rows = table(
            &[
                "way",
                "case",
                "p50 µs",
                "p99 µs",
                "mean µs",
                "fault p50",
                "fault p99",
                "pages/s",
                "faults/s",
                "CPU µs/fault",
                "CPU µs/page",
                "helpers'",
            ],
            2,
        );
        // Ordered by case, so that the ways stand one above the other.
        let all: Vec<(Way, &CaseReport)> =
            self.ways.iter().flat_map(|way| way.cases.iter().map(|case| (way.way, case))).collect();
        let mut kinds: Vec<_> = all.iter().map(|(_, case)| kind(case)).collect();
        kinds.sort_unstable();
        kinds.dedup();
        for wanted in kinds {
            for (way, case) in all.iter().filter(|(_, case)| kind(case) == wanted) {
                rows.add_row(row(*way, case));
            }
        }
        rows.to_string()
    }

    fn aim_lines(&self) -> String {
        let mut text = String::new();
        for aim in &self.aims {
            text += &format!(
                "{} {}: {:.2} {} (aim: {} {:.2})\n",
                if aim.met() { "met   " } else { "MISSED" },
                aim.name,
                aim.measured,
                aim.unit,
                if aim.at_least { "at least" } else { "at most" },
                aim.bound,
            );
        }
        text
    }
}

fn trip_line(trip: &RoundTrip) -> String {
    let placements = [
        ("unpinned", Some(&trip.unpinned)),
        ("on one core", Some(&trip.same_core)),
        ("on two cores", trip.other_core.as_ref()),
    ];
    let latencies: Vec<String> = placements
        .into_iter()
        .filter_map(|(name, latency)| {
            let TripLatency { p50_us, p99_us, .. } = latency?;
            Some(format!("{name} p50 {} µs, p99 {} µs", micros(*p50_us), micros(*p99_us)))
        })
        .collect();
    format!("bare UDP round trip of a page over {}: {}\n", trip.path, latencies.join("; "))
}

fn kind(case: &CaseReport) -> (super::Pattern, super::Operation, usize) {
    (case.pattern, case.operation, case.threads)
}

fn row(way: Way, case: &CaseReport) -> Vec<String> {
    // A few slow touches among many are caused by the scheduler.
    let faulted = case.faults > case.accesses / 100;
    let fault = |value: f64| if faulted { micros(value) } else { "-".to_owned() };
    vec![
        way.name().to_owned(),
        format!(
            "{} {}, {}",
            case.pattern.name(),
            case.operation.name(),
            if case.threads == 1 {
                "1 thread".to_owned()
            } else {
                format!("{} threads", case.threads)
            }
        ),
        micros(case.p50_us),
        micros(case.p99_us),
        micros(case.mean_us),
        fault(case.fault_p50_us),
        fault(case.fault_p99_us),
        grouped(case.pages_per_s),
        if faulted { grouped(case.faults_per_s) } else { "-".to_owned() },
        fault(case.cpu_us_per_fault),
        micros(case.cpu_us_per_page),
        micros(case.helper_cpu_us_per_page),
    ]
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::touch::{Operation, Pattern};
    use super::*;

    pub(crate) fn case(pattern: Pattern, p50_us: f64, p99_us: f64, pages_per_s: f64) -> CaseReport {
        CaseReport {
            pattern,
            operation: Operation::Read,
            threads: 1,
            accesses: 1000,
            faults: 750,
            mean_us: p50_us,
            p50_us,
            p99_us,
            max_us: p99_us,
            fault_p50_us: p50_us,
            fault_p99_us: p99_us,
            pages_per_s,
            faults_per_s: pages_per_s,
            cpu_us_per_fault: 3.0,
            cpu_us_per_page: 2.0,
            helper_cpu_us_per_page: 0.0,
            resident_bytes_peak: 256 << 20,
            wrong: 0,
        }
    }

    /// Builds a report of floor, shm and udp, without cases.
    pub(crate) fn sample() -> FaultReport {
        let latency = TripLatency { exchanges: 10, mean_us: 20.0, p50_us: 18.0, p99_us: 40.0 };
        let way =
            |way| WayReport { way, detail: None, fill_s: 1.0, clock_cost_ns: 30, cases: vec![] };
        FaultReport {
            machine: Machine::describe(),
            region_bytes: 1 << 30,
            local_bytes: 256 << 20,
            seconds_per_case: 2.0,
            udp_round_trip: Some(RoundTrip {
                path: "loopback".into(),
                unpinned: latency.clone(),
                same_core: latency,
                other_core: None,
            }),
            ways: [Way::UffdFloor, Way::VeniceShm, Way::VeniceUdp].map(way).into(),
            skipped: vec![SkippedWay { way: Way::Zram, reason: "no zram here".into() }],
            failed: vec![],
            aims: vec![],
            seconds: 1.0,
        }
    }

    #[test]
    fn report_names_skipped_ways() {
        let mut report = sample();
        report.ways[0].cases = vec![case(Pattern::Random, 4.0, 9.0, 200_000.0)];
        report.ways[1].cases = vec![case(Pattern::Random, 5.0, 60.0, 150_000.0)];
        report.aims = super::super::aims::evaluate(&report.ways, report.udp_round_trip.as_ref());
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["ways"][1]["way"], "venice-shm");
        assert_eq!(json["ways"][1]["cases"][0]["pattern"], "random");
        assert_eq!(json["skipped"][0]["way"], "zram");
        assert_eq!(serde_json::from_value::<FaultReport>(json).unwrap(), report);

        let text = report.text();
        for wanted in [
            "venice-shm",
            "random read, 1 thread",
            "zram: SKIPPED, no zram here",
            "MISSED",
            "12.00",
        ] {
            assert!(text.contains(wanted), "{wanted} is missing in\n{text}");
        }
    }
}
