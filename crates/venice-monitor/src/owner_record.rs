//! The owner record of a store: the rack whose tables it holds. It is written before any other
//! record. A Monitor Node of another authority must not use the tables: the rack's nodes do not
//! accept its certificates.

use crate::error::MonitorError;
use crate::peers::SOLE_MONITOR_KEY;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use venice_control::identity::Fingerprint;
use venice_store::{Condition, Entry, Outcome, Revision, Store, StoreChange, Transaction};

/// Key of the owner record. It is under the prefix of members' records, which Monitor Nodes without
/// owner records skip.
pub(crate) const OWNER_KEY: &str = "monitor/authority";

/// A Monitor Node's claim to a store.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) authority: Fingerprint,
    /// The authority that this one replaces: its store is taken over.
    pub(crate) former: Option<Fingerprint>,
    /// Directory of the authority.
    pub(crate) identity: PathBuf,
    /// Address on which the Monitor Node listens.
    pub(crate) addr: String,
    /// The store's location, in its textual form.
    pub(crate) store: String,
}

/// The owner record.
#[derive(Debug, Serialize, Deserialize)]
struct OwnerRecord {
    /// Fingerprint of the rack's authority.
    authority: String,
    /// Address of the Monitor Node that wrote the record.
    addr: String,
}

impl Claim {
    /// Marks a store without an owner; an existing owner record is checked and left as it is.
    ///
    /// # Errors
    /// [`MonitorError::OtherRack`] where it is another rack's; [`MonitorError::SoleMonitor`];
    /// [`MonitorError::Store`].
    pub(crate) async fn make(&self, store: &impl Store) -> Result<(), MonitorError> {
        let mark = OwnerRecord { authority: self.authority.to_string(), addr: self.addr.clone() };
        let mark = serde_json::to_vec(&mark).expect("owner records are plain data");
        let mark = StoreChange::put(OWNER_KEY, mark);
        let transaction = Transaction {
            conditions: vec![
                Condition::is_absent(OWNER_KEY),
                Condition::is_absent(SOLE_MONITOR_KEY),
            ],
            changes: vec![mark.clone()],
        };
        let Outcome::Conflict(found) = store.commit(transaction).await? else { return Ok(()) };
        let Some(former) = self.judge(&found)? else { return Ok(()) };
        let transaction = Transaction {
            conditions: vec![Condition::is_as_at(OWNER_KEY, former)],
            changes: vec![mark],
        };
        match store.commit(transaction).await? {
            Outcome::Committed(_) => Ok(()),
            // Another Monitor Node was first.
            Outcome::Conflict(found) => self.judge(&found).map(drop),
        }
    }

    /// Checks the present owner record. Returns its revision if it names the former authority.
    fn judge(&self, found: &[Entry]) -> Result<Option<Revision>, MonitorError> {
        let of = |key: &str| found.iter().find(|entry| entry.key == key);
        if let Some(alone) = of(SOLE_MONITOR_KEY) {
            return Err(sole_monitor(alone));
        }
        let Some(entry) = of(OWNER_KEY) else { return Ok(None) };
        let mark: OwnerRecord = serde_json::from_slice(&entry.value)
            .map_err(|source| MonitorError::Record { key: entry.key.clone(), source })?;
        if mark.authority == self.authority.to_string() {
            return Ok(None);
        }
        if self.former.is_some_and(|former| mark.authority == former.to_string()) {
            return Ok(Some(entry.changed_at));
        }
        Err(MonitorError::OtherRack {
            store: self.store.clone(),
            theirs: mark.authority,
            addr: mark.addr,
            ours: self.authority.to_string(),
            identity: self.identity.clone(),
        })
    }
}

/// Creates the error for a Monitor Node of an older Venice that uses the store exclusively.
pub(crate) fn sole_monitor(entry: &Entry) -> MonitorError {
    MonitorError::SoleMonitor { addr: String::from_utf8_lossy(&entry.value).into_owned() }
}
