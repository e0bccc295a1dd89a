//! The Monitor Node as a library function: [`run`] with a [`MonitorConfig`].
//!
//! It keeps the rack's tables (`venice-rack`), answers gRPC (`venice-control`) and calls the
//! donors. Every change is durable in the store before it takes effect. The process may be killed
//! at any moment: the next one starts from the store.
#![forbid(unsafe_code)]

mod backup;
mod clock;
mod config;
mod donors;
mod driver;
mod enrolment;
mod error;
mod event_log;
mod file_store;
mod heartbeat_server;
mod init;
mod inputs;
mod keys;
mod log;
mod metrics;
mod migration;
mod observed;
mod owner_record;
mod peers;
mod records;
mod renewal;
mod rotation;
mod service;
mod session;
mod shared_store;
mod store_choice;
mod tenure;
mod trust;

pub use backup::{Backup, BackupInfo, GivenRecords, Restored};
pub use config::{MonitorConfig, MonitorReady, OnReady};
pub use error::MonitorError;
pub use init::init;
pub use store_choice::{STORE_CHOICE_FILE, StoreChoice};
pub use venice_store::StoreError;

use heartbeat_server::HeartbeatServer;
use session::Session;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use venice_control::server::bind;
use venice_observe::MetricsServer;
use venice_store::{EtcdLocation, EtcdStore, StoreLocation};

/// Pause before a failed session is started again.
const PAUSE: Duration = Duration::from_millis(200);
/// Duration from which a wait is logged.
const LONG_WAIT: Duration = Duration::from_secs(1);
/// Directory of the rack's authority, in the state directory.
pub const IDENTITY_DIR: &str = "identity";
/// File with the address that the rack was made with, in the state directory.
const ADDRESS_FILE: &str = "address";
/// File of the store in the state directory, by default.
const STORE_FILE: &str = "rack.redb";

/// Runs a Monitor Node until `shutdown` completes. Prints nothing; logs by `tracing`. Calls
/// `config.on_ready` with the address it listens on. A Monitor Node with its store in etcd stops
/// listening while it is cut off from there, and resumes by itself.
///
/// # Errors
/// [`MonitorError`] when the configuration is invalid, the address cannot be listened on, or the
/// store cannot be read or written; with etcd only at the start.
pub async fn run(
    config: MonitorConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), MonitorError> {
    let config = config.with_founded_store()?;
    config.validate()?;
    let location = config.store_location()?;
    // A taken address fails before any wait.
    let listener = bind(&config.listen_address()?).await?;
    let addr = listener.local_addr().map_err(MonitorError::Listener)?;
    let metrics = match &config.metrics {
        Some(metrics) => Some(MetricsServer::bind(metrics).await?),
        None => None,
    };
    let mut listener = Some(listener);
    let heartbeat_server = HeartbeatServer::start().map_err(MonitorError::Threads)?;
    let metrics_addr = metrics.as_ref().map(MetricsServer::addr);
    let mut session = Session::new(config, MonitorReady { addr, metrics_addr }, heartbeat_server)?;
    // In a set, so that it ends when this future does.
    let mut observing = JoinSet::new();
    if let Some(metrics) = metrics {
        observing.spawn(metrics.serve(Arc::clone(&session.observed)));
    }
    let mut shutdown = std::pin::pin!(shutdown);
    let etcd = match location {
        StoreLocation::File(_) => None,
        StoreLocation::Etcd(etcd) => {
            let tls = session.config.store_choice().tls();
            let connecting = EtcdStore::connect(&etcd, &tls);
            tokio::select! {
                connected = log_long_wait(&etcd, connecting) => Some(connected?),
                () = &mut shutdown => return Ok(()),
            }
        }
    };
    let mut has_served = false;
    let mut logged: Option<String> = None;
    loop {
        let started = async {
            let opened = session.open(etcd.as_ref()).await?;
            let listener = match listener.take() {
                Some(listener) => listener,
                None => bind(&addr.to_string()).await?,
            };
            Ok((listener, opened))
        };
        let started = tokio::select! {
            started = started => started,
            () = &mut shutdown => return Ok(()),
        };
        let ended = match started {
            Ok((listener, opened)) => {
                (has_served, logged) = (true, None);
                session.serve(listener, opened, &mut shutdown).await
            }
            Err(error) => Err(error),
        };
        if let Err(error) = &ended {
            session.observed.note_away(&error.to_string());
        }
        match ended {
            Err(error) if has_served && etcd.is_some() && error.is_passing() => {
                // A lasting error is logged once.
                let why = error.to_string();
                if logged.replace(why.clone()) != Some(why) {
                    tracing::warn!(%error, "not serving until the store is available again");
                }
            }
            Err(MonitorError::AuthorityChanged) => session.load_authority()?,
            ended => return ended,
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = &mut shutdown => return Ok(()),
        }
    }
}

/// Awaits the connection, and logs a long wait: nothing else is logged before it.
async fn log_long_wait<T>(etcd: &EtcdLocation, connecting: impl Future<Output = T>) -> T {
    let mut connecting = std::pin::pin!(connecting);
    match tokio::time::timeout(LONG_WAIT, &mut connecting).await {
        Ok(connected) => connected,
        Err(_) => {
            tracing::info!(store = %etcd, "waiting for etcd to answer");
            connecting.await
        }
    }
}
