//! Whose tables a store has: a record that says so, put there before anything else. A Monitor Node of
//! another authority is not to change them, nor to lend by them: its certificates are worth nothing to
//! their nodes.

use crate::company::SERVES_ALONE;
use crate::error::MonitorError;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use venice_control::identity::Fingerprint;
use venice_store::{Condition, Entry, Outcome, Store, StoreChange, Transaction};

/// Where it is: among the signs of life, which Monitor Nodes that know of no mark pass over.
pub(crate) const MARK: &str = "monitor/authority";

/// Who wants to serve from a store.
#[derive(Debug, Clone)]
pub(crate) struct Claim {
    pub(crate) authority: Fingerprint,
    /// Where that is kept.
    pub(crate) identity: PathBuf,
    /// Where the Monitor Node listens.
    pub(crate) addr: String,
    /// Where the store is, as people write it.
    pub(crate) store: String,
}

/// The record.
#[derive(Debug, Serialize, Deserialize)]
struct Mark {
    /// The fingerprint of the rack's authority.
    authority: String,
    /// Where the Monitor Node listened that put it there.
    addr: String,
}

impl Claim {
    /// Marks a store that has no mark; one that has is looked at, and left as it is.
    ///
    /// # Errors
    /// [`MonitorError::OtherRack`] where it is another rack's; [`MonitorError::ServesAlone`];
    /// [`MonitorError::Store`].
    pub(crate) async fn make(&self, store: &impl Store) -> Result<(), MonitorError> {
        let mark = Mark { authority: self.authority.to_string(), addr: self.addr.clone() };
        let mark = serde_json::to_vec(&mark).expect("marks are plain data");
        let transaction = Transaction {
            conditions: vec![Condition::is_absent(MARK), Condition::is_absent(SERVES_ALONE)],
            changes: vec![StoreChange::put(MARK, mark)],
        };
        match store.commit(transaction).await? {
            Outcome::Committed(_) => Ok(()),
            Outcome::Conflict(found) => self.judge(&found),
        }
    }

    fn judge(&self, found: &[Entry]) -> Result<(), MonitorError> {
        let of = |key: &str| found.iter().find(|entry| entry.key == key);
        if let Some(alone) = of(SERVES_ALONE) {
            return Err(serves_alone(alone));
        }
        let Some(entry) = of(MARK) else { return Ok(()) };
        let mark: Mark = serde_json::from_slice(&entry.value)
            .map_err(|source| MonitorError::Record { key: entry.key.clone(), source })?;
        if mark.authority == self.authority.to_string() {
            return Ok(());
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

/// That a Monitor Node of an older Venice has the store for itself.
pub(crate) fn serves_alone(entry: &Entry) -> MonitorError {
    MonitorError::ServesAlone { addr: String::from_utf8_lossy(&entry.value).into_owned() }
}
