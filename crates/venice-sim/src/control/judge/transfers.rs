//! Checker of transfers: never two owners that a donor answers, and never none unless told.

use std::collections::{BTreeMap, BTreeSet};

use venice_rack::types::{TransferState, TransferStep, Transferred};
use venice_wire::GrantId;

use super::{Checker, Judge, Scene};

/// The transfers so far.
#[derive(Default)]
pub(super) struct Transfers {
    /// The recipient that asked to transfer a grant.
    asked: BTreeMap<GrantId, (u16, u128)>,
    /// Grants that the donors' present processes gave to a successor.
    switched: BTreeSet<(u16, GrantId)>,
    /// Grants that any donor ever gave to a successor, with it.
    successors: BTreeMap<GrantId, GrantId>,
}

impl Transfers {
    pub(super) fn asks(&mut self, recipient: u16, client_id: u128, grants: Vec<GrantId>) {
        self.asked.extend(grants.into_iter().map(|grant| (grant, (recipient, client_id))));
    }

    /// True if the donor's present process gave the grant to a successor.
    pub(super) fn has_switched(&self, donor: u16, grant: GrantId) -> bool {
        self.switched.contains(&(donor, grant))
    }

    pub(super) fn dies(&mut self, donor: u16) {
        self.switched.retain(|(of, _)| *of != donor);
    }
}

impl Judge {
    /// Checks the number of a successor.
    pub(super) fn offers(&mut self, scene: &Scene<'_>, step: &TransferStep) {
        let other = self.numbers.insert(step.grant, step.key);
        self.findings.check(Checker::Numbers, scene.now_ns, other.is_none(), || {
            format!("{} is assigned twice", step.grant)
        });
    }

    /// Checks the step by which a donor gives a grant to its successor.
    pub(super) fn switches(&mut self, scene: &Scene<'_>, donor: u16, step: &TransferStep) {
        let TransferStep { from, grant, key, .. } = *step;
        let slabs = self.lent.remove(&(donor, from));
        if let Some(slabs) = slabs {
            self.lent.insert((donor, grant), slabs);
        }
        let holder = self.held.get(&from).map(|held| held.recipient);
        let asked = self.transfers.asked.get(&from).map(|(recipient, _)| *recipient);
        let is_asked = asked.is_some() && holder.is_none_or(|holder| asked == Some(holder));
        let is_its_key = self.numbers.get(&grant) == Some(&key);
        let other = self.transfers.successors.insert(from, grant).filter(|it| *it != grant);
        let is_so = is_asked && is_its_key && other.is_none();
        self.findings.check(Checker::Transfers, scene.now_ns, is_so, || {
            format!(
                "donor{donor} gives {from} of {holder:?} to {grant}, as {asked:?} asked; before it \
                 went to {other:?}"
            )
        });
        self.transfers.switched.insert((donor, from));
        self.counts.transferred += 1;
        if self.counts.first_transfer_ns == 0 {
            self.counts.first_transfer_ns = scene.now_ns;
        }
    }

    /// Checks that a donor answers nobody whose grant has a successor.
    pub(super) fn serves(&mut self, scene: &Scene<'_>, donor: u16, grant: GrantId) {
        let is_old = self.transfers.has_switched(donor, grant);
        self.findings.check(Checker::Transfers, scene.now_ns, !is_old, || {
            format!("donor{donor} answers the old owner of {grant} after its transfer")
        });
    }

    /// Checks what an old owner is told.
    pub(super) fn handed_over(&mut self, scene: &Scene<'_>, client_id: u128, rows: &[Transferred]) {
        let asked = self.transfers.asked.iter().filter(|(_, (_, of))| *of == client_id);
        let asked: BTreeSet<GrantId> = asked.map(|(grant, _)| *grant).collect();
        let is_done = |row: &Transferred| match row.state {
            TransferState::Done => self.transfers.successors.get(&row.from) == Some(&row.to),
            TransferState::Pending | TransferState::Gone => true,
        };
        let is_its = |row: &Transferred| asked.contains(&row.from);
        let is_so = rows.iter().all(|row| is_its(row) && is_done(row));
        self.findings.check(Checker::Transfers, scene.now_ns, is_so, || {
            format!("{rows:?} are transferred, it is said; {asked:?} were to be")
        });
    }

    /// Checks that nothing was transferred where its owner is told that.
    pub(super) fn kept_all(
        &mut self,
        scene: &Scene<'_>,
        client_id: u128,
        grants: &[GrantId],
        why: &str,
    ) {
        let mut gone = grants.iter().filter(|grant| self.transfers.successors.contains_key(grant));
        let gone = gone.next();
        self.findings.check(Checker::Transfers, scene.now_ns, gone.is_none(), || {
            format!("{client_id:#x}: {gone:?} went to another, and its owner is told: {why}")
        });
    }
}
