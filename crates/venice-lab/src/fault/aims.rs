//! The aims of the fault benchmark, evaluated within one run.

use serde::{Deserialize, Serialize};

use super::touch::{CaseReport, Operation, Pattern};
use super::udp_round_trip::RoundTrip;
use super::way::{Way, WayReport};

/// One aim and the figure of this run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aim {
    /// Name of the compared figures.
    pub name: String,
    /// Measured value.
    pub measured: f64,
    /// Bound.
    pub bound: f64,
    /// True if `bound` is a minimum, false if it is a maximum.
    pub at_least: bool,
    /// Unit of both figures, empty for a ratio.
    pub unit: String,
}

impl Aim {
    fn at_most(name: &str, measured: f64, bound: f64, unit: &str) -> Self {
        Self { name: name.into(), measured, bound, at_least: false, unit: unit.into() }
    }

    fn at_least(name: &str, measured: f64, bound: f64) -> Self {
        Self { name: name.into(), measured, bound, at_least: true, unit: String::new() }
    }

    /// True if the aim was met.
    #[must_use]
    pub fn met(&self) -> bool {
        if self.at_least { self.measured >= self.bound } else { self.measured <= self.bound }
    }
}

/// Evaluates every aim whose figures exist.
pub(crate) fn evaluate(ways: &[WayReport], udp_round_trip: Option<&RoundTrip>) -> Vec<Aim> {
    let random = |way| find(ways, way, Pattern::Random);
    let sequential = |way| find(ways, way, Pattern::Sequential);
    let floor = random(Way::UffdFloor);
    let mut aims = Vec::new();
    // The bounds are 8 and 60 µs where a bare handler takes 5.
    for (way, what) in [
        (Way::VeniceShm, "random read over shm"),
        (Way::VeniceShmUnpinned, "random read over shm by an unpinned thread"),
        (Way::VeniceShmInThread, "random read over shm served in the thread"),
    ] {
        if let (Some(case), Some(floor)) = (random(way), floor) {
            let name = format!("{what}, p50 / floor p50");
            aims.push(Aim::at_most(&name, case.p50_us / floor.p50_us, 1.6, ""));
            let name = format!("{what}, p99 / floor p50");
            aims.push(Aim::at_most(&name, case.p99_us / floor.p50_us, 12.0, ""));
        }
    }
    for (way, name) in [
        (Way::VeniceShm, "random read over shm, two threads / one"),
        (Way::VeniceShmInThread, "random read over shm served in the thread, two threads / one"),
    ] {
        let two = find_with(ways, way, Pattern::Random, 2);
        if let (Some(two), Some(one)) = (two, random(way)) {
            aims.push(Aim::at_least(name, two.pages_per_s / one.pages_per_s, 1.7));
        }
    }
    if let (Some(udp), Some(floor), Some(trip)) = (random(Way::VeniceUdp), floor, udp_round_trip) {
        let bound = 1.3 * trip.unpinned.p50_us;
        let name = "random read over udp, p50 - floor p50 (1.3 bare round trips)";
        aims.push(Aim::at_most(name, udp.p50_us - floor.p50_us, bound, "µs"));
    }
    let swap = random(Way::VeniceSwapShm);
    if let (Some(swap), Some(peer)) = (swap, random(Way::FuseLoop)) {
        let name = "random read, p50 of nbdkit, FUSE and loop / of venice swap over shm";
        aims.push(Aim::at_least(name, peer.p50_us / swap.p50_us, 4.0));
    }
    for (way, name) in [
        (Way::VeniceSwapShm, "random read by venice swap over shm, p99"),
        (Way::VeniceSwapUdp, "random read by venice swap over udp, p99"),
    ] {
        if let Some(swap) = random(way) {
            aims.push(Aim::at_most(name, swap.p99_us, 1000.0, "µs"));
        }
    }
    if let (Some(ahead), Some(umap)) = (sequential(Way::VeniceShm), sequential(Way::Umap)) {
        let name = "sequential read over shm / UMap";
        aims.push(Aim::at_least(name, ahead.pages_per_s / umap.pages_per_s, 4.0));
    }
    if let Some(ahead) = sequential(Way::VeniceShm) {
        // Without the run that has read-ahead off, the floor is the speed of one page at a time.
        let (name, single) = match sequential(Way::VeniceShmOnePage) {
            Some(case) => ("sequential read over shm / one page at a time", Some(case)),
            None => ("sequential read over shm / floor", sequential(Way::UffdFloor)),
        };
        if let Some(single) = single {
            aims.push(Aim::at_least(name, ahead.pages_per_s / single.pages_per_s, 4.0));
        }
    }
    aims
}

/// Finds the case with reads by one thread.
fn find(ways: &[WayReport], way: Way, pattern: Pattern) -> Option<&CaseReport> {
    find_with(ways, way, pattern, 1)
}

fn find_with(
    ways: &[WayReport],
    way: Way,
    pattern: Pattern,
    threads: usize,
) -> Option<&CaseReport> {
    ways.iter().find(|measured| measured.way == way)?.cases.iter().find(|case| {
        case.pattern == pattern && case.operation == Operation::Read && case.threads == threads
    })
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{case, sample};
    use super::*;

    #[test]
    fn swap_path_is_compared_with_its_peer() {
        let mut report = sample();
        let way = |way, p50_us, p99_us| WayReport {
            cases: vec![case(Pattern::Random, p50_us, p99_us, 50_000.0)],
            ..super::super::way::WayReport {
                way,
                detail: None,
                fill_s: 1.0,
                clock_cost_ns: 30,
                cases: vec![],
            }
        };
        report.ways = vec![way(Way::VeniceSwapShm, 20.0, 90.0), way(Way::FuseLoop, 100.0, 300.0)];
        let aims = evaluate(&report.ways, None);
        let seen: Vec<(f64, bool)> = aims.iter().map(|aim| (aim.measured, aim.met())).collect();
        assert_eq!(seen, [(5.0, true), (90.0, true)]);
    }

    #[test]
    fn aims_use_single_threaded_reads() {
        let mut report = sample();
        report.ways[0].cases = vec![case(Pattern::Random, 4.0, 10.0, 200_000.0)];
        report.ways[1].cases = vec![
            case(Pattern::Random, 5.0, 60.0, 150_000.0),
            case(Pattern::Sequential, 1.0, 9.0, 900_000.0),
        ];
        report.ways[2].cases = vec![case(Pattern::Random, 34.0, 60.0, 30_000.0)];
        report.udp_round_trip.as_mut().unwrap().unpinned.p50_us = 20.0;
        let aims = evaluate(&report.ways, report.udp_round_trip.as_ref());
        let seen: Vec<(f64, bool)> = aims.iter().map(|aim| (aim.measured, aim.met())).collect();
        // There is no sequential figure to compare with: that aim is not evaluated.
        assert_eq!(seen, [(1.25, true), (15.0, false), (30.0, false)]);

        report.ways[0].cases.push(case(Pattern::Sequential, 4.0, 9.0, 200_000.0));
        let last = evaluate(&report.ways, report.udp_round_trip.as_ref()).pop().unwrap();
        assert_eq!((last.measured, last.met()), (4.5, true));
        assert!(last.name.ends_with("floor"));
    }
}
