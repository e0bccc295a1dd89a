//! Why a Monitor Node stops.

use std::path::PathBuf;
use thiserror::Error;
use venice_control::identity::IdentityError;
use venice_control::server::ServeError;
use venice_store::StoreError;

/// Why a Monitor Node did not start, or stopped.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// The configuration makes no sense.
    #[error("the Monitor Node's configuration: {0}")]
    Config(String),
    /// It cannot listen, or the service broke off.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The rack's authority cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record of the store cannot be read.
    #[error("the store's record {key} cannot be read")]
    Record {
        /// Its key.
        key: String,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// It did not hear in time what other Monitor Nodes change.
    #[error("it is cut off from the store, and does not know what others change there")]
    CutOff,
    /// Somebody else than a Monitor Node has changed the store.
    #[error("the store's record {key} was removed, which no Monitor Node does")]
    Meddled {
        /// The record's key.
        key: String,
    },
    /// A Monitor Node of an older Venice has the store for itself.
    #[error(
        "the Monitor Node at {addr} serves this rack alone, as those of an older Venice do: stop \
         it and all others of that version first, or wait some seconds where that was just done"
    )]
    ServesAlone {
        /// Where it listens.
        addr: String,
    },
    /// What is kept of where the store is cannot be read or written.
    #[error("{}, which says where this rack's tables are: {why}", path.display())]
    StoreChoice {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// A rack cannot be founded in a store that has tables.
    #[error(
        "{store} has the tables of a rack already: found this one with a store of its own (--store, \
         with another prefix or file)"
    )]
    NotFree {
        /// Where it is.
        store: String,
    },
    /// The store is another rack's.
    #[error(
        "the tables in {store} are another rack's: its authority has the fingerprint {theirs} (its \
         first Monitor Node was at {addr}), and the one in {} has {ours}: give this rack a store of \
         its own (--store, with another prefix or file), or start with that rack's authority (a copy \
         of its Monitor Node's folder `identity`)",
        identity.display()
    )]
    OtherRack {
        /// Where it is.
        store: String,
        /// The fingerprint of that rack's authority.
        theirs: String,
        /// Where its first Monitor Node listened.
        addr: String,
        /// The fingerprint of ours.
        ours: String,
        /// Where that is kept.
        identity: PathBuf,
    },
    /// The listening socket does not tell its address.
    #[error("the listening socket does not tell its address")]
    Listener(#[source] std::io::Error),
    /// No threads can be started for those who report.
    #[error("the system starts no more threads")]
    Threads(#[source] std::io::Error),
    /// A part of the Monitor Node broke off: a bug.
    #[error("a part of the Monitor Node broke off")]
    Driver(#[source] tokio::task::JoinError),
    /// The system gives no random numbers for keys.
    #[error("the system gives no random numbers")]
    Random(#[source] std::io::Error),
}

impl MonitorError {
    /// It may be over by itself: the store answers again, has room again, or is read anew.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(
            self,
            MonitorError::CutOff
                | MonitorError::Meddled { .. }
                | MonitorError::Store(
                    StoreError::Unreachable { .. }
                        | StoreError::NoSpace { .. }
                        | StoreError::Behind
                        | StoreError::LeaseOver
                )
        )
    }
}
