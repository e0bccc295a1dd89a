//! The queued requests, and their order.

use super::super::devices::Tried;
use super::super::pending::CheckedRequest;
use super::preemption::Calls;
use crate::caller::Owner;
use crate::counts::Counts;
use crate::queueing::Queueing;
use crate::resource::{ResourceSpec, Share};
use crate::{NS_PER_MS, NS_PER_S};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// A call is answered within this time, granted or not; the client then repeats it. Idle
/// connections are cut on the way, and Monitor Nodes change.
const ANSWER_WITHIN_NS: u64 = 1_000_000_000;
/// The first answer comes sooner: users want to know why nothing happens.
const FIRST_ANSWER_NS: u64 = 100_000_000;
/// A client that has not repeated its request for this long since its answer is gone.
const GONE_AFTER_NS: u64 = 5_000_000_000;

/// A place in the queue: lower ones are served first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::monitor) struct Place {
    priority: Reverse<u8>,
    arrival: u64,
}

impl Place {
    /// Returns the arrival number, counted since this Monitor Node began to serve.
    pub(super) fn arrival(self) -> u64 {
        self.arrival
    }
}

/// A queued request.
pub(in crate::monitor) struct Waiter {
    pub(in crate::monitor) checked: CheckedRequest,
    /// Failed attempts with devices of its last handshake.
    pub(in crate::monitor) tried: Tried,
    /// Time of the last call or answer.
    heard_ns: u64,
    /// Time of the last call.
    asked_ns: u64,
    /// True while a call has no answer yet.
    is_asking: bool,
    /// Time at which it is to be answered.
    answer_ns: u64,
    /// The amounts that went to requests behind it, of each want: bytes of a divisible kind, else
    /// devices.
    passed: Vec<u64>,
    /// True while grants are preempted for it: no other request gets them.
    pub(super) is_calling: bool,
    pub(super) needs: Needs,
}

/// The reason why a request waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Needs {
    Nothing,
    /// Memory that others have.
    Room,
    /// Devices that others have.
    Device,
    /// Its user's quota.
    Quota,
    /// Donors that failed, until the next attempt.
    Donors {
        until_ns: u64,
    },
}

impl Needs {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing | Self::Room => "room",
            Self::Device => "device",
            Self::Quota => "quota",
            Self::Donors { .. } => "donors",
        }
    }

    /// True if it waits for what others have.
    pub(super) fn is_held_by_others(self) -> bool {
        matches!(self, Self::Room | Self::Device)
    }
}

impl Waiter {
    pub(super) fn new(now_ns: u64, checked: CheckedRequest) -> Self {
        Self {
            tried: Tried::default(),
            heard_ns: now_ns,
            asked_ns: now_ns,
            is_asking: true,
            answer_ns: now_ns.saturating_add(FIRST_ANSWER_NS),
            passed: vec![0; checked.request.wants.len()],
            is_calling: false,
            needs: if checked.memory().is_some() { Needs::Room } else { Needs::Device },
            checked,
        }
    }

    pub(super) fn client_id(&self) -> u128 {
        self.checked.request.client_id
    }

    pub(super) fn queueing(&self) -> &Queueing {
        &self.checked.request.queueing
    }

    /// Records a call or its repetition; the wait counts from the first call.
    pub(in crate::monitor) fn ask(&mut self, now_ns: u64, queueing: Queueing) {
        let waited_ms = queueing.waited_ms.max(self.waited_ms(now_ns));
        let priority = self.queueing().priority;
        self.checked.request.queueing = Queueing { waited_ms, priority, ..queueing };
        (self.asked_ns, self.heard_ns) = (now_ns, now_ns);
        if !std::mem::replace(&mut self.is_asking, true) {
            self.answer_ns = now_ns.saturating_add(ANSWER_WITHIN_NS);
        }
    }

    pub(super) fn answered(&mut self, now_ns: u64) {
        (self.heard_ns, self.is_asking) = (now_ns, false);
    }

    /// Puts the answer off for a short time.
    pub(super) fn put_off(&mut self, now_ns: u64) {
        self.answer_ns = now_ns.saturating_add(FIRST_ANSWER_NS);
    }

    /// True if a request behind it may take an amount that this want could use.
    pub(super) fn may_be_passed(&self, want: usize, amount: u64) -> bool {
        self.kept_from(want).is_none_or(|least| amount < least)
    }

    /// Returns the least amount of a want that a request behind it may not take; `None`: it may
    /// take all.
    pub(super) fn kept_from(&self, want: usize) -> Option<u64> {
        let most = self.checked.request.wants[want].total();
        match most.checked_sub(self.passed[want]) {
            _ if self.needs == Needs::Quota => None,
            Some(left) if !self.is_calling => Some(left.saturating_add(1)),
            Some(_) | None => Some(0),
        }
    }

    /// Returns the amount of a want that went to requests behind it.
    pub(super) fn passed(&self, want: usize) -> u64 {
        self.passed[want]
    }

    /// Counts a share taken by a request behind it against the wants that could use it: those for
    /// memory, or for its `device`.
    pub(super) fn count_passing(&mut self, share: &Share, device: Option<&ResourceSpec>) {
        if self.needs == Needs::Quota {
            return;
        }
        for (want, passed) in self.checked.request.wants.iter().zip(&mut self.passed) {
            if device.map_or(want.kind == share.kind, |spec| want.would_do(spec)) {
                *passed = passed.saturating_add(share.amount());
            }
        }
    }

    pub(super) fn waited_ms(&self, now_ns: u64) -> u64 {
        let since_ms = now_ns.saturating_sub(self.asked_ns) / NS_PER_MS;
        self.queueing().waited_ms.saturating_add(since_ms)
    }

    pub(super) fn left_s(&self, now_ns: u64) -> f64 {
        self.deadline_ns().saturating_sub(now_ns) as f64 / NS_PER_S
    }

    fn deadline_ns(&self) -> u64 {
        let left_ns = self.queueing().left_ms().saturating_mul(NS_PER_MS);
        self.asked_ns.saturating_add(left_ns)
    }

    pub(super) fn is_late(&self, now_ns: u64) -> bool {
        self.deadline_ns() <= now_ns
    }

    /// True if it is to be answered now.
    pub(super) fn is_due(&self, now_ns: u64) -> bool {
        self.is_asking && self.answer_ns <= now_ns
    }

    /// True if its client is gone.
    pub(super) fn is_gone(&self, now_ns: u64) -> bool {
        !self.is_asking && self.heard_ns.saturating_add(GONE_AFTER_NS) <= now_ns
    }

    fn next_ns(&self) -> u64 {
        let gone_ns = self.heard_ns.saturating_add(GONE_AFTER_NS);
        let next_ns = self.deadline_ns().min(if self.is_asking { self.answer_ns } else { gone_ns });
        match self.needs {
            Needs::Donors { until_ns } => next_ns.min(until_ns),
            _ => next_ns,
        }
    }
}

/// The queue. A request in its handshake is not in it, and its place is kept.
#[derive(Default)]
pub(in crate::monitor) struct Queue {
    waiters: BTreeMap<Place, Waiter>,
    places: BTreeMap<u128, Place>,
    /// Queued requests by owner.
    of_owner: Counts<Owner>,
    arrivals: u64,
    /// The grants preempted for them.
    pub(super) calls: Calls,
}

impl Queue {
    /// Takes the last place of this priority.
    pub(in crate::monitor) fn place(&mut self, priority: u8) -> Place {
        self.arrivals += 1;
        Place { priority: Reverse(priority), arrival: self.arrivals }
    }

    /// Returns the place that the next request of this priority would have.
    pub(in crate::monitor) fn place_to_be(&self, priority: u8) -> Place {
        Place { priority: Reverse(priority), arrival: self.arrivals + 1 }
    }

    pub(super) fn enter(&mut self, place: Place, waiter: Waiter) {
        self.places.insert(waiter.client_id(), place);
        self.of_owner.add(waiter.checked.owner.clone());
        self.waiters.insert(place, waiter);
    }

    pub(super) fn leave(&mut self, place: Place) -> Option<Waiter> {
        let waiter = self.waiters.remove(&place)?;
        self.places.remove(&waiter.client_id());
        self.of_owner.remove(&waiter.checked.owner);
        Some(waiter)
    }

    /// Returns the number of queued requests, of all and of an owner.
    pub(super) fn lengths(&self, owner: &Owner) -> (usize, usize) {
        (self.waiters.len(), self.of_owner.of(owner))
    }

    /// Removes a client's request. Returns true if it was queued.
    pub(super) fn leave_client(&mut self, client_id: u128) -> bool {
        let place = self.places.get(&client_id).copied();
        place.and_then(|place| self.leave(place)).is_some()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiters.is_empty()
    }

    pub(super) fn in_order(&self) -> Vec<Place> {
        self.waiters.keys().copied().collect()
    }

    pub(in crate::monitor) fn iter(&self) -> impl Iterator<Item = (Place, &Waiter)> {
        self.waiters.iter().map(|(place, waiter)| (*place, waiter))
    }

    pub(super) fn at(&self, place: Place) -> Option<&Waiter> {
        self.waiters.get(&place)
    }

    pub(super) fn at_mut(&mut self, place: Place) -> Option<&mut Waiter> {
        self.waiters.get_mut(&place)
    }

    pub(in crate::monitor) fn of_client(&mut self, client_id: u128) -> Option<&mut Waiter> {
        self.waiters.get_mut(self.places.get(&client_id)?)
    }

    /// True if any request waits for a device.
    pub(in crate::monitor) fn has_devices(&self) -> bool {
        self.waiters.values().any(|waiter| waiter.checked.request.device_count() > 0)
    }

    /// Returns the owner of a queued request.
    pub(in crate::monitor) fn owner_of(&self, client_id: u128) -> Option<&Owner> {
        Some(&self.waiters.get(self.places.get(&client_id)?)?.checked.owner)
    }

    /// Iterates over the requests up to a place, in order.
    pub(super) fn through(&self, place: Place) -> impl Iterator<Item = &Waiter> {
        self.waiters.range(..=place).map(|(_, waiter)| waiter)
    }

    pub(super) fn before(&self, place: Place) -> impl Iterator<Item = &Waiter> {
        self.waiters.range(..place).map(|(_, waiter)| waiter)
    }

    pub(super) fn before_mut(&mut self, place: Place) -> impl Iterator<Item = &mut Waiter> {
        self.waiters.range_mut(..place).map(|(_, waiter)| waiter)
    }

    /// Returns the time at which the queue needs attention without any call.
    pub(in crate::monitor) fn next_ns(&self) -> Option<u64> {
        self.waiters.values().map(Waiter::next_ns).min()
    }

    /// True if a pause is over and its request is to be tried again.
    pub(in crate::monitor) fn is_pause_over(&self, now_ns: u64) -> bool {
        let is_over = |waiter: &Waiter| matches!(waiter.needs, Needs::Donors { until_ns } if until_ns <= now_ns);
        self.waiters.values().any(is_over)
    }
}
