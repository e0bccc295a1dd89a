//! Answers to queued requests, and the queue for users.

use super::super::pending::CheckedRequest;
use super::places::{Needs, Place, Waiter};
use super::{Action, MonitorCore};
use crate::NS_PER_S;
use crate::queueing::{InLine, Standing};
use crate::rat::GrantState;
use crate::rows::{QueueRow, QueuedWant};
use crate::rrt::NodeEntry;
use crate::types::{Grant, RackError};
use crate::want::Want;
use std::collections::BTreeSet;
use venice_wire::{NodeId, SLAB_BYTES};

/// Most requests described in one answer, which has the room of a header.
const MAX_DESCRIBED: usize = 64;

impl MonitorCore {
    /// Answers calls that are due, and drops requests that are late or whose client is gone.
    pub(in crate::monitor) fn answer_queue(&mut self, now_ns: u64) {
        for (rank, place) in (1..).zip(self.queue.in_order()) {
            let Some(waiter) = self.queue.at(place) else { continue };
            let client_id = waiter.client_id();
            if let Some(result) = self.granted_elsewhere(waiter) {
                self.queue.leave(place);
                self.actions.push_back(Action::ReplyRequest { client_id, result });
            } else if waiter.is_late(now_ns) {
                let error = self.why_in_vain(now_ns, place, waiter);
                self.queue.leave(place);
                self.actions.push_back(Action::ReplyRequest { client_id, result: Err(error) });
            } else if waiter.is_gone(now_ns) {
                if let Some(waiter) = self.queue.leave(place) {
                    self.note_withdrawn(&waiter.checked);
                }
            } else if waiter.is_due(now_ns) && self.is_being_lent(client_id) {
                if let Some(waiter) = self.queue.at_mut(place) {
                    waiter.put_off(now_ns);
                }
            } else if waiter.is_due(now_ns) {
                let standing = self.standing(now_ns, (rank, place), waiter);
                if let Some(waiter) = self.queue.at_mut(place) {
                    waiter.answered(now_ns);
                }
                self.actions.push_back(Action::ReplyStanding { client_id, standing });
            }
        }
    }

    /// True if another Monitor Node may be having donors lend for it, or have had them. Its client
    /// counts the lease from its last answer, so it gets none before the outcome is known.
    fn is_being_lent(&self, client_id: u128) -> bool {
        self.rat.of_client(client_id).any(|grant| grant.state != GrantState::Releasing)
    }

    /// Returns the grants of a request that another Monitor Node has granted meanwhile.
    fn granted_elsewhere(&self, waiter: &Waiter) -> Option<Result<Vec<Grant>, RackError>> {
        self.shared.as_ref()?;
        self.granted_before(&waiter.checked.request).transpose()
    }

    fn standing(&self, now_ns: u64, (rank, place): (u32, Place), waiter: &Waiter) -> Standing {
        Standing {
            rank,
            waited_ms: waiter.waited_ms(now_ns),
            is_over_quota: waiter.needs == Needs::Quota,
            wants: self.queued_wants(place, waiter),
        }
    }

    fn why_in_vain(&self, now_ns: u64, place: Place, waiter: &Waiter) -> RackError {
        if waiter.needs == Needs::Quota
            && let Err(error) = self.check_quota(&waiter.checked)
        {
            return error;
        }
        let memory = waiter.checked.memory().filter(|_| waiter.needs != Needs::Device);
        if memory.is_none()
            && let Some(error) = self.why_no_device_came(now_ns, place, waiter)
        {
            return error;
        }
        if waiter.checked.slabs() == 0 {
            return RackError::HandshakeFailed;
        }
        let waited_ms = waiter.waited_ms(now_ns);
        let named = waiter.checked.named.as_ref();
        let before = self.before_for_memory(place, named);
        let line = InLine { waited_ms, before, most_bytes: None };
        let asked_bytes = bytes(waiter.checked.slabs());
        RackError::NoRoom { asked_bytes, free: self.free_by_node(named), line }
    }

    /// True if a request before a place may use what this one may.
    pub(super) fn has_before(&self, place: Place, checked: &CheckedRequest) -> bool {
        self.all_before(place, checked).next().is_some()
    }

    /// Describes the first requests before a place that may use what this one may.
    pub(super) fn before(&self, place: Place, checked: &CheckedRequest) -> Vec<String> {
        self.all_before(place, checked).take(MAX_DESCRIBED).map(described).collect()
    }

    fn all_before(&self, place: Place, checked: &CheckedRequest) -> impl Iterator<Item = &Waiter> {
        let for_memory = |waiter: &Waiter| {
            checked.memory().is_some() && wants_memory_of(waiter, checked.named.as_ref())
        };
        let meets = move |waiter: &&Waiter| {
            for_memory(waiter) || self.shares_device(checked, &waiter.checked)
        };
        self.queue.before(place).filter(meets)
    }

    /// Describes the first requests before a place that may use memory of the same donors.
    pub(in crate::monitor) fn before_for_memory(
        &self,
        place: Place,
        named: Option<&BTreeSet<NodeId>>,
    ) -> Vec<String> {
        let meets = |waiter: &&Waiter| wants_memory_of(waiter, named);
        let before = self.queue.before(place).filter(meets);
        before.take(MAX_DESCRIBED).map(described).collect()
    }

    /// Returns the free bytes by node, for a request that names these donors or none.
    pub(in crate::monitor) fn free_by_node(
        &self,
        named: Option<&BTreeSet<NodeId>>,
    ) -> Vec<(String, u64)> {
        let may_use = |node| named.is_none_or(|named| named.contains(&node));
        let mut free: Vec<_> = self
            .rrt
            .iter()
            .filter(|(node, entry)| may_use(*node) && (entry.up || named.is_some()))
            .filter(|(_, entry)| named.is_some() || entry.record.total_slabs() > 0)
            .map(|(_, entry)| (described_name(entry), bytes(entry.available_slabs())))
            .collect();
        // In natural order: node2 before node10.
        free.sort_by_cached_key(|(name, _)| (name.len(), name.clone()));
        free
    }

    fn queued_wants(&self, place: Place, waiter: &Waiter) -> Vec<QueuedWant> {
        let wants = waiter.checked.request.wants.iter().enumerate();
        wants.map(|(index, want)| self.queued_want(place, waiter, (index, want))).collect()
    }

    fn queued_want(
        &self,
        place: Place,
        waiter: &Waiter,
        (index, want): (usize, &Want),
    ) -> QueuedWant {
        let free = match want.kind.is_device() {
            true => self.free_devices(&waiter.checked, want),
            false => self.free_memory_for(waiter),
        };
        let called = self.called_for(place).map(|grant| &grant.share);
        let called = called.filter(|share| share.kind == want.kind).map(|share| share.amount());
        QueuedWant {
            kind: want.kind,
            capabilities: want.capabilities.clone(),
            bytes: want.kind.in_units(want.bytes.0),
            count: want.count,
            wanted: want.total(),
            free,
            backfilled: waiter.passed(index),
            preempting: called.sum(),
        }
    }

    fn free_memory_for(&self, waiter: &Waiter) -> u64 {
        let donors = self.rrt.iter().filter(|(node, _)| waiter.checked.may_use(*node));
        donors.map(|(_, entry)| bytes(entry.available_slabs())).sum()
    }

    /// Returns the queue, in order.
    pub fn queue_rows(&self, now_ns: u64) -> Vec<QueueRow> {
        let rows = (1..).zip(self.queue.iter());
        rows.map(|(rank, (place, waiter))| self.queue_row(now_ns, (rank, place), waiter)).collect()
    }

    fn queue_row(&self, now_ns: u64, (rank, place): (u32, Place), waiter: &Waiter) -> QueueRow {
        let CheckedRequest { owner, request, .. } = &waiter.checked;
        QueueRow {
            id: place.arrival(),
            rank,
            owner_user: owner.user.clone(),
            owner_node: owner.node.clone(),
            recipient: request.recipient.clone(),
            purpose: request.purpose.clone(),
            wants: self.queued_wants(place, waiter),
            donors: request.donors.clone(),
            priority: request.queueing.priority.into(),
            waited_s: (waiter.waited_ms(now_ns) * crate::NS_PER_MS) as f64 / NS_PER_S,
            left_s: waiter.left_s(now_ns),
            needs: waiter.needs.name().to_owned(),
        }
    }
}

/// True if the request wants memory that one naming these donors, or none, could use.
fn wants_memory_of(waiter: &Waiter, named: Option<&BTreeSet<NodeId>>) -> bool {
    let meets = match (&waiter.checked.named, named) {
        (Some(theirs), Some(ours)) => !theirs.is_disjoint(ours),
        _ => true,
    };
    meets && waiter.checked.memory().is_some()
}

fn described(waiter: &Waiter) -> String {
    let CheckedRequest { owner, request, .. } = &waiter.checked;
    format!("{owner} with {} (priority {})", request.described(), request.queueing.priority)
}

/// Returns a node's name, with the fault that keeps it from being asked.
fn described_name(entry: &NodeEntry) -> String {
    let name = entry.record.name.clone();
    match entry.is_unreachable() {
        true => format!("{name}, which {},", entry.unreachable_text()),
        false => name,
    }
}

fn bytes(slabs: u32) -> u64 {
    u64::from(slabs) * SLAB_BYTES
}
