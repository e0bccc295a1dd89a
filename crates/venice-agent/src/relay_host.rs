//! The relay of a node, if the rack is wired as a mesh, a torus or a star.
//!
//! Its socket exists from the start. It relays once the Monitor Node lists every node of the
//! network, since a packet's route depends on all of them; from then on it needs the Monitor Node
//! only for neighbours that come back at another address.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use venice_control::{LinkPort, LinkReport, LinkState, PeerList, RelayPeer, RelayPlace};
use venice_fabric::switch::{HopStats, SwitchConfig};
use venice_fabric::{HopState, LinkModel, Position, TargetConfig, Topology};
use venice_memory::donor::SharedGrants;
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealCounts, SealedAs};
use venice_ports::udp::{Relay, RelayConfig, Traffic, UdpSocket, neighbour_ports};
use venice_wire::{GrantId, KeyName, NodeId, NodeSecret};

use crate::AgentError;
use crate::link_test::protection;
use crate::udp_host::node_keys;

/// Configured place of a node in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) topology: Topology,
    pub(crate) position: Position,
    /// True if packets get their whole route at their source.
    pub(crate) source_routes: bool,
}

/// The relay, or its configuration before it starts.
#[derive(Debug)]
pub(crate) struct RelayHost {
    socket: UdpSocket,
    place: Place,
    /// Advertised address.
    advertised: String,
    link: Option<LinkModel>,
    grants: SharedGrants,
    serving: Option<Serving>,
}

#[derive(Debug)]
struct Serving {
    own: NodeId,
    secret: Option<NodeSecret>,
    /// Nodes by position.
    nodes: Vec<NodeId>,
    relay: Relay,
    reported_ns: u64,
    /// Bytes moved until then, by neighbour.
    moved: BTreeMap<NodeId, u64>,
}

impl RelayHost {
    pub(crate) fn new(
        socket: UdpSocket,
        place: Place,
        advertised: String,
        link: Option<LinkModel>,
        grants: SharedGrants,
    ) -> Self {
        Self { socket, place, advertised, link, grants, serving: None }
    }

    /// Place for the registration.
    pub(crate) fn place(&self) -> RelayPlace {
        RelayPlace {
            topology: self.place.topology.with_size(),
            position: self.place.position.0,
            addr: self.advertised.clone(),
        }
    }

    /// Applies the Monitor Node's list of the network; relays as `own` once it is complete.
    pub(crate) fn learn(
        &mut self,
        own: NodeId,
        secret: Option<NodeSecret>,
        near: &PeerList,
    ) -> Result<(), AgentError> {
        let relays = &near.relays;
        let Some(nodes) = self.nodes(relays) else { return Ok(()) };
        let is_same = |serving: &Serving| {
            (serving.own, serving.secret) == (own, secret) && serving.nodes == nodes
        };
        if !self.serving.as_ref().is_some_and(is_same) {
            self.serving = None;
            let relay = self.start(own, secret, nodes.clone())?;
            let (reported_ns, moved) = (monotonic_ns(), BTreeMap::new());
            self.serving = Some(Serving { own, secret, nodes, relay, reported_ns, moved });
            tracing::info!(topology = %self.place.topology, "relaying");
        }
        if let Some(Serving { relay, nodes, .. }) = &self.serving {
            for (port, neighbour) in neighbour_ports(&self.switch_config(nodes.clone(), 0)) {
                let there = relays.iter().find(|relay| relay.position == neighbour.0);
                let address = there.and_then(|relay| relay.addr.parse::<SocketAddr>().ok());
                let name = KeyName::Peer(own);
                let peer = near.peers.iter().find(|peer| Some(peer.node) == there.map(|t| t.node));
                let seal = peer.and_then(|peer| peer.seal_key).map(|key| SealedAs { name, key });
                // A node that is down has no key.
                if let Some(address) = address
                    && seal.is_some() == secret.is_some()
                {
                    relay.set_neighbour(port, address, seal);
                }
            }
        }
        Ok(())
    }

    /// Returns every switch's node, by position; `None` until all are listed.
    fn nodes(&self, relays: &[RelayPeer]) -> Option<Vec<NodeId>> {
        let by_position: BTreeMap<u32, NodeId> =
            relays.iter().map(|relay| (relay.position, relay.node)).collect();
        let switches = 0..self.place.topology.switches();
        switches.map(|position| by_position.get(&position).copied()).collect()
    }

    fn switch_config(&self, nodes: Vec<NodeId>, incarnation: u64) -> SwitchConfig {
        let Place { topology, position, source_routes } = self.place;
        let usual = SwitchConfig::new(topology, position, nodes, incarnation);
        SwitchConfig { source_routes, ..usual }
    }

    fn start(
        &self,
        own: NodeId,
        secret: Option<NodeSecret>,
        nodes: Vec<NodeId>,
    ) -> Result<Relay, AgentError> {
        let draw = || venice_ports::random_u64().map_err(AgentError::Random);
        let config = RelayConfig {
            switch: self.switch_config(nodes, draw()?),
            target: TargetConfig::new(own, draw()?),
            link: self.link,
            keys: secret.map(|secret| node_keys(secret, self.grants.clone())),
        };
        Ok(Relay::start(self.socket.try_clone()?, config, self.grants.clone())?)
    }

    /// See [`Relay::share`].
    pub(crate) fn share(&self, grant: GrantId) {
        self.serving.iter().for_each(|serving| serving.relay.share(grant));
    }

    /// See [`Relay::forget`].
    pub(crate) fn forget(&self, grant: GrantId) {
        self.serving.iter().for_each(|serving| serving.relay.forget(grant));
    }

    /// See [`Relay::revoke`].
    pub(crate) fn revoke(&self, grant: GrantId) {
        self.serving.iter().for_each(|serving| serving.relay.revoke(grant));
    }

    /// See [`Relay::are_notified`].
    pub(crate) fn are_notified(&self) -> bool {
        self.serving.as_ref().is_none_or(|serving| serving.relay.are_notified())
    }

    /// Returns the datagrams that the relay has dropped for their seal, since it started.
    pub(crate) fn dropped(&self) -> SealCounts {
        self.serving.as_ref().map_or_else(SealCounts::default, |serving| serving.relay.dropped())
    }

    /// Returns the sum of [`Self::traffic`], which only grows.
    pub(crate) fn total_traffic(&self) -> Traffic {
        let serving = self.serving.as_ref();
        serving.map(|serving| serving.relay.total_traffic()).unwrap_or_default()
    }

    /// Returns the traffic between this node and the recipients of its memory, since the relay
    /// started.
    pub(crate) fn traffic(&self) -> Vec<Traffic> {
        self.serving.as_ref().map_or_else(Vec::new, |serving| serving.relay.traffic())
    }

    /// Returns the nodes at the other ends of its hop links.
    pub(crate) fn neighbours(&self) -> Vec<NodeId> {
        let hops = self.serving.iter().flat_map(|serving| serving.relay.stats().hops);
        hops.map(|(_, hop)| hop.neighbour).collect()
    }

    /// Returns the reports of the hop links for the heartbeat; `bandwidths_mbps` are the measured
    /// rates of their routes, by neighbour. A relay sends no faster than its own emulated link.
    pub(crate) fn reports(&mut self, bandwidths_mbps: &BTreeMap<NodeId, f64>) -> Vec<LinkReport> {
        let emulated = self.link.and_then(|link| Some(link.bandwidth_bps?.get() as f64 / 1e6));
        let carries = |neighbour| {
            let measured = bandwidths_mbps.get(&neighbour).copied();
            measured.into_iter().chain(emulated).min_by(f64::total_cmp)
        };
        let Some(serving) = &mut self.serving else { return Vec::new() };
        let now_ns = monotonic_ns();
        let seconds = now_ns.saturating_sub(serving.reported_ns) as f64 / 1e9;
        serving.reported_ns = now_ns;
        let hops = serving.relay.stats().hops;
        let protection = protection(serving.secret.is_some());
        let report = |(_, hop): &(_, HopStats)| {
            let bytes = hop.sent_bytes + hop.received_bytes;
            let before = serving.moved.insert(hop.neighbour, bytes).unwrap_or(bytes);
            LinkReport {
                to: hop.neighbour,
                port: LinkPort::Hop,
                state: match hop.state {
                    HopState::Up => LinkState::Up,
                    HopState::Down => LinkState::Down,
                },
                latency_us: hop.round_trip_ns.unwrap_or(0) as f64 / 1000.0,
                loss_ratio: f64::from(hop.loss_ppm) / 1e6,
                bandwidth_mbps: carries(hop.neighbour),
                bytes_per_s: Some(bytes.saturating_sub(before) as f64 / seconds.max(0.001)),
                protection,
            }
        };
        hops.iter().map(report).collect()
    }
}
