//! Release of grants.

use super::{CallError, Change, Event, Kept, MonitorCore, Token};
use crate::monitor_node::{DonorCall, Reply};
use crate::rat::{GrantRecord, GrantState};
use crate::types::{DonorStatus, Identity};
use std::collections::BTreeMap;
use venice_wire::{GrantId, GrantKey};

impl MonitorCore {
    /// Releases grants of a recipient, by their keys. Answered by [`Reply::Released`] when
    /// every donor has confirmed or does not answer. Grants that are gone already are ignored.
    pub fn handle_release(&mut self, token: Token, leases: &[(GrantId, GrantKey)]) {
        let (mut release, mut kept, mut events) = (Vec::new(), Kept::default(), Vec::new());
        for (id, key) in leases.iter().copied() {
            let Some(grant) = self.rat.get(id) else { continue };
            match grant.origin {
                Some(origin) if origin.key == key => {}
                Some(_) => {
                    kept.forged.push(id);
                    continue;
                }
                None => {
                    kept.keyless.push(id);
                    continue;
                }
            }
            let lost = self.lost_since_ns(grant).is_some();
            match grant.state {
                // Its recipient has no answer yet: this is another caller's error.
                GrantState::Committing if !self.is_in_doubt(id) => {}
                _ if lost => {
                    self.change(Change::DeleteGrant(id));
                }
                // Nobody has its key yet.
                GrantState::Transferring => {}
                GrantState::Committing | GrantState::Committed => {
                    let grant = grant.clone();
                    events.push(Event::GrantReleased(self.facts_of(&grant)));
                    self.change_to_releasing(grant);
                    release.push(id);
                }
                GrantState::Releasing => release.push(id),
            }
        }
        events.into_iter().for_each(|event| self.note(event));
        if release.is_empty() {
            self.reply(token, Reply::Released(kept));
        } else {
            let waits_for = release.iter().copied().collect();
            self.release_waiters.insert(token, (waits_for, kept));
            self.send_releases(release);
        }
    }

    /// Takes back a grant whose recipient never received it.
    pub(super) fn take_back_grant(&mut self, id: GrantId) {
        let Some(grant) = self.rat.get(id) else { return };
        let donor = grant.lender();
        let epoch_is_over =
            self.rrt.get(donor.node).is_none_or(|node| node.record.identity != donor);
        if epoch_is_over {
            self.change(Change::DeleteGrant(id));
        } else {
            let grant = grant.clone();
            self.change_to_releasing(grant);
            self.send_releases(vec![id]);
        }
    }

    fn change_to_releasing(&mut self, grant: GrantRecord) {
        self.change(Change::PutGrant(GrantRecord { state: GrantState::Releasing, ..grant }));
    }

    /// Sends the releases to the donors, unless a call is on its way already.
    pub(super) fn send_releases(&mut self, ids: Vec<GrantId>) {
        let mut by_donor: BTreeMap<Identity, Vec<GrantId>> = BTreeMap::new();
        for id in ids {
            let Some(grant) = self.rat.get(id) else { continue };
            if self.sent_releases.insert(id) {
                let donor = grant.lender();
                by_donor.entry(donor).or_default().push(id);
            }
        }
        for (donor, grants) in by_donor {
            self.call_donor(donor, DonorCall::Release(grants));
        }
    }

    /// Handles the result of [`DonorCall::Release`]. Grants of a dead donor are gone. Without an
    /// answer from a donor that may live, the grants stay in the table as `releasing` until it
    /// reports: its next heartbeat either lists them, and they are released again, or not, and they
    /// are deleted.
    pub fn handle_released(
        &mut self,
        now_ns: u64,
        donor: Identity,
        grants: &[GrantId],
        result: Result<DonorStatus, CallError>,
    ) {
        self.note_result(now_ns, donor, &result);
        for id in grants {
            self.sent_releases.remove(id);
            let releasing = self.rat.get(*id).filter(|it| it.state == GrantState::Releasing);
            // The recipient has nothing left at a dead donor.
            let is_over = |grant| result.is_ok() || self.lost_since_ns(grant).is_some();
            if releasing.is_some_and(is_over) {
                self.change(Change::DeleteGrant(*id));
            }
        }
        self.settle_release_waiters(grants);
        self.note_room(now_ns, true);
    }

    fn settle_release_waiters(&mut self, grants: &[GrantId]) {
        let mut done = Vec::new();
        for (token, (waiting, _)) in &mut self.release_waiters {
            waiting.retain(|id| !grants.contains(id));
            if waiting.is_empty() {
                done.push(*token);
            }
        }
        for token in done {
            let kept = self.release_waiters.remove(&token).map(|(_, kept)| kept);
            let kept = kept.unwrap_or_default();
            self.reply(token, Reply::Released(kept));
        }
    }
}
