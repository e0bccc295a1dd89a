//! Quotas of users. All memory of a user at the donors counts, for any purpose and in every copy,
//! from the placement of a request until the donors have confirmed its release.

use super::{Action, Change, Event, MonitorCore, Token};
use crate::caller::Owner;
use crate::quota::{Limit, Limits, QuotaFor, QuotaRecord};
use crate::rat::GrantRecord;
use crate::rows::{QuotaRow, QuotaTable};
use crate::types::{MAX_NAME_BYTES, RackError, ResourceKind};
use std::collections::BTreeSet;
use venice_wire::SLAB_BYTES;

impl MonitorCore {
    /// Sets a quota, or (unlimited) exempts a user from the default. Limits that the record leaves
    /// out stay. Answered by [`Action::ReplyDone`] once it is durable. Existing grants are not
    /// affected.
    pub fn handle_set_quota(&mut self, token: Token, record: QuotaRecord) {
        let result = check_quota_record(&record);
        if result.is_ok() {
            let QuotaRecord { of, limits } = record;
            let limits = limits.over(self.quotas.limits_of(&of));
            // An unlimited default equals none.
            let limits = if of == QuotaFor::Others { limits.limited() } else { limits };
            match limits == Limits::default() {
                true if self.quotas.has(&of) => self.change(Change::DeleteQuota(of.clone())),
                true => {}
                false => self.change(Change::PutQuota(QuotaRecord { of: of.clone(), limits })),
            }
            self.note(Event::QuotaSet { of, limits });
        }
        self.actions.push_back(Action::ReplyDone { token, result });
    }

    /// Removes a quota. Answered by [`Action::ReplyDone`] once it is durable.
    pub fn handle_remove_quota(&mut self, token: Token, of: QuotaFor) {
        let result = if self.quotas.has(&of) {
            self.change(Change::DeleteQuota(of.clone()));
            self.note(Event::QuotaRemoved { of });
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
        self.actions.push_back(Action::ReplyDone { token, result });
    }

    /// Returns the users with a quota, or with any grant.
    pub fn quota_table(&self) -> QuotaTable {
        let mut users: BTreeSet<&str> = self.quotas.users().collect();
        users.extend(self.rat.users());
        users.extend(self.requests.values().map(|pending| &*pending.owner.user));
        users.extend(self.device_requests.values().map(|pending| &*pending.owner.user));
        let of_others = |kind| self.quotas.limit_of_others(kind);
        QuotaTable {
            default_bytes: of_others(ResourceKind::Memory),
            default_accelerators: of_others(ResourceKind::Accelerator),
            default_nics: of_others(ResourceKind::Nic),
            default_storage_bytes: of_others(ResourceKind::Storage),
            users: users.into_iter().map(|user| self.quota_row(user)).collect(),
        }
    }

    fn quota_row(&self, user: &str) -> QuotaRow {
        let used = |kind| self.used_of_devices(user, kind);
        let quota = |kind| self.quotas.limit_of(user, kind);
        QuotaRow {
            user: user.to_owned(),
            used_bytes: self.used_bytes(user),
            quota_bytes: quota(ResourceKind::Memory),
            is_own: self.quotas.has(&QuotaFor::User(user.to_owned())),
            used_accelerators: used(ResourceKind::Accelerator),
            quota_accelerators: quota(ResourceKind::Accelerator),
            used_nics: used(ResourceKind::Nic),
            quota_nics: quota(ResourceKind::Nic),
            used_storage_bytes: used(ResourceKind::Storage),
            quota_storage_bytes: quota(ResourceKind::Storage),
        }
    }

    /// Checks the quota for this many more slabs of `owner`.
    pub(super) fn check_quota(&self, owner: &Owner, slabs: u64) -> Result<(), RackError> {
        let Some(quota_bytes) = self.quotas.bytes_of(&owner.user) else { return Ok(()) };
        let used_bytes = self.used_bytes(&owner.user);
        let asked_bytes = slabs.saturating_mul(SLAB_BYTES);
        if used_bytes.saturating_add(asked_bytes) <= quota_bytes {
            return Ok(());
        }
        let user = owner.user.clone();
        Err(RackError::OverQuota { user, asked_bytes, used_bytes, quota_bytes })
    }

    /// The same for a request in its handshake, all of which counts already. It may have become too
    /// much: a share at a donor that did not answer counts until that donor reports.
    pub(super) fn check_quota_again(&self, client_id: u128) -> Result<(), RackError> {
        let Some(pending) = self.requests.get(&client_id) else { return Ok(()) };
        let checked = self.check_quota(&pending.owner, 0);
        checked.map_err(|error| match error {
            RackError::OverQuota { user, used_bytes, quota_bytes, .. } => {
                let asked_bytes = u64::from(pending.slabs) * SLAB_BYTES;
                let used_bytes = used_bytes.saturating_sub(asked_bytes);
                RackError::OverQuota { user, asked_bytes, used_bytes, quota_bytes }
            }
            other => other,
        })
    }

    fn used_bytes(&self, user: &str) -> u64 {
        let held = self.rat.of_user(user).filter(|grant| !self.is_surely_gone(grant));
        let held = held.map(|grant| u64::from(grant.slabs));
        let asking = self.requests.values().filter(|pending| pending.owner.user == user);
        let asking = asking.map(|pending| u64::from(pending.slabs_beside_table()));
        // Donors may report any number.
        held.chain(asking).fold(0, u64::saturating_add).saturating_mul(SLAB_BYTES)
    }

    /// True if the agent that lent it is dead. A merely silent one may still lend it.
    pub(super) fn is_surely_gone(&self, grant: &GrantRecord) -> bool {
        let node = self.rrt.get(grant.donor);
        node.is_some_and(|node| node.record.identity.epoch != grant.donor_epoch)
    }
}

fn check_quota_record(record: &QuotaRecord) -> Result<(), RackError> {
    let bad = |reason: String| Err(RackError::BadRequest(reason));
    if record.limits == Limits::default() {
        return bad("a quota without any limit".to_owned());
    }
    match &record.of {
        QuotaFor::Others if record.limits.memory_bytes == Some(Limit::Unlimited) => {
            bad("an unlimited default is no quota: remove the default instead".to_owned())
        }
        QuotaFor::User(user)
            if user.is_empty()
                || user.len() > MAX_NAME_BYTES
                || user.contains(char::is_control) =>
        {
            bad(format!(
                "a user's name has 1 to {MAX_NAME_BYTES} printable characters, not {user:?}"
            ))
        }
        _ => Ok(()),
    }
}
