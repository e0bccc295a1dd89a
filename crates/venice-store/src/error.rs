//! Why a store failed.

use crate::store::CHANGES_AT_ONCE;
use std::path::PathBuf;
use thiserror::Error;

type Source = Box<dyn std::error::Error + Send + Sync>;

/// Why a store failed.
#[derive(Debug, Error)]
pub enum StoreError {
    /// Another process has it open.
    #[error("the store {path} is in use by another Monitor Node")]
    Locked {
        /// The file.
        path: PathBuf,
    },
    /// The file is no store, or is damaged.
    #[error(
        "the store {path} is damaged or no Venice store: {reason}; \
         move it away to start with empty tables (agents will register again)"
    )]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// It was written by a Venice that this one does not understand.
    #[error("the store {place} has format {found}, this Venice understands {understood}")]
    Format {
        /// The file, or where in etcd.
        place: String,
        /// The format found.
        found: String,
        /// The format understood.
        understood: u64,
    },
    /// The file or its directory cannot be used.
    #[error("cannot use the store {path}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system or the database said.
        source: Source,
    },
    /// The disk that the file is on has no room; nothing of what was to be changed is lost by trying
    /// again.
    #[error("no room for the store {path}: make room on its disk")]
    Full {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: Source,
    },
    /// No member of etcd answers, or none leads the others.
    #[error("no answer from {place} within {patience_s} s")]
    Unreachable {
        /// Where in etcd.
        place: String,
        /// How long it was tried.
        patience_s: u64,
        /// What the last member said.
        source: Source,
    },
    /// etcd has as much as its members may keep; what was to be changed is not.
    #[error(
        "no room in {place}: have its members compacted, defragmented and their alarm disarmed \
         (etcdctl compact, defrag, alarm disarm), or start them with a larger --quota-backend-bytes"
    )]
    NoSpace {
        /// Where in etcd.
        place: String,
    },
    /// etcd refuses.
    #[error("{place} refuses: {reason}")]
    Refused {
        /// Where in etcd.
        place: String,
        /// Its word.
        reason: String,
    },
    /// etcd's members take too few changes at once.
    #[error(
        "the members of {place} take fewer than {needed} changes at once: start each with \
         --max-txn-ops {needed}"
    )]
    TxnLimit {
        /// Where in etcd.
        place: String,
        /// How many a Monitor Node needs.
        needed: usize,
    },
    /// A transaction with too many changes or conditions: a caller's mistake.
    #[error("a transaction of {length} changes; at most {CHANGES_AT_ONCE} can be made at once")]
    TooLarge {
        /// How many.
        length: usize,
    },
    /// The lease has ended.
    #[error("the lease is over")]
    LeaseOver,
    /// What was changed is not known any more.
    #[error("the store has changed more than can be told: it has to be loaded anew")]
    Behind,
    /// A key or a certificate for etcd cannot be read.
    #[error("cannot read {path}")]
    Tls {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The members' addresses or certificates make no sense.
    #[error("{place}: {reason}")]
    Address {
        /// What was given.
        place: String,
        /// What is wrong with it.
        reason: String,
    },
    /// A part of the store broke off: a bug.
    #[error("a part of the store broke off")]
    BrokeOff(#[source] tokio::task::JoinError),
    /// The system gives no random numbers.
    #[error("the system gives no random numbers")]
    Random(#[source] std::io::Error),
}

/// What a store said when it failed, once more.
#[derive(Debug, Error)]
#[error("{0}")]
struct SaidBefore(String);

impl StoreError {
    /// The failure of a store's file for one more who asks.
    pub(crate) fn again(&self) -> Self {
        let said = |source: &Source| Box::new(SaidBefore(source.to_string()));
        match self {
            Self::Full { path, source } => Self::Full { path: path.clone(), source: said(source) },
            Self::Io { path, source } => Self::Io { path: path.clone(), source: said(source) },
            Self::Corrupt { path, reason } => {
                Self::Corrupt { path: path.clone(), reason: reason.clone() }
            }
            other => unreachable!("{other}: no failure of a file"),
        }
    }
}
