//! The switch of a node: it forwards packets from its neighbours and from its node.
//!
//! Radix seven in a mesh or torus (Venice paper, section 5.1.1): six neighbours and the node
//! itself. Every port has a hop link ([`hop`]) with buffers for each virtual channel. A received
//! packet waits in its buffer until its output has credit; every output serves programs in turn
//! ([`flows`]), each in the order its packets came. Packets lie in one pool ([`slots`]): relaying
//! one moves its number, not its bytes.
//!
//! Like all of this crate it does no I/O: datagrams and the time go in, datagrams and packets for
//! the node come out. After construction no packet allocates; the search for a route around links
//! that have just gone down does, once for each destination.

mod config;
mod flows;
mod forward;
mod greeting;
mod hop;
mod link_state;
mod slots;
mod stats;
mod window;

use std::collections::VecDeque;

use venice_wire::{Credits, Hop, NodeId, Packet, SwitchPort, VIRTUAL_CHANNELS};

pub use config::SwitchConfig;
pub use stats::{HopState, HopStats, SwitchStats};

use self::forward::Forward;
use self::hop::{HopLink, Received};
use self::link_state::{LinkStateFlood, MAX_BITMAP_BYTES};
use self::window::Arrival;
use crate::routing::{DIRECT_WRAPPING, NoRoute};
use crate::topology::{Position, Topology};

/// The reason a packet was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InjectError {
    /// The output queues are full: poll transmissions, then try again.
    #[error("the switch's queues are full")]
    WouldBlock,
    /// No route to the destination is up.
    #[error(transparent)]
    NoRoute(#[from] NoRoute),
    /// The network has no node of this number.
    #[error("node {0} is not in this network")]
    UnknownNode(NodeId),
    /// The bytes are not a packet.
    #[error("not a packet: {0}")]
    Malformed(#[from] venice_wire::WireError),
}

/// The switch of a node.
#[derive(Debug)]
pub struct Switch {
    topology: Topology,
    own: Position,
    /// By port; `None` without a neighbour.
    hops: Box<[Option<HopLink>]>,
    forward: Forward,
    flood: LinkStateFlood,
    bitmap: Box<[u8]>,
    /// Ports that may have something to send, each at most once.
    ready: VecDeque<u16>,
    is_ready: Box<[bool]>,
    timeout_ns: u64,
    check_integrity: bool,
    replay: bool,
}

impl Switch {
    /// Returns a switch whose links are all down; they greet their neighbours with the first
    /// [`Switch::poll_transmit`].
    ///
    /// # Panics
    /// Panics if the position lies outside the topology, or not every switch has a node.
    pub fn new(config: SwitchConfig) -> Self {
        let SwitchConfig { topology, position: own, ref nodes, .. } = config;
        assert!(own.0 < topology.switches(), "the position lies in the topology");
        assert_eq!(nodes.len(), topology.switches() as usize, "every switch has a node");
        let ports = topology.ports(own);
        let link = |port: u16| {
            let (to, _) = topology.neighbour(own, SwitchPort(port))?;
            let ends = (nodes[own.0 as usize], nodes[to.0 as usize]);
            let capacity = capacity(&topology, config.channel_packets);
            Some(HopLink::new(&config.link, ends, config.incarnation, u64::from(port), capacity))
        };
        let hops: Box<[_]> = (0..ports).map(link).collect();
        let neighbours = hops.iter().flatten().count() as u32;
        Self {
            forward: Forward::new(&config, neighbours),
            flood: LinkStateFlood::new(
                &topology,
                own,
                config.incarnation,
                config.link.keepalive_ns.saturating_mul(2),
            ),
            bitmap: vec![0; MAX_BITMAP_BYTES].into(),
            ready: (0..ports).collect(),
            is_ready: vec![true; usize::from(ports)].into(),
            timeout_ns: 0,
            check_integrity: config.link.checksum,
            replay: config.link.replay,
            topology,
            own,
            hops,
        }
    }

    /// Returns its position.
    pub fn position(&self) -> Position {
        self.own
    }

    /// Returns the topology.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// Returns the counters of the switch.
    pub fn stats(&self) -> SwitchStats {
        self.forward.stats
    }

    /// Returns the counters of the hop link behind `port`; `None` without a neighbour.
    pub fn hop_stats(&self, port: SwitchPort) -> Option<HopStats> {
        self.hops.get(usize::from(port.0))?.as_ref().map(HopLink::stats)
    }

    /// Returns the number of packets this switch holds: in buffers, and in send windows until they
    /// have arrived.
    pub fn held(&self) -> u32 {
        self.forward.held()
    }

    /// True if a route to `node` over links that are up is known.
    pub fn reaches(&mut self, node: NodeId) -> bool {
        self.forward.reaches(node, &self.topology)
    }

    /// Takes a datagram received by `port`. An invalid one, or one for another link, is counted and
    /// dropped.
    pub fn handle_datagram(&mut self, now_ns: u64, port: SwitchPort, datagram: &[u8]) {
        let at = usize::from(port.0);
        let Some(Some(link)) = self.hops.get_mut(at) else { return };
        let Ok(hop) = Hop::parse(datagram, !self.check_integrity) else {
            link.stats_mut().malformed += 1;
            return;
        };
        match link.receive_datagram(now_ns, &hop, self.forward.slots_mut()) {
            Received::Nothing => {}
            Received::Up => {
                self.forward.set_link(port, true);
                self.flood.own_changed();
                self.flood.queue_all(at);
                self.wake_all();
            }
            Received::Packet => self.receive(now_ns, port, &hop),
            Received::LinkState => {
                let from = (Position(hop.sequence().0), hop.word());
                let links = self.forward.links_mut();
                if self.flood.receive(at, from, hop.payload(), &self.topology, links) {
                    self.forward.forget_routes();
                }
                self.wake_all();
            }
        }
        self.wake(at);
        self.set_timeout(at);
    }

    /// Puts a packet, and parked ones that follow it, into its input buffer.
    fn receive(&mut self, now_ns: u64, port: SwitchPort, hop: &Hop<'_>) {
        let (at, channel) = (usize::from(port.0), usize::from(hop.channel()));
        let link = self.hops[at].as_mut().expect("it was found before");
        let packet = hop.payload();
        let mut arrival = link.classify(now_ns, hop.sequence(), channel);
        if arrival == Arrival::Early && !self.replay {
            // The port promised order; the missing packet will not come.
            arrival = Arrival::Outside;
        }
        match arrival {
            Arrival::Duplicate | Arrival::Outside => {}
            Arrival::Early => {
                let slot = self.forward.slots_mut().take(packet);
                link.park(now_ns, hop.sequence(), channel, slot, packet.len());
            }
            Arrival::InOrder => {
                link.accept(now_ns, channel, packet.len());
                let slot = self.forward.slots_mut().take(packet);
                let mut next = Some((slot, hop.channel()));
                while let Some((slot, channel)) = next {
                    self.forward.enqueue(port, channel, slot, &self.topology);
                    let link = self.hops[at].as_mut().expect("it was found before");
                    next = link.take_parked(now_ns);
                }
                self.settle(now_ns);
            }
        }
    }

    /// Takes a packet of this node, which may be for this node too. A packet without a source route
    /// gets one when the direct route is known to be down.
    ///
    /// # Errors
    /// [`InjectError`]; the packet was not accepted.
    pub fn inject(&mut self, now_ns: u64, packet: &[u8]) -> Result<(), InjectError> {
        self.forward.inject(packet, &self.topology)?;
        self.settle(now_ns);
        Ok(())
    }

    /// Returns the next packet for this node, in the order of arrival. Its buffer is free again
    /// with the next call.
    pub fn poll_local(&mut self, now_ns: u64) -> Option<Packet<'_>> {
        self.forward.drop_delivered();
        self.forward.deliver();
        self.settle(now_ns);
        self.forward.delivered()
    }

    /// Writes the next datagram to send into `buf`, which must have [`venice_wire::MAX_HOP_BYTES`];
    /// returns its port and its length.
    pub fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<(SwitchPort, usize)> {
        while let Some(port) = self.ready.pop_front() {
            let at = usize::from(port);
            if let Some(len) = self.poll_port(now_ns, at, buf) {
                self.ready.push_back(port);
                self.set_timeout(at);
                return Some((SwitchPort(port), len));
            }
            self.is_ready[at] = false;
            self.set_timeout(at);
        }
        None
    }

    fn poll_port(&mut self, now_ns: u64, at: usize, buf: &mut [u8]) -> Option<usize> {
        let link = self.hops[at].as_mut()?;
        if let Some(len) = link.poll_control(now_ns, self.forward.slots(), buf) {
            return Some(len);
        }
        if !link.is_up() {
            return None;
        }
        if let Some((from, version, len)) =
            self.flood.next_for(at, &self.topology, self.forward.links(), &mut self.bitmap)
        {
            return Some(link.send_link_state(from.0, version, &self.bitmap[..len], buf));
        }
        if let Some((channel, slot)) = self.forward.arbitrate(now_ns, at, link) {
            let len = link.send(now_ns, channel, slot, self.forward.slots_mut(), buf);
            self.settle(now_ns);
            return Some(len);
        }
        link.poll_ack(now_ns, buf)
    }

    /// Returns the time at which [`Switch::handle_timeout`] or [`Switch::poll_transmit`] has
    /// something to do even without input; absolute.
    pub fn poll_timeout(&self) -> u64 {
        self.timeout_ns.min(self.flood.poll_timeout())
    }

    /// Performs the actions due at `now_ns`. Afterwards there may be something to transmit.
    pub fn handle_timeout(&mut self, now_ns: u64) {
        self.timeout_ns = u64::MAX;
        for at in 0..self.hops.len() {
            let Some(link) = &mut self.hops[at] else { continue };
            let went_down = link.handle_timeout(now_ns);
            if went_down {
                self.forward.set_link(SwitchPort(at as u16), false);
                self.flood.own_changed();
                self.forward.leave_port(at, &self.topology);
                self.settle(now_ns);
                self.wake_all();
            }
            self.wake(at);
            self.set_timeout(at);
        }
        if self.flood.handle_timeout(now_ns, &self.topology, self.forward.links()) {
            self.wake_all();
        }
    }

    /// Follows up moved packets: freed input buffers become credits for the neighbours, and outputs
    /// have something to send.
    fn settle(&mut self, now_ns: u64) {
        while let Some((port, channel)) = self.forward.next_released() {
            if let Some(link) = &mut self.hops[port] {
                link.release(now_ns, channel);
                self.wake(port);
                self.set_timeout(port);
            }
        }
        while let Some(port) = self.forward.next_woken() {
            self.wake(port);
        }
    }

    fn wake(&mut self, port: usize) {
        if !std::mem::replace(&mut self.is_ready[port], true) {
            self.ready.push_back(port as u16);
        }
    }

    fn wake_all(&mut self) {
        for port in 0..self.hops.len() {
            if self.hops[port].is_some() {
                self.wake(port);
            }
        }
    }

    fn set_timeout(&mut self, port: usize) {
        if let Some(link) = &self.hops[port] {
            self.timeout_ns = self.timeout_ns.min(link.poll_timeout());
        }
    }
}

/// Returns the buffers of each channel: only rings have packets with a joint ahead.
fn capacity(topology: &Topology, packets: u16) -> Credits {
    let packets = packets.clamp(1, 1 << 14);
    let has_rings =
        topology.extents().is_some_and(|extents| extents.iter().any(|n| topology.wraps(*n)));
    let mut capacity = [packets; VIRTUAL_CHANNELS];
    if !has_rings {
        capacity[usize::from(DIRECT_WRAPPING.0)] = 0;
    }
    capacity
}
