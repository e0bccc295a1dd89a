//! Hosts and switches of one part of the world, which the engine runs.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use venice_simkernel::engine::{Node, Outbox, Part};
use venice_simkernel::prefetch::{Ahead, prefetch};
use venice_simkernel::units::BitRate;

use crate::capture::{Capture, LinkEnd};
use crate::config::Config;
use crate::depths::Depths;
use crate::host::config::Server;
use crate::host::thread::{SocketId, ThreadId};
use crate::host::{Cx, Host};
use crate::journey::{Journey, JourneyId, Journeys, Stage};
use crate::packet::{Ecn, Host as HostId, Packet, PacketId, Packets};
use crate::records::{Drop, Records};
use crate::switch::{Arriving, Departure, Outcome, Switch};
use crate::topology::{Partition, Peer, Topology};

/// An event of a host or a switch. Hosts have the first numbers of nodes, switches the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A host begins.
    Start,
    /// At a switch: the first bit of a packet has come. At a host: the packet is in memory.
    Arrive {
        /// The packet.
        packet: PacketId,
        /// The port.
        input: u16,
    },
    /// The network card interrupts.
    Interrupt {
        /// Its number; older ones are void.
        number: u32,
    },
    /// The kernel's work on a core ends.
    KernelDone {
        /// The core.
        core: u16,
    },
    /// The step of a core's thread ends.
    StepDone {
        /// The core.
        core: u16,
        /// Its number; older ones are void.
        number: u32,
    },
    /// A thread has slept long enough.
    ThreadTimer {
        /// The thread.
        thread: ThreadId,
    },
    /// A timer of a connection is due.
    SocketTimer {
        /// Its socket.
        socket: SocketId,
    },
    /// An output of a switch can take the next packet.
    Output {
        /// The port.
        output: u16,
    },
}

impl Event {
    /// True if it is a timer, which does nothing by itself.
    fn is_timer(self) -> bool {
        match self {
            Self::ThreadTimer { .. } | Self::SocketTimer { .. } => true,
            Self::Start
            | Self::Arrive { .. }
            | Self::Interrupt { .. }
            | Self::KernelDone { .. }
            | Self::StepDone { .. }
            | Self::Output { .. } => false,
        }
    }
}

/// Constants of all parts.
#[derive(Debug)]
pub struct Shared {
    /// The servers.
    pub server: Server,
    /// The network.
    pub topology: Topology,
    /// The settings of TCP.
    pub tcp: venice_tcp::Config,
    /// True if requests are followed stage by stage.
    pub explains: bool,
    /// Picoseconds of 1024 instructions.
    ps_per_1024: u64,
    /// By node, its place among the hosts or switches of its part.
    places: Vec<u32>,
}

impl Shared {
    /// Makes what the parts of a world have in common. `partition` has the part of each node.
    pub fn new(config: &Config, topology: Topology, partition: &Partition) -> Self {
        let server = config.server.clone();
        let cycles = server.cycles_per_instruction * 1024.0;
        let ps_per_1024 = (cycles * 1e12 / server.frequency.0 as f64).round() as u64;
        let (places, _) = places(&topology, partition);
        let (tcp, explains) = (config.tcp.values.clone(), config.explain);
        Self { server, topology, tcp, explains, ps_per_1024, places }
    }

    /// Returns the place of a node among the hosts or switches of its part.
    pub(crate) fn place(&self, node: Node) -> u32 {
        self.places[node as usize]
    }

    /// Returns the time of so many instructions.
    pub fn time_of(&self, instructions: u32) -> u64 {
        (u64::from(instructions) * self.ps_per_1024) >> 10
    }

    /// Sends a packet out of a host: its first bit leaves after a time.
    pub(crate) fn leave_host(
        &self,
        host: HostId,
        packet: PacketId,
        after: u64,
        packets: &mut Packets,
        out: &mut Outbox<'_, Event>,
    ) {
        let link = self.topology.host_link(host);
        self.travel(link.peer, after + link.propagation.0, link.rate, packet, packets, out);
    }

    /// Takes a packet to the other end of a link, where its first bit comes after a time.
    fn travel(
        &self,
        peer: Peer,
        after: u64,
        rate: BitRate,
        packet: PacketId,
        packets: &mut Packets,
        out: &mut Outbox<'_, Event>,
    ) {
        let packet_of = packets.get_mut(packet);
        packet_of.rate = rate;
        match peer {
            Peer::Switch { switch, port } => {
                let event = Event::Arrive { packet, input: port };
                out.send(self.topology.hosts() + switch, after, event);
            }
            Peer::Host(host) => {
                let ready = rate.time_of(packet_of.bytes.into()) + self.server.nic.dma_latency.0;
                out.send(host, after + ready, Event::Arrive { packet, input: 0 });
            }
            Peer::Unconnected => panic!("no way leads to an unconnected port"),
        }
    }
}

/// Returns, by node, its place among the hosts or switches of its part, and by part their numbers.
pub(crate) fn places(topology: &Topology, partition: &Partition) -> (Vec<u32>, Vec<(u32, u32)>) {
    let mut counts = vec![(0, 0); usize::from(partition.parts)];
    let hosts = topology.hosts() as usize;
    let place = |(node, part): (usize, &u16)| {
        let (hosts_before, switches_before) = &mut counts[usize::from(*part)];
        let count = if node < hosts { hosts_before } else { switches_before };
        *count += 1;
        *count - 1
    };
    let places = partition.part_of.iter().enumerate().map(place).collect();
    (places, counts)
}

/// Moves packets and followed requests to another part.
pub(crate) struct Mover<'a> {
    from: (&'a mut Packets, &'a mut Journeys),
    to: (&'a mut Packets, &'a mut Journeys),
}

impl Mover<'_> {
    /// Moves a packet, which gets another number.
    pub(crate) fn packet(&mut self, id: &mut PacketId) {
        let mut packet = self.from.0.remove(*id);
        self.journey(&mut packet.journey);
        *id = self.to.0.insert(packet);
    }

    /// Moves a followed request, if there is one.
    pub(crate) fn journey(&mut self, id: &mut Option<JourneyId>) {
        id.iter_mut().for_each(|id| self.take_journey(id));
    }

    /// Moves a followed request, which gets another number.
    pub(crate) fn take_journey(&mut self, id: &mut JourneyId) {
        *id = self.to.1.insert(self.from.1.remove(*id));
    }
}

/// A part of the world.
#[derive(Debug, Serialize, Deserialize)]
pub struct WarehousePart {
    #[serde(skip)]
    shared: Option<Arc<Shared>>,
    hosts: Vec<Host>,
    switches: Vec<Switch>,
    /// The bytes that wait in each switch over time; empty if they are not measured.
    depths: Vec<Depths>,
    packets: Packets,
    journeys: Journeys,
    records: Records,
}

impl WarehousePart {
    /// A part without hosts and switches.
    pub fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared: Some(shared),
            hosts: Vec::new(),
            switches: Vec::new(),
            depths: Vec::new(),
            packets: Packets::default(),
            journeys: Journeys::default(),
            records: Records::default(),
        }
    }

    /// Gives a restored part what all parts have in common.
    pub fn attach(&mut self, shared: Arc<Shared>) {
        self.shared = Some(shared);
    }

    /// Adds a host. Hosts are added in the order of their numbers.
    pub fn add_host(&mut self, host: Host) {
        self.hosts.push(host);
    }

    /// Adds a switch, with the measurement of its depths if all have one. Switches are added in the
    /// order of their numbers.
    pub fn add_switch(&mut self, switch: Switch, depths: Option<Depths>) {
        self.switches.push(switch);
        self.depths.extend(depths);
    }

    /// Returns the switch of a place, and what has waited in it.
    pub(crate) fn switch(&self, place: u32) -> (&Switch, Option<&Depths>) {
        (&self.switches[place as usize], self.depths.get(place as usize))
    }

    /// Takes a node out of another part, in which it has the place `place`. Nodes are carried in the
    /// order of their numbers.
    pub(crate) fn carry(&mut self, is_host: bool, place: u32, from: &mut Self) {
        let mut mover = Mover {
            from: (&mut from.packets, &mut from.journeys),
            to: (&mut self.packets, &mut self.journeys),
        };
        let place = place as usize;
        if is_host {
            let mut host = from.hosts[place].clone();
            host.take_along(&mut mover);
            self.hosts.push(host);
        } else {
            let mut switch = from.switches[place].clone();
            switch.each_packet(|packet| mover.packet(packet));
            self.add_switch(switch, from.depths.get(place).cloned());
        }
    }

    /// True if what waits in its switches is measured as the configuration says.
    pub(crate) fn measures(&self, depths: bool) -> bool {
        self.depths.len() == if depths { self.switches.len() } else { 0 }
    }

    /// Returns the numbers of its hosts and switches.
    pub(crate) fn nodes(&self) -> (u32, u32) {
        (self.hosts.len() as u32, self.switches.len() as u32)
    }

    /// Gives it what other parts have measured.
    pub(crate) fn set_records(&mut self, records: Records) {
        self.records = records;
    }

    /// Returns its state without its hosts, for results alone: much smaller, and read like the whole.
    pub(crate) fn without_hosts(&self) -> Vec<u8> {
        #[derive(Serialize)]
        struct WithoutHosts<'a> {
            hosts: [(); 0],
            switches: &'a [Switch],
            depths: &'a [Depths],
            packets: &'a Packets,
            journeys: &'a Journeys,
            records: &'a Records,
        }
        let Self { shared: _, hosts: _, switches, depths, packets, journeys, records } = self;
        let part = WithoutHosts { hosts: [], switches, depths, packets, journeys, records };
        rmp_serde::to_vec_named(&part).expect("a part is data")
    }

    /// Captures the packets of a link that this part sends.
    pub fn capture(&mut self, capture: Capture) {
        self.records.capture(capture);
    }

    /// Returns what was measured.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Returns the number of requests that are followed in this part.
    pub fn followed(&self) -> usize {
        self.journeys.len()
    }

    /// Returns the number of packets on their way in this part.
    pub fn in_flight(&self) -> usize {
        self.packets.len()
    }
}

impl Part for WarehousePart {
    type Event = Event;
    type Message = (Event, Option<(Packet, Option<Journey>)>);

    fn handle(&mut self, node: Node, event: Event, out: &mut Outbox<'_, Event>) {
        let Self { shared, hosts, switches, depths, packets, journeys, records } = self;
        let shared = shared.as_deref().expect("a part is attached before it runs");
        let place = shared.places[node as usize] as usize;
        let now = out.now();
        if !event.is_timer() {
            records.happen(now);
        }
        let Some(number) = node.checked_sub(shared.topology.hosts()) else {
            let mut cx = Cx {
                host: node,
                now,
                charged: 0,
                core: None,
                packets,
                journeys,
                out,
                records,
                shared,
            };
            return hosts[place].handle(event, &mut cx);
        };
        let (switch, depths) = (&mut switches[place], depths.get_mut(place));
        let at = AtSwitch { number, node, shared, switch, depths, packets, journeys, records };
        at.handle(event, out);
    }

    fn prefetch(&self, node: Node, event: &Event, ahead: Ahead) {
        let shared = self.shared.as_deref().expect("a part is attached before it runs");
        let place = shared.places[node as usize] as usize;
        match (ahead, node < shared.topology.hosts()) {
            (_, true) => self.hosts[place].prefetch(ahead),
            (Ahead::Far, false) => prefetch(&self.switches[place], 1),
            (Ahead::Near, false) => {}
        }
        if let (Event::Arrive { packet, .. }, Ahead::Far) = (event, ahead) {
            prefetch(self.packets.get(*packet), 2);
        }
    }

    fn digest(&self, event: &Event) -> u64 {
        match *event {
            Event::Start => 1,
            Event::Arrive { packet, input } => {
                self.packets.get(packet).digest() ^ 2 << 32 ^ u64::from(input)
            }
            Event::Interrupt { number } => 3 << 32 | u64::from(number),
            Event::KernelDone { core } => 4 << 32 | u64::from(core),
            Event::StepDone { core, number } => 5 << 48 | u64::from(core) << 32 | u64::from(number),
            Event::ThreadTimer { thread } => 6 << 32 | u64::from(thread),
            Event::SocketTimer { socket } => 7 << 32 | u64::from(socket),
            Event::Output { output } => 8 << 32 | u64::from(output),
        }
    }

    fn pack(&mut self, event: Event) -> Self::Message {
        let Event::Arrive { packet, .. } = event else { return (event, None) };
        let packet = self.packets.remove(packet);
        let journey = packet.journey.map(|id| self.journeys.remove(id));
        (event, Some((packet, journey)))
    }

    fn unpack(&mut self, (event, packet): Self::Message) -> Event {
        match (event, packet) {
            (Event::Arrive { input, .. }, Some((mut packet, journey))) => {
                packet.journey = journey.map(|journey| self.journeys.insert(journey));
                Event::Arrive { packet: self.packets.insert(packet), input }
            }
            (event, _) => event,
        }
    }
}

/// A switch at one instant.
struct AtSwitch<'a> {
    number: u32,
    node: Node,
    shared: &'a Shared,
    switch: &'a mut Switch,
    depths: Option<&'a mut Depths>,
    packets: &'a mut Packets,
    journeys: &'a mut Journeys,
    records: &'a mut Records,
}

impl AtSwitch<'_> {
    fn handle(self, event: Event, out: &mut Outbox<'_, Event>) {
        match event {
            Event::Arrive { packet, input } => self.arrive(packet, input, out),
            Event::Output { output } => self.output(output, out),
            Event::Start
            | Event::Interrupt { .. }
            | Event::KernelDone { .. }
            | Event::StepDone { .. }
            | Event::ThreadTimer { .. }
            | Event::SocketTimer { .. } => unreachable!("an event of hosts"),
        }
    }

    fn arrive(self, id: PacketId, input: u16, out: &mut Outbox<'_, Event>) {
        let topology = &self.shared.topology;
        let packet = self.packets.get_mut(id);
        packet.hops += 1;
        if let Some(id) = packet.journey {
            self.journeys.get_mut(id).end(Stage::Wire, out.now());
        }
        self.records.pass_switch();
        let output = topology.output(self.number, packet.to.host, packet.flow);
        let arriving = Arriving {
            packet: id,
            bytes: packet.bytes,
            input,
            output,
            input_rate: packet.rate,
            ecn_capable: packet.ecn != Ecn::NotCapable,
        };
        match self.switch.arrive(out.now(), &arriving) {
            Outcome::Sent(departure) => self.depart(departure, out),
            Outcome::Queued { wake_at } => {
                if let Some(at) = wake_at {
                    out.send(self.node, at - out.now(), Event::Output { output });
                }
                if let Some(depths) = self.depths {
                    depths.add(out.now(), arriving.bytes);
                }
            }
            Outcome::Dropped(_) => {
                let packet = self.packets.remove(id);
                let from = LinkEnd::Port { switch: self.number, port: output };
                self.records.note(from, out.now(), &packet, Some(Drop::Switch));
                packet.journey.map(|id| self.journeys.remove(id));
                self.records.drop_packet(Drop::Switch);
            }
        }
    }

    fn output(mut self, output: u16, out: &mut Outbox<'_, Event>) {
        let (departure, wake_at) = self.switch.wake(out.now(), output);
        if let Some(at) = wake_at {
            out.send(self.node, at - out.now(), Event::Output { output });
        }
        if let Some(departure) = departure {
            if let Some(depths) = &mut self.depths {
                depths.remove(out.now(), self.packets.get(departure.packet).bytes);
            }
            self.depart(departure, out);
        }
    }

    /// Takes a packet to the other end of the output's link.
    fn depart(self, departure: Departure, out: &mut Outbox<'_, Event>) {
        let Departure { packet, output, first_bit_at, rate, marked, last_bit_at: _ } = departure;
        let sent = self.packets.get_mut(packet);
        if marked {
            sent.ecn = Ecn::Marked;
        }
        if let Some(id) = sent.journey {
            self.journeys.get_mut(id).end(Stage::SwitchQueue, out.now());
        }
        let from = LinkEnd::Port { switch: self.number, port: output };
        self.records.note(from, first_bit_at, sent, None);
        let ports = &self.shared.topology.switches()[self.number as usize].ports;
        let port = &ports[usize::from(output)];
        let after = first_bit_at - out.now() + port.propagation.0;
        self.shared.travel(port.peer, after, rate, packet, self.packets, out);
    }
}
