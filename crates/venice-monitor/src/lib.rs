//! The Monitor Node as a library function: [`run`] it with a [`MonitorConfig`].
//!
//! It keeps the rack's tables (`venice-rack`), answers gRPC (`venice-control`), calls the donors,
//! and writes every change to its store before anybody acts on it. It may be killed at any moment:
//! the next one starts from the store.
#![forbid(unsafe_code)]

mod clock;
mod config;
mod donors;
mod driver;
mod error;
mod gate;
mod init;
mod keys;
mod records;
mod renewal;
mod service;
mod turn;

pub use config::{MonitorConfig, OnReady};
pub use error::MonitorError;
pub use init::init;

use clock::Clock;
use donors::Donors;
use driver::{Driver, Input, Wardens};
use keys::SystemKeys;
use records::RecordStore;
use service::Service;
use std::future::Future;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use turn::{Tenure, Turn};
use venice_control::Caller;
use venice_control::client::Login;
use venice_control::identity::{Authority, Holder};
use venice_control::server::{Door, LocalSocket, bind, serve_monitor};
use venice_rack::monitor::MonitorCore;
use venice_store::{EtcdStore, EtcdTls, StoreLocation};

/// Calls that wait for the driver; more have to wait for room.
const INPUT_QUEUE: usize = 1024;
/// How long calls in progress may go on after the shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// The rack's authority in the state directory.
pub const IDENTITY_DIR: &str = "identity";
/// File of the store in the state directory, if it is nowhere else.
const STORE_FILE: &str = "rack.redb";

/// Runs a Monitor Node until `shutdown` completes. Prints nothing; logs by `tracing`. Calls
/// `config.on_ready` with the address it listens on.
///
/// # Errors
/// [`MonitorError`] when the configuration makes no sense, the address cannot be listened on, or
/// the store cannot be read or written.
pub async fn run(
    mut config: MonitorConfig,
    shutdown: impl Future<Output = ()> + Send,
) -> Result<(), MonitorError> {
    config.validate()?;
    let keys = SystemKeys::new()?;
    let location = config.store_location()?;
    // Who need not wait for a turn finds out at once where the address is taken. Where one has to, the
    // address may be another's until then.
    let listener = match location {
        StoreLocation::File(_) => Some(bind(&config.listen).await?),
        StoreLocation::Etcd(_) => None,
    };
    let authority = Authority::open(&config.identity_dir())?.with_lifetimes(config.lifetimes());
    let authority = Arc::new(authority);
    let holder = Holder::new(authority.credential(&Caller::Monitor)?)?;
    let door = Door::new(holder.clone())?;
    let mut shutdown = std::pin::pin!(shutdown);
    let waiting = wait_for_turn(location, config.etcd_tls(), config.listen.clone());
    let turn = tokio::select! {
        turn = waiting => turn?,
        () = &mut shutdown => return Ok(()),
    };
    let listener = match listener {
        Some(listener) => listener,
        None => bind(&config.listen).await?,
    };
    let addr = listener.local_addr().map_err(MonitorError::Listener)?;
    let bind_socket = |path: &PathBuf| LocalSocket::bind(path, &config.socket_group);
    let socket = config.local_socket.as_ref().map(bind_socket).transpose()?;
    let (store, records) = match &turn {
        Some(turn) => RecordStore::take_over(turn).await?,
        None => RecordStore::open(config.store_file()).await?,
    };

    let tenure = turn.as_ref().map_or_else(Tenure::for_ever, Turn::tenure);
    let clock = Clock::start();
    let count = records.len();
    let mut core = MonitorCore::recover(config.settings(), Box::new(keys), clock.now_ns(), records);
    core.handle_certificate_life(config.longest_life_ms());
    let (inputs, received) = mpsc::channel(INPUT_QUEUE);
    let donors = Donors::new(Login::held(holder.clone()), config.donor_timeout());
    let wardens = Wardens { door: Arc::clone(&door), authority: Arc::clone(&authority) };
    let driver = Driver::new(core, store, clock, donors, wardens, tenure.clone());
    // A set, so that the driver does not outlive us when we are dropped.
    let mut tasks = JoinSet::new();
    tasks.spawn(driver.run(received));

    let (stop, stopped) = oneshot::channel();
    let service =
        Arc::new(Service::new(inputs.clone(), Arc::clone(&authority), addr, tenure.clone()));
    let mut company = JoinSet::new();
    company.spawn(renewal::keep(holder, authority));
    if let Some(socket) = socket {
        let service = Arc::clone(&service);
        company.spawn(async move {
            if let Err(error) = socket.serve(service).await {
                tracing::error!(%error, "the socket for this machine's programs broke off");
            }
        });
    }
    let serving = serve_monitor(listener, door, service, async {
        // Told to stop, or its caller is gone: both end it.
        let _ = stopped.await;
    });
    let mut serving = std::pin::pin!(serving);
    tracing::info!(%addr, records = count, "the Monitor Node listens");
    std::mem::take(&mut config.on_ready).call(addr);

    let turn_is_over = async {
        match &turn {
            Some(turn) => turn.keep().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        served = &mut serving => served?,
        () = turn_is_over => return Err(MonitorError::TurnOver),
        // It ends by itself only when the store fails.
        driven = tasks.join_next() => return outcome(driven),
        () = &mut shutdown => {
            let _ = stop.send(());
            if let Ok(served) = tokio::time::timeout(SHUTDOWN_GRACE, serving).await {
                served?;
            }
        }
    }
    let _ = inputs.send(Input::Stop).await;
    let driven = tasks.join_next().await;
    if let Some(turn) = turn {
        turn.end().await;
    }
    tracing::info!(%addr, "the Monitor Node has stopped");
    outcome(driven)
}

/// Where others may serve the rack from the same store: waits until none does.
async fn wait_for_turn(
    location: StoreLocation,
    tls: EtcdTls,
    listen: String,
) -> Result<Option<Turn>, MonitorError> {
    let StoreLocation::Etcd(location) = location else { return Ok(None) };
    let store = EtcdStore::connect(&location, &tls).await?;
    Ok(Some(Turn::wait(store, &listen).await?))
}

fn outcome(
    driven: Option<Result<Result<(), MonitorError>, JoinError>>,
) -> Result<(), MonitorError> {
    driven.map_or(Ok(()), |driven| driven.map_err(MonitorError::Driver)?)
}
