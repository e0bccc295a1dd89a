//! Checks transactions in memory, makes them durable in the log, and writes them to the tables
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

/// Records of a store, open for one process.
#[derive(Debug)]
pub(super) struct Ledger {
    image: Image,
    log: Option<Log>,
    carrier: Carrier,
}

impl Ledger {
    /// Opens the tables at `path` and the log beside them; creates both, and their directory, if
    /// absent. Drops records with a lease: the process that kept it alive had the store open.
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

    /// Commits a transaction; returns its outcome and its changes.
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

    /// Makes changes durable, then applies them to the image.
    fn make(&mut self, entry: Entry) -> Result<Batch, StoreError> {
        if !entry.changes.is_empty() {
            self.make_durable(&entry)?;
            self.image.apply(entry.clone());
        }
        let untold = |change| StoreChange { lease: None, ..change };
        let changes = entry.changes.into_iter().map(untold).collect();
        Ok(Batch { revision: entry.revision, changes })
    }

    /// Writes an entry to the log; directly to the tables if it does not fit there, or the log
    /// cannot be written.
    fn make_durable(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let mut in_tables = self.carrier.in_tables()?;
        let log = self.log.as_mut().expect("the log exists until the store is closed");
        let half = log.half();
        loop {
            match log.append(entry, in_tables) {
                Ok(Appended::Durable) => {
                    self.carrier.take(entry.clone());
                    if log.half() != half {
                        self.carrier.request_write();
                    }
                    return Ok(());
                }
                // The tables take the entries in the way at once, and an entry that still does not
                // fit.
                Ok(Appended::NoRoom) if in_tables < self.image.revision => {
                    in_tables = self.carrier.carry_now(None)?;
                }
                Ok(Appended::NoRoom) => break,
                Err(error) => {
                    tracing::warn!(%error, "cannot write the store's log; writing to its tables");
                    break;
                }
            }
        }
        self.carrier.carry_now(Some(entry.clone())).map(drop)
    }
}

impl Drop for Ledger {
    /// With everything in the tables no log is needed. On an error the log stays, and the next open
    /// recovers it.
    fn drop(&mut self) {
        let Some(log) = self.log.take() else { return };
        let closed = self.carrier.close().and_then(|()| log.remove());
        if let Err(error) = closed {
            tracing::warn!(%error, "cannot finish the store's log; the next open recovers it");
        }
    }
}

/// Draws a number for a new log.
fn new_number() -> Result<u64, StoreError> {
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty())
        .map_err(|error| StoreError::Random(error.into()))?;
    // 0 means "no log" in the tables.
    Ok(u64::from_le_bytes(number).max(1))
}

#[cfg(test)]
mod tests;
