//! Answers to queued requests, and the queue for users.

use super::places::{Needs, Place, Waiter, Wanted};
use super::{Action, MonitorCore};
use crate::NS_PER_S;
use crate::queueing::{InLine, Standing};
use crate::rat::GrantState;
use crate::rows::QueueRow;
use crate::types::{Grant, RackError, ResourceKind};
use std::collections::BTreeSet;
use venice_wire::{ByteSize, NodeId, SLAB_BYTES};

impl MonitorCore {
    /// Answers calls that are due, and drops requests that are late or whose client is gone.
    pub(in crate::monitor) fn answer_queue(&mut self, now_ns: u64) {
        for (rank, place) in (1..).zip(self.queue.in_order()) {
            let Some(waiter) = self.queue.at(place) else { continue };
            let client_id = waiter.wanted.client_id();
            if let Some(result) = self.granted_elsewhere(waiter) {
                self.queue.leave(place);
                self.actions.push_back(Action::ReplyRequest { client_id, result });
            } else if waiter.is_late(now_ns) {
                let error = self.why_in_vain(now_ns, place, waiter);
                self.queue.leave(place);
                self.actions.push_back(Action::ReplyRequest { client_id, result: Err(error) });
            } else if waiter.is_gone(now_ns) {
                self.queue.leave(place);
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
        match &waiter.wanted {
            Wanted::Memory(memory) => self.granted_before(waiter.wanted.client_id(), memory.slabs),
            Wanted::Device(device) => self.device_granted_before(&device.request).transpose(),
        }
    }

    fn standing(&self, now_ns: u64, (rank, place): (u32, Place), waiter: &Waiter) -> Standing {
        let amounts = self.amounts(place, waiter);
        let is_whole =
            waiter.as_device().is_some_and(|it| it.request.kind.device_unit_bytes() == 0);
        Standing {
            rank,
            asked_bytes: if is_whole { 0 } else { amounts.asked_bytes },
            free_bytes: amounts.free_bytes,
            waited_ms: waiter.waited_ms(now_ns),
            preempting_bytes: amounts.preempting_bytes,
            is_over_quota: waiter.needs == Needs::Quota,
            device: waiter.as_device().map(|it| it.request.wanted()).unwrap_or_default(),
            preempting_devices: amounts.preempting_devices,
        }
    }

    fn why_in_vain(&self, now_ns: u64, place: Place, waiter: &Waiter) -> RackError {
        let memory = match &waiter.wanted {
            Wanted::Memory(memory) => memory,
            Wanted::Device(device) => {
                return self.why_no_device_came(now_ns, place, waiter, device);
            }
        };
        if waiter.needs == Needs::Quota
            && let Err(error) = self.check_quota(&waiter.owner, memory.slabs.into())
        {
            return error;
        }
        let waited_ms = waiter.waited_ms(now_ns);
        let before = self.before(place, waiter.named.as_ref());
        let line = InLine { waited_ms, before, most_bytes: None };
        let free = self.free_by_node(waiter.named.as_ref());
        RackError::NoRoom { asked_bytes: bytes(memory.slabs), free, line }
    }

    /// Describes the requests before a place that may use what this one may.
    pub(super) fn before_waiter(&self, place: Place, waiter: &Waiter) -> Vec<String> {
        let named = waiter.named.as_ref();
        match &waiter.wanted {
            Wanted::Memory(_) => self.before(place, named),
            Wanted::Device(device) => self.before_for_device(place, &device.request, named),
        }
    }

    /// Describes the requests before a place that may use the same donors.
    pub(in crate::monitor) fn before(
        &self,
        place: Place,
        named: Option<&BTreeSet<NodeId>>,
    ) -> Vec<String> {
        let meets = |waiter: &&Waiter| match (&waiter.named, named) {
            (Some(theirs), Some(ours)) => !theirs.is_disjoint(ours),
            _ => true,
        };
        let described = |waiter: &Waiter| {
            let size = ByteSize(bytes(waiter.as_memory()?.slabs));
            let priority = waiter.wanted.queueing().priority;
            Some(format!("{} with {size} (priority {priority})", waiter.owner))
        };
        self.queue.before(place).filter(meets).filter_map(described).collect()
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
            .map(|(_, entry)| (entry.record.name.clone(), bytes(entry.available_slabs())))
            .collect();
        // In natural order: node2 before node10.
        free.sort_by_cached_key(|(name, _)| (name.len(), name.clone()));
        free
    }

    fn free_bytes_for(&self, waiter: &Waiter) -> u64 {
        let donors = self.rrt.iter().filter(|(node, _)| waiter.may_use(*node));
        donors.map(|(_, entry)| bytes(entry.available_slabs())).sum()
    }

    fn amounts(&self, place: Place, waiter: &Waiter) -> Amounts {
        let memory = match &waiter.wanted {
            Wanted::Memory(memory) => memory,
            Wanted::Device(device) => return self.device_amounts(place, waiter, &device.request),
        };
        let slabs = |slabs: u64| slabs.saturating_mul(SLAB_BYTES);
        let called = self.called_for(place).map(|grant| u64::from(grant.slabs));
        Amounts {
            asked_bytes: bytes(memory.slabs),
            free_bytes: self.free_bytes_for(waiter),
            backfilled_bytes: slabs(waiter.passed()),
            preempting_bytes: slabs(called.sum()),
            ..Amounts::default()
        }
    }

    /// Returns the queue, in order.
    pub fn queue_rows(&self, now_ns: u64) -> Vec<QueueRow> {
        let rows = (1..).zip(self.queue.iter());
        rows.map(|(rank, (place, waiter))| self.queue_row(now_ns, (rank, place), waiter)).collect()
    }

    fn queue_row(&self, now_ns: u64, (rank, place): (u32, Place), waiter: &Waiter) -> QueueRow {
        let amounts = self.amounts(place, waiter);
        let (kind, copies, capabilities) = match &waiter.wanted {
            Wanted::Memory(memory) => (ResourceKind::Memory, memory.request.copies, Vec::new()),
            Wanted::Device(device) => (device.request.kind, 1, device.request.capabilities.clone()),
        };
        let (recipient, purpose, donors) = waiter.wanted.described();
        QueueRow {
            id: place.arrival(),
            rank,
            owner_user: waiter.owner.user.clone(),
            owner_node: waiter.owner.node.clone(),
            recipient: recipient.to_owned(),
            purpose: purpose.to_owned(),
            kind: kind.name().to_owned(),
            capabilities,
            bytes: amounts.asked_bytes,
            copies,
            donors: donors.to_vec(),
            priority: waiter.wanted.queueing().priority.into(),
            waited_s: (waiter.waited_ms(now_ns) * crate::NS_PER_MS) as f64 / NS_PER_S,
            left_s: waiter.left_s(now_ns),
            free_bytes: amounts.free_bytes,
            backfilled_bytes: amounts.backfilled_bytes,
            preempting_bytes: amounts.preempting_bytes,
            free_devices: amounts.free_devices,
            backfilled_devices: amounts.backfilled_devices,
            preempting_devices: amounts.preempting_devices,
            needs: waiter.needs.name(&waiter.wanted).to_owned(),
        }
    }
}

/// The amounts of a queued request: bytes, or devices that are lent whole.
#[derive(Default)]
pub(super) struct Amounts {
    pub(super) asked_bytes: u64,
    pub(super) free_bytes: u64,
    pub(super) backfilled_bytes: u64,
    pub(super) preempting_bytes: u64,
    pub(super) free_devices: u32,
    pub(super) backfilled_devices: u32,
    pub(super) preempting_devices: u32,
}

fn bytes(slabs: u32) -> u64 {
    u64::from(slabs) * SLAB_BYTES
}
