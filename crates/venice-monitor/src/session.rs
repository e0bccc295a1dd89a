//! Serving the rack from what the store had at one moment, and what was changed since, for as long as
//! that can be heard of.

use crate::clock::Clock;
use crate::config::MonitorConfig;
use crate::crowd::Crowd;
use crate::donors::Donors;
use crate::driver::Driver;
use crate::error::MonitorError;
use crate::file_store::FileStore;
use crate::inputs::Input;
use crate::keys::SystemKeys;
use crate::mark::Claim;
use crate::records::RecordStore;
use crate::renewal;
use crate::service::Service;
use crate::shared_store::SharedStore;
use crate::tenure::Tenure;
use crate::wardens::Wardens;
use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use venice_control::client::Login;
use venice_control::identity::{Authority, Holder};
use venice_control::server::{LocalSocket, TlsServer, serve_monitor};
use venice_rack::monitor::{MonitorCore, Record};
use venice_store::EtcdStore;

/// Calls that wait for the driver; more have to wait for room.
const INPUT_QUEUE: usize = 1024;
/// How long calls in progress may go on after the shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// How long the last changes may take.
const LAST_CHANGES_WITHIN: Duration = Duration::from_secs(5);

/// What is the same each time that serving is begun anew.
pub(crate) struct Session {
    pub(crate) config: MonitorConfig,
    pub(crate) addr: SocketAddr,
    pub(crate) authority: Arc<Authority>,
    pub(crate) holder: Holder,
    pub(crate) door: Arc<TlsServer>,
    pub(crate) crowd: Crowd,
}

impl Session {
    /// Reads what the store has.
    pub(crate) async fn open(
        &self,
        etcd: Option<&EtcdStore>,
    ) -> Result<(RecordStore, Vec<Record>), MonitorError> {
        let claim = self.claim()?;
        match etcd {
            Some(etcd) => SharedStore::open(etcd.clone(), &claim).await,
            None => {
                let path = PathBuf::from(&claim.store);
                let (file, records) = FileStore::open(path, &claim).await?;
                Ok((RecordStore::File(file), records))
            }
        }
    }

    fn claim(&self) -> Result<Claim, MonitorError> {
        Ok(Claim {
            authority: self.authority.fingerprint(),
            identity: self.config.identity_dir(),
            addr: self.addr.to_string(),
            store: self.config.store_location()?.to_string(),
        })
    }

    /// Serves until it is told to stop: an error is why it cannot go on.
    pub(crate) async fn serve(
        &mut self,
        listener: TcpListener,
        (store, records): (RecordStore, Vec<Record>),
        shutdown: &mut Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<(), MonitorError> {
        let (addr, count) = (self.addr, records.len());
        let company = Company::of(&store);
        let mut tasks = JoinSet::new();
        let (inputs, received) = mpsc::channel(INPUT_QUEUE);
        let tenure = store.shared().map_or_else(Tenure::for_ever, |it| it.company().tenure());
        let driver = self.driver(store, records)?;
        // A set, so that the driver does not outlive us when we are dropped.
        tasks.spawn(driver.run(received));
        let authority = Arc::clone(&self.authority);
        let ways = (inputs.clone(), self.crowd.reports(inputs.clone()));
        let service = Arc::new(Service::new(ways, authority, addr, tenure.clone()));
        let _beside = self.beside(&service, company.signs)?;
        let (stop, stopped) = oneshot::channel();
        // Told to stop, or its caller is gone: both end it.
        let stopped = async { drop(stopped.await) };
        let (door, nodes) = (Arc::clone(&self.door), self.crowd.handle());
        let serving = serve_monitor(listener, door, service, nodes, stopped);
        let mut serving = std::pin::pin!(serving);
        tracing::info!(%addr, records = count, "the Monitor Node listens");
        std::mem::take(&mut self.config.on_ready).call(addr);
        tokio::select! {
            served = &mut serving => served?,
            () = tenure.over() => return Err(MonitorError::CutOff),
            // It ends by itself only when the store fails.
            driven = tasks.join_next() => return outcome(driven),
            () = shutdown => {
                let _ = stop.send(());
                if let Ok(served) = tokio::time::timeout(SHUTDOWN_GRACE, serving).await {
                    served?;
                }
            }
        }
        let last = async {
            let _ = inputs.send(Input::Stop).await;
            tasks.join_next().await
        };
        let Ok(driven) = tokio::time::timeout(LAST_CHANGES_WITHIN, last).await else {
            tracing::warn!("the store takes no changes: what was asked for last is not done");
            return Ok(());
        };
        company.farewell.await;
        tracing::info!(%addr, "the Monitor Node has stopped");
        outcome(driven)
    }

    fn driver(&self, store: RecordStore, records: Vec<Record>) -> Result<Driver, MonitorError> {
        let (clock, keys) = (Clock::start(), Box::new(SystemKeys::new()?));
        let recover = match store.shared() {
            Some(_) => MonitorCore::recover_among_others,
            None => MonitorCore::recover,
        };
        let core = recover(self.config.settings(), keys, clock.now_ns(), records);
        let login = Login::held(self.holder.clone());
        let donors = Donors::new(login, self.config.donor_timeout());
        let (door, authority) = (Arc::clone(&self.door), Arc::clone(&self.authority));
        let wardens = Wardens { door, authority };
        let life_ms = self.config.longest_life_ms();
        Ok(Driver::new(core, store, clock, donors, wardens, life_ms))
    }

    /// What goes on beside.
    fn beside(
        &self,
        service: &Arc<Service>,
        signs: impl Future<Output = ()> + Send + 'static,
    ) -> Result<JoinSet<()>, MonitorError> {
        let mut beside = JoinSet::new();
        beside.spawn(renewal::keep(self.holder.clone(), Arc::clone(&self.authority)));
        beside.spawn(signs);
        let bind_socket = |path: &PathBuf| LocalSocket::bind(path, &self.config.socket_group);
        let socket = self.config.local_socket.as_ref().map(bind_socket).transpose()?;
        if let Some(socket) = socket {
            let service = Arc::clone(service);
            beside.spawn(async move {
                if let Err(error) = socket.serve(service).await {
                    tracing::error!(%error, "the socket for this machine's programs broke off");
                }
            });
        }
        Ok(beside)
    }
}

type Doing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What the other Monitor Nodes are told, where there may be some.
struct Company {
    signs: Doing,
    farewell: Doing,
}

impl Company {
    fn of(store: &RecordStore) -> Self {
        let Some(shared) = store.shared() else {
            return Self { signs: Box::pin(async {}), farewell: Box::pin(async {}) };
        };
        let (company, etcd) = (shared.company(), shared.etcd());
        let signs = Box::pin(company.give_signs(etcd.clone()));
        Self { signs, farewell: Box::pin(company.farewell(etcd.clone())) }
    }
}

fn outcome(
    driven: Option<Result<Result<(), MonitorError>, JoinError>>,
) -> Result<(), MonitorError> {
    driven.map_or(Ok(()), |driven| driven.map_err(MonitorError::Driver)?)
}
