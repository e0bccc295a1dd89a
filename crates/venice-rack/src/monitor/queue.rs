//! The line of those who wait for room, or for a device ([`devices`]), by priority, then by arrival.
//!
//! Whoever waits keeps what it may use for itself, except that requests behind it may pass with as
//! much as it asks for itself, all together: then nobody passes any more. So small requests go on
//! while a large one waits, and do not keep it waiting for ever. The line is not written down: who
//! waits asks again every second, and a Monitor Node that is new finds it so.

mod calling;
mod devices;
mod places;
mod telling;

pub(super) use places::{Line, Place, Waiter, Wanted};

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

/// After a handshake that failed for the donors' sake, a request waits so long before it is tried
/// again.
const PAUSE_NS: u64 = 1_000_000_000;

/// Donors that a request may not ask, because others come first.
pub(super) enum Closed {
    /// Some of them.
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
    /// `owner` asks, and may wait. Answered by [`Action::ReplyRequest`], or until then by
    /// [`Action::ReplyStanding`].
    pub(super) fn enter_line(
        &mut self,
        now_ns: u64,
        owner: Owner,
        request: MemoryRequest,
        (slabs, named): (u32, Option<BTreeSet<NodeId>>),
    ) {
        self.stand_in_line(
            now_ns,
            Waiter::new(now_ns, owner, Wanted::memory(request, slabs), named),
        );
    }

    fn stand_in_line(&mut self, now_ns: u64, waiter: Waiter) {
        let client_id = waiter.wanted.client_id();
        if let Err(error) = self.check_ever(&waiter) {
            self.actions.push_back(Action::ReplyRequest { client_id, result: Err(error) });
            return;
        }
        let place = self.line.place(waiter.wanted.queueing().priority);
        self.line.enter(place, waiter);
        self.serve_line(now_ns);
    }

    /// How a request would wait, in words.
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
        let place = self.line.place_to_be(queueing.priority);
        let rank = self.line.before(place).count() + 1;
        let is_first = self.before_waiter(place, waiter).is_empty();
        let called = match queueing.preempt {
            Preempt::No => Vec::new(),
            _ if !is_first => return Ok(format!("in line as number {rank}, calling nothing back")),
            _ => self.would_call_back(waiter),
        };
        if called.is_empty() {
            return Ok(format!("in line as number {rank}"));
        }
        let ids: Vec<_> = called.iter().map(|id| id.0.to_string()).collect();
        let within_s = self.settings.preempt_notice_ns as f64 / NS_PER_S;
        let ids = ids.join(", ");
        Ok(format!("in line as number {rank}, calling back grants {ids} within {within_s:.0} s"))
    }

    /// A request that waits, or did when its handshake began, is asked for again; false: there is
    /// none.
    pub(super) fn ask_in_line(&mut self, now_ns: u64, request: &MemoryRequest) -> bool {
        let in_handshake = self.requests.get_mut(&request.client_id);
        let in_handshake = in_handshake.and_then(|pending| pending.waiter.as_deref_mut());
        let waiter = in_handshake.or_else(|| self.line.of_client(request.client_id));
        waiter.map(|waiter| waiter.ask(now_ns, request.queueing)).is_some()
    }

    /// Could it ever be granted?
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
        // What is heard of when it has waited already was so when it began to.
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

    /// Begins the handshake of everybody in line for whom there is room, one after the other.
    pub(super) fn serve_line(&mut self, now_ns: u64) {
        if self.line.is_empty() {
            self.line.calls.clear();
            return;
        }
        for place in self.line.in_order() {
            let needs = self.needs(now_ns, place);
            let Some(waiter) = self.line.at_mut(place) else { continue };
            waiter.needs = needs;
            if needs != Needs::Nothing {
                continue;
            }
            let Some(waiter) = self.line.leave(place) else { continue };
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

    /// What it has to wait for.
    fn needs(&self, now_ns: u64, place: Place) -> Needs {
        let Some(waiter) = self.line.at(place) else { return Needs::Nothing };
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

    /// What each donor that it may use could give, by what `slabs` says of a node.
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

    /// The donors that are kept for those before `place` from a request for so many slabs.
    pub(super) fn closed_to(&self, place: Place, slabs: u32) -> Closed {
        let mut closed = BTreeSet::new();
        let for_memory = self.line.before(place).filter(|waiter| waiter.as_memory().is_some());
        for waiter in for_memory.filter(|waiter| !waiter.may_be_passed(slabs.into())) {
            match &waiter.named {
                None => return Closed::All,
                Some(named) => closed.extend(named),
            }
        }
        Closed::Only(closed)
    }

    /// A request gets these shares: it passes those before it who may use the same donors.
    pub(super) fn count_passing(&mut self, client_id: u128, shares: &BTreeMap<NodeId, u32>) {
        let Some(pending) = self.requests.get(&client_id) else { return };
        for waiter in self.line.before_mut(pending.place) {
            if waiter.as_memory().is_some() {
                let passing = shares.iter().filter(|(node, _)| waiter.may_use(**node));
                let slabs = passing.map(|(_, slabs)| u64::from(*slabs)).sum();
                waiter.count_passing(slabs);
            }
        }
    }

    /// A handshake has failed whose request may wait: it has its place again.
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
        self.line.enter(place, waiter);
        // It may have been in one handshake after the other.
        self.tell_line(now_ns);
    }

    /// A caller waits no longer, or does not want what it was granted; what it was granted ends.
    ///
    /// # Errors
    /// [`RackError::Forbidden`]: the request is another owner's.
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
            self.give_up(id);
        }
        self.note_room(now_ns, true);
        Ok(())
    }

    /// A request is asked for no more. Its driver is told so whichever way the request was, and before
    /// any change: it asks again for all that have no answer when a change was not made, and would for
    /// one that nobody waits for, at any later time.
    fn call_off(&mut self, client_id: u128) {
        let is_answering = self.is_answering(client_id);
        let is_in_line = self.line.leave_client(client_id);
        let is_in_handshake = self.take_back(client_id) || self.take_back_device(client_id);
        if is_answering || is_in_line || is_in_handshake {
            let is_its = |action: &Action| matches!(action, Action::ReplyRequest { client_id: id, .. } if *id == client_id);
            self.actions.retain(|action| !is_its(action));
            let reason = "its caller has called this request off".to_owned();
            let result = Err(RackError::BadRequest(reason));
            self.actions.push_front(Action::ReplyRequest { client_id, result });
        }
    }
}
