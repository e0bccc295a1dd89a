//! Requests in their handshake, and their donors' shares.

use super::queue::{Place, Waiter};
use crate::caller::Owner;
use crate::placement::Donor;
use crate::types::{Identity, MemoryRequest};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{GrantId, GrantKey, NodeId};

/// A request in its handshake.
pub(super) struct PendingRequest {
    pub(super) owner: Owner,
    pub(super) request: MemoryRequest,
    /// Slabs of all copies together.
    pub(super) slabs: u32,
    /// Most slabs of one donor: one copy.
    pub(super) most_slabs: u32,
    /// The donors named; `None` for any.
    pub(super) named: Option<BTreeSet<NodeId>>,
    /// Donors that did not answer or refused for a reason of their own.
    pub(super) excluded: BTreeSet<NodeId>,
    pub(super) attempts: u32,
    pub(super) deadline_ns: u64,
    /// Its place in the queue.
    pub(super) place: Place,
    /// The queue entry it returns to if the handshake fails. `None`: its client gets the error.
    pub(super) waiter: Option<Box<Waiter>>,
    /// The end of its wait for memory on its way back, once it has had to wait.
    pub(super) room_until_ns: Option<u64>,
    pub(super) parts: BTreeMap<GrantId, Part>,
}

/// One donor's share of a request.
pub(super) struct Part {
    pub(super) donor: Identity,
    pub(super) slabs: u32,
    pub(super) key: GrantKey,
    /// True if it is set aside and lent in one call.
    pub(super) at_once: bool,
    pub(super) state: PartState,
    pub(super) confirmed_revision: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum PartState {
    Preparing,
    Prepared,
    Committing,
    Committed,
}

/// A prepare on its way: its slabs must not be promised twice.
pub(super) struct SentPrepare {
    pub(super) donor: Identity,
    pub(super) slabs: u32,
    /// True if it is lent in one call.
    pub(super) at_once: bool,
}

impl PendingRequest {
    pub(super) fn new(
        owner: Owner,
        request: MemoryRequest,
        slabs: u32,
        named: Option<BTreeSet<NodeId>>,
        place: Place,
        deadline_ns: u64,
    ) -> Self {
        Self {
            slabs: slabs.saturating_mul(request.copies),
            most_slabs: slabs,
            owner,
            request,
            named,
            excluded: BTreeSet::new(),
            attempts: 0,
            deadline_ns,
            place,
            waiter: None,
            room_until_ns: None,
            parts: BTreeMap::new(),
        }
    }

    pub(super) fn is_late(&self, now_ns: u64) -> bool {
        self.deadline_ns <= now_ns
    }

    pub(super) fn placed_slabs(&self) -> u32 {
        self.parts.values().map(|part| part.slabs).sum()
    }

    /// Returns the slabs it will have beyond those of its grants in the table.
    pub(super) fn slabs_beside_table(&self) -> u32 {
        let in_table =
            |part: &&Part| matches!(part.state, PartState::Committing | PartState::Committed);
        let in_table = self.parts.values().filter(in_table).map(|part| part.slabs);
        in_table.fold(self.slabs, u32::saturating_sub)
    }

    /// Returns the slabs of a donor.
    pub(super) fn given(&self, donor: NodeId) -> u32 {
        let parts = self.parts.values().filter(|part| part.donor.node == donor);
        parts.map(|part| part.slabs).sum()
    }

    /// Returns a donor with its slabs given to this request and those it may still give.
    pub(super) fn as_asked(&self, donor: Donor) -> Donor {
        let given_slabs = self.given(donor.node);
        let most_slabs = self.most_slabs.saturating_sub(given_slabs);
        Donor { most_slabs, given_slabs, ..donor }
    }

    pub(super) fn any_part(&self, state: PartState) -> bool {
        self.parts.values().any(|part| part.state == state)
    }

    pub(super) fn may_use(&self, donor: NodeId) -> bool {
        self.named.as_ref().is_none_or(|named| named.contains(&donor))
    }

    /// Iterates over the shares not yet in the table, for users: grant, donor, slabs and bandwidth
    /// in bits a second.
    pub(super) fn parts_in_preparation(
        &self,
    ) -> impl Iterator<Item = (GrantId, NodeId, (u32, u64), &Owner, &MemoryRequest)> {
        let early = |part: &Part| matches!(part.state, PartState::Preparing | PartState::Prepared);
        self.parts.iter().filter(move |(_, part)| early(part)).map(|(id, part)| {
            let size = (part.slabs, self.share_bps(part.slabs));
            (*id, part.donor.node, size, &self.owner, &self.request)
        })
    }
}
