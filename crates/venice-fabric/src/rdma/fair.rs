//! The order of chunks to one donor: grants take turns by bytes, the descriptors of one grant
//! follow each other.
//!
//! This is deficit round robin (Shreedhar, Varghese 1995): the grant in turn may send as many bytes
//! as it has saved up; it keeps the unused rest for its next turn. So grants with large and with
//! small transfers get the same share.
//!
//! The order of a grant's descriptors serves double buffering: while the chunks of one are in
//! flight, those of the next are issued as soon as there is room, and the caller fills the one
//! after it.

use std::collections::VecDeque;

use venice_wire::MAX_PAYLOAD_BYTES;

use super::Rdma;
use crate::ramt::GrantSlot;

/// Bytes a grant may send in a turn: the longest chunk, so that at most one turn in a row is
/// unused.
const QUANTUM_BYTES: u32 = MAX_PAYLOAD_BYTES as u32;

/// The descriptors with chunks still to issue to one donor.
#[derive(Debug, Default)]
pub(crate) struct FairQueue {
    /// Grants with descriptors; the front one has the turn.
    flows: VecDeque<Flow>,
}

/// The descriptors of one grant, linked by [`Rdma`].
#[derive(Clone, Copy, Debug)]
struct Flow {
    slot: GrantSlot,
    saved_bytes: u32,
    first: u16,
    last: u16,
}

impl FairQueue {
    /// Returns a queue with room for `depth` flows, one for each descriptor at most.
    pub(crate) fn new(depth: u16) -> Self {
        Self { flows: VecDeque::with_capacity(depth.into()) }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.flows.is_empty()
    }

    /// Puts a descriptor behind the others of its grant.
    pub(crate) fn push(&mut self, slot: GrantSlot, descriptor: u16, rdma: &mut Rdma) {
        rdma.set_next(descriptor, None);
        match self.flows.iter_mut().find(|flow| flow.slot == slot) {
            Some(flow) => {
                rdma.set_next(flow.last, Some(descriptor));
                flow.last = descriptor;
            }
            None => {
                let flow = Flow { slot, saved_bytes: 0, first: descriptor, last: descriptor };
                self.flows.push_back(flow);
            }
        }
    }

    /// Returns the descriptor in turn, and its grant.
    pub(crate) fn turn(&self) -> Option<(GrantSlot, u16)> {
        self.flows.front().map(|flow| (flow.slot, flow.first))
    }

    /// Removes the descriptor in turn.
    pub(crate) fn pop(&mut self, rdma: &Rdma) {
        let Some(flow) = self.flows.front_mut() else { return };
        match rdma.next_of(flow.first) {
            Some(next) => flow.first = next,
            None => drop(self.flows.pop_front()),
        }
    }

    /// Returns true if the grant in turn may send `len` bytes, and deducts them from its savings.
    /// Otherwise passes the turn to the next grant.
    pub(crate) fn spend(&mut self, len: u16) -> bool {
        let Some(flow) = self.flows.front_mut() else { return false };
        if let Some(left) = flow.saved_bytes.checked_sub(u32::from(len)) {
            flow.saved_bytes = left;
            return true;
        }
        self.flows.rotate_left(1);
        if let Some(flow) = self.flows.front_mut() {
            flow.saved_bytes += QUANTUM_BYTES;
        }
        false
    }
}
