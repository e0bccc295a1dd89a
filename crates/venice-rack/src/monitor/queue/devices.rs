//! The queue for devices: what each queued request may use, keeps, and has preempted.
//!
//! A device that is lent whole has one holder, a divisible one several. The amount is thus one
//! device, or bytes of one device: each piece of a want comes from one device.

use super::super::MonitorCore;
use super::super::devices::{DeviceSearch, Stock, Tried, is_usable};
use super::super::pending::CheckedRequest;
use super::kept::Kept;
use super::places::{Place, Waiter};
use super::preemption::Calls;
use crate::queueing::in_line_text;
use crate::rat::{GrantRecord, GrantState};
use crate::resource::ResourceSpec;
use crate::rrt::NodeEntry;
use crate::types::RackError;
use crate::want::Want;
use std::cmp::Reverse;
use venice_wire::{GrantId, NodeId};

/// A suitable device, with the grants of it that may be preempted.
struct Lent<'a> {
    spec: &'a ResourceSpec,
    /// The amount that is free, or about to be returned.
    free: u64,
    grants: Vec<&'a GrantRecord>,
}

impl Waiter {
    /// True if one of its wants for devices keeps an amount of this one from requests behind it.
    fn keeps(&self, (node, spec): (NodeId, &ResourceSpec), amount: u64) -> bool {
        self.checked.may_use(node)
            && self
                .checked
                .request
                .devices()
                .any(|(index, want)| want.would_do(spec) && !self.may_be_passed(index, amount))
    }
}

impl MonitorCore {
    fn search<'a>(&self, waiter: &'a Waiter, place: Place, tried: &'a Tried) -> DeviceSearch<'a> {
        let checked = &waiter.checked;
        let (slabs, stock) = (checked.slabs(), Stock::Free);
        DeviceSearch { checked, place, tried, slabs, stock, kept: None }
    }

    /// True if all its devices are free and not kept for others, whatever donors refused before.
    pub(super) fn has_devices_for(&self, place: Place, waiter: &Waiter, kept: &Kept) -> bool {
        let untried = Tried::default();
        let search = DeviceSearch { kept: Some(kept), ..self.search(waiter, place, &untried) };
        self.choose_all_devices(&search).is_ok()
    }

    /// True if this amount of a device is kept for requests before `place`.
    pub(in crate::monitor) fn is_kept_for_others(
        &self,
        place: Place,
        device: (NodeId, &ResourceSpec),
        amount: u64,
    ) -> bool {
        self.queue.before(place).any(|waiter| waiter.keeps(device, amount))
    }

    /// True if a request may use a device that another may use.
    pub(super) fn shares_device(&self, checked: &CheckedRequest, other: &CheckedRequest) -> bool {
        let wants = checked.request.devices().map(|(_, want)| want);
        let mut devices = wants.flat_map(|want| {
            let devices = self.devices_of_kind(want.kind);
            devices.filter(move |(node, _, spec)| checked.may_use(*node) && want.would_do(spec))
        });
        devices.any(|(node, _, spec)| {
            other.may_use(node) && other.request.devices().any(|(_, want)| want.would_do(spec))
        })
    }

    /// Explains the end of a wait for devices in vain; `None` if they are all there.
    pub(super) fn why_no_device_came(
        &self,
        now_ns: u64,
        place: Place,
        waiter: &Waiter,
    ) -> Option<RackError> {
        let search = self.search(waiter, place, &waiter.tried);
        let shortage = self.choose_all_devices(&search).err()?;
        let why = self.why_no_device(&search, &shortage);
        let before = self.before(place, &waiter.checked);
        Some(RackError::NoDevice(why + &in_line_text(waiter.waited_ms(now_ns), &before)))
    }

    /// Returns the free amount of the devices a want may use: bytes of one device, or a count.
    pub(super) fn free_devices(&self, checked: &CheckedRequest, want: &Want) -> u64 {
        let is_well = |entry: &NodeEntry, spec| self.fault_of(entry, spec).is_empty();
        let usable = self.usable_devices(checked, want);
        let free = usable.filter(|(_, entry, spec)| is_well(entry, spec));
        let free = free.filter_map(|(_, entry, spec)| self.free_of(entry, spec, &[]));
        match want.kind.is_divisible() {
            true => free.max().unwrap_or(0),
            false => free.count() as u64,
        }
    }

    /// Chooses the devices whose preemption does least harm; `None` if all of them are not enough.
    /// Each is chosen by itself, first for the wants that the fewest suit: grants preempted for it
    /// already, then those of the lowest priority; of these the fewest bytes that suffice, of equals
    /// the youngest.
    pub(super) fn device_victims(
        &self,
        waiter: &Waiter,
        (calls, theirs): (&Calls, &[GrantId]),
    ) -> Option<Vec<GrantId>> {
        let checked = &waiter.checked;
        let candidates: Vec<&GrantRecord> = self.candidates(waiter, calls, theirs).collect();
        let kinds = checked.kinds().flat_map(|kind| self.devices_of_kind(kind));
        let usable = kinds.filter(|(node, entry, spec)| {
            let mut wants = checked.request.devices();
            wants.any(|(_, want)| is_usable(checked, want, (*node, *entry, *spec)))
                && self.fault_of(entry, spec).is_empty()
        });
        let mut lent: Vec<Lent<'_>> = usable
            .map(|(node, entry, spec)| {
                let is_of_it = |grant: &&&GrantRecord| {
                    grant.donor == node && grant.share.device().is_some_and(|it| spec.is_device(it))
                };
                let grants = candidates.iter().filter(is_of_it).copied().collect();
                Lent { spec, free: self.free_soon(node, entry, spec), grants }
            })
            .collect();
        let mut wants: Vec<&Want> = checked.request.devices().map(|(_, want)| want).collect();
        wants.sort_by_key(|want| lent.iter().filter(|device| want.would_do(device.spec)).count());
        let mut victims = Vec::new();
        for want in wants {
            for _ in 0..want.count {
                victims.extend(take_least_harm(&mut lent, want, theirs)?);
            }
        }
        Some(victims)
    }

    /// Returns the amount of a device that is free, or that its donor is about to get back.
    fn free_soon(&self, node: NodeId, entry: &NodeEntry, spec: &ResourceSpec) -> u64 {
        let epoch = entry.record.identity.epoch;
        let returning = self.rat.of_donor(node).filter(|grant| {
            grant.donor_epoch == epoch
                && grant.state == GrantState::Releasing
                && grant.share.device().is_some_and(|it| spec.is_device(it))
        });
        let returning: u64 = returning.map(|grant| grant.share.amount()).sum();
        let free = self.free_of(entry, spec, &[]).map_or(0, |bytes| match spec.slab_bytes {
            0 => 1,
            _ => bytes,
        });
        free.saturating_add(returning)
    }

    /// Iterates over the suitable devices of nodes that are up and may lend, lent or not.
    fn usable_devices(
        &self,
        checked: &CheckedRequest,
        want: &Want,
    ) -> impl Iterator<Item = (NodeId, &NodeEntry, &ResourceSpec)> {
        let devices = self.devices_of_kind(want.kind);
        devices.filter(move |device| is_usable(checked, want, *device))
    }
}

/// Takes a piece of the device whose preemption does least harm, and returns its grants to end;
/// `None` if no device has so much.
fn take_least_harm(lent: &mut [Lent<'_>], want: &Want, theirs: &[GrantId]) -> Option<Vec<GrantId>> {
    let harm = |chosen: &Vec<&GrantRecord>| {
        let announced = chosen.iter().filter(|grant| theirs.contains(&grant.id)).count();
        let priority = chosen.iter().map(|grant| grant.priority).max();
        let amount: u64 = chosen.iter().map(|grant| grant.share.amount()).sum();
        let youngest = chosen.iter().map(|grant| grant.granted_ns).max();
        // Waiting is enough where nothing has to end.
        (!chosen.is_empty(), Reverse(announced), priority, amount, Reverse(youngest))
    };
    let amount = want.amount();
    let able = lent.iter().enumerate().filter(|(_, device)| want.would_do(device.spec));
    let able = able.filter_map(|(at, device)| Some((at, device.victims(amount, theirs)?)));
    let (at, chosen) = able.min_by_key(|(at, chosen)| (harm(chosen), *at))?;
    let ended: Vec<GrantId> = chosen.iter().map(|grant| grant.id).collect();
    lent[at].take(amount, &ended);
    Some(ended)
}

impl<'a> Lent<'a> {
    /// Takes an amount, once these grants have ended.
    fn take(&mut self, amount: u64, ended: &[GrantId]) {
        let gained = self.grants.iter().filter(|grant| ended.contains(&grant.id));
        let gained: u64 = gained.map(|grant| grant.share.amount()).sum();
        self.free = self.free.saturating_add(gained).saturating_sub(amount);
        self.grants.retain(|grant| !ended.contains(&grant.id));
    }

    /// Chooses the grants to end for an amount; `None` if all of them are not enough.
    fn victims(&self, wanted: u64, theirs: &[GrantId]) -> Option<Vec<&'a GrantRecord>> {
        let mut missing = wanted.saturating_sub(self.free);
        let class = |grant: &GrantRecord| (!theirs.contains(&grant.id), grant.priority);
        let mut grants = self.grants.clone();
        grants.sort_by_key(|grant| (class(grant), Reverse(grant.granted_ns), grant.id));
        let mut chosen: Vec<&GrantRecord> = Vec::new();
        while missing > 0 {
            let first = class(grants.first()?);
            let of_class = grants.iter().take_while(|grant| class(grant) == first).enumerate();
            let amounts: Vec<(u64, usize)> = of_class.map(|(at, it)| (amount(it), at)).collect();
            let enough = amounts.iter().filter(|(amount, _)| *amount >= missing).min();
            let most = || amounts.iter().max_by_key(|(amount, at)| (*amount, Reverse(*at)));
            let (_, at) = *enough.or_else(most)?;
            let grant = grants.remove(at);
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

fn amount(grant: &GrantRecord) -> u64 {
    grant.share.amount()
}
