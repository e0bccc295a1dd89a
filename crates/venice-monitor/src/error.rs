//! Why a Monitor Node stops.

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
    /// Another Monitor Node may serve the rack from here on.
    #[error(
        "its turn is over: it could not renew it in the store in time, and another Monitor Node may \
         serve the rack; started again, it stands by"
    )]
    TurnOver,
    /// The listening socket does not tell its address.
    #[error("the listening socket does not tell its address")]
    Listener(#[source] std::io::Error),
    /// A part of the Monitor Node broke off: a bug.
    #[error("a part of the Monitor Node broke off")]
    Driver(#[source] tokio::task::JoinError),
    /// The system gives no random numbers for keys.
    #[error("the system gives no random numbers")]
    Random(#[source] std::io::Error),
}
