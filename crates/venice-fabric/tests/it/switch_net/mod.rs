//! A network of switches in virtual time, with links that lose, repeat, delay and damage datagrams,
//! and a checker that tracks every packet.
#![allow(dead_code, reason = "each test file uses its part")]

use std::collections::BTreeMap;

use venice_fabric::switch::{InjectError, Switch, SwitchConfig};
use venice_fabric::{HopState, Position, Topology};
use venice_wire::{
    Endpoint, MAX_HOP_BYTES, MAX_PACKET_BYTES, NodeId, PacketAddr, PacketRepr, SwitchPort,
};

pub use venice_testkit::random::SplitMix64 as Rng;

pub const US: u64 = 1_000;
pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1_000_000_000;

/// In parts per thousand.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lost: u64,
    pub repeated: u64,
    pub delayed: u64,
    pub damaged: u64,
}

pub const LOSSY: Faults = Faults { lost: 30, repeated: 20, delayed: 50, damaged: 10 };

pub struct Net {
    pub topology: Topology,
    pub now_ns: u64,
    pub faults: Faults,
    pub switches: Vec<Option<Switch>>,
    pub rng: Rng,
    settings: Settings,
    incarnations: u64,
    /// Cut links, by either end.
    cut: Vec<(Position, SwitchPort)>,
    on_the_way: BTreeMap<(u64, u64), (Position, SwitchPort, Vec<u8>)>,
    sent: u64,
    /// Number of deliveries of each packet.
    pub deliveries: Vec<u32>,
    /// The last packet delivered from each node to each other.
    latest: BTreeMap<(u32, u32), u64>,
    pub in_order: bool,
}

#[derive(Clone, Copy, Debug)]
pub struct Settings {
    pub channel_packets: u16,
    pub window: u16,
    pub local_packets: u16,
    pub source_routes: bool,
}

pub const ROOMY: Settings =
    Settings { channel_packets: 16, window: 32, local_packets: 64, source_routes: false };
pub const TINY: Settings =
    Settings { channel_packets: 1, window: 4, local_packets: 2, source_routes: false };

fn node(at: Position) -> NodeId {
    NodeId(at.0 + 100)
}

impl Net {
    pub fn new(topology: Topology, settings: Settings, faults: Faults, seed: u64) -> Self {
        let mut net = Self {
            topology,
            now_ns: 0,
            faults,
            switches: Vec::new(),
            rng: Rng(seed),
            settings,
            incarnations: seed,
            cut: Vec::new(),
            on_the_way: BTreeMap::new(),
            sent: 0,
            deliveries: Vec::new(),
            latest: BTreeMap::new(),
            in_order: true,
        };
        for at in 0..topology.switches() {
            let switch = net.make(Position(at));
            net.switches.push(Some(switch));
        }
        net
    }

    fn make(&mut self, at: Position) -> Switch {
        self.incarnations += 1;
        let nodes = (0..self.topology.switches()).map(|at| node(Position(at))).collect();
        let incarnation = Rng(self.incarnations).draw();
        let mut config = SwitchConfig::new(self.topology, at, nodes, incarnation);
        config.channel_packets = self.settings.channel_packets;
        config.local_packets = self.settings.local_packets;
        config.link.window = self.settings.window;
        config.source_routes = self.settings.source_routes;
        Switch::new(config)
    }

    pub fn kill(&mut self, at: Position) {
        self.switches[at.0 as usize] = None;
        self.in_order = false;
    }

    pub fn start(&mut self, at: Position) {
        let switch = self.make(at);
        self.switches[at.0 as usize] = Some(switch);
    }

    pub fn cut(&mut self, from: Position, to: Position) {
        self.cut.push((from, self.topology.port_to(from, to).unwrap()));
        self.cut.push((to, self.topology.port_to(to, from).unwrap()));
        self.in_order = false;
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    pub fn switch(&mut self, at: u32) -> &mut Switch {
        self.switches[at as usize].as_mut().expect("it lives")
    }

    /// Injects one packet; the switch may have no room.
    pub fn inject(&mut self, from: u32, to: u32, len: usize) -> Result<(), InjectError> {
        let number = self.deliveries.len() as u64;
        let addr = |at| PacketAddr { node: node(Position(at)), endpoint: Endpoint(at * 7) };
        let mut payload = vec![number as u8; len.max(8)];
        payload[..8].copy_from_slice(&number.to_le_bytes());
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let len = PacketRepr::new(addr(from), addr(to)).emit(&payload, &mut packet).unwrap();
        let now_ns = self.now_ns;
        self.switch(from).inject(now_ns, &packet[..len])?;
        self.deliveries.push(0);
        self.serve(from);
        Ok(())
    }

    /// Takes out a switch's packets for its node and datagrams for its neighbours.
    pub fn serve(&mut self, at: u32) {
        self.take_local(at);
        let mut buf = vec![0; MAX_HOP_BYTES];
        let now_ns = self.now_ns;
        while let Some((port, len)) = self.switch(at).poll_transmit(now_ns, &mut buf) {
            self.send(Position(at), port, &buf[..len]);
        }
    }

    fn take_local(&mut self, at: u32) {
        let now_ns = self.now_ns;
        let switch = self.switches[at as usize].as_mut().expect("it lives");
        while let Some(packet) = switch.poll_local(now_ns) {
            assert_eq!(
                packet.destination().node,
                node(Position(at)),
                "it arrived at its destination"
            );
            let number = u64::from_le_bytes(packet.payload()[..8].try_into().unwrap());
            assert!(packet.payload()[8..].iter().all(|byte| *byte == number as u8));
            self.deliveries[number as usize] += 1;
            let pair = (packet.source().node.0, at);
            let before = self.latest.insert(pair, number);
            assert!(!self.in_order || before.is_none_or(|before| before < number), "in order");
        }
    }

    fn send(&mut self, from: Position, port: SwitchPort, datagram: &[u8]) {
        let (to, entry) = self.topology.neighbour(from, port).expect("it sends to neighbours");
        if self.cut.contains(&(from, port)) || self.rng.chance(self.faults.lost) {
            return;
        }
        let copies = 1 + u64::from(self.rng.chance(self.faults.repeated));
        for _ in 0..copies {
            let mut bytes = datagram.to_vec();
            if self.rng.chance(self.faults.damaged) {
                let at = self.rng.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.rng.below(8);
            }
            let mut delay_ns = 10 * US;
            if self.rng.chance(self.faults.delayed) {
                delay_ns += self.rng.below(3 * MS);
            }
            self.sent += 1;
            self.on_the_way.insert((self.now_ns + delay_ns, self.sent), (to, entry, bytes));
        }
    }

    /// Advances the world to the next event, or to `until_ns`.
    pub fn step(&mut self, until_ns: u64) {
        let timers = self.switches.iter().flatten().map(Switch::poll_timeout).min();
        let arrival = self.on_the_way.keys().next().map(|(at_ns, _)| *at_ns);
        let next_ns = timers.into_iter().chain(arrival).fold(until_ns, u64::min);
        self.now_ns = self.now_ns.max(next_ns);
        let now_ns = self.now_ns;
        while let Some((&key, _)) = self.on_the_way.iter().next().filter(|(key, _)| key.0 <= now_ns)
        {
            let (to, port, bytes) = self.on_the_way.remove(&key).unwrap();
            if let Some(switch) = &mut self.switches[to.0 as usize] {
                switch.handle_datagram(now_ns, port, &bytes);
                self.serve(to.0);
            }
        }
        for at in 0..self.switches.len() {
            if let Some(switch) = &mut self.switches[at]
                && switch.poll_timeout() <= now_ns
            {
                switch.handle_timeout(now_ns);
                self.serve(at as u32);
            }
        }
    }

    pub fn run(&mut self, for_ns: u64) {
        let until_ns = self.now_ns + for_ns;
        while self.now_ns < until_ns {
            self.step(until_ns);
        }
    }

    /// Runs until `is_done`, and fails when that takes more than `limit_ns`.
    pub fn run_until(
        &mut self,
        what: &str,
        limit_ns: u64,
        mut is_done: impl FnMut(&mut Self) -> bool,
    ) {
        let until_ns = self.now_ns + limit_ns;
        while !is_done(self) {
            assert!(
                self.now_ns < until_ns,
                "{what}: not within {limit_ns} ns\n{}",
                self.describe()
            );
            self.step(until_ns);
        }
    }

    /// Waits until every link whose ends are alive and that is not cut is up, and all switches have
    /// that state.
    pub fn come_up(&mut self) {
        self.run_until("links up", 20 * SECOND, |net| {
            net.topology.links().all(|link| {
                let is_up = |at: Position, port| {
                    net.switches[at.0 as usize]
                        .as_ref()
                        .is_none_or(|switch| switch.hop_stats(port).unwrap().state == HopState::Up)
                };
                net.cut.contains(&(link.from, link.from_port))
                    || net.switches[link.from.0 as usize].is_none()
                    || net.switches[link.to.0 as usize].is_none()
                    || (is_up(link.from, link.from_port) && is_up(link.to, link.to_port))
            })
        });
        self.run(SECOND);
    }

    pub fn all_delivered(&self) -> bool {
        self.deliveries.iter().all(|count| *count > 0)
    }

    pub fn none_doubled(&self) -> bool {
        self.deliveries.iter().all(|count| *count <= 1)
    }

    /// Checks the invariants of every network without broken switches, once it is quiet.
    pub fn check_quiet(&mut self) {
        self.run(2 * SECOND);
        for (at, switch) in self.switches.iter().enumerate() {
            let Some(switch) = switch else { continue };
            assert_eq!(switch.held(), 0, "every buffer of {at} is free again");
            for port in 0..self.topology.ports(Position(at as u32)) {
                let Some(stats) = switch.hop_stats(SwitchPort(port)) else { continue };
                assert_eq!(stats.overruns, 0, "no packet is sent without credit");
            }
        }
    }

    pub fn describe(&self) -> String {
        let mut text = format!(
            "{}: {} of {} packets delivered\n",
            self.topology,
            self.deliveries.iter().filter(|count| **count > 0).count(),
            self.deliveries.len()
        );
        for (at, switch) in self.switches.iter().enumerate() {
            let Some(switch) = switch else { continue };
            text += &format!("{at}: held {} {:?}\n", switch.held(), switch.stats());
            for port in 0..self.topology.ports(Position(at as u32)) {
                if let Some(stats) = switch.hop_stats(SwitchPort(port)) {
                    text += &format!("   {port}: {stats:?}\n");
                }
            }
        }
        text
    }
}
