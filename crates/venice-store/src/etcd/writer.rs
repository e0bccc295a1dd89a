//! Transactions that are made once, even if an answer is lost and the request is repeated.
//!
//! Each also changes a record of this writer, on condition that nothing has changed it since the
//! last transaction. Of two equal requests only one is therefore made; after a lost answer, the
//! number in that record tells whether the first one was.

use super::api::{self, RequestOp, TxnRequest, TxnResponse};
use super::members::{self, Members};
use super::{Keys, revision};
use crate::error::StoreError;
use crate::store::{Outcome, Standing, StoreChange, Transaction};
use rustix::rand::{GetRandomFlags, getrandom};
use std::time::Duration;
use tokio::time::Instant;

/// Lifetime of the record after the writer's end, in seconds.
const LEASE_S: i64 = 3600;
/// Age of the last renewal at which a transaction renews the lease first.
const RENEW_AFTER: Duration = Duration::from_secs(LEASE_S as u64 / 2);

/// A writer, and its last transaction.
#[derive(Debug)]
pub(super) struct Writer {
    key: Vec<u8>,
    /// Revision of the last change of its record; 0: the record is absent.
    changed_at: i64,
    /// Number of the last transaction.
    number: u64,
    lease: Option<WriterLease>,
}

/// Lease of the writer's record.
#[derive(Debug, Clone, Copy)]
struct WriterLease {
    id: i64,
    since: Instant,
}

impl WriterLease {
    /// True if the lease must be renewed. It must not end between two attempts at a transaction:
    /// the record tells whether the first one was made.
    fn is_due(&self, now: Instant) -> bool {
        now.duration_since(self.since) >= RENEW_AFTER
    }
}

/// Result of a transaction request.
enum TxnResult {
    Is(Outcome),
    /// Undecided: the writer's record differed from the expected one.
    Again,
}

impl Writer {
    pub(super) fn new(keys: &Keys) -> Result<Self, StoreError> {
        let mut id = [0; 8];
        getrandom(&mut id, GetRandomFlags::empty())
            .map_err(|error| StoreError::Random(error.into()))?;
        let key = keys.writer(u64::from_le_bytes(id));
        Ok(Self { key, changed_at: 0, number: 0, lease: None })
    }

    pub(super) async fn commit(
        &mut self,
        members: &Members,
        keys: &Keys,
        transaction: &Transaction,
    ) -> Result<Outcome, StoreError> {
        self.number += 1;
        if self.lease.is_some_and(|lease| lease.is_due(Instant::now())) {
            self.renew_lease(members).await?;
        }
        let tries = members.tries();
        loop {
            let lease = self.lease(members).await?;
            let request = self.request(keys, transaction, lease);
            let member = members.current();
            match Members::txn_once(&member, request).await {
                Ok(answer) => match self.understand(keys, answer) {
                    TxnResult::Is(outcome) => return Ok(outcome),
                    TxnResult::Again => {}
                },
                Err(failure) if members::is_lease_over(&failure) => {
                    self.determine_ended_lease(members).await?;
                }
                Err(failure) => members.another(&tries, &member, failure).await?,
            }
        }
    }

    async fn lease(&mut self, members: &Members) -> Result<i64, StoreError> {
        if let Some(WriterLease { id, .. }) = self.lease {
            return Ok(id);
        }
        let since = Instant::now();
        let id = members.grant_lease(LEASE_S).await?;
        self.lease = Some(WriterLease { id, since });
        Ok(id)
    }

    /// Renews the lease; returns false if it is over, and the record with it.
    async fn renew_lease(&mut self, members: &Members) -> Result<bool, StoreError> {
        let since = Instant::now();
        if let Some(WriterLease { id, .. }) = self.lease
            && members.keep_alive(id).await? > 0
        {
            self.lease = Some(WriterLease { id, since });
            return Ok(true);
        }
        (self.changed_at, self.lease) = (0, None);
        Ok(false)
    }

    fn request(&self, keys: &Keys, transaction: &Transaction, lease: i64) -> TxnRequest {
        let mut compare = vec![api::is_changed_at(self.key.clone(), self.changed_at)];
        let mut failure = vec![api::get(self.key.clone())];
        for condition in &transaction.conditions {
            let key = keys.record(&condition.key);
            failure.push(api::get(key.clone()));
            compare.push(match condition.is {
                Standing::Absent => api::is_changed_at(key, 0),
                Standing::AsAt(at) => api::is_changed_at(key, at.0.cast_signed()),
                Standing::EndsWith(lease) => api::ends_with(key, lease.0),
            });
        }
        let number = self.number.to_string().into_bytes();
        let mut success = vec![api::put(self.key.clone(), number, lease)];
        success
            .extend(transaction.last_changes().into_iter().map(|change| change_op(keys, change)));
        TxnRequest { compare, success, failure }
    }

    fn understand(&mut self, keys: &Keys, answer: TxnResponse) -> TxnResult {
        let at = api::revision_of(&answer);
        if answer.succeeded {
            self.changed_at = at;
            return TxnResult::Is(Outcome::Committed(revision(at)));
        }
        let mut found = api::found(answer);
        let ours = found.iter().position(|one| one.key == self.key).map(|at| found.remove(at));
        let changed_at = ours.as_ref().map_or(0, |ours| ours.mod_revision);
        if changed_at == self.changed_at {
            let entries = found.into_iter().filter_map(|one| keys.entry(one));
            return TxnResult::Is(Outcome::Conflict(entries.collect()));
        }
        self.changed_at = changed_at;
        match ours {
            // It was made by an earlier request whose answer was lost.
            Some(ours) if ours.value == self.number.to_string().into_bytes() => {
                TxnResult::Is(Outcome::Committed(revision(changed_at)))
            }
            // An earlier transaction was made whose caller did not wait; or the record's lease has
            // ended.
            _ => TxnResult::Again,
        }
    }

    /// Determines which lease is over: the writer's own, which it replaces, or one of the changes'.
    async fn determine_ended_lease(&mut self, members: &Members) -> Result<(), StoreError> {
        match self.renew_lease(members).await? {
            true => Err(StoreError::LeaseOver),
            false => Ok(()),
        }
    }
}

fn change_op(keys: &Keys, change: &StoreChange) -> RequestOp {
    let key = keys.record(&change.key);
    match &change.value {
        Some(value) => api::put(key, value.clone(), change.lease.map_or(0, |lease| lease.0)),
        None => api::delete(key),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writer_lease_outlasts_all_attempts() {
        let since = Instant::now();
        let kept = WriterLease { id: 1, since };
        assert!(!kept.is_due(since + RENEW_AFTER / 2));
        assert!(kept.is_due(since + RENEW_AFTER));
        let left = Duration::from_secs(LEASE_S as u64) - RENEW_AFTER;
        assert!(left > 10 * members::PATIENCE);
    }
}
