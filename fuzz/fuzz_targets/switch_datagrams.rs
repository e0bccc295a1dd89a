//! Two neighbouring switches that talk to each other, and get datagrams bent on the way and packets
//! of their own nodes: nothing panics.
#![no_main]

use std::collections::VecDeque;

use arbitrary::Arbitrary;
use libfuzzer_sys::fuzz_target;
use venice_fabric::{Position, Switch, SwitchConfig, Topology};
use venice_wire::{
    Endpoint, MAX_HOP_BYTES, MAX_PACKET_BYTES, NodeId, PacketAddr, PacketRepr, SwitchPort,
};

#[derive(Arbitrary, Debug)]
enum Step {
    /// Moves datagrams both ways; of those the nth is bent.
    Exchange {
        most: u8,
        nth: u8,
        bend: Option<Bend>,
    },
    Inject {
        at_second: bool,
        from: u8,
        to: u8,
        hop_limit: u8,
        len: u16,
        flags: u8,
    },
    Raw {
        port: u8,
        bytes: Vec<u8>,
    },
    Deliver,
    Advance {
        us: u32,
    },
}

#[derive(Arbitrary, Debug)]
enum Bend {
    Byte { at: u16, value: u8 },
    Cut { len: u16 },
    Twice,
    Lost,
}

/// The first two switches of a square, each other's neighbours by one port.
struct Pair {
    switches: [Switch; 2],
    ports: [SwitchPort; 2],
}

impl Pair {
    fn new() -> Self {
        let topology = Topology::for_nodes("mesh:2x2", 4).expect("a square");
        let (first, second) = (Position(0), Position(1));
        let there = topology.port_to(first, second).expect("neighbours");
        let back = topology.port_to(second, first).expect("neighbours");
        let switch = |at: Position| {
            let nodes = (1..5).map(NodeId).collect();
            let mut config = SwitchConfig::new(topology, at, nodes, 77 + u64::from(at.0));
            // So that what is bent is looked at.
            config.link.checksum = false;
            (config.channel_packets, config.local_packets) = (2, 4);
            Switch::new(config)
        };
        Self { switches: [switch(first), switch(second)], ports: [there, back] }
    }

    fn exchange(&mut self, now_ns: u64, most: usize, nth: usize, bend: &Option<Bend>) {
        let mut buf = [0; MAX_HOP_BYTES];
        let mut moved = VecDeque::new();
        for at in [0, 1] {
            for n in 0..most {
                let Some((port, len)) = self.switches[at].poll_transmit(now_ns, &mut buf) else {
                    break;
                };
                if port == self.ports[at] {
                    moved.push_back((1 - at, n == nth, buf[..len].to_vec()));
                }
            }
        }
        for (to, is_bent, mut datagram) in moved {
            match bend {
                Some(Bend::Byte { at, value }) if is_bent => {
                    let at = usize::from(*at) % datagram.len();
                    datagram[at] = *value;
                }
                Some(Bend::Cut { len }) if is_bent => datagram.truncate(usize::from(*len)),
                Some(Bend::Lost) if is_bent => continue,
                Some(Bend::Twice) if is_bent => {
                    self.switches[to].handle_datagram(now_ns, self.ports[to], &datagram);
                }
                _ => {}
            }
            self.switches[to].handle_datagram(now_ns, self.ports[to], &datagram);
        }
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let mut pair = Pair::new();
    let mut now_ns = 1_000_000;
    for _ in 0..4 {
        pair.exchange(now_ns, 8, 0, &None);
    }
    for step in steps.into_iter().take(64) {
        match step {
            Step::Exchange { most, nth, bend } => {
                pair.exchange(now_ns, usize::from(most % 16), usize::from(nth % 16), &bend);
            }
            Step::Inject { at_second, from, to, hop_limit, len, flags } => {
                let addr =
                    |n: u8| PacketAddr { node: NodeId((n % 6).into()), endpoint: Endpoint(9) };
                let repr = PacketRepr::new(addr(from), addr(to));
                let repr = PacketRepr { hop_limit, flags, ..repr };
                let mut packet = [0; MAX_PACKET_BYTES];
                let payload = [7; 4096];
                let len = repr.emit(&payload[..usize::from(len % 4097)], &mut packet);
                let len = len.expect("it fits");
                let _ = pair.switches[usize::from(at_second)].inject(now_ns, &packet[..len]);
            }
            Step::Raw { port, bytes } => {
                pair.switches[0].handle_datagram(now_ns, SwitchPort((port % 6).into()), &bytes);
            }
            Step::Deliver => {
                for switch in &mut pair.switches {
                    while switch.poll_local(now_ns).is_some() {}
                }
            }
            Step::Advance { us } => {
                now_ns += u64::from(us % 2_000_000) * 1_000;
                pair.switches.iter_mut().for_each(|switch| switch.handle_timeout(now_ns));
            }
        }
    }
});
