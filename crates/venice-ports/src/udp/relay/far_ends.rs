//! Peers of a relay's own node: programs anywhere in the network, plain or sealed.
//!
//! Seals are end to end: packets carry whole sealed datagrams, and only the donor and the program
//! have the key. The relays in between see the addresses, nothing else.

use std::sync::Arc;

use venice_fabric::{PeerAddr, Target};
use venice_wire::{Endpoint, NodeId, PacketAddr, SEALED_HEADER_BYTES, SealedHeader};

use crate::seal::{Dropped, Opener, SealKeys, Sealer, SessionId};
use crate::udp::reassembly::Reassembly;
use crate::udp::senders::end_forgotten;
use crate::udp::traffic::{Traffic, TrafficTable};

/// Senders remembered, for each link of the target.
const SENDERS_PER_LINK: usize = 4;

/// Far ends, by their addresses or by their seals.
pub(super) enum FarEnds {
    Plain(Traffic),
    Sealed { keys: Arc<dyn SealKeys + Send + Sync>, opener: Box<Opener<Option<FarEnd>>> },
}

pub(super) struct FarEnd {
    /// Origin of its latest genuine packet.
    address: PacketAddr,
    sealer: Sealer,
    reassembly: Reassembly,
    traffic: Traffic,
}

impl FarEnds {
    pub(super) fn new(keys: Option<Arc<dyn SealKeys + Send + Sync>>, max_links: u16) -> Self {
        match keys {
            None => Self::Plain(Traffic::default()),
            Some(keys) => {
                let opener = Opener::new(usize::from(max_links) * SENDERS_PER_LINK);
                Self::Sealed { keys, opener: Box::new(opener) }
            }
        }
    }

    /// Returns the offset of an answer's frame in a packet's payload.
    pub(super) fn frame_at(&self) -> usize {
        match self {
            Self::Plain(_) => 0,
            Self::Sealed { .. } => SEALED_HEADER_BYTES,
        }
    }

    /// Passes the frame in a packet's payload on, with a handle for answers.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        source: PacketAddr,
        payload: &mut [u8],
        hand_on: impl FnOnce(PeerAddr, &[u8]),
    ) -> Result<(), Dropped> {
        let (keys, opener) = match self {
            Self::Sealed { keys, opener } => (keys, opener),
            Self::Plain(_) if SealedHeader::is_sealed(payload) => return Err(Dropped::UnknownKey),
            Self::Plain(traffic) => {
                traffic.received_bytes += payload.len() as u64;
                hand_on(peer_addr(source), payload);
                return Ok(());
            }
        };
        let opened = opener.open(now_ns, payload, &**keys)?;
        let kept = opener.value_mut(opened.session).expect("the session was opened above");
        if kept.is_none() {
            *kept = FarEnd::admit(source, &opened.header, &**keys);
        }
        let far_end = kept.as_mut().ok_or(Dropped::UnknownKey)?;
        far_end.address = source;
        far_end.traffic.received_bytes += payload.len() as u64;
        if let Some(frame) = far_end.reassembly.take(&opened.header, &payload[opened.payload]) {
            hand_on(PeerAddr(opened.session.0), frame);
        }
        Ok(())
    }

    /// Turns the frame at [`FarEnds::frame_at`] in `payload` into the payload of a packet; returns
    /// its destination and length. `None`: the requester is forgotten.
    pub(super) fn wrap(
        &mut self,
        to: PeerAddr,
        frame_len: usize,
        payload: &mut [u8],
    ) -> Option<(PacketAddr, usize)> {
        match self {
            Self::Plain(traffic) => {
                traffic.sent_bytes += frame_len as u64;
                Some((packet_addr(to), frame_len))
            }
            Self::Sealed { opener, .. } => {
                let far_end = opener.value_mut(SessionId(to.0))?.as_mut()?;
                let len = far_end.sealer.seal(payload, frame_len).ok()?;
                far_end.traffic.sent_bytes += len as u64;
                Some((far_end.address, len))
            }
        }
    }

    /// Ends the links of far ends that are forgotten: nobody can answer or ask over them any more.
    pub(super) fn end_links_of_forgotten(&mut self, target: &mut Target) {
        let Self::Sealed { keys, opener } = self else { return };
        end_forgotten(opener, &**keys, target);
    }

    /// Publishes the traffic since the last call.
    pub(super) fn publish(&mut self, table: &TrafficTable) {
        match self {
            Self::Plain(traffic) => traffic.take().into_iter().for_each(|more| table.add(more)),
            Self::Sealed { opener, .. } => {
                let kept = opener.iter_mut();
                let counted = kept.filter_map(|(_, far_end)| far_end.as_mut()?.traffic.take());
                counted.for_each(|more| table.add(more));
            }
        }
    }
}

impl FarEnd {
    /// Returns a new far end; `None` if its key has just expired, or there are no random numbers.
    fn admit(address: PacketAddr, header: &SealedHeader, keys: &dyn SealKeys) -> Option<Self> {
        let key = keys.key(header.key)?;
        let sealer = Sealer::answering(header.algorithm, header.key, &key, header.salt).ok()?;
        let traffic = Traffic { name: Some(header.key), ..Traffic::default() };
        Some(Self { address, sealer, reassembly: Reassembly::default(), traffic })
    }
}

/// Returns the fabric's handle, into which both parts of a packet's address fit.
fn peer_addr(addr: PacketAddr) -> PeerAddr {
    PeerAddr(u64::from(addr.node.0) << 32 | u64::from(addr.endpoint.0))
}

fn packet_addr(addr: PeerAddr) -> PacketAddr {
    PacketAddr { node: NodeId((addr.0 >> 32) as u32), endpoint: Endpoint(addr.0 as u32) }
}
