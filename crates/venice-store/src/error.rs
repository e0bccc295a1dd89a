//! Errors of a store.

use crate::store::CHANGES_AT_ONCE;
use std::path::PathBuf;
use thiserror::Error;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Error of a store.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process has the store open.
    #[error("the store {path} is in use by another Monitor Node")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a store, or is damaged.
    #[error(
        "the store {path} is damaged or not a Venice store: {reason}; \
         move it away to start with empty tables (agents will register again)"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Description of the damage.
        reason: String,
    },
    /// It has a format that this version of Venice does not support.
    #[error("the store {place} has format {found}, this Venice understands {understood}")]
    Format {
        /// The file, or the place in etcd.
        place: String,
        /// Format found.
        found: String,
        /// Newest supported format.
        understood: u64,
    },
    /// The file or its directory is unusable.
    #[error("cannot use the store {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Error of the system or the database.
        source: Source,
    },
    /// The disk of the file has no room. A failed change may be tried again without loss.
    #[error("no room for the store {path}: make room on its disk")]
    Full {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: Source,
    },
    /// No member of etcd answers, or the members have no leader.
    #[error("no answer from {place} within {patience_s} s")]
    Unreachable {
        /// Place in etcd.
        place: String,
        /// Time of the attempts, in seconds.
        patience_s: u64,
        /// Error of the last member.
        source: Source,
    },
    /// The members of etcd have reached their quota; the change was not made.
    #[error(
        "no room in {place}: have its members compacted, defragmented and their alarm disarmed \
         (etcdctl compact, defrag, alarm disarm), or start them with a larger --quota-backend-bytes"
    )]
    NoSpace {
        /// Place in etcd.
        place: String,
    },
    /// etcd refused the request.
    #[error("{place} refused the request: {reason}")]
    Refused {
        /// Place in etcd.
        place: String,
        /// Reason, in etcd's words.
        reason: String,
    },
    /// The limit of changes in one transaction of etcd's members is too low.
    #[error(
        "the members of {place} take fewer than {needed} changes at once: start each with \
         --max-txn-ops {needed}"
    )]
    TxnLimit {
        /// Place in etcd.
        place: String,
        /// Limit that a Monitor Node needs.
        needed: usize,
    },
    /// The transaction has too many changes or conditions: a bug of the caller.
    #[error("transaction too large: {length} changes, at most {CHANGES_AT_ONCE}")]
    TooLarge {
        /// Number of changes or conditions.
        length: usize,
    },
    /// The lease has ended.
    #[error("the lease is over")]
    LeaseOver,
    /// The changes since then are no longer known.
    #[error("the watch has fallen behind: load the store anew")]
    Behind,
    /// A key or a certificate for etcd cannot be read.
    #[error("cannot read {path}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// The members' addresses or certificates are invalid.
    #[error("{place}: {reason}")]
    Address {
        /// Text given.
        place: String,
        /// Description of the error.
        reason: String,
    },
    /// A task of the store panicked or was cancelled: a bug.
    #[error("a task of the store failed")]
    BrokeOff(#[source] tokio::task::JoinError),
    /// The system has no random numbers.
    #[error("no random numbers from the system")]
    Random(#[source] std::io::Error),
}

/// Copy of an earlier error, as text.
#[derive(Debug, Error)]
#[error("{0}")]
struct EarlierError(String);

impl StoreError {
    /// Returns a copy of a file's error for one more caller.
    pub(crate) fn again(&self) -> Self {
        let said = |source: &Source| Box::new(EarlierError(source.to_string()));
        match self {
            Self::Full { path, source } => Self::Full { path: path.clone(), source: said(source) },
            Self::Io { path, source } => Self::Io { path: path.clone(), source: said(source) },
            Self::Corrupt { path, reason } => {
                Self::Corrupt { path: path.clone(), reason: reason.clone() }
            }
            other => unreachable!("{other}: not an error of a file"),
        }
    }
}
