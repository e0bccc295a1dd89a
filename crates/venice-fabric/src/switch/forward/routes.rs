//! The route of a packet: by its destination, by its source route, or around links that are down.

use venice_wire::{NodeId, Packet, SourceRoute, SwitchPort};

use super::Forward;
use crate::routing::{FIRST_DETOUR, LinkStates, NextHop, VirtualChannel};
use crate::switch::slots::{Output, Slot};
use crate::topology::{Position, Topology};

/// The routes from this switch, computed on first use and kept until a link of the network goes up
/// or down.
#[derive(Debug)]
pub(super) struct RouteCache {
    own: Position,
    /// By node, to look up a packet's destination.
    positions: Box<[(NodeId, Position)]>,
    known: Box<[Option<KnownRoute>]>,
    /// True if packets get a source route although the direct route is up.
    source_routes: bool,
    pub(super) links: LinkStates,
}

/// The route to one position.
#[derive(Clone, Copy, Debug)]
pub(super) enum KnownRoute {
    /// In dimension order: all its links are up.
    Direct(NextHop),
    /// By a source route; all links of the direct route are up.
    Routed(SourceRoute),
    /// By a source route around links that are down.
    Detour(SourceRoute),
    /// Unreachable.
    None,
}

impl RouteCache {
    /// Creates the cache. The switch's own links count as down until their handshakes are over.
    pub(super) fn new(
        topology: &Topology,
        own: Position,
        nodes: &[NodeId],
        source_routes: bool,
    ) -> Self {
        let mut positions: Vec<_> =
            nodes.iter().enumerate().map(|(at, node)| (*node, Position(at as u32))).collect();
        positions.sort_unstable();
        let mut links = LinkStates::all_up(topology);
        for port in 0..topology.ports(own) {
            links.set(own, SwitchPort(port), false);
        }
        let known = vec![None; nodes.len()].into();
        Self { own, positions: positions.into(), known, source_routes, links }
    }

    pub(super) fn position(&self, node: NodeId) -> Option<Position> {
        let at = self.positions.binary_search_by_key(&node, |(node, _)| *node).ok()?;
        Some(self.positions[at].1)
    }

    pub(super) fn forget(&mut self) {
        self.known.fill(None);
    }

    /// Returns the route to `to`, which is not this switch.
    pub(super) fn to(&mut self, to: Position, topology: &Topology) -> KnownRoute {
        if let Some(known) = self.known[to.0 as usize] {
            return known;
        }
        let direct = topology
            .next_hop(self.own, to)
            .filter(|_| topology.is_direct_route_up(self.own, to, &self.links));
        let route = || topology.route_around(self.own, to, &self.links).ok();
        let known = match direct {
            Some(hop) if self.source_routes => {
                route().map_or(KnownRoute::Direct(hop), KnownRoute::Routed)
            }
            Some(hop) => KnownRoute::Direct(hop),
            None => route().map_or(KnownRoute::None, KnownRoute::Detour),
        };
        self.known[to.0 as usize] = Some(known);
        known
    }
}

impl Forward {
    /// Returns the next hop of a packet that came by a port on a channel, or from this node
    /// (`None`). `None`: there is none; that is counted, and the packet must be dropped.
    pub(super) fn route(
        &mut self,
        slot: &Slot,
        came: Option<(SwitchPort, VirtualChannel)>,
        topology: &Topology,
    ) -> Option<Output> {
        let Ok(packet) = Packet::parse(self.slots.bytes(slot)) else {
            self.stats.malformed += 1;
            return None;
        };
        let Some(to) = self.routes.position(packet.destination().node) else {
            self.stats.unroutable += 1;
            return None;
        };
        let is_on_detour = came.is_some_and(|(_, channel)| channel >= FIRST_DETOUR);
        let has_route = packet.route_len() > 0;
        if came.is_some() && has_route != is_on_detour {
            // The neighbour is broken: to accept the packet could close a circle.
            self.stats.malformed += 1;
            return None;
        }
        let (next_port, hop_limit) = (packet.next_port(), packet.hop_limit());
        if next_port.is_none() && to == self.own {
            return Some(Output::Local);
        }
        if hop_limit == 0 {
            self.stats.hop_limit += 1;
            return None;
        }
        let hop = match next_port {
            Some(port) => self.follow(port, came, topology),
            None if has_route => None,
            None => self.find_hop(slot, to, topology),
        };
        self.stats.unroutable += u64::from(hop.is_none());
        hop.map(Output::Out)
    }

    /// Returns the next hop along a source route.
    fn follow(
        &self,
        port: SwitchPort,
        came: Option<(SwitchPort, VirtualChannel)>,
        topology: &Topology,
    ) -> Option<NextHop> {
        let (to, _) = topology.neighbour(self.own, port)?;
        let came =
            came.and_then(|(port, channel)| Some((topology.neighbour(self.own, port)?.0, channel)));
        let channel = topology.detour_channel(came, self.own, to)?;
        self.routes.links.says_up(self.own, port).then_some(NextHop { port, channel })
    }

    /// Returns the next hop of a packet without a source route. The packet gets one here when the
    /// direct route is down or all packets have one, and then uses the channels of routed packets.
    fn find_hop(&mut self, slot: &Slot, to: Position, topology: &Topology) -> Option<NextHop> {
        match self.routes.to(to, topology) {
            KnownRoute::Direct(hop) => Some(hop),
            KnownRoute::None => None,
            KnownRoute::Routed(route) => {
                self.stats.source_routed += 1;
                self.send_by(slot, route, topology)
            }
            KnownRoute::Detour(route) => {
                self.stats.detoured += 1;
                self.send_by(slot, route, topology)
            }
        }
    }

    fn send_by(&mut self, slot: &Slot, route: SourceRoute, topology: &Topology) -> Option<NextHop> {
        self.give_route(slot, route);
        self.follow(*route.ports().first()?, None, topology)
    }

    /// Writes a source route into a packet that has none.
    fn give_route(&mut self, slot: &Slot, route: SourceRoute) {
        let packet = Packet::parse(self.slots.bytes(slot)).expect("it was parsed before");
        let (mut repr, payload_len) = (packet.repr(), packet.payload().len());
        let payload_start = repr.header_len();
        repr.route = route;
        let len = repr.header_len() + payload_len;
        let buffer = self.slots.whole_mut(slot);
        buffer.copy_within(payload_start..payload_start + payload_len, repr.header_len());
        repr.emit_header(payload_len, buffer).expect("a buffer holds any packet");
        self.slots.resize(slot, len);
    }
}
