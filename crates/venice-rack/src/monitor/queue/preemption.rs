//! Preemption: grants of lower priority are ended for a request that asks for it. Their donors give
//! notice, and end them when the stated time is over.

use super::super::pending::WantedMemory;
use super::ahead::Ahead;
use super::places::{Place, Waiter};
use super::{Event, MonitorCore};
use crate::caller::Owner;
use crate::queueing::Preempt;
use crate::rat::{GrantRecord, GrantState};
use crate::types::CalledBack;
use crate::{NS_PER_MS, NS_PER_S};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use venice_wire::{GrantId, NodeId};

/// A preempted grant.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    /// The place of the request it is preempted for.
    by: Place,
    since_ns: u64,
}

/// The preempted grants. They are not stored: the requests that wait for them are repeated.
pub(super) type Calls = BTreeMap<GrantId, Call>;

/// The free slabs of a donor, and the most it may give to the request.
#[derive(Clone, Copy)]
struct Room {
    has_slabs: u32,
    most_slabs: u32,
}

impl Room {
    fn gives(self) -> u32 {
        self.has_slabs.min(self.most_slabs)
    }

    /// Returns what the end of a grant adds to that.
    fn gains(self, slabs: u32) -> u32 {
        let has_slabs = self.has_slabs.saturating_add(slabs);
        Self { has_slabs, ..self }.gives() - self.gives()
    }
}

type Rooms = BTreeMap<NodeId, Room>;

impl MonitorCore {
    /// Preempts what the first requests with preemption need, and cancels what none needs any more.
    pub(super) fn call_back(&mut self, now_ns: u64) {
        let mut calls = std::mem::take(&mut self.queue.calls);
        calls.retain(|id, call| {
            let is_lent = self.rat.get(*id).is_some_and(|it| it.state == GrantState::Committed);
            is_lent && self.is_waited_for(call)
        });
        let mut called: BTreeMap<Place, Vec<GrantId>> = BTreeMap::new();
        for (id, call) in &calls {
            called.entry(call.by).or_default().push(*id);
        }
        let (mut ahead, mut preempted) = (Ahead::default(), Vec::new());
        for place in self.queue.in_order() {
            let Some(waiter) = self.queue.at(place) else { continue };
            let may_call = waiter.needs.is_held_by_others()
                && waiter.queueing().preempt != Preempt::No
                // What is preempted would go to requests ahead.
                && !self.is_met(&ahead, &waiter.checked);
            self.add_ahead(&mut ahead, waiter);
            let theirs = called.remove(&place).unwrap_or_default();
            let wanted = if may_call { self.victims(waiter, &calls, &theirs) } else { Vec::new() };
            for id in theirs.iter().filter(|id| !wanted.contains(id)) {
                calls.remove(id);
            }
            for id in &wanted {
                if !calls.contains_key(id) {
                    preempted.extend(self.preemption(*id, waiter));
                }
                calls.entry(*id).or_insert(Call { by: place, since_ns: now_ns });
            }
            if let Some(waiter) = self.queue.at_mut(place) {
                waiter.is_calling = !wanted.is_empty();
            }
        }
        self.queue.calls = calls;
        preempted.into_iter().for_each(|event| self.note(event));
    }

    fn preemption(&self, id: GrantId, waiter: &Waiter) -> Option<Event> {
        let grant = self.facts_of(self.rat.get(id)?);
        Some(Event::GrantPreempted { grant, by: waiter.checked.owner.clone() })
    }

    /// True if the request it is preempted for is still there.
    fn is_waited_for(&self, call: &Call) -> bool {
        let mut in_handshake = self.requests.values().map(|pending| pending.place);
        self.queue.at(call.by).is_some() || in_handshake.any(|place| place == call.by)
    }

    fn call(&self, grant: GrantId) -> Option<&Call> {
        self.queue.calls.get(&grant).filter(|call| self.is_waited_for(call))
    }

    /// Chooses the grants to preempt for a request. Returns none if all of them are not enough.
    fn victims(&self, waiter: &Waiter, calls: &Calls, theirs: &[GrantId]) -> Vec<GrantId> {
        let mut victims = Vec::new();
        if let Some(memory) = waiter.checked.memory() {
            let Some(more) = self.memory_victims(waiter, &memory, (calls, theirs)) else {
                return Vec::new();
            };
            victims.extend(more);
        }
        let Some(more) = self.device_victims(waiter, (calls, theirs)) else {
            return Vec::new();
        };
        victims.extend(more);
        victims.sort_unstable();
        victims.dedup();
        victims
    }

    /// Takes the grants preempted for it already, as far as they help, then those of the lowest
    /// priority; of these the fewest bytes that suffice, of equals the youngest. `None` if all of
    /// them are not enough.
    fn memory_victims(
        &self,
        waiter: &Waiter,
        memory: &WantedMemory,
        (calls, theirs): (&Calls, &[GrantId]),
    ) -> Option<Vec<GrantId>> {
        let mut rooms = self.rooms(waiter, memory);
        let mut missing = memory.slabs.saturating_sub(total(&rooms));
        let lent = self.candidates(waiter, calls, theirs).filter(|it| it.share.slabs() > 0);
        let mut left: Vec<&GrantRecord> = lent.collect();
        // A preemption once announced is not cancelled without need.
        left.sort_by_key(|grant| {
            (!theirs.contains(&grant.id), grant.priority, Reverse(grant.granted_ns), grant.id)
        });
        let mut chosen: Vec<&GrantRecord> = Vec::new();
        while missing > 0 {
            left.retain(|grant| gain(&rooms, grant) > 0);
            let first = left.first()?;
            let class = (theirs.contains(&first.id), first.priority);
            let of_class = left
                .iter()
                .take_while(|it| (theirs.contains(&it.id), it.priority) == class)
                .enumerate();
            let gains = of_class.map(|(at, it)| (gain(&rooms, it), it.share.slabs(), at));
            let gains: Vec<_> = gains.collect();
            let fewest = |(_, slabs, at): &&(u32, u32, usize)| (*slabs, *at);
            let enough = gains.iter().filter(|(gain, ..)| *gain >= missing).min_by_key(fewest);
            let most =
                || gains.iter().max_by_key(|(gain, slabs, at)| (*gain, Reverse((*slabs, *at))));
            let (gained, _, at) = *enough.or_else(most).expect("a class has a grant at least");
            let grant = left.remove(at);
            give(&mut rooms, grant.donor, grant.share.slabs());
            chosen.push(grant);
            missing = missing.saturating_sub(gained);
        }
        Some(self.without_superfluous(waiter, memory, chosen))
    }

    /// Drops chosen grants, the last first, that the others make up for.
    fn without_superfluous(
        &self,
        waiter: &Waiter,
        memory: &WantedMemory,
        chosen: Vec<&GrantRecord>,
    ) -> Vec<GrantId> {
        let mut kept = chosen.clone();
        let without = self.rooms(waiter, memory);
        for grant in chosen.iter().rev() {
            let mut rooms = without.clone();
            for other in kept.iter().filter(|other| other.id != grant.id) {
                give(&mut rooms, other.donor, other.share.slabs());
            }
            if total(&rooms) >= memory.slabs {
                kept.retain(|other| other.id != grant.id);
            }
        }
        kept.into_iter().map(|grant| grant.id).collect()
    }

    /// Returns what each donor it may use has, or is about to have.
    fn rooms(&self, waiter: &Waiter, memory: &WantedMemory) -> Rooms {
        let prepared = self.prepared_slabs();
        let usable =
            self.rrt.iter().filter(|(node, it)| waiter.checked.may_use(*node) && it.may_lend());
        let rooms = usable.map(|(node, entry)| {
            let returning = self.returning_slabs(node, &prepared);
            let has_slabs = entry.available_slabs().saturating_add(returning);
            (node, Room { has_slabs, most_slabs: memory.most_slabs })
        });
        rooms.collect()
    }

    /// Iterates over the grants that may be preempted for it, of memory and of devices.
    pub(super) fn candidates<'a>(
        &'a self,
        waiter: &'a Waiter,
        calls: &'a Calls,
        theirs: &'a [GrantId],
    ) -> impl Iterator<Item = &'a GrantRecord> {
        let queueing = *waiter.queueing();
        let is_own = |grant: &GrantRecord| {
            let is_own = |owner: &Owner| owner.user == waiter.checked.owner.user && !owner.is_bound;
            grant.owner.as_ref().is_some_and(is_own)
        };
        self.rat.iter().filter(move |grant| {
            grant.state == GrantState::Committed
                && grant.priority < queueing.priority
                && (queueing.preempt == Preempt::All || is_own(grant))
                && waiter.checked.may_use(grant.donor)
                && (theirs.contains(&grant.id) || !calls.contains_key(&grant.id))
                && self.lost_since_ns(grant).is_none()
        })
    }

    /// Returns the grants of a donor of which it is to give notice.
    pub(in crate::monitor) fn called_back_of(&self, donor: NodeId) -> Vec<CalledBack> {
        if self.queue.calls.is_empty() {
            return Vec::new();
        }
        let within_ms = self.settings.preempt_notice_ns / NS_PER_MS;
        let called = self.rat.of_donor(donor).filter(|it| self.call(it.id).is_some());
        called.map(|grant| CalledBack { grant: grant.id, within_ms }).collect()
    }

    /// Seconds until a grant that is called back ends, by when that was decided.
    pub(in crate::monitor) fn preempted_in_s(&self, now_ns: u64, grant: GrantId) -> Option<f64> {
        let call = self.call(grant)?;
        let until_ns = call.since_ns.saturating_add(self.settings.preempt_notice_ns);
        Some(until_ns.saturating_sub(now_ns) as f64 / NS_PER_S)
    }

    /// Iterates over the grants preempted for a place in the queue.
    pub(super) fn called_for(&self, place: Place) -> impl Iterator<Item = &GrantRecord> {
        let theirs = self.queue.calls.iter().filter(move |(_, call)| call.by == place);
        theirs.filter_map(|(id, _)| self.rat.get(*id))
    }

    /// Returns the grants that would be preempted for a request that is to wait first in the queue.
    pub(super) fn would_call_back(&self, waiter: &Waiter) -> Vec<GrantId> {
        self.victims(waiter, &self.queue.calls, &[])
    }
}

fn total(rooms: &Rooms) -> u32 {
    rooms.values().map(|room| room.gives()).fold(0, u32::saturating_add)
}

fn gain(rooms: &Rooms, grant: &GrantRecord) -> u32 {
    rooms.get(&grant.donor).map_or(0, |room| room.gains(grant.share.slabs()))
}

fn give(rooms: &mut Rooms, donor: NodeId, slabs: u32) {
    if let Some(room) = rooms.get_mut(&donor) {
        room.has_slabs = room.has_slabs.saturating_add(slabs);
    }
}
