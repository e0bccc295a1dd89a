//! The queue of requests that wait for room, or for a device ([`devices`]): by priority, then by
//! arrival.
//!
//! Resources a queued request may use are kept for it, but requests behind it may backfill with
//! as much as it requests itself, all together; then none passes it any more. So small requests go
//! on while a large one waits, without starving it. The queue is not stored: a waiting client
//! repeats its request every second, and a new Monitor Node rebuilds the queue from that.

mod answers;
mod devices;
mod places;
mod preemption;

pub(super) use places::{Place, Queue, Waiter, Wanted};

use super::handshake::room;
use super::pending::PendingRequest;
use super::{Action, MonitorCore};
use crate::NS_PER_S;
use crate::caller::Owner;
use crate::placement::Donor;
use crate::queueing::{InLine, Preempt};
use crate::rat::{GrantRecord, GrantState};
use crate::rrt::NodeEntry;
use crate::types::{MemoryRequest, RackError};
use places::{Needs, WantedMemory};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::{GrantId, NodeId, SLAB_BYTES};

/// Time before a request is tried again after its handshake failed because of the donors.
const PAUSE_NS: u64 = 1_000_000_000;

/// Donors that a request may not use, because others come first.
pub(super) enum Closed {
    /// Some donors.
    Only(BTreeSet<NodeId>),
    All,
}

impl Closed {
    pub(super) fn has(&self, donor: NodeId) -> bool {
        match self {
            Self::Only(nodes) => nodes.contains(&donor),
            Self::All => true,
        }
    }
}

impl MonitorCore {
    /// Queues a request of `owner`. Answered by [`Action::ReplyRequest`], or until then by
    /// [`Action::ReplyStanding`].
    pub(super) fn enter_queue(
        &mut self,
        now_ns: u64,
        owner: Owner,
        request: MemoryRequest,
        (slabs, named): (u32, Option<BTreeSet<NodeId>>),
    ) {
        self.enter_waiter(
            now_ns,
            Waiter::new(now_ns, owner, Wanted::memory(request, slabs), named),
        );
    }

    fn enter_waiter(&mut self, now_ns: u64, waiter: Waiter) {
        let client_id = waiter.wanted.client_id();
        if let Err(error) = self.check_ever(&waiter) {
            self.actions.push_back(Action::ReplyRequest { client_id, result: Err(error) });
            return;
        }
        let place = self.queue.place(waiter.wanted.queueing().priority);
        self.queue.enter(place, waiter);
        self.serve_queue(now_ns);
    }

    /// Describes in words how a request would wait.
    pub(super) fn plan_to_wait(
        &self,
        owner: &Owner,
        request: &MemoryRequest,
        (slabs, named): (u32, Option<BTreeSet<NodeId>>),
    ) -> Result<String, RackError> {
        let wanted = Wanted::memory(request.clone(), slabs);
        self.how_it_would_wait(&Waiter::new(0, owner.clone(), wanted, named))
    }

    fn how_it_would_wait(&self, waiter: &Waiter) -> Result<String, RackError> {
        self.check_ever(waiter)?;
        let queueing = waiter.wanted.queueing();
        let place = self.queue.place_to_be(queueing.priority);
        let rank = self.queue.before(place).count() + 1;
        let is_first = self.before_waiter(place, waiter).is_empty();
        let called = match queueing.preempt {
            Preempt::No => Vec::new(),
            _ if !is_first => {
                return Ok(format!("at rank {rank} of the queue, preempting nothing"));
            }
            _ => self.would_call_back(waiter),
        };
        if called.is_empty() {
            return Ok(format!("at rank {rank} of the queue"));
        }
        let ids: Vec<_> = called.iter().map(|id| id.0.to_string()).collect();
        let within_s = self.settings.preempt_notice_ns as f64 / NS_PER_S;
        let ids = ids.join(", ");
        Ok(format!("at rank {rank} of the queue, preempting grants {ids} within {within_s:.0} s"))
    }

    /// Handles the repetition of a request that waits, or did when its handshake began; returns
    /// false if there is none.
    pub(super) fn repeat_in_queue(&mut self, now_ns: u64, request: &MemoryRequest) -> bool {
        let in_handshake = self.requests.get_mut(&request.client_id);
        let in_handshake = in_handshake.and_then(|pending| pending.waiter.as_deref_mut());
        let waiter = in_handshake.or_else(|| self.queue.of_client(request.client_id));
        waiter.map(|waiter| waiter.ask(now_ns, request.queueing)).is_some()
    }

    /// Checks that the request could ever be granted.
    fn check_ever(&self, waiter: &Waiter) -> Result<(), RackError> {
        match &waiter.wanted {
            Wanted::Memory(memory) => self.check_ever_memory(waiter, memory),
            Wanted::Device(device) => self.check_ever_device(waiter, &device.request),
        }
    }

    fn check_ever_memory(&self, waiter: &Waiter, memory: &WantedMemory) -> Result<(), RackError> {
        let asked_bytes = u64::from(memory.slabs) * SLAB_BYTES;
        if let Some(quota_bytes) = self.quotas.bytes_of(&waiter.owner.user)
            && asked_bytes > quota_bytes
        {
            return self.check_quota(&waiter.owner, memory.slabs.into());
        }
        // A request that has already waited elsewhere was checked when it began to wait.
        if memory.request.queueing.waited_ms > 0 {
            return Ok(());
        }
        let whole = |entry: &NodeEntry| match entry.up && !entry.record.is_draining {
            true => entry.record.total_slabs(),
            false => 0,
        };
        let all = Closed::Only(BTreeSet::new());
        let most = room(self.as_donors(waiter, memory.most_slabs, &all, whole));
        if most >= u64::from(memory.slabs) {
            return Ok(());
        }
        let most_bytes = Some(most * SLAB_BYTES);
        let free = self.free_by_node(waiter.named.as_ref());
        let line = InLine { most_bytes, ..InLine::default() };
        Err(RackError::NoRoom { asked_bytes, free, line })
    }

    /// Begins the handshakes of all queued requests for which there is room, one after the other.
    pub(super) fn serve_queue(&mut self, now_ns: u64) {
        if self.queue.is_empty() {
            self.queue.calls.clear();
            return;
        }
        for place in self.queue.in_order() {
            let needs = self.needs(now_ns, place);
            let Some(waiter) = self.queue.at_mut(place) else { continue };
            waiter.needs = needs;
            if needs != Needs::Nothing {
                continue;
            }
            let Some(waiter) = self.queue.leave(place) else { continue };
            let (owner, named) = (waiter.owner.clone(), waiter.named.clone());
            match &waiter.wanted {
                Wanted::Device(device) => {
                    let request = device.request.clone();
                    self.begin_device(now_ns, owner, (request, named), place, Some(waiter));
                }
                Wanted::Memory(memory) => {
                    let (request, slabs) = (memory.request.clone(), memory.most_slabs);
                    let client_id = request.client_id;
                    let deadline_ns = now_ns.saturating_add(self.settings.request_timeout_ns);
                    let mut pending =
                        PendingRequest::new(owner, request, slabs, named, place, deadline_ns);
                    pending.waiter = Some(Box::new(waiter));
                    self.requests.insert(client_id, pending);
                    self.advance(now_ns, client_id);
                }
            }
        }
        self.call_back(now_ns);
    }

    /// Returns what the request waits for.
    fn needs(&self, now_ns: u64, place: Place) -> Needs {
        let Some(waiter) = self.queue.at(place) else { return Needs::Nothing };
        if let Needs::Donors { until_ns } = waiter.needs
            && now_ns < until_ns
        {
            return waiter.needs;
        }
        let memory = match &waiter.wanted {
            Wanted::Memory(memory) => memory,
            Wanted::Device(device) => return self.device_needs(place, waiter, &device.request),
        };
        if self.check_quota(&waiter.owner, memory.slabs.into()).is_err() {
            return Needs::Quota;
        }
        if !self.leaves_enough(&waiter.owner.user, &memory.request, memory.slabs) {
            return Needs::Room;
        }
        let closed = self.closed_to(place, memory.slabs);
        let available = NodeEntry::available_slabs;
        let donors = self.as_donors(waiter, memory.most_slabs, &closed, available);
        if room(donors) < u64::from(memory.slabs) { Needs::Room } else { Needs::Nothing }
    }

    /// Returns what each donor it may use could give, by the slabs that `slabs` returns for a node.
    fn as_donors(
        &self,
        waiter: &Waiter,
        most_slabs: u32,
        closed: &Closed,
        slabs: impl Fn(&NodeEntry) -> u32,
    ) -> impl Iterator<Item = Donor> {
        let may_use = |node| waiter.may_use(node) && !closed.has(node);
        self.rrt
            .iter()
            .filter(move |(node, _)| may_use(*node))
            .map(move |(node, entry)| Donor { most_slabs, ..Donor::direct(node, slabs(entry)) })
    }

    /// Returns the donors kept for requests before `place` from a request for this many slabs.
    pub(super) fn closed_to(&self, place: Place, slabs: u32) -> Closed {
        let mut closed = BTreeSet::new();
        let for_memory = self.queue.before(place).filter(|waiter| waiter.as_memory().is_some());
        for waiter in for_memory.filter(|waiter| !waiter.may_be_passed(slabs.into())) {
            match &waiter.named {
                None => return Closed::All,
                Some(named) => closed.extend(named),
            }
        }
        Closed::Only(closed)
    }

    /// Counts these shares as backfill against the requests ahead that may use the same donors.
    pub(super) fn count_passing(&mut self, client_id: u128, shares: &BTreeMap<NodeId, u32>) {
        let Some(pending) = self.requests.get(&client_id) else { return };
        for waiter in self.queue.before_mut(pending.place) {
            if waiter.as_memory().is_some() {
                let passing = shares.iter().filter(|(node, _)| waiter.may_use(**node));
                let slabs = passing.map(|(_, slabs)| u64::from(*slabs)).sum();
                waiter.count_passing(slabs);
            }
        }
    }

    /// Puts a request whose handshake has failed back into its place in the queue.
    pub(super) fn wait_again(
        &mut self,
        now_ns: u64,
        place: Place,
        mut waiter: Waiter,
        error: &RackError,
    ) {
        let is_tried = waiter.as_device().is_some_and(|device| !device.tried.is_empty());
        waiter.needs = match error {
            RackError::NoRoom { .. } => Needs::Room,
            RackError::NoDevice(_) if !is_tried => Needs::Room,
            RackError::OverQuota { .. } | RackError::OverDeviceQuota(_) => Needs::Quota,
            _ => Needs::Donors { until_ns: now_ns.saturating_add(PAUSE_NS) },
        };
        self.queue.enter(place, waiter);
        // It may have been in one handshake after the other.
        self.answer_queue(now_ns);
    }

    /// Withdraws a request; what it was granted ends.
    ///
    /// # Errors
    /// [`RackError::Forbidden`]: the request belongs to another owner.
    pub fn handle_leave(
        &mut self,
        now_ns: u64,
        owner: &Owner,
        client_id: u128,
    ) -> Result<(), RackError> {
        self.check_owner_of_request(owner, client_id)?;
        self.call_off(client_id);
        let is_granted = |grant: &&GrantRecord| grant.state == GrantState::Committed;
        let granted = self.rat.of_client(client_id).filter(is_granted);
        for id in granted.map(|grant| grant.id).collect::<Vec<GrantId>>() {
            self.take_back_grant(id);
        }
        self.note_room(now_ns, true);
        Ok(())
    }

    /// Withdraws a request and answers its driver, in whatever state the request was, and before
    /// any change. After a conflict the driver repeats all calls without an answer; without this
    /// one it would repeat, at any later time, a request that nobody waits for.
    fn call_off(&mut self, client_id: u128) {
        let is_answering = self.is_answering(client_id);
        let is_in_line = self.queue.leave_client(client_id);
        let is_in_handshake = self.take_back(client_id) || self.take_back_device(client_id);
        if is_answering || is_in_line || is_in_handshake {
            let is_its = |action: &Action| matches!(action, Action::ReplyRequest { client_id: id, .. } if *id == client_id);
            self.actions.retain(|action| !is_its(action));
            let reason = "its caller has withdrawn this request".to_owned();
            let result = Err(RackError::BadRequest(reason));
            self.actions.push_front(Action::ReplyRequest { client_id, result });
        }
    }
}
