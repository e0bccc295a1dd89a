//! Tests of a rack of relays over real UDP sockets: accesses cross it, take a route around a dead
//! relay, and fail if there is no route.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use venice_fabric::switch::SwitchConfig;
use venice_fabric::{
    AccessError, FabricError, GrantedMemory, HopState, InitiatorConfig, LinkModel, PeerState,
    Position, Refusal, TargetConfig, Topology,
};
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealCounts, SealKeys, SealedAs, node_key};
use venice_ports::udp::{Relay, RelayConfig, UdpDriver, UdpSocket, neighbour_ports};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret};

const PATIENCE: Duration = Duration::from_secs(60);
const WINDOW: u64 = 0x7000_0000_0000;
const LENT: usize = 1 << 20;

struct Memory(Vec<u8>);

impl GrantedMemory for Memory {
    fn read(&mut self, _: GrantId, _: GrantKey, addr: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let range = addr as usize..addr as usize + into.len();
        into.copy_from_slice(self.0.get(range).ok_or(Refusal::OutOfRange)?);
        Ok(())
    }

    fn write(&mut self, _: GrantId, _: GrantKey, addr: u64, from: &[u8]) -> Result<(), Refusal> {
        let range = addr as usize..addr as usize + from.len();
        self.0.get_mut(range).ok_or(Refusal::OutOfRange)?.copy_from_slice(from);
        Ok(())
    }
}

struct Rack {
    topology: Topology,
    link: Option<LinkModel>,
    is_sealed: bool,
    relays: Vec<Option<Relay>>,
    addresses: Vec<SocketAddr>,
}

fn secret(at: u32) -> NodeSecret {
    NodeSecret([at as u8 + 1; 32])
}

fn node(at: u32) -> NodeId {
    NodeId(at + 1)
}

impl Rack {
    fn start(topology: Topology, link: Option<LinkModel>) -> Self {
        Self::start_with(topology, link, false)
    }

    fn start_with(topology: Topology, link: Option<LinkModel>, is_sealed: bool) -> Self {
        let mut rack =
            Self { topology, link, is_sealed, relays: Vec::new(), addresses: Vec::new() };
        for at in 0..topology.switches() {
            let relay = rack.make(at, "127.0.0.1:0".parse().unwrap());
            rack.addresses.push(relay.local_addr());
            rack.relays.push(Some(relay));
        }
        (0..topology.switches()).for_each(|at| rack.introduce(at));
        rack
    }

    fn keys(&self, at: u32) -> Option<Arc<dyn SealKeys + Send + Sync>> {
        self.is_sealed.then(|| Arc::new(secret(at)) as Arc<dyn SealKeys + Send + Sync>)
    }

    fn config(&self, at: u32) -> SwitchConfig {
        let nodes = (0..self.topology.switches()).map(node).collect();
        let incarnation = venice_ports::random_u64().unwrap();
        SwitchConfig::new(self.topology, Position(at), nodes, incarnation)
    }

    fn make(&self, at: u32, address: SocketAddr) -> Relay {
        let target = TargetConfig::new(node(at), venice_ports::random_u64().unwrap());
        let config =
            RelayConfig { switch: self.config(at), target, link: self.link, keys: self.keys(at) };
        let socket = UdpSocket::bind(address).unwrap();
        Relay::start(socket, config, Memory(vec![at as u8; LENT])).unwrap()
    }

    fn introduce(&self, at: u32) {
        let relay = self.relays[at as usize].as_ref().unwrap();
        for (port, neighbour) in neighbour_ports(&self.config(at)) {
            let name = KeyName::Peer(node(at));
            let seal = self
                .is_sealed
                .then(|| SealedAs { name, key: node_key(&secret(neighbour.0), name) });
            relay.set_neighbour(port, self.addresses[neighbour.0 as usize], seal);
        }
    }

    fn kill(&mut self, at: u32) {
        self.relays[at as usize] = None;
    }

    fn revive(&mut self, at: u32) {
        let relay = self.make(at, self.addresses[at as usize]);
        self.relays[at as usize] = Some(relay);
        self.introduce(at);
    }

    /// Returns the packets that a node has forwarded for others.
    fn relayed(&self, at: u32) -> u64 {
        self.relays[at as usize].as_ref().unwrap().stats().switch.relayed
    }

    fn await_links(&self) {
        let deadline = Instant::now() + PATIENCE;
        let is_up = |relay: &Relay| {
            let hops = relay.stats().hops;
            !hops.is_empty() && hops.iter().all(|(_, hop)| hop.state == HopState::Up)
        };
        while !self.relays.iter().flatten().all(is_up) {
            assert!(Instant::now() < deadline, "links up");
            std::thread::sleep(Duration::from_millis(5));
        }
        // Wait until all nodes have the change.
        std::thread::sleep(Duration::from_millis(300));
    }

    /// Makes a program at node `home` with the memory of node `donor` mapped.
    fn program(&self, home: u32, donor: u32) -> UdpDriver {
        let config = InitiatorConfig::new(NodeId(0), venice_ports::random_u64().unwrap());
        let local = "127.0.0.1:0".parse().unwrap();
        let (make, name): (fn(_, _) -> _, _) = match self.is_sealed {
            true => (UdpDriver::sealed, Some(KeyName::Grant(GrantId(1)))),
            false => (UdpDriver::new, None),
        };
        let mut driver = make(local, config).unwrap();
        let home = self.addresses[home as usize];
        let named = name.map(|name| SealedAs { name, key: node_key(&secret(donor), name) });
        let peer = driver.add_peer_via(monotonic_ns(), node(donor), home, named).unwrap();
        driver
            .initiator()
            .map_window(WINDOW, LENT as u64, peer, 0, GrantId(1), GrantKey(2))
            .unwrap();
        driver
    }
}

/// Writes and reads back pages for a while; returns how many were right.
fn traffic(driver: &mut UdpDriver, rounds: u64, seed: u8) -> Result<u64, AccessError> {
    let deadline = Instant::now() + PATIENCE;
    let pages = LENT as u64 / 4096;
    let (mut asked, mut done) = (0, 0);
    while done < 2 * rounds {
        assert!(Instant::now() < deadline, "{done} of {} accesses", 2 * rounds);
        let now_ns = monotonic_ns();
        while asked < 2 * rounds {
            let n = asked / 2;
            let (address, fill) = (WINDOW + n % pages * 4096, seed ^ n as u8);
            let taken = match asked % 2 {
                0 => driver.initiator().write(now_ns, asked, address, &[fill; 4096]),
                _ => driver.initiator().read(now_ns, asked, address, 4096),
            };
            match taken {
                Ok(()) => asked += 1,
                Err(FabricError::WouldBlock) => break,
                Err(error) => panic!("{error}"),
            }
        }
        driver.pump(now_ns).unwrap();
        while let Some(completion) = driver.initiator().poll_completion() {
            completion.result?;
            let fill = seed ^ (completion.token / 2) as u8;
            assert!(completion.data.iter().all(|byte| *byte == fill), "no wrong byte");
            done += 1;
        }
        if done < 2 * rounds {
            driver.wait(monotonic_ns(), 5_000_000).unwrap();
        }
    }
    Ok(rounds)
}

#[test]
fn accesses_cross_three_hops() {
    let rack = Rack::start(Topology::shaped("mesh:2x2x2").unwrap(), None);
    rack.await_links();
    let mut program = rack.program(0, 7);
    assert_eq!(traffic(&mut program, 500, 1), Ok(500));
    std::thread::sleep(Duration::from_millis(300));
    // Dimension order: over +x, +y, +z.
    assert!(rack.relayed(1) >= 500 && rack.relayed(3) >= 500);
    // A node's own programs reach its own memory too, without leaving it.
    assert_eq!(traffic(&mut rack.program(0, 0), 50, 2), Ok(50));
}

#[test]
fn traffic_reroutes_around_dead_relay() {
    let mut rack = Rack::start(Topology::shaped("mesh:2x2x2").unwrap(), None);
    rack.await_links();
    let mut program = rack.program(0, 7);
    assert_eq!(traffic(&mut program, 100, 3), Ok(100));
    rack.kill(1);
    assert_eq!(traffic(&mut program, 300, 4), Ok(300), "around the dead relay");
    rack.revive(1);
    rack.await_links();
    let before = rack.relayed(1);
    assert_eq!(traffic(&mut program, 300, 5), Ok(300));
    std::thread::sleep(Duration::from_millis(300));
    assert!(rack.relayed(1) >= before + 300, "through the relay again");
}

#[test]
fn no_route_fails_access() {
    let mut rack = Rack::start(Topology::shaped("mesh:3").unwrap(), None);
    rack.await_links();
    let mut program = rack.program(0, 2);
    assert_eq!(traffic(&mut program, 50, 6), Ok(50));
    rack.kill(1);
    let error = traffic(&mut program, 50, 7).unwrap_err();
    assert!(matches!(error, AccessError::PeerDown(_)), "{error}");
}

#[test]
fn router_relays_between_all_nodes() {
    let rack = Rack::start(Topology::Router { nodes: 3 }, None);
    rack.await_links();
    let mut first = rack.program(0, 1);
    let mut second = rack.program(1, 2);
    assert_eq!(traffic(&mut first, 200, 8), Ok(200));
    assert_eq!(traffic(&mut second, 200, 9), Ok(200));
    std::thread::sleep(Duration::from_millis(300));
    assert!(rack.relayed(3) >= 800);
}

#[test]
fn each_hop_adds_emulated_latency() {
    let model: LinkModel = "latency=2ms".parse().unwrap();
    let rack = Rack::start(Topology::shaped("mesh:3").unwrap(), Some(model));
    rack.await_links();
    let mut program = rack.program(0, 2);
    assert_eq!(traffic(&mut program, 5, 10), Ok(5));
    let peer = venice_fabric::PeerIndex(0);
    assert_eq!(program.initiator().peer_state(peer), PeerState::Up);
    let round_trip_ns = program.initiator().peer_stats(peer).round_trip_ns.unwrap();
    assert!(round_trip_ns >= 8_000_000, "two hops there and two back: {round_trip_ns}");
}

#[test]
fn seal_is_end_to_end() {
    let topology = Topology::shaped("mesh:3").unwrap();
    let rack = Rack::start_with(topology, None, true);
    rack.await_links();
    let mut program = rack.program(0, 2);
    assert_eq!(traffic(&mut program, 300, 11), Ok(300));
    let dropped = |at: usize| rack.relays[at].as_ref().unwrap().dropped();
    assert_eq!(dropped(2), SealCounts::default());
    // Accesses of a program without the key are dropped.
    let config = InitiatorConfig::new(NodeId(0), 5);
    let mut stranger = UdpDriver::new("127.0.0.1:0".parse().unwrap(), config).unwrap();
    stranger.add_peer_via(monotonic_ns(), node(2), rack.addresses[0], None).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while dropped(2).unsealed == 0 {
        assert!(Instant::now() < deadline, "its Hello frames are counted as dropped");
        stranger.pump(monotonic_ns()).unwrap();
        stranger.wait(monotonic_ns(), 5_000_000).unwrap();
    }
    assert_eq!(stranger.initiator().peer_state(venice_fabric::PeerIndex(0)), PeerState::Connecting);
}
