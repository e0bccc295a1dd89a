//! The end of a run: quiescence, and the check of agreement.

use super::{World, name_of, take};
use crate::model::{DONORS, Fate, HEARTBEAT_MS, LEASE_MS};
use std::collections::BTreeMap;
use venice_rack::caller::Owner;
use venice_rack::monitor::MonitorCore;
use venice_rack::types::HeldState;
use venice_wire::SLAB_BYTES;

/// A grant: donor, bytes, owner.
type Held = (String, u64, Owner);

impl World {
    /// Delivers everything on its way.
    pub fn settle(&mut self) {
        for _ in 0..10_000 {
            let mut acted = false;
            for at in 0..self.monitors.len() {
                self.at = at;
                acted |= self.act();
                acted |= self.receive_from_peers(at);
            }
            let called = !self.calls.is_empty();
            self.deliver(0, Fate::Answered);
            let stray = take(&mut self.strays, 0).map(|call| self.process(&call)).is_some();
            (0..DONORS).for_each(|index| self.wipe(index));
            if !acted && !called && !stray {
                return;
            }
        }
        panic!("the rack does not settle");
    }

    /// Waits for quiescence: all parts live, all messages arrive, until every time limit has
    /// passed.
    pub fn quiesce(&mut self) {
        while let Some(report) = take(&mut self.slow_heartbeats, 0) {
            self.heartbeat(report);
        }
        (0..DONORS).for_each(|index| self.start_donor(index));
        // The last drain call counts only if the one before has been answered.
        self.settle();
        (0..DONORS).for_each(|index| self.drain(index, false));
        (0..DONORS).for_each(|index| self.want_back(index, 0));
        let steps = 3 * LEASE_MS / HEARTBEAT_MS;
        for _ in 0..steps {
            // A recipient whose wait has timed out does not ask again.
            self.settle();
            (0..self.recipients.len()).for_each(|pick| self.ask_again(pick));
            self.quiesce_devices();
            for (at, index) in
                (0..self.monitors.len()).flat_map(|at| (0..DONORS).map(move |i| (at, i)))
            {
                self.at = at;
                match self.report(index) {
                    Some(report) => self.heartbeat(report),
                    None => self.register(index),
                }
            }
            self.settle();
            self.renew_all();
            self.pass(HEARTBEAT_MS);
            self.check_devices_are_served();
        }
        self.settle();
    }

    /// Checks that recipients, donors, table and store agree.
    pub fn check_agreement(&self) {
        for recipient in self.recipients.iter().filter(|recipient| recipient.alive) {
            assert!(recipient.answer.is_some(), "{} has no answer", recipient.request.recipient);
        }
        let used: BTreeMap<u64, Held> = self
            .recipients
            .iter()
            .flat_map(|recipient| recipient.held.iter().map(|grant| (grant, &recipient.owner)))
            .filter(|(grant, _)| grant.share.device().is_none())
            .map(|(grant, owner)| {
                (grant.id.0, (grant.donor.clone(), grant.share.bytes, owner.clone()))
            })
            .collect();
        assert_eq!(self.held_by_donors(), used, "donors and recipients");
        assert!(self.wanted.is_empty(), "reclaimed without reason: {:?}", self.wanted);
        for monitor in &self.monitors {
            assert_eq!(listed(&monitor.core, self.now_ns), used, "table and recipients");
        }
        assert_eq!(listed(&self.recovered(), self.now_ns), used, "store and recipients");
        self.check_devices_agree();
        self.check_quota_table();
        let rows = self.monitors.iter().flat_map(|monitor| monitor.core.node_rows(self.now_ns));
        for (index, row) in rows.enumerate() {
            let core = &self.donors[row.node_id as usize - 1].core;
            let free_bytes = u64::from(core.status().free_slabs) * SLAB_BYTES;
            assert_eq!((row.state.as_str(), row.free_bytes), ("up", free_bytes), "{index}");
            assert_eq!(row.granted_bytes + row.free_bytes, row.lent_bytes, "leak");
        }
    }

    /// Recovers another Monitor Node from the store.
    pub(super) fn recovered(&self) -> MonitorCore {
        self.recovered_as(self.lives + 1)
    }

    fn held_by_donors(&self) -> BTreeMap<u64, Held> {
        let mut held_by_donors = BTreeMap::new();
        for (index, donor) in self.donors.iter().enumerate() {
            let report = donor.core.report();
            for held in report.held.into_iter().filter(|held| held.share.device().is_none()) {
                assert_eq!(held.state, HeldState::Committed, "left prepared");
                let bytes = u64::from(held.share.slabs()) * SLAB_BYTES;
                let owner = held.owner.expect("the donor has the owner");
                let twin = held_by_donors.insert(held.id.0, (name_of(index), bytes, owner));
                assert_eq!(twin, None, "one grant at two donors");
            }
        }
        held_by_donors
    }

    /// Returns the number of granted requests, for tests that need some activity.
    pub fn granted(&self) -> usize {
        self.recipients.iter().filter(|recipient| matches!(recipient.answer, Some(Ok(())))).count()
    }
}

fn listed(monitor: &MonitorCore, now_ns: u64) -> BTreeMap<u64, Held> {
    let rows = monitor.grant_rows(now_ns).into_iter().filter(|row| !row.kind.is_device());
    rows.map(|row| {
        assert_eq!(row.state, "committed", "grant {}", row.id);
        let owner = Owner { node: row.owner_node, user: row.owner_user, is_bound: false };
        (row.id, (row.donor, row.bytes, owner))
    })
    .collect()
}
