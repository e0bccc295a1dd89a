//! The relays of a rack: of a node, in its donor's process, and of an external router.

use anyhow::Result;
use venice_fabric::{GrantedMemory, LinkConfig, Position, Refusal, SwitchConfig, TargetConfig};
use venice_fabric::{Topology, switch::HopStats};
use venice_ports::random_u64;
use venice_ports::udp::{Relay, RelayConfig, UdpSocket, neighbour_ports};
use venice_wire::{GrantId, GrantKey, NodeId};

use crate::racks::orders::{Reply, orders, reply};
use crate::racks::plan::Plan;

/// Starts the relay of a node that lends `memory`.
///
/// # Errors
/// When its socket or thread cannot be made.
pub fn start(
    plan: &Plan,
    topology: Topology,
    node: u16,
    memory: impl GrantedMemory + Send + 'static,
) -> Result<Relay> {
    let switch = switch_config(plan, topology, node)?;
    let own = NodeId(node.into());
    let target = TargetConfig { link: plan.link(node), ..TargetConfig::new(own, random_u64()?) };
    let neighbours: Vec<_> = neighbour_ports(&switch).collect();
    let socket = UdpSocket::bind(Plan::relay_address(node))?;
    let config = RelayConfig { switch, target, link: None, keys: plan.keys(node) };
    let relay = Relay::start(socket, config, memory)?;
    for (port, Position(neighbour)) in neighbours {
        let neighbour = neighbour as u16;
        relay.set_neighbour(port, plan.hop_address(node, neighbour), plan.seal(node, neighbour));
    }
    Ok(relay)
}

/// Returns the settings of the simulator's switches: a dead neighbour is found well before the
/// links above time out.
fn switch_config(plan: &Plan, topology: Topology, node: u16) -> Result<SwitchConfig> {
    let protocol = &plan.scenario.protocol;
    let nodes = (0..topology.switches()).map(NodeId).collect();
    let usual = SwitchConfig::new(topology, Position(node.into()), nodes, random_u64()?);
    let link = LinkConfig {
        window: protocol.window.max(16),
        ack_delay_ns: protocol.ack_delay.0.min(usual.link.ack_delay_ns),
        replay_min_ns: protocol.replay_min.0,
        replay_max_ns: protocol.replay_max.0 / 2,
        keepalive_ns: protocol.keepalive.0 / 3,
        silence_ns: protocol.silence.0 * 3 / 10,
        ..usual.link
    };
    Ok(SwitchConfig {
        link,
        channel_packets: protocol.hop_packets,
        source_routes: protocol.source_routes,
        ..usual
    })
}

/// Returns the number of packets that came to a relay without credit.
pub fn overruns(relay: &Relay) -> u64 {
    relay.stats().hops.iter().map(|(_, HopStats { overruns, .. })| overruns).sum()
}

/// Runs an external router until the parent closes the input.
///
/// # Errors
/// When its socket or thread cannot be made.
pub fn run_router(plan: &Plan, topology: Topology) -> Result<()> {
    let node = topology.nodes() as u16;
    let _relay = start(plan, topology, node, Nothing)?;
    reply(Reply::Ready);
    orders().iter().for_each(drop);
    Ok(())
}

/// The memory of a router, which lends nothing.
struct Nothing;

impl GrantedMemory for Nothing {
    fn read(&mut self, _: GrantId, _: GrantKey, _: u64, _: &mut [u8]) -> Result<(), Refusal> {
        Err(Refusal::UnknownGrant)
    }

    fn write(&mut self, _: GrantId, _: GrantKey, _: u64, _: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::UnknownGrant)
    }
}
