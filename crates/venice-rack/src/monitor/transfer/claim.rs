//! Claims: a new owner gets the keys of the grants that were transferred to it.

use super::super::{Change, MonitorCore, Token};
use crate::caller::Owner;
use crate::label::{LABEL_RULE, is_label};
use crate::monitor_node::Reply;
use crate::rat::{GrantRecord, GrantState};
use crate::transfer::ClaimRequest;
use crate::types::{Grant, RackError};
use std::collections::BTreeSet;
use venice_wire::GrantId;

impl MonitorCore {
    /// Gives the owner the grants that were transferred to it and that no other program of its
    /// has claimed. A transfer is claimed as a whole, once all its donors have confirmed it or are
    /// dead. Its owner is charged for it from then on. Answered by [`Reply::Claimed`], with no
    /// grants if there are none; with an error, and nothing claimed, if they exceed a quota.
    pub fn handle_claim(&mut self, token: Token, owner: &Owner, request: &ClaimRequest) {
        let result = self.claim(owner, request);
        self.reply(token, Reply::Claimed(result));
    }

    fn claim(&mut self, owner: &Owner, request: &ClaimRequest) -> Result<Vec<Grant>, RackError> {
        let ClaimRequest { recipient, transfer } = request;
        if recipient.is_empty() || !is_label(recipient) {
            let why = format!("invalid name of a claiming program: expected {LABEL_RULE}");
            return Err(RackError::BadRequest(why));
        }
        let is_open = |grant: &GrantRecord| {
            grant.state == GrantState::Transferring && self.lost_since_ns(grant).is_none()
        };
        let is_its = |grant: &&GrantRecord| {
            let client_id = grant.origin.map(|origin| origin.client_id);
            grant.from.is_some()
                && grant.owner.as_ref() == Some(owner)
                && (transfer.is_none() || *transfer == client_id)
        };
        let (mut open, mut found) = (BTreeSet::new(), Vec::new());
        for grant in self.rat.of_user(&owner.user).filter(is_its) {
            let Some(origin) = grant.origin else { continue };
            if is_open(grant) {
                open.insert(origin.client_id);
            } else if grant.state == GrantState::Committed
                && self.lost_since_ns(grant).is_none()
                && (grant.recipient.is_empty() || grant.recipient == *recipient)
            {
                found.push((origin.client_id, grant.id));
            }
        }
        let claimed = found.into_iter().filter(|(client_id, _)| !open.contains(client_id));
        let claimed: Vec<GrantId> = claimed.map(|(_, grant)| grant).collect();
        self.record_claim(owner, recipient, &claimed)?;
        let records = claimed.iter().filter_map(|id| self.rat.get(*id));
        Ok(records.filter_map(|record| self.grant_for_recipient(record)).collect())
    }

    /// Records the claim of those that are unclaimed, and charges their owner for them.
    fn record_claim(
        &mut self,
        owner: &Owner,
        recipient: &str,
        claimed: &[GrantId],
    ) -> Result<(), RackError> {
        let records = claimed.iter().filter_map(|id| self.rat.get(*id));
        let unclaimed: Vec<_> = records.filter(|record| record.recipient.is_empty()).collect();
        let Some(origin) = unclaimed.first().and_then(|record| record.origin) else {
            return Ok(());
        };
        self.check_charge(owner, &unclaimed)?;
        let named = unclaimed.into_iter().cloned().map(|record| {
            let recipient = recipient.to_owned();
            Change::PutGrant(GrantRecord { recipient, charged: None, ..record })
        });
        let mut changes: Vec<Change> = named.collect();
        if self.shared.is_some() {
            let (user, client_id) = (owner.user.clone(), origin.client_id);
            changes.insert(0, Change::PutLastRequest { user, client_id });
        }
        self.change_together(changes);
        Ok(())
    }
}
