//! What those who wait are told, and everybody of them.

use super::places::{Needs, Place, Waiter};
use super::{Action, MonitorCore};
use crate::NS_PER_S;
use crate::queueing::{InLine, Standing};
use crate::rows::QueueRow;
use crate::types::RackError;
use std::collections::BTreeSet;
use venice_wire::{ByteSize, NodeId, SLAB_BYTES};

impl MonitorCore {
    /// Answers whoever has asked long enough ago, and forgets those who are late or gone.
    pub(in crate::monitor) fn tell_line(&mut self, now_ns: u64) {
        for (rank, place) in (1..).zip(self.line.in_order()) {
            let Some(waiter) = self.line.at(place) else { continue };
            let client_id = waiter.request.client_id;
            if waiter.is_late(now_ns) {
                let error = self.why_in_vain(now_ns, place, waiter);
                self.line.leave(place);
                self.actions.push_back(Action::ReplyRequest { client_id, result: Err(error) });
            } else if waiter.is_gone(now_ns) {
                self.line.leave(place);
            } else if waiter.is_due(now_ns) {
                let standing = self.standing(now_ns, (rank, place), waiter);
                if let Some(waiter) = self.line.at_mut(place) {
                    waiter.answered(now_ns);
                }
                self.actions.push_back(Action::ReplyStanding { client_id, standing });
            }
        }
    }

    fn standing(&self, now_ns: u64, (rank, place): (u32, Place), waiter: &Waiter) -> Standing {
        Standing {
            rank,
            asked_bytes: bytes(waiter.slabs),
            free_bytes: self.free_bytes_for(waiter),
            waited_ms: waiter.waited_ms(now_ns),
            called_back_bytes: bytes(self.called_slabs(place)),
            is_over_quota: waiter.needs == Needs::Quota,
        }
    }

    fn why_in_vain(&self, now_ns: u64, place: Place, waiter: &Waiter) -> RackError {
        if waiter.needs == Needs::Quota
            && let Err(error) = self.check_quota(&waiter.owner, waiter.slabs.into())
        {
            return error;
        }
        let waited_ms = waiter.waited_ms(now_ns);
        let before = self.before(place, waiter.named.as_ref());
        let line = InLine { waited_ms, before, most_bytes: None };
        let free = self.free_by_node(waiter.named.as_ref());
        RackError::NoRoom { asked_bytes: bytes(waiter.slabs), free, line }
    }

    /// Those before a place who may use the same donors, in words.
    pub(in crate::monitor) fn before(
        &self,
        place: Place,
        named: Option<&BTreeSet<NodeId>>,
    ) -> Vec<String> {
        let meets = |waiter: &&Waiter| match (&waiter.named, named) {
            (Some(theirs), Some(ours)) => !theirs.is_disjoint(ours),
            _ => true,
        };
        let said = |waiter: &Waiter| {
            let (size, priority) =
                (ByteSize(bytes(waiter.slabs)), waiter.request.queueing.priority);
            format!("{} with {size} (priority {priority})", waiter.owner)
        };
        self.line.before(place).filter(meets).map(said).collect()
    }

    /// What the donors have free, by node, for one that names these donors or none.
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
            .map(|(_, entry)| (entry.record.name.clone(), bytes(entry.available_slabs())))
            .collect();
        // As people count: node2 before node10.
        free.sort_by_cached_key(|(name, _)| (name.len(), name.clone()));
        free
    }

    fn free_bytes_for(&self, waiter: &Waiter) -> u64 {
        let donors = self.rrt.iter().filter(|(node, _)| waiter.may_use(*node));
        donors.map(|(_, entry)| bytes(entry.available_slabs())).sum()
    }

    /// Those who wait, in order.
    pub fn queue_rows(&self, now_ns: u64) -> Vec<QueueRow> {
        let rows = (1..).zip(self.line.iter()).map(|(rank, (place, waiter))| {
            let request = &waiter.request;
            QueueRow {
                id: place.arrival(),
                rank,
                owner_user: waiter.owner.user.clone(),
                owner_node: waiter.owner.node.clone(),
                recipient: request.recipient.clone(),
                purpose: request.purpose.clone(),
                bytes: bytes(waiter.slabs),
                copies: request.copies,
                donors: request.donors.clone(),
                priority: request.queueing.priority.into(),
                waited_s: (waiter.waited_ms(now_ns) * crate::NS_PER_MS) as f64 / NS_PER_S,
                left_s: waiter.left_s(now_ns),
                free_bytes: self.free_bytes_for(waiter),
                passed_bytes: bytes(waiter.passed_slabs()),
                called_back_bytes: bytes(self.called_slabs(place)),
                needs: waiter.needs.name().to_owned(),
            }
        });
        rows.collect()
    }
}

fn bytes(slabs: u32) -> u64 {
    u64::from(slabs) * SLAB_BYTES
}
