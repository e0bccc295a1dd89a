//! Where a packet goes on to: by its destination, by its route, or round what is down.

use venice_wire::{NodeId, Packet, SourceRoute, SwitchPort};

use super::Forward;
use crate::routing::{FIRST_DETOUR, LinkStates, NextHop, VirtualChannel};
use crate::switch::slots::{Slot, Way};
use crate::topology::{Position, Topology};

/// The ways from this switch, worked out when they are first asked for and kept until a link of
/// the network goes up or down.
#[derive(Debug)]
pub(super) struct Ways {
    own: Position,
    /// By node, so that a packet's destination is found.
    positions: Box<[(NodeId, Position)]>,
    known: Box<[Option<KnownWay>]>,
    /// Whether packets get a route although the direct way is up.
    source_routes: bool,
    pub(super) links: LinkStates,
}

/// The way to one position.
#[derive(Clone, Copy, Debug)]
pub(super) enum KnownWay {
    /// In dimension order: all its links are up.
    Direct(NextHop),
    /// By a source route, all links of the direct way being up.
    Routed(SourceRoute),
    /// Round what is down.
    Detour(SourceRoute),
    /// Nowhere.
    None,
}

impl Ways {
    /// The switch's own links count as down until their handshakes are over.
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

    /// The way to `to`, which is not this switch.
    pub(super) fn to(&mut self, to: Position, topology: &Topology) -> KnownWay {
        if let Some(known) = self.known[to.0 as usize] {
            return known;
        }
        let direct = topology
            .next_hop(self.own, to)
            .filter(|_| topology.is_direct_way_up(self.own, to, &self.links));
        let route = || topology.route_around(self.own, to, &self.links).ok();
        let way = match direct {
            Some(hop) if self.source_routes => {
                route().map_or(KnownWay::Direct(hop), KnownWay::Routed)
            }
            Some(hop) => KnownWay::Direct(hop),
            None => route().map_or(KnownWay::None, KnownWay::Detour),
        };
        self.known[to.0 as usize] = Some(way);
        way
    }
}

impl Forward {
    /// Where a packet goes on to that came in by a port on a channel, or from this node (`None`).
    /// `None`: nowhere; that is counted, and the packet must be dropped.
    pub(super) fn route(
        &mut self,
        slot: &Slot,
        came: Option<(SwitchPort, VirtualChannel)>,
        topology: &Topology,
    ) -> Option<Way> {
        let Ok(packet) = Packet::parse(self.slots.bytes(slot)) else {
            self.stats.malformed += 1;
            return None;
        };
        let Some(to) = self.ways.position(packet.destination().node) else {
            self.stats.unroutable += 1;
            return None;
        };
        let is_on_detour = came.is_some_and(|(_, channel)| channel >= FIRST_DETOUR);
        let has_route = packet.route_len() > 0;
        if came.is_some() && has_route != is_on_detour {
            // The neighbour is broken: to let it through could close a circle.
            self.stats.malformed += 1;
            return None;
        }
        let (next_port, hop_limit) = (packet.next_port(), packet.hop_limit());
        if next_port.is_none() && to == self.own {
            return Some(Way::Local);
        }
        if hop_limit == 0 {
            self.stats.hop_limit += 1;
            return None;
        }
        let hop = match next_port {
            Some(port) => self.follow(port, came, topology),
            None if has_route => None,
            None => self.find_way(slot, to, topology),
        };
        self.stats.unroutable += u64::from(hop.is_none());
        hop.map(Way::Out)
    }

    /// The next hop along a source route.
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
        self.ways.links.says_up(self.own, port).then_some(NextHop { port, channel })
    }

    /// The next hop of a packet without a source route; it gets one here when the direct way is
    /// down or all packets have one, and goes on by the channels of routed packets.
    fn find_way(&mut self, slot: &Slot, to: Position, topology: &Topology) -> Option<NextHop> {
        match self.ways.to(to, topology) {
            KnownWay::Direct(hop) => Some(hop),
            KnownWay::None => None,
            KnownWay::Routed(route) => {
                self.stats.source_routed += 1;
                self.send_by(slot, route, topology)
            }
            KnownWay::Detour(route) => {
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
