//! Requests in their handshake, and their donors' shares.

use super::devices::Tried;
use super::queue::{Place, Waiter};
use crate::caller::Owner;
use crate::placement::Donor;
use crate::request::AllocationRequest;
use crate::resource::{ResourceKind, Share};
use crate::types::Identity;
use crate::want::Want;
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{GrantId, GrantKey, NodeId};

/// A valid request, with its names resolved.
#[derive(Debug, Clone)]
pub(super) struct CheckedRequest {
    pub(super) owner: Owner,
    pub(super) request: AllocationRequest,
    /// The donors named; `None` for any.
    pub(super) named: Option<BTreeSet<NodeId>>,
}

/// The memory that a request wants.
#[derive(Debug, Clone, Copy)]
pub(super) struct WantedMemory {
    /// The index of the want.
    pub(super) want: usize,
    /// Slabs of all copies together.
    pub(super) slabs: u32,
    /// Most slabs of one donor: one copy.
    pub(super) most_slabs: u32,
    pub(super) bandwidth_bps: u64,
}

impl CheckedRequest {
    pub(super) fn may_use(&self, donor: NodeId) -> bool {
        self.named.as_ref().is_none_or(|named| named.contains(&donor))
    }

    /// Returns the memory that it wants.
    pub(super) fn memory(&self) -> Option<WantedMemory> {
        let (want, Want { count, bandwidth_bps, .. }) = self.request.memory()?;
        let most_slabs = self.request.wants[want].slabs();
        let (slabs, bandwidth_bps) = (most_slabs.saturating_mul(*count), *bandwidth_bps);
        Some(WantedMemory { want, slabs, most_slabs, bandwidth_bps })
    }

    /// Returns the slabs that it wants; 0 if it wants no memory.
    pub(super) fn slabs(&self) -> u32 {
        self.memory().map_or(0, |memory| memory.slabs)
    }

    /// Iterates over the kinds that it wants, each once.
    pub(super) fn kinds(&self) -> impl Iterator<Item = ResourceKind> {
        let kinds: BTreeSet<_> = self.request.wants.iter().map(|want| want.kind).collect();
        kinds.into_iter()
    }
}

/// A request in its handshake.
pub(super) struct PendingRequest {
    pub(super) checked: CheckedRequest,
    /// Donors that did not answer a request for memory, or refused it for a reason of their own.
    pub(super) excluded: BTreeSet<NodeId>,
    /// Failed attempts with devices.
    pub(super) tried: Tried,
    /// Placements of memory so far.
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
    /// The index of the want it is for.
    pub(super) want: usize,
    pub(super) donor: Identity,
    pub(super) share: Share,
    pub(super) key: GrantKey,
    /// True if it is set aside and lent in one call.
    pub(super) at_once: bool,
    pub(super) state: PartState,
    pub(super) confirmed_revision: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PartState {
    Preparing,
    Prepared,
    Committing,
    Committed,
}

impl PartState {
    /// True if the grant is in the table already.
    fn is_in_table(self) -> bool {
        match self {
            Self::Preparing | Self::Prepared => false,
            Self::Committing | Self::Committed => true,
        }
    }
}

/// A prepare on its way: its slabs must not be promised twice.
pub(super) struct SentPrepare {
    pub(super) donor: Identity,
    pub(super) slabs: u32,
    /// True if it is lent in one call.
    pub(super) at_once: bool,
}

impl Part {
    pub(super) fn slabs(&self) -> u32 {
        self.share.slabs()
    }

    /// True if its grant is not in the table yet.
    pub(super) fn is_early(&self) -> bool {
        !self.state.is_in_table()
    }
}

impl PendingRequest {
    pub(super) fn new(checked: CheckedRequest, place: Place, deadline_ns: u64) -> Self {
        Self {
            checked,
            excluded: BTreeSet::new(),
            tried: Tried::default(),
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

    /// Returns the slabs that no donor gives yet.
    pub(super) fn missing_slabs(&self) -> u32 {
        self.checked.slabs().saturating_sub(self.placed_slabs())
    }

    fn placed_slabs(&self) -> u32 {
        self.parts.values().map(Part::slabs).sum()
    }

    /// Iterates over the indexes of wants with the number of devices that no donor gives yet.
    pub(super) fn missing_devices(&self) -> impl Iterator<Item = (usize, u32)> {
        self.checked.request.devices().filter_map(|(index, want)| {
            let placed = self.parts.values().filter(|part| part.want == index).count() as u32;
            let missing = want.count.saturating_sub(placed);
            (missing > 0).then_some((index, missing))
        })
    }

    /// True if donors give all of it.
    pub(super) fn is_placed(&self) -> bool {
        self.missing_slabs() == 0 && self.missing_devices().next().is_none()
    }

    /// Returns the amount of a kind it will have beyond that of its grants in the table.
    pub(super) fn amount_beside_table(&self, kind: ResourceKind) -> u64 {
        let parts = self.parts.values().filter(|part| part.share.kind == kind);
        let in_table = parts.filter(|part| part.state.is_in_table());
        let in_table = in_table.map(|part| part.share.amount());
        in_table.fold(self.checked.request.amount_of(kind), u64::saturating_sub)
    }

    /// Returns the slabs of a donor.
    pub(super) fn given(&self, donor: NodeId) -> u32 {
        self.parts.values().filter(|part| part.donor.node == donor).map(Part::slabs).sum()
    }

    /// Returns a donor with its slabs given to this request and those it may still give.
    pub(super) fn as_asked(&self, memory: &WantedMemory, donor: Donor) -> Donor {
        let given_slabs = self.given(donor.node);
        let most_slabs = memory.most_slabs.saturating_sub(given_slabs);
        Donor { most_slabs, given_slabs, ..donor }
    }

    pub(super) fn any_part(&self, state: PartState) -> bool {
        self.parts.values().any(|part| part.state == state)
    }

    /// Iterates over the shares not yet in the table.
    pub(super) fn early_parts(&self) -> impl Iterator<Item = (GrantId, &Part)> {
        let parts = self.parts.iter().filter(|(_, part)| part.is_early());
        parts.map(|(id, part)| (*id, part))
    }
}
