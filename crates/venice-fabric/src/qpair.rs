//! The QPair channel: messages and byte streams between two ends, in order, each exactly once, and
//! never more than the reader can buffer (Venice paper, 5.1.2 and 5.1.3).
//!
//! [`QPairs`] is the engine with all ends of one node; an [`crate::Initiator`] has one, and a
//! [`crate::Target`]. Its frames travel over their links, which deliver them in order and once, so
//! what is left to do here is to share the link and to give credit: an end sends no byte for which
//! the other has not set room aside, so a slow reader blocks only its own sender.
//!
//! Each end is a stream of bytes; messages lie in it one after the other, each behind its length.
//! A frame carries the next piece of the stream, as long as there is: small messages that wait
//! together travel together, and long ones are put together again in the reader's buffer, which
//! is where the credit for them was.
//!
//! ```
//! # use venice_fabric::{EndConfig, Initiator, InitiatorConfig, PeerAddr, QPairConfig, QPairEvent};
//! # use venice_fabric::{GrantedMemory, QPairError, Refusal, Target, TargetConfig};
//! # use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};
//! # struct Nothing;
//! # impl GrantedMemory for Nothing {
//! #     fn read(&mut self, _: GrantId, _: GrantKey, _: u64, _: &mut [u8]) -> Result<(), Refusal> {
//! #         Err(Refusal::UnknownGrant)
//! #     }
//! #     fn write(&mut self, _: GrantId, _: GrantKey, _: u64, _: &[u8]) -> Result<(), Refusal> {
//! #         Err(Refusal::UnknownGrant)
//! #     }
//! # }
//! const ECHO: u32 = 7;
//! let mut target = Target::new(TargetConfig::new(NodeId(2), 0x5eed));
//! let mut initiator = Initiator::new(InitiatorConfig::new(NodeId(1), 0xf00d));
//! let peer = initiator.add_peer(NodeId(2), 0);
//! target.qpairs_mut().listen(ECHO, 8)?;
//! let client = initiator.qpair_connect(0, peer, ECHO, QPairConfig::messages())?;
//!
//! let (mut now_ns, mut answer) = (0, Vec::new());
//! while answer.is_empty() {
//!     now_ns += 1000;
//!     while let Some(event) = initiator.qpairs_mut().poll_event() {
//!         match event {
//!             QPairEvent::Connected { qpair } => {
//!                 initiator.qpairs_mut().send(now_ns, qpair, b"hello")?;
//!             }
//!             QPairEvent::Readable { qpair } => {
//!                 let mut buf = [0; 64];
//!                 let len = initiator.qpairs_mut().recv(qpair, &mut buf)?;
//!                 answer = buf[..len].to_vec();
//!             }
//!             _ => {}
//!         }
//!     }
//!     while let Some(event) = target.qpairs_mut().poll_event() {
//!         let qpairs = target.qpairs_mut();
//!         match event {
//!             QPairEvent::Incoming { qpair, .. } => qpairs.accept(qpair, EndConfig::default())?,
//!             QPairEvent::Readable { qpair } => {
//!                 let mut buf = [0; 64];
//!                 // Edge-triggered: read until nothing is left.
//!                 while let Ok(len @ 1..) = qpairs.recv(qpair, &mut buf) {
//!                     qpairs.send(now_ns, qpair, &buf[..len])?;
//!                 }
//!             }
//!             _ => {}
//!         }
//!     }
//! #   let mut buf = [0; MAX_FRAME_BYTES];
//! #   while let Some((_, len)) = initiator.poll_transmit(now_ns, &mut buf) {
//! #       target.handle_frame(now_ns, PeerAddr(1), &buf[..len], &mut Nothing);
//! #   }
//! #   while let Some((_, len)) = target.poll_transmit(now_ns, &mut buf) {
//! #       initiator.handle_frame(now_ns, peer, &buf[..len]);
//! #   }
//!     // ... and here the frames are moved.
//! }
//! assert_eq!(answer, b"hello");
//! initiator.qpairs_mut().close(client);
//! # Ok::<(), QPairError>(())
//! ```
//!
//! | module | contents |
//! |---|---|
//! | `send`, `receive`, `ring` | the two directions of one end, and their buffers |
//! | `credit` | what was read, the credit region, credits in band |
//! | `pair`, `table`, `queues` | one end, all ends, whose turn it is |
//! | `transfer`, `lifecycle` | calls of the owner |
//! | `incoming`, `outgoing` | frames |

mod config;
mod credit;
mod event;
mod greeting;
mod incoming;
mod lifecycle;
mod outgoing;
mod pair;
mod queues;
mod receive;
mod ring;
mod send;
mod stats;
mod table;
mod transfer;

use std::collections::{BTreeMap, VecDeque};

use venice_wire::Sequence;

pub use self::{
    config::{CreditMode, EndConfig, MAX_MESSAGE_BYTES, QPairConfig, QPairKind},
    event::{CloseReason, QPairError, QPairEvent, QPairId, RejectReason},
    stats::{QPairLevels, QPairStats},
};
use self::{credit::CreditRegion, pair::QPair, queues::LinkQueues, table::Table};
use crate::datalink::LinkNumbers;

/// All QPair ends of one [`crate::Initiator`] or [`crate::Target`].
///
/// After any call, send the frames of its owner's `poll_transmit`, and take the events of
/// [`QPairs::poll_event`]. Only calls that make a QPair allocate.
#[derive(Debug)]
pub struct QPairs {
    table: Table,
    region: CreditRegion,
    links: Vec<LinkQueues>,
    listeners: BTreeMap<u32, Listener>,
    /// QPairs with events not yet polled.
    events: VecDeque<QPairId>,
    /// Links with something to send, for owners that do not poll each in turn.
    woken: VecDeque<u32>,
    keys: LinkNumbers,
    /// A lower bound of the next time a lost credit must be probed for.
    probe_at_ns: Option<u64>,
    /// The counters of QPairs that no longer exist.
    retired: QPairStats,
}

#[derive(Debug)]
struct Listener {
    backlog: u16,
    /// QPairs that wait to be accepted.
    waiting: u16,
}

impl QPairs {
    /// Returns an engine for `max_qpairs` ends.
    pub(crate) fn new(max_qpairs: u16, seed: u64) -> Self {
        let max = usize::from(max_qpairs);
        Self {
            table: Table::new(max_qpairs),
            region: CreditRegion::new(max),
            links: Vec::new(),
            listeners: BTreeMap::new(),
            events: VecDeque::with_capacity(2 * max),
            woken: VecDeque::new(),
            keys: LinkNumbers::new(!seed),
            probe_at_ns: None,
            retired: QPairStats::default(),
        }
    }

    /// Returns the next event, if any.
    pub fn poll_event(&mut self) -> Option<QPairEvent> {
        loop {
            let &id = self.events.front()?;
            let event = self.table.get_mut(id).and_then(take_event);
            if event.is_some() {
                return event;
            }
            self.events.pop_front();
            if let Some(pair) = self.table.get_mut(id) {
                pair.is_event_queued = false;
            }
        }
    }

    /// Returns the counters of one end.
    ///
    /// # Errors
    /// [`QPairError::Unknown`].
    pub fn stats(&self, id: QPairId) -> Result<QPairStats, QPairError> {
        Ok(self.table.get(id).ok_or(QPairError::Unknown)?.stats)
    }

    /// Returns the counters of all ends together, including ends that no longer exist.
    pub fn totals(&self) -> QPairStats {
        let mut totals = self.retired;
        self.table.iter().for_each(|pair| totals.add(&pair.stats));
        totals
    }

    /// Returns the fill levels of one end.
    ///
    /// # Errors
    /// [`QPairError::Unknown`].
    pub fn levels(&self, id: QPairId) -> Result<QPairLevels, QPairError> {
        let pair = self.table.get(id).ok_or(QPairError::Unknown)?;
        let credit = self.region.credit(id.slot());
        Ok(pair.flow.as_ref().map_or_else(QPairLevels::default, |flow| QPairLevels {
            queued_bytes: flow.send.queued_bytes(),
            outstanding_bytes: flow.send.outstanding_bytes(credit),
            credit_bytes: flow.send.byte_credit(credit),
            unread_bytes: flow.receive.unread_bytes(),
            uncredited_bytes: flow.receive.uncredited_bytes(),
        }))
    }

    /// Returns the number of ends, including those whose last frames are still to be sent.
    pub fn count(&self) -> usize {
        self.table.iter().count()
    }

    /// Returns the number of a link's QPairs that are not over.
    pub(crate) fn live(&self, link: u32) -> u32 {
        self.links.get(link as usize).map_or(0, |queues| queues.live)
    }

    /// True if the other side of a link may have QPair frames in flight, which take room there that
    /// answers need.
    pub(crate) fn is_shared(&self, link: u32) -> bool {
        self.links.get(link as usize).is_some_and(|queues| queues.is_shared)
    }

    /// Records that the request whose frame is at `position` of a link was answered.
    pub(crate) fn note_answer(&mut self, link: u32, position: Sequence) {
        if let Some(queues) = self.links.get_mut(link as usize) {
            queues.note_answer(position);
        }
    }

    /// Returns the link of a QPair.
    pub(crate) fn link_of(&self, id: QPairId) -> Option<u32> {
        self.table.get(id).filter(|pair| pair.phase != pair::Phase::Over).map(|pair| pair.link)
    }

    /// Returns a link that has become ready to send since the last call.
    pub(crate) fn next_woken(&mut self) -> Option<u32> {
        let link = self.woken.pop_front()?;
        self.queues_mut(link).is_woken = false;
        Some(link)
    }

    fn queues_mut(&mut self, link: u32) -> &mut LinkQueues {
        let at = link as usize;
        if at >= self.links.len() {
            self.links.resize_with(at + 1, LinkQueues::default);
        }
        &mut self.links[at]
    }

    fn wake(&mut self, link: u32) {
        if !std::mem::replace(&mut self.queues_mut(link).is_woken, true) {
            self.woken.push_back(link);
        }
    }

    /// Queues a QPair that has, or may have, a frame to send.
    fn schedule(&mut self, id: QPairId) {
        let Some(pair) = self.table.get_mut(id) else { return };
        let link = pair.link;
        if !std::mem::replace(&mut pair.is_ready, true) {
            self.queues_mut(link).ready.push_back(id);
        }
        self.wake(link);
    }

    /// Raises an event of a QPair, if its owner still has the handle.
    fn raise(&mut self, id: QPairId, set: impl FnOnce(&mut pair::Events)) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| !pair.is_released) else { return };
        set(&mut pair.events);
        if !std::mem::replace(&mut pair.is_event_queued, true) {
            self.events.push_back(id);
        }
    }
}

/// Returns the next event of a QPair.
fn take_event(pair: &mut QPair) -> Option<QPairEvent> {
    let (qpair, events) = (pair.id, &mut pair.events);
    if pair.is_released || events.is_empty() {
        return None;
    }
    if std::mem::take(&mut events.incoming) {
        let QPair { service, node, kind, .. } = *pair;
        return Some(QPairEvent::Incoming { qpair, service, node, kind });
    }
    if std::mem::take(&mut events.connected) {
        return Some(QPairEvent::Connected { qpair });
    }
    if std::mem::take(&mut events.readable) {
        return Some(QPairEvent::Readable { qpair });
    }
    if std::mem::take(&mut events.writable) {
        return Some(QPairEvent::Writable { qpair });
    }
    events.closed = false;
    let reason = pair.outcome.expect("a Closed event has an outcome");
    Some(QPairEvent::Closed { qpair, reason })
}
