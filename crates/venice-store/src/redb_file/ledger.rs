//! Transactions are judged in memory, made durable in the log, and carried over into the tables a little
//! later, many at a time.

mod carrier;

use super::image::Image;
use super::log::{Appended, Entry, Log};
use super::tables::{Found, Tables};
use crate::error::StoreError;
use crate::store::{Lease, Outcome, Revision, Snapshot, StoreChange, Transaction};
use crate::watch::Batch;
use carrier::Carrier;
use rustix::rand::{GetRandomFlags, getrandom};
use std::path::Path;

/// A store's records, open for one process.
#[derive(Debug)]
pub(super) struct Ledger {
    image: Image,
    log: Option<Log>,
    carrier: Carrier,
}

impl Ledger {
    /// Opens the tables at `path` and the log beside them; makes both, and the directory they lie in, where
    /// there are none. Records with a lease are gone: whoever kept it alive had the store open.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let (mut tables, Found { mut image, log: number }) = Tables::open(path)?;
        let log_path = Log::path_of(path);
        let (log, mut entries) = match number {
            Some(number) => Log::open(&log_path, number, image.revision)?,
            None => (Log::create(&log_path, new_number()?)?, Vec::new()),
        };
        entries.iter().for_each(|entry| image.apply(entry.clone()));
        let over = image.end_of_leases(|_| true);
        if !over.changes.is_empty() {
            image.apply(over.clone());
            entries.push(over);
        }
        tables.begin(log.number(), &entries)?;
        let carrier = Carrier::start(tables);
        Ok(Self { image, log: Some(log), carrier })
    }

    pub(super) fn snapshot(&self) -> Snapshot {
        self.image.snapshot()
    }

    pub(super) fn revision(&self) -> Revision {
        self.image.revision
    }

    /// What became of it, and what it changed.
    pub(super) fn commit(
        &mut self,
        transaction: &Transaction,
    ) -> Result<(Outcome, Vec<StoreChange>), StoreError> {
        transaction.check_length()?;
        if !self.image.all_hold(&transaction.conditions) {
            let found = self.image.found(&transaction.conditions);
            return Ok((Outcome::Conflict(found), Vec::new()));
        }
        let Batch { revision, changes } = self.make(self.image.entry_of(transaction))?;
        Ok((Outcome::Committed(revision), changes))
    }

    /// Removes the records whose leases are over.
    pub(super) fn end_leases(
        &mut self,
        is_over: impl Fn(Lease) -> bool,
    ) -> Result<Batch, StoreError> {
        self.make(self.image.end_of_leases(is_over))
    }

    /// Makes changes durable, then so.
    fn make(&mut self, entry: Entry) -> Result<Batch, StoreError> {
        if !entry.changes.is_empty() {
            self.make_durable(&entry)?;
            self.image.apply(entry.clone());
        }
        let untold = |change| StoreChange { lease: None, ..change };
        let changes = entry.changes.into_iter().map(untold).collect();
        Ok(Batch { revision: entry.revision, changes })
    }

    /// In the log; straight in the tables where it does not fit there, or the log cannot be written.
    fn make_durable(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let mut in_tables = self.carrier.in_tables()?;
        let log = self.log.as_mut().expect("it is there until the store is closed");
        let half = log.half();
        loop {
            match log.append(entry, in_tables) {
                Ok(Appended::Durable) => {
                    self.carrier.take(entry.clone());
                    if log.half() != half {
                        self.carrier.make_haste();
                    }
                    return Ok(());
                }
                // What is in the way goes to the tables at once; what does not fit even so goes with it.
                Ok(Appended::NoRoom) if in_tables < self.image.revision => {
                    in_tables = self.carrier.carry_now(None)?;
                }
                Ok(Appended::NoRoom) => break,
                Err(error) => {
                    tracing::warn!(%error, "the store's log cannot be written; its tables are");
                    break;
                }
            }
        }
        self.carrier.carry_now(Some(entry.clone())).map(drop)
    }
}

impl Drop for Ledger {
    /// With everything in the tables no log is needed. One that cannot be brought over stays, and the next
    /// to open the store does it.
    fn drop(&mut self) {
        let Some(log) = self.log.take() else { return };
        let closed = self.carrier.close().and_then(|()| log.remove());
        if let Err(error) = closed {
            tracing::warn!(%error, "the store's log stays until it is opened again");
        }
    }
}

/// A number that no other log has.
fn new_number() -> Result<u64, StoreError> {
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty())
        .map_err(|error| StoreError::Random(error.into()))?;
    // None is the tables' word for no log.
    Ok(u64::from_le_bytes(number).max(1))
}

#[cfg(test)]
mod tests;
