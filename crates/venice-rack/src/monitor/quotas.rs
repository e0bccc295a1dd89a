//! Quotas of users, by kind. All that a user has at the donors counts, for any purpose and in every
//! copy, from the placement of a request until the donors have confirmed its release. Transferred
//! grants count for the former owner until the new one claims them.

use super::devices::clipped;
use super::pending::CheckedRequest;
use super::{Change, Event, MonitorCore, Token};
use crate::caller::Owner;
use crate::label::{MAX_LABEL_BYTES, is_label};
use crate::monitor_node::Reply;
use crate::quota::{Limits, OverQuota, QuotaFor, QuotaRecord};
use crate::rat::GrantRecord;
use crate::resource::MAX_DEVICE_GRANTS_OF_USER;
use crate::rows::{QuotaRow, QuotaTable};
use crate::types::{RackError, ResourceKind};
use std::collections::BTreeSet;

impl MonitorCore {
    /// Sets a quota, or (unlimited) exempts a user from the default. Limits that the record leaves
    /// out stay. `by` is the caller, for the event. Answered by [`Reply::Done`] once it is
    /// durable. Existing grants are not affected.
    pub fn handle_set_quota(&mut self, token: Token, record: QuotaRecord, by: &str) {
        let result = check_quota_record(&record);
        if result.is_ok() {
            let QuotaRecord { of, limits } = record;
            let limits = limits.over(self.quotas.limits_of(&of));
            // An unlimited default equals none.
            let limits = if of == QuotaFor::Others { limits.limited() } else { limits };
            match limits.is_empty() {
                true if self.quotas.has(&of) => self.change(Change::DeleteQuota(of.clone())),
                true => {}
                false => {
                    let (of, limits) = (of.clone(), limits.clone());
                    self.change(Change::PutQuota(QuotaRecord { of, limits }));
                }
            }
            self.note(Event::QuotaSet { of, limits, by: by.to_owned() });
        }
        self.reply(token, Reply::Done(result));
    }

    /// Removes a quota. Answered by [`Reply::Done`] once it is durable.
    pub fn handle_remove_quota(&mut self, token: Token, of: QuotaFor, by: &str) {
        let result = if self.quotas.has(&of) {
            self.change(Change::DeleteQuota(of.clone()));
            self.note(Event::QuotaRemoved { of, by: by.to_owned() });
            Ok(())
        } else {
            let whose = match of {
                QuotaFor::User(user) => format!("{user} has no quota of its own"),
                QuotaFor::Others => "there is no default quota".to_owned(),
            };
            Err(RackError::BadRequest(format!(
                "{whose}: `venice quota list` shows those there are"
            )))
        };
        self.reply(token, Reply::Done(result));
    }

    /// Returns the users with a quota, or with any grant.
    pub fn quota_table(&self) -> QuotaTable {
        let mut users: BTreeSet<&str> = self.quotas.users().collect();
        users.extend(self.rat.charged_users());
        users.extend(self.requests.values().map(|pending| &*pending.checked.owner.user));
        let of_others = |kind| Some((kind, self.quotas.limit_of_others(kind)?));
        QuotaTable {
            default: ResourceKind::granted().filter_map(of_others).collect(),
            users: users.into_iter().map(|user| self.quota_row(user)).collect(),
        }
    }

    fn quota_row(&self, user: &str) -> QuotaRow {
        let quota = |kind| Some((kind, self.quotas.limit_of(user, kind)?));
        QuotaRow {
            user: user.to_owned(),
            is_own: self.quotas.has(&QuotaFor::User(user.to_owned())),
            used: ResourceKind::granted().map(|kind| (kind, self.used_of(user, kind))).collect(),
            quota: ResourceKind::granted().filter_map(quota).collect(),
        }
    }

    /// Checks the quotas of the request's kinds, and the number of its owner's device grants.
    pub(super) fn check_quota(&self, checked: &CheckedRequest) -> Result<(), RackError> {
        for kind in checked.kinds() {
            self.check_kind(checked, kind, self.used_of(&checked.owner.user, kind))?;
        }
        self.check_device_count(checked)
    }

    /// The same for a request in its handshake, all of which counts already. It may have become too
    /// much: a share at a donor that did not answer counts until that donor reports.
    pub(super) fn check_quota_again(&self, client_id: u128) -> Result<(), RackError> {
        let Some(pending) = self.requests.get(&client_id) else { return Ok(()) };
        let checked = &pending.checked;
        checked.kinds().try_for_each(|kind| {
            let used = self.used_of(&checked.owner.user, kind);
            let own = checked.request.amount_of(kind);
            self.check_kind(checked, kind, used.saturating_sub(own))
        })
    }

    /// Checks that the request alone does not exceed a quota.
    pub(super) fn check_quota_ever(&self, checked: &CheckedRequest) -> Result<(), RackError> {
        checked.kinds().try_for_each(|kind| {
            self.check_kind(checked, kind, 0).map_err(|error| match error {
                RackError::OverQuota(over) => {
                    let used = self.used_of(&checked.owner.user, kind);
                    RackError::OverQuota(OverQuota { used, ..over })
                }
                other => other,
            })
        })
    }

    fn check_kind(
        &self,
        checked: &CheckedRequest,
        kind: ResourceKind,
        used: u64,
    ) -> Result<(), RackError> {
        self.check_quota_of(&checked.owner.user, kind, checked.request.amount_of(kind), used)
    }

    /// Checks that a user who has `used` of a kind may have `asked` more.
    pub(super) fn check_quota_of(
        &self,
        user: &str,
        kind: ResourceKind,
        asked: u64,
        used: u64,
    ) -> Result<(), RackError> {
        let Some(quota) = self.quotas.limit_of(user, kind) else { return Ok(()) };
        if used.saturating_add(asked) <= quota {
            return Ok(());
        }
        let user = clipped(user.to_owned());
        Err(RackError::OverQuota(OverQuota { user, kind, asked, used, quota }))
    }

    /// Returns the amount of a kind that a user has, or is about to get.
    pub(super) fn used_of(&self, user: &str, kind: ResourceKind) -> u64 {
        let held = self.rat.charged_to(user).filter(|grant| !self.is_surely_gone(grant));
        let held = held.filter(|grant| grant.share.kind == kind).map(|grant| grant.share.amount());
        let asking = self.requests.values().filter(|it| it.checked.owner.user == user);
        let asking = asking.map(|pending| pending.amount_beside_table(kind));
        // Donors may report any number.
        held.chain(asking).fold(0, u64::saturating_add)
    }

    /// Limits the device grants of one user: they all share the tables of the rack.
    fn check_device_count(&self, checked: &CheckedRequest) -> Result<(), RackError> {
        let wanted = checked.request.device_count();
        if wanted == 0 {
            return Ok(());
        }
        let owner = &checked.owner;
        let granted = self.devices_charged_to(owner);
        let asking = self.requests.values().filter(|pending| pending.checked.owner == *owner);
        let asked: usize = asking.map(|pending| pending.checked.request.device_count()).sum();
        if granted + asked + wanted <= MAX_DEVICE_GRANTS_OF_USER {
            return Ok(());
        }
        let Owner { user, node, .. } = owner;
        let most = MAX_DEVICE_GRANTS_OF_USER;
        Err(RackError::NoDevice(format!(
            "{user} of {node} may have {most} grants of devices at a time and has {granted}: give \
             some back, or ask for more storage at once"
        )))
    }

    /// Returns the number of device grants that an owner is charged for.
    pub(super) fn devices_charged_to(&self, owner: &Owner) -> usize {
        let devices = self.rat.charged_to(&owner.user).filter(|it| it.share.device().is_some());
        devices.filter(|grant| grant.charged() == Some(owner)).count()
    }

    /// True if the agent that lent it is dead. A merely silent one may still lend it.
    pub(super) fn is_surely_gone(&self, grant: &GrantRecord) -> bool {
        let node = self.rrt.get(grant.donor);
        node.is_some_and(|node| node.record.identity.epoch != grant.donor_epoch)
    }
}

fn check_quota_record(record: &QuotaRecord) -> Result<(), RackError> {
    let bad = |reason: String| Err(RackError::BadRequest(reason));
    if record.limits.is_empty() {
        return bad("a quota without any limit".to_owned());
    }
    if let Some((kind, _)) = record.limits.iter().find(|(kind, _)| !kind.is_granted()) {
        return bad(format!("{kind} is listed and not granted: it has no quota"));
    }
    match &record.of {
        QuotaFor::Others if record.limits == Limits::of_memory(None) => {
            bad("an unlimited default is no quota: remove the default instead (`venice quota remove --default`)".to_owned())
        }
        QuotaFor::User(user) if user.is_empty() || !is_label(user) => bad(format!(
            "invalid user name {user:?}: expected 1 to {MAX_LABEL_BYTES} bytes without control characters"
        )),
        _ => Ok(()),
    }
}
