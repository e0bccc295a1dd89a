//! Parts of a topology, for threads.

use super::{Peer, Topology};

/// The part of each node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Partition {
    /// The number of parts, none of them empty.
    pub parts: u16,
    /// By node: hosts first, then switches.
    pub part_of: Vec<u16>,
    /// The least time, in picoseconds, from a switch's decision to send until the first bit is in
    /// another part; the maximum if there is one part.
    pub look_ahead: u64,
}

impl Topology {
    /// Divides the nodes into at most so many parts. A rack's hosts and its ToR stay together, racks
    /// that follow one another too. Each other switch goes where at least half as many of its links
    /// lead as anywhere, to the part with the least hosts and ports.
    ///
    /// Returns one part if a link between parts has no delay.
    pub fn partition(&self, parts: u16) -> Partition {
        let parts = u32::from(parts).clamp(1, self.racks().min(u16::MAX.into()));
        let partition = self.divided(parts as u16);
        if partition.look_ahead == 0 { self.divided(1) } else { partition }
    }

    fn divided(&self, parts: u16) -> Partition {
        let racks = u64::from(self.racks());
        let part_of_rack = |rack: u32| (u64::from(rack) * u64::from(parts) / racks) as u16;
        let hosts = (0..self.hosts()).map(|host| part_of_rack(self.rack_of(host)));
        let mut part_of: Vec<u16> = hosts.collect();
        let mut load = vec![0; usize::from(parts)];
        part_of.iter().for_each(|part| load[usize::from(*part)] += 1);
        for switch in 0..self.switches.len() as u32 {
            let part = if switch < self.racks() {
                part_of_rack(switch)
            } else {
                self.part_of_switch(switch, &part_of, &mut load)
            };
            part_of.push(part);
        }
        let look_ahead = self.look_ahead(&part_of);
        Partition { parts, part_of, look_ahead }
    }

    fn part_of_switch(&self, switch: u32, part_of: &[u16], load: &mut [usize]) -> u16 {
        let ports = &self.switches[switch as usize].ports;
        let mut links = vec![0u32; load.len()];
        for port in ports {
            if let Peer::Switch { switch, port: _ } = port.peer
                && let Some(part) = part_of.get((self.hosts() + switch) as usize)
            {
                links[usize::from(*part)] += 1;
            }
        }
        let most = links.iter().max().expect("there are parts");
        let near = (0..load.len()).filter(|part| 2 * links[*part] >= *most);
        let part = near.min_by_key(|part| (load[*part], *part)).expect("one has the most");
        load[part] += ports.len();
        part as u16
    }

    /// Returns the least delay of a link between two parts.
    fn look_ahead(&self, part_of: &[u16]) -> u64 {
        let hosts = self.hosts();
        let mut least = u64::MAX;
        for (switch, node) in (0..).zip(&self.switches) {
            let own = part_of[(hosts + switch) as usize];
            for port in &node.ports {
                let to = match port.peer {
                    Peer::Host(host) => host,
                    Peer::Switch { switch: to, port: _ } => hosts + to,
                    Peer::Unconnected => continue,
                };
                if part_of[to as usize] != own {
                    least = least.min(self.delay(switch, port));
                }
            }
        }
        least
    }
}
