//! A relay's neighbours: their addresses, and the seals of their datagrams.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use venice_fabric::switch::SwitchConfig;
use venice_wire::{HOP_MAGIC, KeyName, NodeId, SealedHeader, SwitchPort};

use super::neighbour_ports;
use crate::seal::{Dropped, Opener, SealKeys, SealedAs, Sealer};
use crate::udp::offload::datagram_limit;
use crate::udp::outgoing::Outgoing;
use crate::udp::raw_address::RawAddress;
use crate::udp::reassembly::Reassembly;

/// Incarnations of one neighbour whose datagrams may arrive mixed, for each port.
const SENDERS_PER_PORT: usize = 4;

/// Address of a neighbour, and the key that seals datagrams to it; `None` if nothing is sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighbourRoute {
    pub(super) address: SocketAddr,
    pub(super) seal: Option<SealedAs>,
}

pub(super) struct Neighbours {
    by_port: Vec<Option<Neighbour>>,
    ports: BTreeMap<SocketAddr, SwitchPort>,
    seal: Option<Seal>,
}

struct Neighbour {
    route: NeighbourRoute,
    to: RawAddress,
    limit: usize,
    sealer: Option<Sealer>,
}

/// State that opens neighbours' datagrams.
struct Seal {
    keys: Arc<dyn SealKeys + Send + Sync>,
    opener: Opener<Option<Box<Sender>>>,
    /// Port by node: the name of a datagram's key tells its origin.
    nodes: BTreeMap<NodeId, SwitchPort>,
}

struct Sender {
    port: SwitchPort,
    reassembly: Reassembly,
}

impl Neighbours {
    pub(super) fn new(
        config: &SwitchConfig,
        keys: Option<Arc<dyn SealKeys + Send + Sync>>,
    ) -> Self {
        let ports = usize::from(config.topology.ports(config.position));
        let node =
            |(port, at): (SwitchPort, venice_fabric::Position)| (config.nodes[at.0 as usize], port);
        let seal = keys.map(|keys| Seal {
            keys,
            opener: Opener::new(ports * SENDERS_PER_PORT),
            nodes: neighbour_ports(config).map(node).collect(),
        });
        Self { by_port: (0..ports).map(|_| None).collect(), ports: BTreeMap::new(), seal }
    }

    /// Takes the owner's present list. A neighbour without a change keeps its sealer.
    pub(super) fn learn(&mut self, route: &[Option<NeighbourRoute>]) {
        for (neighbour, route) in self.by_port.iter_mut().zip(route) {
            if neighbour.as_ref().map(|neighbour| neighbour.route) == *route {
                continue;
            }
            *neighbour = route.map(|route| Neighbour {
                route,
                to: RawAddress::encode(route.address),
                limit: datagram_limit(route.address),
                // Without random numbers the next change of the list tries again.
                sealer: route.seal.and_then(|seal| Sealer::new(seal.name, &seal.key).ok()),
            });
        }
        let known = route.iter().enumerate();
        self.ports = known
            .filter_map(|(port, route)| Some((route.as_ref()?.address, SwitchPort(port as u16))))
            .collect();
    }

    /// Passes a neighbour's hop datagram on. `Ok(false)`: it is no neighbour's.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        from: SocketAddr,
        datagram: &mut [u8],
        hand_on: impl FnOnce(SwitchPort, &[u8]),
    ) -> Result<bool, Dropped> {
        let is_hop = datagram.starts_with(&HOP_MAGIC.to_le_bytes());
        let Some(seal) = &mut self.seal else {
            let port = self.ports.get(&from).filter(|_| is_hop);
            port.inspect(|port| hand_on(**port, datagram));
            return Ok(port.is_some());
        };
        if is_hop {
            return Err(Dropped::Unsealed);
        }
        if !SealedHeader::is_sealed(datagram) {
            return Ok(false);
        }
        // Before it is opened: under another key it would take a neighbour's place there.
        let header = SealedHeader::parse(datagram).map_err(|_| Dropped::Forged)?;
        let KeyName::Peer(node) = header.key else { return Err(Dropped::UnknownKey) };
        let port = *seal.nodes.get(&node).ok_or(Dropped::UnknownKey)?;
        let opened = seal.opener.open(now_ns, datagram, &*seal.keys)?;
        let kept = seal.opener.value_mut(opened.session).expect("the session was opened above");
        let sender = kept
            .get_or_insert_with(|| Box::new(Sender { port, reassembly: Reassembly::default() }));
        if let Some(hop) = sender.reassembly.take(&opened.header, &datagram[opened.payload]) {
            hand_on(sender.port, hop);
        }
        Ok(true)
    }

    /// Returns the place of the next hop datagram.
    pub(super) fn buffer<'a>(&self, outgoing: &'a mut Outgoing) -> &'a mut [u8] {
        if self.seal.is_some() { outgoing.sealed_buffer() } else { outgoing.plain_buffer() }
    }

    /// Sends the hop datagram in the buffer to the neighbour behind `port`, if its address and seal
    /// are known.
    pub(super) fn push(&mut self, outgoing: &mut Outgoing, port: SwitchPort, len: usize) {
        let Some(neighbour) = &mut self.by_port[usize::from(port.0)] else { return };
        match (&mut neighbour.sealer, &self.seal) {
            (Some(sealer), Some(_)) => {
                outgoing.push_sealed(&neighbour.to, len, neighbour.limit, sealer);
            }
            (_, None) => outgoing.push(&neighbour.to, len, usize::MAX),
            (None, Some(_)) => {}
        }
    }
}
