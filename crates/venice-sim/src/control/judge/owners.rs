//! Checker of ownership: no resource has two owners, and none ends under its owner.

use venice_rack::donor::EndReason;
use venice_rack::types::Grant;
use venice_wire::GrantId;

use super::{Checker, Holding, Judge, Scene};
use crate::control::agent::{DEVICES, STORAGE_UNIT_BYTES, number_of};

impl Judge {
    /// Records grants that a recipient uses from now on.
    pub(super) fn takes(
        &mut self,
        scene: &Scene<'_>,
        recipient: u16,
        client_id: u128,
        grants: Vec<Grant>,
    ) {
        for grant in grants {
            match grant.share.device() {
                Some(_) => self.counts.devices += 1,
                None => self.counts.memory += 1,
            }
            let other = self.held.get(&grant.id).filter(|it| it.client_id != client_id);
            let other = other.map(|it| it.recipient);
            self.findings.check(Checker::Owners, scene.now_ns, other.is_none(), || {
                format!("{} is granted to recipients {other:?} and {recipient}", grant.id)
            });
            let id = grant.id;
            self.held.insert(id, Holding { recipient, client_id, grant });
            self.check_owners(scene, id);
        }
    }

    fn check_owners(&mut self, scene: &Scene<'_>, id: GrantId) {
        let grant = &self.held[&id].grant;
        let donor = number_of(&grant.donor).unwrap_or_default();
        let others = self.held.values().filter(|it| {
            it.grant.id != id
                && it.grant.donor == grant.donor
                && !scene.frozen.contains(&it.recipient)
                && !self.taken_back.contains(&(donor, it.grant.id))
                // Its donor answers the new owner alone.
                && !self.transfers.has_switched(donor, it.grant.id)
        });
        let share = &grant.share;
        let result = match share.device() {
            None => {
                let none = Vec::new();
                let slabs = |id| self.lent.get(&(donor, id)).unwrap_or(&none);
                let own = slabs(id);
                // A grant that died with its donor has no owner.
                let twice = others
                    .filter(|it| it.grant.donor_epoch == grant.donor_epoch)
                    .find(|it| slabs(it.grant.id).iter().any(|slab| own.contains(slab)));
                twice.map(|it| format!("{id} and {} share a slab of {}", it.grant.id, grant.donor))
            }
            Some(device) => {
                let same = others.map(|it| (it.grant.id, &it.grant.share));
                let same: Vec<_> =
                    same.filter(|(_, other)| other.device() == Some(device)).collect();
                let bytes: u64 = share.bytes + same.iter().map(|(_, it)| it.bytes).sum::<u64>();
                let is_twice = match share.kind.is_divisible() {
                    true => bytes > whole(&share.address),
                    false => !same.is_empty(),
                };
                let with: Vec<GrantId> = same.iter().map(|(id, _)| *id).collect();
                is_twice.then(|| {
                    format!("{} of {} is lent as {id} and {with:?}", share.address, grant.donor)
                })
            }
        };
        self.findings
            .check(Checker::Owners, scene.now_ns, result.is_none(), || result.unwrap_or_default());
    }

    /// Checks an action of a donor for a grant under that epoch.
    pub(super) fn check_life(&mut self, scene: &Scene<'_>, donor: u16, grant: GrantId, epoch: u64) {
        let identity = scene.agents[usize::from(donor)].identity();
        let is_its = identity.is_some_and(|identity| identity.epoch == epoch);
        self.findings.check(Checker::Lives, scene.now_ns, is_its, || {
            format!("donor{donor} is {identity:?}, and lends {grant} by an order of epoch {epoch}")
        });
    }

    /// Checks that a grant ends unused, or with announcement.
    pub(super) fn ends(
        &mut self,
        scene: &Scene<'_>,
        donor: u16,
        grant: GrantId,
        reason: EndReason,
    ) {
        self.lent.remove(&(donor, grant));
        if reason == EndReason::TakenBack {
            self.taken_back.insert((donor, grant));
        }
        let identity = scene.agents[usize::from(donor)].identity();
        let holding = self.held.get(&grant).filter(|it| {
            let is_its = identity.is_some_and(|it_is| it_is.epoch == it.grant.donor_epoch);
            is_its && !scene.frozen.contains(&it.recipient)
        });
        let is_right = holding.is_none() || reason == EndReason::TakenBack;
        let recipient = holding.map(|it| it.recipient);
        self.findings.check(Checker::Kept, scene.now_ns, is_right, || {
            format!("donor{donor} ends {grant} ({reason:?}), which recipient {recipient:?} uses")
        });
        if holding.is_some() {
            self.counts.ended_early += 1;
        }
    }
}

/// Returns the units of a whole device.
fn whole(address: &str) -> u64 {
    let device = DEVICES.iter().find(|(_, name, _)| *name == address);
    device.map_or(0, |(_, _, units)| units * STORAGE_UNIT_BYTES)
}
