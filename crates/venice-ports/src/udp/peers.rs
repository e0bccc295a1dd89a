//! A driver's peers: their addresses and their seals.

use std::net::SocketAddr;

use venice_fabric::{Initiator, PeerIndex};
use venice_wire::{NodeId, Packet, SealedHeader};

use super::raw_address::RawAddress;
use super::reassembly::Reassembly;
use crate::PortError;
use crate::seal::{Dropped, Opener, SealCounters, SealedAs, Sealer};

/// Incarnations of a donor whose answers may arrive mixed.
const ANSWERERS: usize = 4;

/// A donor, or the relay through which it is reached.
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    pub(super) to: RawAddress,
    /// Longest datagram that is not fragmented on the way, in bytes.
    pub(super) limit: usize,
    pub(super) node: NodeId,
    pub(super) seal: Option<Seal>,
}

/// Seal of one peer's datagrams.
pub(super) struct Seal {
    named: SealedAs,
    pub(super) sealer: Sealer,
    opener: Opener<()>,
    reassembly: Reassembly,
}

impl Peer {
    fn is_at(&self, from: &RawAddress) -> bool {
        // Mostly the bytes are equal; an IPv6 peer may differ in fields that are not its identity.
        self.to == *from || from.decode() == Some(self.address)
    }
}

impl Seal {
    /// Makes the seal under a key of the peer. Allocates on construction only.
    pub(super) fn new(named: SealedAs) -> Result<Self, PortError> {
        let sealer = Sealer::new(named.name, &named.key)?;
        let opener = Opener::of_answers(sealer.salt(), ANSWERERS);
        Ok(Self { named, sealer, opener, reassembly: Reassembly::with_room() })
    }

    fn open<'a>(
        &'a mut self,
        now_ns: u64,
        datagram: &'a mut [u8],
    ) -> Result<Option<&'a [u8]>, Dropped> {
        let opened = self.opener.open(now_ns, datagram, &self.named)?;
        Ok(self.reassembly.take(&opened.header, &datagram[opened.payload]))
    }
}

/// Returns the peer among `awake` that sent the datagram, and the payload for it.
pub(super) fn sender_of<'a>(
    from: &RawAddress,
    datagram: &'a mut [u8],
    peers: &[Peer],
    awake: &[PeerIndex],
    is_via: bool,
) -> Option<(PeerIndex, &'a mut [u8])> {
    let (source, datagram) = if is_via {
        let (source, payload) = unwrap(datagram)?;
        (Some(source), payload)
    } else {
        (None, datagram)
    };
    let is_sender = |peer: &&PeerIndex| {
        let peer = &peers[peer.0 as usize];
        peer.is_at(from) && source.is_none_or(|source| source == peer.node)
    };
    // A donor may be a peer under each of several grants.
    let key = SealedHeader::parse(datagram).ok().map(|header| header.key);
    let is_named =
        |peer: &PeerIndex| peers[peer.0 as usize].seal.as_ref().map(|seal| seal.named.name) == key;
    let named = awake.iter().rfind(|peer| is_sender(peer) && is_named(peer));
    let sender = named.or_else(|| awake.iter().rfind(is_sender));
    sender.map(|&peer| (peer, datagram))
}

/// Passes a datagram to the link of its sender; returns whether it was genuine.
pub(super) fn hand_on(
    now_ns: u64,
    peer: PeerIndex,
    datagram: &mut [u8],
    peers: &mut [Peer],
    initiator: &mut Initiator,
    counters: &SealCounters,
) -> bool {
    let opened = match &mut peers[peer.0 as usize].seal {
        None => Ok(Some(&*datagram)),
        Some(seal) => seal.open(now_ns, datagram),
    };
    match opened {
        Ok(Some(frame)) => initiator.handle_frame(now_ns, peer, frame),
        Ok(None) => {}
        Err(dropped) => counters.count(dropped),
    }
    opened.is_ok()
}

/// Returns the payload of a packet, and the node it comes from; `None` for other datagrams.
fn unwrap(datagram: &mut [u8]) -> Option<(NodeId, &mut [u8])> {
    let packet = Packet::parse(datagram).ok()?;
    let (source, payload_len) = (packet.source().node, packet.payload().len());
    let start = datagram.len() - payload_len;
    Some((source, &mut datagram[start..]))
}
