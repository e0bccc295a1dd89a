//! Senders of a server: by address, or by the seal of their datagrams.

use std::net::SocketAddr;
use std::sync::Arc;

use venice_fabric::{PeerAddr, Target, TargetConfig, Transmission};

use super::address::AddressBook;
use super::offload::{datagram_limit_or, near_limit};
use super::outgoing::Outgoing;
use super::raw_address::RawAddress;
use super::reassembly::Reassembly;
use super::shared::Shared;
use super::traffic::{Traffic, TrafficTable};
use crate::seal::{Dropped, Opener, SealKeys, Sealer, SessionId};
use venice_wire::SealedHeader;

/// Senders remembered by the queue of a node, for each link of its target.
const SENDERS_PER_LINK: usize = 4;

/// Ends a target's links of the senders that `opener` has forgotten: nobody can answer or ask over
/// them any more.
pub(super) fn end_forgotten<T: Default>(
    opener: &mut Opener<T>,
    keys: &(impl SealKeys + ?Sized),
    target: &mut Target,
) {
    opener.drain_forgotten(keys).for_each(|session| target.end_peer(PeerAddr(session.0)));
}

/// Senders of one queue.
pub(super) enum Senders {
    Plain(PlainSenders),
    Sealed(SealedSenders),
}

impl Senders {
    /// Passes the frame in a datagram on, if there is one, with a handle for answers.
    pub(super) fn take(
        &mut self,
        now_ns: u64,
        from: &RawAddress,
        datagram: &mut [u8],
        shared: &Shared,
        hand_on: impl FnOnce(PeerAddr, &[u8]),
    ) {
        let taken = match self {
            Self::Plain(plain) => plain.take(from, datagram, hand_on),
            Self::Sealed(sealed) => sealed.take(now_ns, from, datagram, shared, hand_on),
        };
        if let Err(dropped) = taken {
            shared.counters.count(dropped);
        }
    }

    /// Gathers the target's frames, as far as there is room, and until it has moved `until_bytes`.
    /// Frames to be sealed are written into the batch; others that the target keeps are sent from
    /// there.
    pub(super) fn gather(
        &mut self,
        now_ns: u64,
        until_bytes: u64,
        target: &mut Target,
        outgoing: &mut Outgoing,
    ) {
        while !outgoing.is_full() && target.moved_bytes() < until_bytes {
            match self {
                Self::Sealed(sealed) => {
                    let polled = target.poll_transmit(now_ns, outgoing.sealed_buffer());
                    let Some((to, len)) = polled else { break };
                    sealed.push(outgoing, to, len);
                }
                Self::Plain(plain) => {
                    let polled = target.poll_transmit_kept(now_ns, outgoing.plain_buffer());
                    let Some((to, transmission)) = polled else { break };
                    plain.push(outgoing, to, transmission);
                }
            }
        }
    }

    /// Ends the links of senders that are forgotten ([`end_forgotten`]).
    pub(super) fn end_links_of_forgotten(&mut self, target: &mut Target) {
        let Self::Sealed(sealed) = self else { return };
        end_forgotten(&mut sealed.opener, &*sealed.keys, target);
    }

    /// Publishes the traffic since the last call.
    pub(super) fn publish(&mut self, table: &TrafficTable) {
        match self {
            Self::Plain(plain) => plain.traffic.take().into_iter().for_each(|more| table.add(more)),
            Self::Sealed(sealed) => {
                let kept = sealed.opener.iter_mut();
                let counted = kept.filter_map(|(_, sender)| sender.as_mut()?.traffic.take());
                counted.for_each(|more| table.add(more));
            }
        }
    }
}

/// Senders without protection: the address identifies each.
#[derive(Default)]
pub(super) struct PlainSenders {
    addresses: AddressBook,
    /// Address and handle of the last sender: mostly the next datagram is from there, and the
    /// answers go there.
    last: Option<(RawAddress, PeerAddr)>,
    traffic: Traffic,
}

/// IP fragments plain datagrams longer than the path MTU: the limit matters only for trains. One
/// that cannot go as a train goes singly, which is remembered.
const PLAIN_LIMIT: usize = usize::MAX;

impl PlainSenders {
    fn take(
        &mut self,
        from: &RawAddress,
        datagram: &[u8],
        hand_on: impl FnOnce(PeerAddr, &[u8]),
    ) -> Result<(), Dropped> {
        if SealedHeader::is_sealed(datagram) {
            return Err(Dropped::UnknownKey);
        }
        if let Some(handle) = self.handle(from) {
            self.traffic.received_bytes += datagram.len() as u64;
            hand_on(handle, datagram);
        }
        Ok(())
    }

    fn handle(&mut self, from: &RawAddress) -> Option<PeerAddr> {
        match &self.last {
            Some((last, handle)) if last == from => Some(*handle),
            _ => {
                let handle = self.addresses.handle(from.decode()?);
                self.last = Some((*from, handle));
                Some(handle)
            }
        }
    }

    /// Sends a frame to the address of the handle, if it is still known.
    fn push(&mut self, outgoing: &mut Outgoing, to: PeerAddr, transmission: Transmission) {
        let elsewhere;
        let to = match &self.last {
            Some((last, handle)) if *handle == to => last,
            _ => {
                let Some(to) = self.addresses.address(to) else { return };
                elsewhere = RawAddress::encode(to);
                &elsewhere
            }
        };
        let len = match transmission {
            Transmission::Written(len) => {
                outgoing.push(to, len, PLAIN_LIMIT);
                len
            }
            Transmission::Kept(frame) => {
                outgoing.push_kept(to, frame, PLAIN_LIMIT);
                frame.len_bytes()
            }
        };
        self.traffic.sent_bytes += len as u64;
    }
}

/// Senders identified by the seals of their datagrams, regardless of address.
pub(super) struct SealedSenders {
    queue: usize,
    /// Longest datagram to neighbours.
    near_limit: usize,
    keys: Arc<dyn SealKeys + Send + Sync>,
    opener: Opener<Option<Sender>>,
}

/// One sealed sender.
struct Sender {
    /// Origin of its latest genuine datagram.
    address: RawAddress,
    limit: usize,
    sealer: Sealer,
    reassembly: Reassembly,
    traffic: Traffic,
}

impl SealedSenders {
    pub(super) fn new(
        (queue, local): (usize, SocketAddr),
        keys: Arc<dyn SealKeys + Send + Sync>,
        target: &TargetConfig,
    ) -> Self {
        let opener = Opener::new(usize::from(target.max_links) * SENDERS_PER_LINK);
        Self { queue, near_limit: near_limit(local), keys, opener }
    }

    fn take(
        &mut self,
        now_ns: u64,
        from: &RawAddress,
        datagram: &mut [u8],
        shared: &Shared,
        hand_on: impl FnOnce(PeerAddr, &[u8]),
    ) -> Result<(), Dropped> {
        let opened = self.opener.open(now_ns, datagram, &*self.keys)?;
        if opened.is_first
            && !shared.owners.claim(opened.header.key, opened.header.salt, self.queue)
        {
            self.opener.forget_session(opened.session);
            return Err(Dropped::Replayed);
        }
        let kept = self.opener.value_mut(opened.session).expect("the session was opened above");
        if kept.is_none() {
            *kept = Sender::admit((from, self.near_limit), &opened.header, &*self.keys);
        }
        let Some(sender) = kept else { return Err(Dropped::UnknownKey) };
        if sender.address != *from {
            sender.address = *from;
            let limit = |from| datagram_limit_or(from, self.near_limit);
            sender.limit = from.decode().map_or(sender.limit, limit);
        }
        sender.traffic.received_bytes += datagram.len() as u64;
        let text = &datagram[opened.payload];
        if let Some(frame) = sender.reassembly.take(&opened.header, text) {
            hand_on(PeerAddr(opened.session.0), frame);
        }
        Ok(())
    }

    fn push(&mut self, outgoing: &mut Outgoing, to: PeerAddr, len: usize) {
        let Some(Some(sender)) = self.opener.value_mut(SessionId(to.0)) else { return };
        sender.traffic.sent_bytes += (len + venice_wire::SEAL_OVERHEAD_BYTES) as u64;
        outgoing.push_sealed(&sender.address, len, sender.limit, &mut sender.sealer);
    }
}

impl Sender {
    /// Returns a new sender; `None` if its key has just expired, or there are no random numbers.
    fn admit(
        (from, near_limit): (&RawAddress, usize),
        header: &SealedHeader,
        keys: &dyn SealKeys,
    ) -> Option<Self> {
        let key = keys.key(header.key)?;
        let sealer = Sealer::answering(header.algorithm, header.key, &key, header.salt).ok()?;
        Some(Self {
            address: *from,
            limit: datagram_limit_or(from.decode()?, near_limit),
            sealer,
            reassembly: Reassembly::default(),
            traffic: Traffic { name: Some(header.key), ..Traffic::default() },
        })
    }
}
