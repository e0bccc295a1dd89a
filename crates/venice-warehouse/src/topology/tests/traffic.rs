//! Packets through whole topologies on the engine: the same run for any number of parts.

use std::collections::HashMap;
use std::sync::Arc;

use venice_simkernel::engine::{Engine, Node, Outbox, Part};
use venice_simkernel::random::Stream;

use super::*;
use crate::packet::PacketId;
use crate::switch::config::CircuitSwitchConfig;
use crate::switch::{Arriving, Departure, Outcome, Switch};

/// Packets that each host sends.
const PACKETS: u32 = 20;

#[derive(Clone, Copy)]
struct Packet {
    to: Host,
    hash: u32,
    bytes: u32,
    rate: BitRate,
}

#[derive(Clone, Copy)]
enum Event {
    /// A host sends its next packet.
    Send,
    /// A packet's first bit comes to a port.
    Arrive(PacketId, PortNumber),
    Wake(PortNumber),
}

/// Hosts that send at random, and switches.
struct Network {
    topology: Arc<Topology>,
    switches: Vec<Switch>,
    random: Vec<Stream>,
    sent: Vec<u32>,
    delivered: u64,
    packets: HashMap<PacketId, Packet>,
}

impl Network {
    fn new(topology: &Arc<Topology>) -> Self {
        let switch = |n| Switch::new(topology.switch_config(n), &topology.rates(n));
        let root = Stream::new(3);
        let hosts = topology.hosts();
        Self {
            topology: Arc::clone(topology),
            switches: (0..topology.switches().len() as u32).map(switch).collect(),
            random: (0..hosts).map(|host| root.split("host", &[host.into()])).collect(),
            sent: vec![0; hosts as usize],
            delivered: 0,
            packets: HashMap::new(),
        }
    }

    fn send(&mut self, host: Host, out: &mut Outbox<'_, Event>) {
        let random = &mut self.random[host as usize];
        let link = *self.topology.host_link(host);
        let others = u64::from(self.topology.hosts() - 1);
        let to = (host + 1 + random.below(others) as u32) % self.topology.hosts();
        let bytes = random.between(64, 1538) as u32;
        let packet = Packet { to, hash: random.draw() as u32, bytes, rate: link.rate };
        let gap = random.below(20_000_000);
        let number = host * PACKETS + self.sent[host as usize];
        self.packets.insert(number, packet);
        self.sent[host as usize] += 1;
        let (node, port) = self.node(link.peer);
        out.send(node, link.propagation.0, Event::Arrive(number, port));
        if self.sent[host as usize] < PACKETS {
            out.send(host, link.rate.time_of(bytes.into()) + gap, Event::Send);
        }
    }

    fn node(&self, peer: Peer) -> (Node, PortNumber) {
        match peer {
            Peer::Host(host) => (host, 0),
            Peer::Switch { switch, port } => (self.topology.hosts() + switch, port),
            Peer::Unconnected => panic!("a packet leaves by the end of a mesh"),
        }
    }

    fn forward(&mut self, switch: u32, departure: Departure, out: &mut Outbox<'_, Event>) {
        let port = self.topology.switches()[switch as usize].ports[usize::from(departure.output)];
        self.packets.get_mut(&departure.packet).unwrap().rate = departure.rate;
        let (node, input) = self.node(port.peer);
        let after = departure.first_bit_at - out.now() + port.propagation.0;
        out.send(node, after, Event::Arrive(departure.packet, input));
    }

    fn switch(&mut self, switch: u32, event: Event, out: &mut Outbox<'_, Event>) {
        let at = &mut self.switches[switch as usize];
        let (departure, wake_at, output) = match event {
            Event::Send => panic!("a switch sends nothing of its own"),
            Event::Wake(output) => {
                let (departure, wake_at) = at.wake(out.now(), output);
                (departure, wake_at, output)
            }
            Event::Arrive(packet, input) => {
                let Packet { to, hash, bytes, rate } = self.packets[&packet];
                let output = self.topology.output(switch, to, hash);
                let ecn_capable = false;
                let arriving =
                    Arriving { packet, bytes, input, output, input_rate: rate, ecn_capable };
                match at.arrive(out.now(), &arriving) {
                    Outcome::Sent(departure) => (Some(departure), None, output),
                    Outcome::Queued { wake_at } => (None, wake_at, output),
                    Outcome::Dropped(_) => {
                        self.packets.remove(&packet);
                        return;
                    }
                }
            }
        };
        if let Some(departure) = departure {
            self.forward(switch, departure, out);
        }
        if let Some(wake_at) = wake_at {
            let node = self.topology.hosts() + switch;
            out.send(node, wake_at - out.now(), Event::Wake(output));
        }
    }
}

impl Part for Network {
    type Event = Event;
    type Message = (Event, Option<Packet>);

    fn handle(&mut self, node: Node, event: Event, out: &mut Outbox<'_, Event>) {
        if let Some(switch) = node.checked_sub(self.topology.hosts()) {
            return self.switch(switch, event, out);
        }
        match event {
            Event::Send => self.send(node, out),
            Event::Arrive(packet, _) => {
                assert_eq!(self.packets.remove(&packet).unwrap().to, node);
                self.delivered += 1;
            }
            Event::Wake(_) => panic!("a host has no outputs"),
        }
    }

    fn digest(&self, event: &Event) -> u64 {
        match event {
            Event::Send => 1,
            Event::Arrive(packet, port) => 2 + (u64::from(*packet) << 32 | u64::from(*port) << 2),
            Event::Wake(output) => 3 + (u64::from(*output) << 2),
        }
    }

    fn pack(&mut self, event: Event) -> Self::Message {
        match event {
            Event::Arrive(packet, _) => (event, self.packets.remove(&packet)),
            Event::Send | Event::Wake(_) => (event, None),
        }
    }

    fn unpack(&mut self, (event, packet): Self::Message) -> Event {
        if let (Event::Arrive(number, _), Some(packet)) = (event, packet) {
            self.packets.insert(number, packet);
        }
        event
    }
}

/// Returns the trace, the packets delivered, and those dropped.
fn run(topology: &Arc<Topology>, parts: u16) -> (u64, u64, u64) {
    let partition = topology.partition(parts);
    assert_eq!(partition.parts, parts, "the topology divides");
    let networks = (0..parts).map(|_| Network::new(topology)).collect();
    let first = (0..topology.hosts()).map(|host| (host, 0, Event::Send));
    let mut engine = Engine::new(networks, partition.part_of, partition.look_ahead, first);
    engine.run_until(u64::MAX);
    let dropped = |network: &Network| -> u64 {
        network.switches.iter().map(|switch| switch.total(0).drops.total()).sum()
    };
    let delivered = engine.parts().map(|network| network.delivered).sum();
    (engine.trace(), delivered, engine.parts().map(dropped).sum())
}

#[test]
fn parts_do_not_change_a_run() {
    let circuits = LevelConfig {
        switch: SwitchConfig::Circuit(CircuitSwitchConfig::default()),
        ..LevelConfig::default()
    };
    let clos = ClosConfig { hosts_per_rack: 6, racks_per_array: 2, ..ClosConfig::default() };
    for config in [
        TopologyConfig::Clos(clos.clone()),
        TopologyConfig::Clos(ClosConfig { array: circuits, ..clos }),
        TopologyConfig::LeafSpine(LeafSpineConfig { hosts_per_leaf: 5, ..Default::default() }),
        TopologyConfig::FatTree(FatTreeConfig { k: 4, ..Default::default() }),
        TopologyConfig::Torus(MeshConfig { dimensions: vec![4, 3], ..Default::default() }),
    ] {
        let topology = Arc::new(build(&config));
        let alone = run(&topology, 1);
        let (_, delivered, dropped) = alone;
        assert_eq!(delivered + dropped, u64::from(topology.hosts() * PACKETS));
        assert!(delivered > dropped, "{dropped} dropped");
        for parts in [2, 5] {
            assert_eq!(run(&topology, parts), alone, "{parts} parts of {config:?}");
        }
    }
}
