//! Adaptation of a scenario to real time: processes start in milliseconds and wait for processors,
//! and a test has seconds.

use venice_fabric::{Topology, TopologyError};
use venice_sim::scenario::{Bounds, Fault, FaultKind, Impairment, Protocol, Scenario};
use venice_simkernel::units::Nanos;

use crate::racks::plan::Port;

const MS: u64 = 1_000_000;

/// Duration of a rack's work without faults.
const SPAN_NS: u64 = 600 * MS;
/// Time without frames after which a link is down, with faults.
const SILENCE_NS: u64 = 400 * MS;
/// The same for nodes that relay.
const RELAYED_SILENCE_NS: u64 = 1_200 * MS;
/// The same without faults, when no link may end: longer than any process waits for a processor.
const HARMLESS_SILENCE_NS: u64 = 30_000 * MS;

/// Returns the bounds of random scenarios on one machine.
pub fn bounds() -> Bounds {
    Bounds { min_nodes: 4, max_nodes: 6, accesses: 600, max_faults: 4 }
}

/// Returns the scenario of a seed, adapted to a port.
pub fn scenario(seed: u64, port: Port) -> Scenario {
    fit(Scenario::random(seed, &bounds()), port)
}

/// Returns the scenario of a seed over udp, between nodes that relay: `router`, or a mesh or torus,
/// which defines their number.
///
/// # Errors
/// When the topology is invalid.
pub fn relayed(seed: u64, topology: &str) -> Result<Scenario, TopologyError> {
    let bounds = match topology {
        "router" => bounds(),
        shape => {
            let nodes = Topology::shaped(shape)?.nodes() as u16;
            Bounds { min_nodes: nodes, max_nodes: nodes, ..bounds() }
        }
    };
    let mut fitted = fit(Scenario::random(seed, &bounds), Port::Udp);
    fitted.topology = topology.into();
    fitted.protocol.source_routes = seed.is_multiple_of(2);
    // One packet at a time through a router that loses a fifth of them would take minutes.
    fitted.protocol.hop_packets = fitted.protocol.hop_packets.max(4);
    if !fitted.is_harmless() {
        // Accesses need several hops, whose links must be found dead before those above.
        fitted.protocol.silence = Nanos(RELAYED_SILENCE_NS);
    }
    Ok(fitted)
}

/// Stretches the times of a scenario, and removes faults that a port does not have: no frame is
/// lost or cut between processes that share memory. Every node reaches every other.
pub fn fit(scenario: Scenario, port: Port) -> Scenario {
    let has_network = port.is_datagrams();
    let old_span_ns = (u64::from(scenario.workload.accesses) * scenario.workload.think.0).max(1);
    let old_silence_ns = scenario.protocol.silence.0.max(1);
    let stretch = |ns: u64, from_ns: u64, to_ns: u64| {
        Nanos((u128::from(ns) * u128::from(to_ns) / u128::from(from_ns)) as u64)
    };
    let fit_fault = |fault: Fault| Fault {
        at: stretch(fault.at.0.min(old_span_ns), old_span_ns, SPAN_NS),
        lasts: Nanos(stretch(fault.lasts.0, old_silence_ns, SILENCE_NS).0.min(4 * SILENCE_NS)),
        kind: fault.kind,
    };
    let is_of_port = |fault: &Fault| {
        let of_network = matches!(
            fault.kind,
            FaultKind::Cut { .. } | FaultKind::Isolate { .. } | FaultKind::Storm { .. }
        );
        has_network || !of_network
    };
    let mut fitted = scenario.clone();
    fitted.topology = "all-to-all".into();
    fitted.faults = scenario.faults.into_iter().filter(is_of_port).map(fit_fault).collect();
    if !has_network {
        fitted.impairment = Impairment::default();
    }
    fitted.workload.think = Nanos(SPAN_NS / u64::from(scenario.workload.accesses.max(1)));
    let silence_ns = if fitted.is_harmless() { HARMLESS_SILENCE_NS } else { SILENCE_NS };
    fitted.protocol = Protocol {
        replay_min: Nanos(scenario.protocol.replay_min.0.max(MS)),
        replay_max: Nanos(50 * MS),
        keepalive: Nanos(50 * MS),
        silence: Nanos(silence_ns),
        ..scenario.protocol
    };
    fitted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fitted_scenario_is_valid_and_stable() {
        for seed in 0..200 {
            for port in [Port::Shm, Port::Ring, Port::Udp, Port::Xdp] {
                let fitted = scenario(seed, port);
                assert_eq!(fitted.check(), Ok(()));
                assert!(fitted.calm_ns() <= SPAN_NS + 4 * SILENCE_NS);
                assert_eq!(Scenario::from_toml(&fitted.to_toml()), Ok(fitted.clone()));
                assert_eq!(fitted.donors_of(0).len(), usize::from(fitted.workload.donors));
            }
            for topology in ["mesh:2x2", "mesh:2x2x2", "torus:3x2", "router"] {
                let fitted = relayed(seed, topology).unwrap();
                assert_eq!((fitted.check(), &*fitted.topology), (Ok(()), topology));
            }
        }
    }
}
