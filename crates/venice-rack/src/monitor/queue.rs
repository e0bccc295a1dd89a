//! The queue of requests that wait for room, or for devices ([`devices`]): by priority, then by
//! arrival.
//!
//! Resources a queued request may use are kept for it, but requests behind it may backfill with
//! as much as it requests itself, all together; then none passes it any more. So small requests go
//! on while a large one waits, without starving it. The queue is not stored: a waiting client
//! repeats its request every second, and a new Monitor Node rebuilds the queue from that.

mod ahead;
mod answers;
mod devices;
mod kept;
mod places;
mod preemption;

pub(super) use kept::Kept;
pub(super) use places::{Place, Queue, Waiter};

use super::handshake::{Chosen, room};
use super::pending::{CheckedRequest, WantedMemory};
use super::{Action, Event, MonitorCore};
use crate::NS_PER_S;
use crate::caller::Owner;
use crate::placement::Donor;
use crate::queueing::{InLine, Preempt, WaitingBounds};
use crate::rat::{GrantRecord, GrantState};
use crate::rrt::NodeEntry;
use crate::types::RackError;
use places::Needs;
use std::collections::BTreeSet;
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

/// A walk of the queue.
struct Walk {
    /// What the requests passed so far keep from the next one.
    kept: Kept,
    /// Slabs that all donors together have free.
    free_slabs: u64,
}

impl MonitorCore {
    /// Queues a request. Answered by [`Action::ReplyRequest`], or until then by
    /// [`Action::ReplyStanding`].
    pub(super) fn enter_queue(&mut self, now_ns: u64, checked: CheckedRequest) {
        let waiter = Waiter::new(now_ns, checked);
        let client_id = waiter.client_id();
        let refused = self.check_bounds(&waiter).and_then(|()| self.check_ever(&waiter));
        if let Err(error) = refused {
            self.actions.push_back(Action::ReplyRequest { client_id, result: Err(error) });
            return;
        }
        let place = self.queue.place(waiter.queueing().priority);
        self.queue.enter(place, waiter);
        // It brings nothing that another request waits for.
        let walk = Walk { kept: self.kept_before(place), free_slabs: self.free_slabs() };
        self.serve_place(now_ns, place, &walk);
        if let Some(waiter) = self.queue.at(place) {
            let (checked, needs) = (waiter.checked.clone(), waiter.needs.name());
            self.note_queued(&checked, needs);
        }
        self.call_back(now_ns);
    }

    /// Checks the bounds on queued requests, of the user and of all.
    fn check_bounds(&self, waiter: &Waiter) -> Result<(), RackError> {
        if waiter.queueing().is_admin {
            return Ok(());
        }
        let owner = &waiter.checked.owner;
        let WaitingBounds { of_user, all } = self.settings.waiting;
        let (queued, theirs) = self.queue.lengths(owner);
        match () {
            () if theirs >= of_user => Err(RackError::TooMany(format!(
                "{owner} has {theirs} requests in the queue, as many as one user may: wait until \
                 some are granted, or cancel some (`venice queue` lists them)"
            ))),
            () if queued >= all => Err(RackError::TooMany(format!(
                "the queue has {queued} requests, as many as the Monitor Node keeps: try again later"
            ))),
            () => Ok(()),
        }
    }

    /// Describes in words how a request would wait.
    pub(super) fn plan_to_wait(&self, checked: &CheckedRequest) -> Result<String, RackError> {
        let waiter = &Waiter::new(0, checked.clone());
        self.check_ever(waiter)?;
        let queueing = waiter.queueing();
        let place = self.queue.place_to_be(queueing.priority);
        let rank = self.queue.before(place).count() + 1;
        let is_first = !self.has_before(place, &waiter.checked);
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

    /// Checks that the request could ever be granted: a faulty device may be repaired, what is lent
    /// may be returned.
    fn check_ever(&self, waiter: &Waiter) -> Result<(), RackError> {
        self.check_quota_ever(&waiter.checked)?;
        // A request that has already waited elsewhere was checked when it began to wait.
        if waiter.queueing().waited_ms > 0 {
            return Ok(());
        }
        let place = self.queue.place_to_be(waiter.queueing().priority);
        self.check_devices_ever(&waiter.checked, place)?;
        waiter.checked.memory().map_or(Ok(()), |memory| self.check_memory_ever(waiter, &memory))
    }

    fn check_memory_ever(&self, waiter: &Waiter, memory: &WantedMemory) -> Result<(), RackError> {
        let whole = |entry: &NodeEntry| match entry.is_open() {
            true => entry.record.total_slabs(),
            false => 0,
        };
        let all = Closed::Only(BTreeSet::new());
        let most = room(self.as_donors(waiter, memory.most_slabs, &all, whole));
        if most >= u64::from(memory.slabs) {
            return Ok(());
        }
        let asked_bytes = u64::from(memory.slabs) * SLAB_BYTES;
        let most_bytes = Some(most * SLAB_BYTES);
        let free = self.free_by_node(waiter.checked.named.as_ref());
        let line = InLine { most_bytes, ..InLine::default() };
        Err(RackError::NoRoom { asked_bytes, free, line })
    }

    /// Begins the handshakes of all queued requests for which there is room, one after the other.
    /// One walk: what the requests passed keep from the next ones is added up on the way.
    pub(super) fn serve_queue(&mut self, now_ns: u64) {
        if self.queue.is_empty() {
            self.queue.calls.clear();
            return;
        }
        let mut walk = Walk { kept: Kept::default(), free_slabs: self.free_slabs() };
        for place in self.queue.in_order() {
            if self.serve_place(now_ns, place, &walk) {
                // The handshake took memory, and counts against the requests it passed.
                walk = Walk { kept: self.kept_through(place), free_slabs: self.free_slabs() };
            } else if let Some(waiter) = self.queue.at(place) {
                self.add_kept(&mut walk.kept, waiter);
            }
        }
        self.call_back(now_ns);
    }

    /// Begins the handshake of a queued request if there is room; returns true if it did.
    fn serve_place(&mut self, now_ns: u64, place: Place, walk: &Walk) -> bool {
        let needs = self.needs(now_ns, place, walk);
        let Some(waiter) = self.queue.at_mut(place) else { return false };
        waiter.needs = needs;
        if needs != Needs::Nothing {
            return false;
        }
        let Some(waiter) = self.queue.leave(place) else { return false };
        self.begin(now_ns, waiter.checked.clone(), place, Some(waiter));
        true
    }

    fn kept_before(&self, place: Place) -> Kept {
        let mut kept = Kept::default();
        self.queue.before(place).for_each(|waiter| self.add_kept(&mut kept, waiter));
        kept
    }

    fn kept_through(&self, place: Place) -> Kept {
        let mut kept = Kept::default();
        self.queue.through(place).for_each(|waiter| self.add_kept(&mut kept, waiter));
        kept
    }

    /// Returns what the request waits for.
    fn needs(&self, now_ns: u64, place: Place, walk: &Walk) -> Needs {
        let Some(waiter) = self.queue.at(place) else { return Needs::Nothing };
        if let Needs::Donors { until_ns } = waiter.needs
            && now_ns < until_ns
        {
            return waiter.needs;
        }
        if self.check_quota(&waiter.checked).is_err() {
            return Needs::Quota;
        }
        let memory = waiter.checked.memory();
        match memory.is_none_or(|memory| self.has_memory_for(waiter, &memory, walk)) {
            true if self.has_devices_for(place, waiter, &walk.kept) => Needs::Nothing,
            true => Needs::Device,
            false => Needs::Room,
        }
    }

    fn has_memory_for(&self, waiter: &Waiter, memory: &WantedMemory, walk: &Walk) -> bool {
        if walk.free_slabs < u64::from(memory.slabs)
            || !self.leaves_enough(&waiter.checked, memory.slabs)
        {
            return false;
        }
        let closed = walk.kept.closed_to(memory.slabs);
        let available = NodeEntry::available_slabs;
        let donors = self.as_donors(waiter, memory.most_slabs, &closed, available);
        room(donors) >= u64::from(memory.slabs)
    }

    /// Returns what each donor it may use could give, by the slabs that `slabs` returns for a node.
    fn as_donors(
        &self,
        waiter: &Waiter,
        most_slabs: u32,
        closed: &Closed,
        slabs: impl Fn(&NodeEntry) -> u32,
    ) -> impl Iterator<Item = Donor> {
        let may_use = |node| waiter.checked.may_use(node) && !closed.has(node);
        self.rrt
            .iter()
            .filter(move |(node, _)| may_use(*node))
            .map(move |(node, entry)| Donor { most_slabs, ..Donor::direct(node, slabs(entry)) })
    }

    /// Returns the donors kept for requests before `place` from a request for this many slabs.
    pub(super) fn closed_to(&self, place: Place, slabs: u32) -> Closed {
        let mut closed = BTreeSet::new();
        let bytes = u64::from(slabs).saturating_mul(SLAB_BYTES);
        let keeps = |waiter: &&Waiter| {
            let memory = waiter.checked.memory();
            memory.is_some_and(|memory| !waiter.may_be_passed(memory.want, bytes))
        };
        for waiter in self.queue.before(place).filter(keeps) {
            match &waiter.checked.named {
                None => return Closed::All,
                Some(named) => closed.extend(named),
            }
        }
        Closed::Only(closed)
    }

    /// Counts these shares as backfill against the requests ahead that may use the same resources.
    pub(super) fn count_passing(&mut self, client_id: u128, shares: &[Chosen]) {
        let Some(pending) = self.requests.get(&client_id) else { return };
        for Chosen { donor, share, .. } in shares {
            let specs = self.rrt.get(*donor).map(|entry| &entry.record.resources);
            let mut specs = specs.into_iter().flatten();
            let device = share.device().and_then(|it| specs.find(|spec| spec.is_device(it)));
            let before = self.queue.before_mut(pending.place);
            for waiter in before.filter(|waiter| waiter.checked.may_use(*donor)) {
                waiter.count_passing(share, device);
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
        waiter.needs = match error {
            RackError::NoRoom { .. } => Needs::Room,
            RackError::NoDevice(_) if waiter.tried.is_empty() => Needs::Device,
            RackError::OverQuota(_) => Needs::Quota,
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
        let queued = self.queue.of_client(client_id).map(|waiter| waiter.checked.clone());
        let asked = || self.requests.get(&client_id).map(|pending| pending.checked.clone());
        let withdrawn = queued.or_else(asked);
        let is_in_line = self.queue.leave_client(client_id);
        let is_in_handshake = self.take_back(client_id);
        if is_answering || is_in_line || is_in_handshake {
            let is_its = |action: &Action| matches!(action, Action::ReplyRequest { client_id: id, .. } if *id == client_id);
            self.actions.retain(|action| !is_its(action));
            let reason = "its caller has withdrawn this request".to_owned();
            let result = Err(RackError::BadRequest(reason));
            self.actions.push_front(Action::ReplyRequest { client_id, result });
        }
        if let Some(checked) = withdrawn {
            self.note_withdrawn(&checked);
        }
    }
}
