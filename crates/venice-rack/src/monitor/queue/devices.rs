//! The queue for devices: what each queued request may use, keeps, and has preempted.
//!
//! A device has one holder, storage several. The amount is thus one device, or bytes of one device.
//! All of a request comes from one device.

use super::super::MonitorCore;
use super::super::devices::{Sought, Tried};
use super::answers::Amounts;
use super::places::{Needs, Place, Waiter, Wanted, WantedDevice};
use super::preemption::Calls;
use crate::caller::Owner;
use crate::queueing::in_line_text;
use crate::rat::{GrantRecord, GrantState};
use crate::rrt::NodeEntry;
use crate::types::{DeviceRequest, RackError, ResourceSpec};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use venice_wire::{GrantId, NodeId};

/// A suitable device, with the grants of it that may be preempted.
struct Lent<'a> {
    /// The amount that is free, or about to be returned.
    free: u64,
    grants: Vec<&'a GrantRecord>,
}

impl Waiter {
    /// True if it waits for a device, and this one would suit.
    fn may_use_device(&self, node: NodeId, spec: &ResourceSpec) -> bool {
        let would_do = |device: &WantedDevice| device.request.would_do(spec);
        self.as_device().is_some_and(would_do) && self.may_use(node)
    }
}

impl MonitorCore {
    /// Queues a device request of `owner`. Answered as a memory request is.
    pub(in crate::monitor) fn enter_queue_for_device(
        &mut self,
        now_ns: u64,
        owner: Owner,
        request: DeviceRequest,
        named: Option<BTreeSet<NodeId>>,
    ) {
        self.enter_waiter(now_ns, Waiter::new(now_ns, owner, Wanted::device(request), named));
    }

    /// Describes in words how it would wait.
    pub(in crate::monitor) fn plan_to_wait_for_device(
        &self,
        owner: &Owner,
        request: &DeviceRequest,
        named: Option<BTreeSet<NodeId>>,
    ) -> Result<String, RackError> {
        let wanted = Wanted::device(request.clone());
        self.how_it_would_wait(&Waiter::new(0, owner.clone(), wanted, named))
    }

    /// Checks that the request could ever be granted: a faulty device may be repaired, a lent one
    /// returned.
    pub(super) fn check_ever_device(
        &self,
        waiter: &Waiter,
        request: &DeviceRequest,
    ) -> Result<(), RackError> {
        self.check_device_quota_ever(&waiter.owner, request)?;
        // A request that has already waited elsewhere was checked when it began to wait.
        if request.queueing.waited_ms > 0 || self.usable_devices(waiter, request).next().is_some() {
            return Ok(());
        }
        let place = self.queue.place_to_be(request.queueing.priority);
        let (named, tried) = (waiter.named.as_ref(), &Tried::default());
        let why = self.why_no_device(&Sought { request, named, place, tried });
        Err(RackError::NoDevice(format!(
            "{why}; waiting does not help: no node that is up has a suitable one, free or lent"
        )))
    }

    pub(super) fn device_needs(
        &self,
        place: Place,
        waiter: &Waiter,
        request: &DeviceRequest,
    ) -> Needs {
        if self.check_device_quota(&waiter.owner, request).is_err() {
            return Needs::Quota;
        }
        let (named, tried) = (waiter.named.as_ref(), &Tried::default());
        match self.choose_device(&Sought { request, named, place, tried }) {
            Some(_) => Needs::Nothing,
            None => Needs::Room,
        }
    }

    /// True if this amount of a device is kept for requests before `place`.
    pub(in crate::monitor) fn is_kept_for_others(
        &self,
        place: Place,
        node: NodeId,
        spec: &ResourceSpec,
        amount: u64,
    ) -> bool {
        let mut before = self.queue.before(place);
        before.any(|it| it.may_use_device(node, spec) && !it.may_be_passed(amount))
    }

    /// Counts an amount as backfill against the requests ahead that may use that device.
    pub(in crate::monitor) fn count_passing_device(
        &mut self,
        place: Place,
        node: NodeId,
        spec: &ResourceSpec,
        amount: u64,
    ) {
        for waiter in self.queue.before_mut(place) {
            if waiter.may_use_device(node, spec) {
                waiter.count_passing(amount);
            }
        }
    }

    /// Describes the requests before a place that may use a device that this request may use.
    pub(super) fn before_for_device(
        &self,
        place: Place,
        request: &DeviceRequest,
        named: Option<&BTreeSet<NodeId>>,
    ) -> Vec<String> {
        let is_named = |node: &NodeId| named.is_none_or(|named| named.contains(node));
        let devices = self.devices_of_kind(request.kind);
        let devices: Vec<_> =
            devices.filter(|(node, _, spec)| is_named(node) && request.would_do(spec)).collect();
        let meets = |waiter: &&Waiter| {
            devices.iter().any(|(node, _, spec)| waiter.may_use_device(*node, spec))
        };
        let described = |waiter: &Waiter| {
            let wanted = waiter.as_device()?.request.wanted();
            let priority = waiter.wanted.queueing().priority;
            Some(format!("{} with {wanted} (priority {priority})", waiter.owner))
        };
        self.queue.before(place).filter(meets).filter_map(described).collect()
    }

    /// Explains the end of a wait in vain.
    pub(super) fn why_no_device_came(
        &self,
        now_ns: u64,
        place: Place,
        waiter: &Waiter,
        device: &WantedDevice,
    ) -> RackError {
        if waiter.needs == Needs::Quota
            && let Err(error) = self.check_device_quota(&waiter.owner, &device.request)
        {
            return error;
        }
        let WantedDevice { request, tried } = device;
        let named = waiter.named.as_ref();
        let why = self.why_no_device(&Sought { request, named, place, tried });
        let before = self.before_for_device(place, request, named);
        RackError::NoDevice(why + &in_line_text(waiter.waited_ms(now_ns), &before))
    }

    pub(super) fn device_amounts(
        &self,
        place: Place,
        waiter: &Waiter,
        request: &DeviceRequest,
    ) -> Amounts {
        let is_well = |entry: &NodeEntry, spec| self.fault_of(entry, spec).is_empty();
        let usable = self.usable_devices(waiter, request);
        let free = usable.filter(|(_, entry, spec)| is_well(entry, spec));
        let free = free.filter_map(|(_, entry, spec)| self.free_of(entry, spec));
        let called = self.called_for(place).filter_map(|grant| grant.device.as_ref());
        let called: u64 = called.map(|share| share.amount()).sum();
        let asked_bytes = request.bytes.0;
        match request.kind.device_unit_bytes() {
            0 => Amounts {
                asked_bytes,
                free_devices: free.count() as u32,
                backfilled_devices: waiter.passed() as u32,
                preempting_devices: called as u32,
                ..Amounts::default()
            },
            _ => Amounts {
                asked_bytes: request.amount(),
                free_bytes: free.max().unwrap_or(0),
                backfilled_bytes: waiter.passed(),
                preempting_bytes: called,
                ..Amounts::default()
            },
        }
    }

    /// Chooses the device whose preemption does least harm: grants preempted for it already, then
    /// those of the lowest priority; of these the fewest bytes that suffice, of equals the
    /// youngest.
    pub(super) fn device_victims(
        &self,
        waiter: &Waiter,
        request: &DeviceRequest,
        (calls, theirs): (&Calls, &[GrantId]),
    ) -> Vec<GrantId> {
        let candidates: Vec<&GrantRecord> = self.candidates(waiter, calls, theirs).collect();
        let harm = |chosen: &Vec<&GrantRecord>| {
            let announced = chosen.iter().filter(|grant| theirs.contains(&grant.id)).count();
            let priority = chosen.iter().map(|grant| grant.priority).max();
            let bytes: u64 = chosen.iter().map(|grant| amount(grant)).sum();
            let youngest = chosen.iter().map(|grant| grant.granted_ns).max();
            (Reverse(announced), priority, bytes, Reverse(youngest))
        };
        let mut least: Option<Vec<&GrantRecord>> = None;
        for (node, entry, spec) in self.usable_devices(waiter, request) {
            if !self.fault_of(entry, spec).is_empty() {
                continue;
            }
            let is_of_it = |grant: &&&GrantRecord| {
                let device = grant.device.as_ref().map(|share| share.device());
                grant.donor == node && device == Some((spec.kind, &*spec.address))
            };
            let grants = candidates.iter().filter(is_of_it).copied().collect();
            let lent = Lent { free: self.free_soon(node, entry, spec), grants };
            match lent.victims(request.amount(), theirs) {
                // Waiting is enough.
                Some(chosen) if chosen.is_empty() => return Vec::new(),
                Some(chosen) if least.as_ref().is_none_or(|it| harm(&chosen) < harm(it)) => {
                    least = Some(chosen);
                }
                _ => {}
            }
        }
        least.into_iter().flatten().map(|grant| grant.id).collect()
    }

    /// Returns the amount of a device that is free, or that its donor is about to get back.
    fn free_soon(&self, node: NodeId, entry: &NodeEntry, spec: &ResourceSpec) -> u64 {
        let epoch = entry.record.identity.epoch;
        let returning = self.rat.of_donor(node).filter(|grant| {
            let device = grant.device.as_ref().map(|share| share.device());
            grant.donor_epoch == epoch
                && grant.state == GrantState::Releasing
                && device == Some((spec.kind, &*spec.address))
        });
        let returning: u64 = returning.map(amount).sum();
        let free = self.free_of(entry, spec).map_or(0, |bytes| match spec.slab_bytes {
            0 => 1,
            _ => bytes,
        });
        free.saturating_add(returning)
    }

    /// Iterates over the suitable devices of nodes that are up and may lend, lent or not.
    fn usable_devices(
        &self,
        waiter: &Waiter,
        request: &DeviceRequest,
    ) -> impl Iterator<Item = (NodeId, &NodeEntry, &ResourceSpec)> {
        let may_lend = |entry: &NodeEntry| entry.up && !entry.record.is_draining;
        self.devices_of_kind(request.kind).filter(move |(node, entry, spec)| {
            may_lend(entry) && waiter.may_use_device(*node, spec)
        })
    }
}

impl<'a> Lent<'a> {
    /// Chooses the grants to end for an amount; `None` if all of them are not enough.
    fn victims(mut self, wanted: u64, theirs: &[GrantId]) -> Option<Vec<&'a GrantRecord>> {
        let mut missing = wanted.saturating_sub(self.free);
        let class = |grant: &GrantRecord| (!theirs.contains(&grant.id), grant.priority);
        self.grants.sort_by_key(|grant| (class(grant), Reverse(grant.granted_ns), grant.id));
        let mut chosen: Vec<&GrantRecord> = Vec::new();
        while missing > 0 {
            let first = class(self.grants.first()?);
            let of_class = self.grants.iter().take_while(|grant| class(grant) == first).enumerate();
            let amounts: Vec<(u64, usize)> = of_class.map(|(at, it)| (amount(it), at)).collect();
            let enough = amounts.iter().filter(|(amount, _)| *amount >= missing).min();
            let most = || amounts.iter().max_by_key(|(amount, at)| (*amount, Reverse(*at)));
            let (_, at) = *enough.or_else(most)?;
            let grant = self.grants.remove(at);
            missing = missing.saturating_sub(amount(grant));
            chosen.push(grant);
        }
        Some(self.without_superfluous(wanted, chosen))
    }

    /// Drops chosen grants, the last first, that the others make up for.
    fn without_superfluous(
        &self,
        wanted: u64,
        chosen: Vec<&'a GrantRecord>,
    ) -> Vec<&'a GrantRecord> {
        let mut kept = chosen.clone();
        for grant in chosen.iter().rev() {
            let others = kept.iter().filter(|other| other.id != grant.id);
            let others: u64 = others.map(|other| amount(other)).sum();
            if self.free.saturating_add(others) >= wanted {
                kept.retain(|other| other.id != grant.id);
            }
        }
        kept
    }
}

/// Returns the amount of its device that a grant has.
fn amount(grant: &GrantRecord) -> u64 {
    grant.device.as_ref().map_or(0, |share| share.amount())
}
