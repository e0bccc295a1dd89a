//! The Monitor Node as a library function: [`run`] it with a [`MonitorConfig`].
//!
//! It keeps the rack's tables (`venice-rack`), answers gRPC (`venice-control`), calls the donors,
//! and writes every change to its store before anybody acts on it. It may be killed at any moment:
//! the next one starts from the store.
#![forbid(unsafe_code)]

mod clock;
mod company;
mod config;
mod crowd;
mod donors;
mod driver;
mod error;
mod file_store;
mod gate;
mod init;
mod inputs;
mod keys;
mod log;
mod mark;
mod records;
mod renewal;
mod service;
mod session;
mod shared_store;
mod store_choice;
mod tenure;
mod wardens;

pub use config::{MonitorConfig, OnReady};
pub use error::MonitorError;
pub use init::init;
pub use store_choice::{STORE_CHOICE_FILE, StoreChoice};

use crowd::Crowd;
use session::Session;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use venice_control::Caller;
use venice_control::identity::{Authority, Holder};
use venice_control::server::{TlsServer, bind};
use venice_store::{EtcdLocation, EtcdStore, StoreLocation};

/// Pause before what broke off is begun anew.
const PAUSE: Duration = Duration::from_millis(200);
/// A wait that somebody who looks on wants to know of.
const WORTH_TELLING: Duration = Duration::from_secs(1);
/// The rack's authority in the state directory.
pub const IDENTITY_DIR: &str = "identity";
/// File of the store in the state directory, if it is nowhere else.
const STORE_FILE: &str = "rack.redb";

/// Runs a Monitor Node until `shutdown` completes. Prints nothing; logs by `tracing`. Calls
/// `config.on_ready` with the address it listens on. One that has its store in etcd, among others,
/// does not listen while it is cut off from there, and goes on by itself.
///
/// # Errors
/// [`MonitorError`] when the configuration makes no sense, the address cannot be listened on, or
/// the store cannot be read or written; with etcd only at the start.
pub async fn run(
    config: MonitorConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), MonitorError> {
    let config = config.with_founded_store()?;
    config.validate()?;
    let location = config.store_location()?;
    // Whoever finds the address taken says so before it waits for anything else.
    let listener = bind(&config.listen).await?;
    let addr = listener.local_addr().map_err(MonitorError::Listener)?;
    let mut listener = Some(listener);
    let authority = Authority::open(&config.identity_dir())?.with_lifetimes(config.lifetimes());
    let authority = Arc::new(authority);
    let holder = Holder::new(authority.credential(&Caller::Monitor)?)?;
    let door = TlsServer::new(holder.clone())?;
    let crowd = Crowd::start().map_err(MonitorError::Threads)?;
    let mut session = Session { config, addr, authority, holder, door, crowd };
    let mut shutdown = std::pin::pin!(shutdown);
    let etcd = match location {
        StoreLocation::File(_) => None,
        StoreLocation::Etcd(etcd) => {
            let tls = session.config.store_choice().tls();
            let connecting = EtcdStore::connect(&etcd, &tls);
            tokio::select! {
                connected = patiently(&etcd, connecting) => Some(connected?),
                () = &mut shutdown => return Ok(()),
            }
        }
    };
    let mut has_served = false;
    let mut told: Option<String> = None;
    loop {
        let begun = async {
            let opened = session.open(etcd.as_ref()).await?;
            let listener = match listener.take() {
                Some(listener) => listener,
                None => bind(&addr.to_string()).await?,
            };
            Ok((listener, opened))
        };
        let begun = tokio::select! {
            begun = begun => begun,
            () = &mut shutdown => return Ok(()),
        };
        let ended = match begun {
            Ok((listener, opened)) => {
                (has_served, told) = (true, None);
                session.serve(listener, opened, &mut shutdown).await
            }
            Err(error) => Err(error),
        };
        match ended {
            Err(error) if has_served && etcd.is_some() && error.is_passing() => {
                // The same is said once, for as long as it lasts.
                let why = error.to_string();
                if told.replace(why.clone()) != Some(why) {
                    tracing::warn!(%error, "serves nobody until the store is there again");
                }
            }
            ended => return ended,
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            () = &mut shutdown => return Ok(()),
        }
    }
}

/// Says so where that takes long: it is the first that this daemon would say.
async fn patiently<T>(etcd: &EtcdLocation, connecting: impl Future<Output = T>) -> T {
    let mut connecting = std::pin::pin!(connecting);
    match tokio::time::timeout(WORTH_TELLING, &mut connecting).await {
        Ok(connected) => connected,
        Err(_) => {
            tracing::info!(store = %etcd, "waits for etcd to answer");
            connecting.await
        }
    }
}
