//! Forwarding: the queues of waiting packets, and the order in which they leave.
//!
//! Every input buffer (a port's virtual channel, or this node's own packets by output) consists of
//! a few queues, and the packets of one program wait in the same one ([`flows`]). A queue whose
//! head wants an output is in that output's list ("line") for the channel on which it will travel,
//! and each queue is in one list at most. An output takes its channels in turn, and from each list
//! the first queue: so programs and inputs are served round robin, at the same cost for any radix.

use venice_wire::{NodeId, Packet, SwitchPort, VIRTUAL_CHANNELS, advance_packet};

use super::flows::{FLOWS, LocalPackets, flow_of};
use super::hop::HopLink;
use super::slots::{Output, Queue, Slot, Slots};
use super::stats::SwitchStats;
use super::{InjectError, SwitchConfig, capacity};
use crate::routing::{LinkStates, NextHop, NoRoute, VirtualChannel};
use crate::topology::{Position, Topology};

mod routes;

use self::routes::{KnownRoute, RouteCache};

const NONE: u32 = u32::MAX;

/// The packets of a switch and their destinations.
#[derive(Debug)]
pub(super) struct Forward {
    own: Position,
    slots: Slots,
    slot_count: u32,
    ports: usize,
    /// By input, [`FLOWS`] for each. Inputs: those of port p on channel c at `p * VIRTUAL_CHANNELS
    /// + c`, then this node's own packets for port p, then those for this node itself.
    queues: Box<[Waiting]>,
    /// Lists of queues before the outputs, numbered like the inputs; the last is for this node.
    lines: Box<[Line]>,
    /// The channel each output serves next.
    turns: Box<[u8]>,
    routes: RouteCache,
    local: LocalPackets,
    delivered: Option<Slot>,
    /// Work left for the switch: freed input buffers, outputs with a new packet.
    released: Vec<(usize, usize)>,
    woken: Vec<usize>,
    pub(super) stats: SwitchStats,
}

/// Packets of one flow from one input.
#[derive(Debug)]
struct Waiting {
    queue: Queue,
    /// The next queue in the same list.
    behind: u32,
}

#[derive(Clone, Copy, Debug)]
struct Line {
    first: u32,
    last: u32,
}

impl Forward {
    pub(super) fn new(config: &SwitchConfig, neighbours: u32) -> Self {
        let (topology, own) = (&config.topology, config.position);
        let ports = usize::from(topology.ports(own));
        let per_port: u32 = capacity(topology, config.channel_packets)
            .iter()
            .map(|packets| u32::from(*packets))
            .sum::<u32>()
            + u32::from(config.link.window_frames());
        let local_packets = u32::from(config.local_packets.max(1));
        // One for the packet that the node is reading.
        let slot_count = neighbours * per_port + local_packets + 1;
        let inputs = ports * VIRTUAL_CHANNELS;
        let empty = |_| Waiting { queue: Queue::new(), behind: NONE };
        Self {
            own,
            slots: Slots::new(slot_count),
            slot_count,
            ports,
            queues: (0..(inputs + ports + 1) * FLOWS).map(empty).collect(),
            lines: vec![Line { first: NONE, last: NONE }; inputs + 1].into(),
            turns: vec![0; ports].into(),
            routes: RouteCache::new(topology, own, &config.nodes, config.source_routes),
            local: LocalPackets::new(local_packets),
            delivered: None,
            released: Vec::with_capacity(slot_count as usize),
            woken: Vec::with_capacity(slot_count as usize + ports),
            stats: SwitchStats::default(),
        }
    }

    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    pub(super) fn slots_mut(&mut self) -> &mut Slots {
        &mut self.slots
    }

    pub(super) fn held(&self) -> u32 {
        self.slot_count - self.slots.free()
    }

    pub(super) fn links(&self) -> &LinkStates {
        &self.routes.links
    }

    /// [`Forward::forget_routes`] must follow a change.
    pub(super) fn links_mut(&mut self) -> &mut LinkStates {
        &mut self.routes.links
    }

    pub(super) fn forget_routes(&mut self) {
        self.routes.forget();
    }

    /// Records that this switch's own link behind `port` is up or down.
    pub(super) fn set_link(&mut self, port: SwitchPort, is_up: bool) {
        self.routes.links.set(self.own, port, is_up);
        self.routes.forget();
    }

    pub(super) fn reaches(&mut self, node: NodeId, topology: &Topology) -> bool {
        let Some(to) = self.routes.position(node) else { return false };
        !matches!(self.routes.to(to, topology), KnownRoute::None)
    }

    /// Takes a packet received by `port` on `channel`.
    pub(super) fn enqueue(
        &mut self,
        port: SwitchPort,
        channel: u8,
        slot: Slot,
        topology: &Topology,
    ) {
        let input = usize::from(port.0) * VIRTUAL_CHANNELS + usize::from(channel);
        match self.route(&slot, Some((port, VirtualChannel(channel))), topology) {
            Some(output) => {
                self.push(input, slot, output);
            }
            None => {
                self.slots.give_back(slot);
                self.released.push((usize::from(port.0), usize::from(channel)));
            }
        }
    }

    pub(super) fn inject(&mut self, packet: &[u8], topology: &Topology) -> Result<(), InjectError> {
        let parsed = Packet::parse(packet)?;
        let destination = parsed.destination().node;
        if !self.local.has_room(&parsed) {
            return Err(InjectError::WouldBlock);
        }
        let to = self.routes.position(destination).ok_or(InjectError::UnknownNode(destination))?;
        let slot = self.slots.take(packet);
        let Some(output) = self.route(&slot, None, topology) else {
            self.slots.give_back(slot);
            return Err(NoRoute { from: self.own, to }.into());
        };
        self.stats.injected += 1;
        let port = match output {
            Output::Local => self.ports,
            Output::Out(hop) => usize::from(hop.port.0),
        };
        let flow = self.push(self.ports * VIRTUAL_CHANNELS + port, slot, output);
        self.local.enters(flow);
        Ok(())
    }

    /// Puts a packet behind the others of its flow; returns the queue.
    fn push(&mut self, input: usize, slot: Slot, output: Output) -> usize {
        self.slots.set_output(&slot, output);
        let packet = Packet::parse(self.slots.bytes(&slot)).expect("it was parsed to be routed");
        let flow = flow_of(&packet);
        let at = input * FLOWS + flow;
        let queue = &mut self.queues[at].queue;
        let was_empty = queue.len() == 0;
        queue.push(&mut self.slots, slot);
        if was_empty {
            self.line_up(at);
        }
        flow
    }

    /// Moves the queue to the end of the list for its new head's output.
    fn line_up(&mut self, at: usize) {
        let Some(head) = self.queues[at].queue.head() else { return };
        let line = match self.slots.output(&head) {
            Output::Local => self.ports * VIRTUAL_CHANNELS,
            Output::Out(hop) => {
                self.woken.push(usize::from(hop.port.0));
                usize::from(hop.port.0) * VIRTUAL_CHANNELS + usize::from(hop.channel.0)
            }
        };
        self.queues[at].behind = NONE;
        match self.lines[line].last {
            NONE => self.lines[line].first = at as u32,
            last => self.queues[last as usize].behind = at as u32,
        }
        self.lines[line].last = at as u32;
    }

    /// Removes the first queue from a list, and the head from that queue.
    fn take_first(&mut self, line: usize) -> Option<Slot> {
        let at = match self.lines[line].first {
            NONE => return None,
            first => first as usize,
        };
        self.lines[line].first = self.queues[at].behind;
        if self.lines[line].first == NONE {
            self.lines[line].last = NONE;
        }
        let slot = self.queues[at].queue.pop(&self.slots).expect("a queue in line has a head");
        self.line_up(at);
        self.account_for(at);
        Some(slot)
    }

    /// Updates the counts after a packet has left the queue.
    fn account_for(&mut self, at: usize) {
        let (input, flow) = (at / FLOWS, at % FLOWS);
        if input < self.ports * VIRTUAL_CHANNELS {
            self.released.push((input / VIRTUAL_CHANNELS, input % VIRTUAL_CHANNELS));
        } else {
            self.local.leaves(flow);
        }
    }

    /// Returns the next packet for `port`, if one may be sent.
    pub(super) fn arbitrate(
        &mut self,
        now_ns: u64,
        port: usize,
        link: &mut HopLink,
    ) -> Option<(VirtualChannel, Slot)> {
        for turn in 0..VIRTUAL_CHANNELS {
            let channel = (usize::from(self.turns[port]) + turn) % VIRTUAL_CHANNELS;
            let line = port * VIRTUAL_CHANNELS + channel;
            let first = self.lines[line].first;
            if first == NONE {
                continue;
            }
            if !link.may_send(channel) {
                link.starve(now_ns, channel);
                continue;
            }
            let is_relayed = (first as usize) < self.ports * VIRTUAL_CHANNELS * FLOWS;
            let slot = self.take_first(line)?;
            self.turns[port] = ((channel + 1) % VIRTUAL_CHANNELS) as u8;
            self.stats.relayed += u64::from(is_relayed);
            advance_packet(self.slots.bytes_mut(&slot));
            return Some((VirtualChannel(channel as u8), slot));
        }
        None
    }

    /// Takes the next packet for this node out of its buffer.
    pub(super) fn deliver(&mut self) {
        assert!(self.delivered.is_none(), "the one before is given back first");
        self.delivered = self.take_first(self.ports * VIRTUAL_CHANNELS);
        self.stats.delivered += u64::from(self.delivered.is_some());
    }

    pub(super) fn delivered(&self) -> Option<Packet<'_>> {
        let bytes = self.slots.bytes(self.delivered.as_ref()?);
        Some(Packet::parse(bytes).expect("it was parsed when it was routed"))
    }

    pub(super) fn drop_delivered(&mut self) {
        if let Some(slot) = self.delivered.take() {
            self.slots.give_back(slot);
        }
    }

    /// Reroutes or drops the packets that wait for `port`, whose link is down.
    pub(super) fn leave_port(&mut self, port: usize, topology: &Topology) {
        self.lines.fill(Line { first: NONE, last: NONE });
        for at in 0..self.queues.len() {
            let came = self.came(at / FLOWS);
            // One pass over the queue: packets that stay go to its end, in order.
            let count = self.queues[at].queue.len();
            for _ in 0..count {
                let queue = &mut self.queues[at].queue;
                let slot = queue.pop(&self.slots).expect("it has as many");
                let output = self.slots.output(&slot);
                let leaves_by = |hop: NextHop| usize::from(hop.port.0) == port;
                let output = match output {
                    Output::Out(hop) if leaves_by(hop) => self.route(&slot, came, topology),
                    _ => Some(output),
                };
                match output {
                    Some(output) => {
                        self.slots.set_output(&slot, output);
                        self.queues[at].queue.push(&mut self.slots, slot);
                    }
                    None => {
                        self.slots.give_back(slot);
                        self.account_for(at);
                    }
                }
            }
            self.line_up(at);
        }
    }

    /// Returns the origin of an input's packets; `None`: this node.
    fn came(&self, input: usize) -> Option<(SwitchPort, VirtualChannel)> {
        (input < self.ports * VIRTUAL_CHANNELS).then(|| {
            let (port, channel) = (input / VIRTUAL_CHANNELS, input % VIRTUAL_CHANNELS);
            (SwitchPort(port as u16), VirtualChannel(channel as u8))
        })
    }

    pub(super) fn next_released(&mut self) -> Option<(usize, usize)> {
        self.released.pop()
    }

    pub(super) fn next_woken(&mut self) -> Option<usize> {
        self.woken.pop()
    }
}
