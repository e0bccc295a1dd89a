//! Programs that send through the same switches get even shares of a hop, and a program that sends
//! little always finds room in its node's relay.

use venice_fabric::switch::{InjectError, Switch, SwitchConfig};
use venice_fabric::{Position, Topology};
use venice_wire::{
    Endpoint, GrantId, KeyName, MAX_HOP_BYTES, MAX_PACKET_BYTES, NodeId, PacketAddr, PacketRepr,
    SEALED_HEADER_BYTES, SealAlgorithm, SealDirection, SealedHeader,
};

const NODES: [NodeId; 3] = [NodeId(1), NodeId(2), NodeId(3)];
const LEN: usize = 1000;

/// A row of three switches, whose last node is the donor.
struct Row {
    now_ns: u64,
    switches: Vec<Switch>,
}

impl Row {
    fn new() -> Self {
        let topology: Topology = "mesh:3x1x1".parse().unwrap();
        let switch = |at| {
            let mut config =
                SwitchConfig::new(topology, Position(at), NODES.to_vec(), 7 + u64::from(at));
            config.channel_packets = 8;
            config.local_packets = 64;
            Switch::new(config)
        };
        let mut row = Self { now_ns: 0, switches: (0..3).map(switch).collect() };
        (0..20).for_each(|_| {
            row.turn(usize::MAX);
        });
        row
    }

    /// Moves up to `datagrams` datagrams of each switch; returns the packets for the last one's
    /// node, by endpoint.
    fn turn(&mut self, datagrams: usize) -> Vec<u32> {
        self.now_ns += 100_000;
        let mut buf = vec![0; MAX_HOP_BYTES];
        for at in 0..self.switches.len() {
            for _ in 0..datagrams.min(1000) {
                let sent = self.switches[at].poll_transmit(self.now_ns, &mut buf);
                let Some((port, len)) = sent else { break };
                let topology = *self.switches[at].topology();
                let (to, by) = topology.neighbour(Position(at as u32), port).unwrap();
                let now_ns = self.now_ns;
                self.switches[to.0 as usize].handle_datagram(now_ns, by, &buf[..len]);
            }
            self.switches[at].handle_timeout(self.now_ns);
        }
        let mut got = Vec::new();
        while let Some(packet) = self.switches[2].poll_local(self.now_ns) {
            got.push(packet.source().endpoint.0);
        }
        got
    }

    fn send(&mut self, from: usize, endpoint: u32, grant: Option<u64>) -> Result<(), InjectError> {
        let source = PacketAddr { node: NODES[from], endpoint: Endpoint(endpoint) };
        let destination = PacketAddr { node: NODES[2], endpoint: Endpoint::AGENT };
        let mut payload = vec![0; LEN];
        if let Some(grant) = grant {
            payload[..SEALED_HEADER_BYTES].copy_from_slice(&sealed(grant).to_bytes());
        }
        let mut packet = vec![0; MAX_PACKET_BYTES];
        let repr = PacketRepr::new(source, destination);
        let len = repr.emit(&payload, &mut packet).unwrap();
        self.switches[from].inject(self.now_ns, &packet[..len])
    }
}

fn sealed(grant: u64) -> SealedHeader {
    SealedHeader {
        algorithm: SealAlgorithm::Aes256Gcm,
        direction: SealDirection::ToOwner,
        key: KeyName::Grant(GrantId(grant)),
        salt: 1,
        counter: 1,
        pieces: 1,
        piece: 0,
    }
}

/// Returns how many packets of each program arrive when each keeps its node's relay full; a sender
/// is a node, an endpoint, a grant.
fn shares(senders: &[(usize, u32, Option<u64>)]) -> Vec<u32> {
    let mut row = Row::new();
    let mut had = vec![0; senders.len()];
    for round in 0..400 {
        for &(from, endpoint, grant) in senders {
            while row.send(from, endpoint, grant).is_ok() {}
        }
        for endpoint in row.turn(4) {
            let sender = senders.iter().position(|(_, its, _)| *its == endpoint).unwrap();
            had[sender] += u32::from(round >= 100);
        }
    }
    had
}

#[test]
fn programs_share_node_output() {
    let had = shares(&[(0, 11, None), (0, 12, None), (0, 13, None)]);
    let even = had.iter().sum::<u32>() / 3;
    assert!(even > 100 && had.iter().all(|each| each.abs_diff(even) * 10 < even), "{had:?}");
}

/// Four sockets of one program name one grant, and together get the share of another's one socket.
#[test]
fn sockets_share_program_share() {
    let one = (21..25).map(|endpoint| (0, endpoint, Some(5)));
    let had = shares(&one.chain([(0, 31, Some(6))]).collect::<Vec<_>>());
    let (four, one) = (had[..4].iter().sum::<u32>(), had[4]);
    assert!(one > 100 && four.abs_diff(one) * 10 < one, "{had:?}");
}

/// Two distant programs get as much of the last hop as one next to it.
#[test]
fn hop_is_shared_by_program() {
    let had = shares(&[(0, 11, None), (0, 12, None), (1, 13, None)]);
    let even = had.iter().sum::<u32>() / 3;
    assert!(even > 100 && had.iter().all(|each| each.abs_diff(even) * 10 < even), "{had:?}");
}

/// A program that sends at full rate takes at most half of the slots; there is always one for
/// another.
#[test]
fn full_relay_keeps_room_for_others() {
    let mut row = Row::new();
    let mut filled = 0;
    while row.send(0, 11, None).is_ok() {
        filled += 1;
    }
    assert!((30..=34).contains(&filled), "{filled} of 64");
    for endpoint in 12..16 {
        assert_eq!(row.send(0, endpoint, None), Ok(()), "{endpoint}");
    }
    // Answers of the agent leave room too.
    let mut answers = 0;
    while row.send(0, Endpoint::AGENT.0, None).is_ok() {
        answers += 1;
    }
    assert!(answers > 0 && row.send(0, 17, None).is_ok(), "{answers}");
    assert_eq!(row.switches[0].held(), filled + 4 + answers + 1);
}
