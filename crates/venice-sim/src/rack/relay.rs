//! A node's switch, for topologies with relays: frames are put into packets, and packets travel in
//! hop datagrams from neighbour to neighbour.

use venice_fabric::{InjectError, LinkConfig, Position, Switch, SwitchConfig, Topology};
use venice_wire::{
    Endpoint, MAX_HOP_BYTES, MAX_PACKET_BYTES, NodeId, PacketAddr, PacketRepr, SwitchPort,
};

use crate::network::{Datagram, End, node_id};
use crate::scenario::Protocol;

/// Endpoint of the program; the agent's is 0.
const PROGRAM: Endpoint = Endpoint(1);

pub(super) struct Relay {
    pub switch: Switch,
    topology: Topology,
    own: Position,
    /// A packet for which the switch had no room yet.
    held: Option<Vec<u8>>,
    /// Buffer for packets and datagrams.
    buf: Box<[u8]>,
}

impl Relay {
    /// Creates the switch of a node, or of the router.
    pub fn new(topology: Topology, number: u16, protocol: &Protocol, incarnation: u64) -> Self {
        let own = Position(number.into());
        let nodes = (0..topology.switches()).map(NodeId).collect();
        let usual = SwitchConfig::new(topology, own, nodes, incarnation);
        // A dead neighbour is detected well before the links above time out.
        let link = LinkConfig {
            window: protocol.window.max(16),
            ack_delay_ns: protocol.ack_delay.0.min(usual.link.ack_delay_ns),
            replay_min_ns: protocol.replay_min.0,
            replay_max_ns: protocol.replay_max.0 / 4,
            keepalive_ns: protocol.keepalive.0 / 3,
            silence_ns: protocol.silence.0 * 3 / 10,
            ..usual.link
        };
        let config = SwitchConfig {
            link,
            channel_packets: protocol.hop_packets,
            source_routes: protocol.source_routes,
            ..usual
        };
        let buf = vec![0; MAX_HOP_BYTES.max(MAX_PACKET_BYTES)].into();
        Self { switch: Switch::new(config), topology, own, held: None, buf }
    }

    /// True if another frame can be taken.
    pub fn has_room(&self) -> bool {
        self.held.is_none()
    }

    /// Sends a frame. It is lost if there is no route.
    pub fn send(&mut self, local_ns: u64, frame: &Datagram) {
        let (from, to) = (place(frame.from, frame.from_end), place(frame.to, frame.to_end));
        let packet = PacketRepr::new(from, to);
        let len = packet.emit(&frame.bytes, &mut self.buf).expect("a frame fits");
        if let Err(InjectError::WouldBlock) = self.switch.inject(local_ns, &self.buf[..len]) {
            self.held = Some(self.buf[..len].to_vec());
        }
    }

    /// Retries the held packet. Returns true if it was accepted.
    pub fn push_held(&mut self, local_ns: u64) -> bool {
        let Some(packet) = &self.held else { return false };
        let is_over = !matches!(self.switch.inject(local_ns, packet), Err(InjectError::WouldBlock));
        if is_over {
            self.held = None;
        }
        is_over
    }

    /// Handles a datagram from a neighbour.
    pub fn handle(&mut self, local_ns: u64, datagram: &Datagram) {
        let port = self.topology.port_to(self.own, Position(datagram.from.into()));
        let port = port.expect("only neighbours are linked");
        self.switch.handle_datagram(local_ns, port, &datagram.bytes);
    }

    /// Checks that it was never overrun, and is empty.
    pub fn check_quiet(&self) -> Result<(), String> {
        for port in 0..self.topology.ports(self.own) {
            let Some(stats) = self.switch.hop_stats(SwitchPort(port)) else { continue };
            if stats.overruns > 0 {
                return Err(format!("{} overruns at port {port}", stats.overruns));
            }
        }
        Ok(())
    }

    /// Returns the next frame for this node.
    pub fn poll_local(&mut self, local_ns: u64) -> Option<Datagram> {
        let packet = self.switch.poll_local(local_ns)?;
        let (from, to) = (packet.source(), packet.destination());
        Some(Datagram {
            from: from.node.0 as u16,
            from_end: end(from.endpoint),
            to: to.node.0 as u16,
            to_end: end(to.endpoint),
            bytes: packet.payload().to_vec(),
        })
    }

    /// Returns the next datagram to a neighbour.
    pub fn poll_transmit(&mut self, local_ns: u64) -> Option<Datagram> {
        let (port, len) = self.switch.poll_transmit(local_ns, &mut self.buf)?;
        let to = self.neighbour(port);
        Some(Datagram {
            from: self.own.0 as u16,
            from_end: End::Switch,
            to,
            to_end: End::Switch,
            bytes: self.buf[..len].to_vec(),
        })
    }

    fn neighbour(&self, port: SwitchPort) -> u16 {
        let (at, _) = self.topology.neighbour(self.own, port).expect("a port with a link");
        at.0 as u16
    }
}

fn place(node: u16, end: End) -> PacketAddr {
    let endpoint = if end == End::Donor { Endpoint::AGENT } else { PROGRAM };
    PacketAddr { node: node_id(node), endpoint }
}

fn end(endpoint: Endpoint) -> End {
    if endpoint == Endpoint::AGENT { End::Donor } else { End::Recipient }
}
