//! Errors of the Monitor Node.

use std::path::PathBuf;
use thiserror::Error;
use venice_control::identity::IdentityError;
use venice_control::server::ServeError;
use venice_observe::ListenError;
use venice_store::StoreError;

/// The reason why a Monitor Node did not start, or stopped.
#[derive(Debug, Error)]
pub enum MonitorError {
    /// The configuration is invalid.
    #[error("the Monitor Node's configuration: {0}")]
    Config(String),
    /// The Monitor Node cannot listen, or the service failed.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The address for metrics cannot be listened on.
    #[error(transparent)]
    Metrics(#[from] ListenError),
    /// The rack's authority cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A record of the store cannot be read.
    #[error("the store's record {key} cannot be read")]
    Record {
        /// The record's key.
        key: String,
        /// The parser's error.
        source: serde_json::Error,
    },
    /// A record of the store is not what it has to be.
    #[error("the store's record {key} cannot be read: {why}")]
    Unreadable {
        /// The record's key.
        key: String,
        /// The reason.
        why: String,
    },
    /// The store was written by a later release.
    #[error(
        "the store has records of format {found}, and this Monitor Node knows formats up to \
         {known}: install the newer release again"
    )]
    NewerFormat {
        /// The store's format.
        found: u32,
        /// The format of this release.
        known: u32,
    },
    /// A Monitor Node of an earlier release serves from the store.
    #[error(
        "the Monitor Node at {addr} is of an earlier release (store format {found}, here {known}): \
         stop it and all others of its release, then start the new ones; if they have just stopped, \
         wait some seconds"
    )]
    OtherFormat {
        /// Its address.
        addr: String,
        /// The store's format.
        found: u32,
        /// The format of this release.
        known: u32,
    },
    /// The Monitor Node did not receive the changes of its peers in time.
    #[error("cut off from the store: the changes of other Monitor Nodes do not arrive")]
    CutOff,
    /// Another program than a Monitor Node has changed the store.
    #[error("the store's record {key} was removed by another program than a Monitor Node")]
    Meddled {
        /// The record's key.
        key: String,
    },
    /// A Monitor Node of an older Venice uses the store exclusively.
    #[error(
        "the Monitor Node at {addr} serves this rack alone, as those of an older Venice do: stop \
         it and all others of that version first; if they have just stopped, wait some seconds"
    )]
    SoleMonitor {
        /// Its address.
        addr: String,
    },
    /// The file with the choice of the store cannot be read or written.
    #[error("cannot use {}, the choice of this rack's store: {why}", path.display())]
    StoreChoice {
        /// The file.
        path: PathBuf,
        /// The reason.
        why: String,
    },
    /// The authority on the disk is another one than that in use: a new session takes it up.
    #[error("the authority was rotated")]
    AuthorityChanged,
    /// A backup cannot be made, read or restored.
    #[error("{0}")]
    Backup(String),
    /// The store of a new rack has tables already.
    #[error(
        "{store} has the tables of a rack already: found this one with a store of its own (--store, \
         with another prefix or file)"
    )]
    NotFree {
        /// The store's location.
        store: String,
    },
    /// The store belongs to another rack.
    #[error(
        "the tables in {store} are another rack's: its authority has the fingerprint {theirs} (its \
         first Monitor Node was at {addr}), and the one in {} has {ours}: give this rack a store of \
         its own (--store, with another prefix or file), or start with that rack's authority (a copy \
         of its Monitor Node's folder `identity`)",
        identity.display()
    )]
    OtherRack {
        /// The store's location.
        store: String,
        /// The fingerprint of that rack's authority.
        theirs: String,
        /// The address of its first Monitor Node.
        addr: String,
        /// The fingerprint of this rack's authority.
        ours: String,
        /// The directory of this rack's authority.
        identity: PathBuf,
    },
    /// The address of the listening socket cannot be read.
    #[error("cannot read the listening socket's address")]
    Listener(#[source] std::io::Error),
    /// No threads can be started for the heartbeat server.
    #[error("cannot start threads for the heartbeat server")]
    Threads(#[source] std::io::Error),
    /// A task of the Monitor Node panicked or was cancelled: a bug.
    #[error("a task of the Monitor Node failed")]
    Driver(#[source] tokio::task::JoinError),
    /// The system provides no random numbers for keys.
    #[error("the system provides no random numbers")]
    Random(#[source] std::io::Error),
}

impl MonitorError {
    /// True if the error may pass by itself: the store answers again, has room again, or is
    /// reloaded.
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
