//! Aims of the simulator's speed, with the measured figures.

use serde::{Deserialize, Serialize};

use super::case::{Transport, Workload};
use super::report::{RowReport, System};

/// An aim with the measured figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Aim {
    /// The figure.
    pub name: String,
    /// The figure that was measured.
    pub measured: f64,
    /// Its bound.
    pub aim: f64,
    /// True if the figure must reach the bound, false if it must not exceed it.
    pub at_least: bool,
    /// The measured figure, divided by the bound.
    pub ratio: f64,
}

impl Aim {
    fn of(name: impl Into<String>, measured: f64, aim: f64, at_least: bool) -> Self {
        Self { name: name.into(), measured, aim, at_least, ratio: measured / aim }
    }

    /// True if the aim was met.
    #[must_use]
    pub fn met(&self) -> bool {
        if self.at_least { self.measured >= self.aim } else { self.measured <= self.aim }
    }
}

/// Evaluates every aim whose figures exist. The second of one core is one of processor time: others
/// may use the machine too.
pub(super) fn evaluate(rows: &[RowReport]) -> Vec<Aim> {
    let mut aims = Vec::new();
    let memcached = |system, transport, nodes, threads| {
        find(rows, system, threads, |workload| match workload {
            Workload::Memcached { transport: of, nodes: size, .. } => {
                (*of, *size) == (transport, nodes)
            }
            Workload::Incast { .. } | Workload::Mesh { .. } | Workload::Queue { .. } => false,
        })
    };
    let venice = |transport, nodes, threads| memcached(System::Venice, transport, nodes, threads);
    if let Some(row) = venice(Transport::Udp, 2000, 1) {
        let of = |count: u64| count as f64 / row.figures.cpu_s;
        aims.push(Aim::of(
            "events/s at 2 000 nodes on one core",
            of(row.figures.events),
            5e6,
            true,
        ));
        let name = "events/s at 2 000 nodes on one core, the goal beyond";
        aims.push(Aim::of(name, of(row.figures.events), 10e6, true));
        let name = "packet-hops/s at 2 000 nodes on one core";
        aims.push(Aim::of(name, of(row.figures.packet_hops), 1e6, true));
        if let Some(peer) = memcached(System::Ns3, Transport::Udp, 2000, 1) {
            let ratio = row.requests_per_cpu_s / peer.requests_per_cpu_s;
            aims.push(Aim::of("requests/CPU s at 2 000 nodes / ns-3's", ratio, 10.0, true));
        }
        if let Some(two) = venice(Transport::Udp, 2000, 2) {
            let name = "events/s at 2 000 nodes, two threads / one";
            aims.push(Aim::of(name, two.events_per_s / row.events_per_s, 1.7, true));
        }
    }
    for (transport, name) in [(Transport::Udp, "UDP"), (Transport::Tcp, "TCP")] {
        let Some(row) = venice(transport, 10_000, 1) else { continue };
        let gigabytes = row.figures.resident_bytes as f64 / 1e9;
        aims.push(Aim::of(format!("GB of 10 000 nodes, {name}"), gigabytes, 20.0, false));
        if let Some(relative) = row.relative_cost {
            let name = format!("cost of an event, 10 000 nodes / 500, {name}");
            aims.push(Aim::of(name, relative, 1.3, false));
        }
    }
    let is_mesh = |workload: &Workload| matches!(workload, Workload::Mesh { .. });
    if let Some(row) = find(rows, System::Venice, 1, is_mesh) {
        let rate = row.figures.flit_hops as f64 / row.figures.cpu_s;
        aims.push(Aim::of("flit-hops/s of the mesh on one core", rate, 1e6, true));
    }
    aims
}

fn find(
    rows: &[RowReport],
    system: System,
    threads: usize,
    is_it: impl Fn(&Workload) -> bool,
) -> Option<&RowReport> {
    rows.iter().find(|row| (row.system, row.threads) == (system, threads) && is_it(&row.workload))
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::{memcached, row};
    use super::*;
    use crate::simulator::report;

    #[test]
    fn aims_follow_from_rows() {
        let mut rows = vec![
            row(System::Venice, memcached(500), 1, 10_000_000, 2.0),
            row(System::Venice, memcached(2000), 1, 10_000_000, 1.0),
            row(System::Venice, memcached(2000), 2, 10_000_000, 0.5),
            row(System::Ns3, memcached(2000), 1, 10_000_000, 4.0),
            row(System::Venice, memcached(10_000), 1, 10_000_000, 3.0),
        ];
        report::relate(&mut rows);
        let aims = evaluate(&rows);
        let seen: Vec<(f64, bool)> = aims.iter().map(|aim| (aim.measured, aim.met())).collect();
        let wanted = [
            (1e7, true),
            (1e7, true),
            (5e6, true),
            (4.0, false),
            (2.0, true),
            (1.0, true),
            (1.5, false),
        ];
        assert_eq!(seen, wanted, "{aims:?}");
        assert_eq!(aims[0].ratio, 2.0);
    }
}
