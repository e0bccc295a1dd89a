//! One session: serving the rack from one load of the store and the changes since, for as long as
//! these arrive.

use crate::clock::Clock;
use crate::config::{MonitorConfig, MonitorReady};
use crate::donors::Donors;
use crate::driver::Driver;
use crate::error::MonitorError;
use crate::file_store::FileStore;
use crate::heartbeat_server::HeartbeatServer;
use crate::inputs::Input;
use crate::keys::SystemKeys;
use crate::observed::Observed;
use crate::owner_record::Claim;
use crate::records::RecordStore;
use crate::renewal;
use crate::rotation::Rotation;
use crate::service::Service;
use crate::shared_store::SharedStore;
use crate::trust::TrustState;
use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinError, JoinSet};
use venice_control::Caller;
use venice_control::client::Login;
use venice_control::identity::{Authority, Fingerprint, Holder};
use venice_control::server::{LocalSocket, TlsServer, serve_monitor};
use venice_rack::monitor::{MonitorCore, Record, View};
use venice_rack::monitor_node::MonitorNode;
use venice_store::EtcdStore;

/// Capacity of the driver's queue of calls; callers wait beyond it.
const INPUT_QUEUE: usize = 1024;
/// Limit for calls in progress after the shutdown.
const SHUTDOWN_GRACE: Duration = Duration::from_millis(500);
/// Limit for the last changes.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// State that all sessions share.
pub(crate) struct Session {
    pub(crate) config: MonitorConfig,
    pub(crate) ready: MonitorReady,
    pub(crate) authority: Arc<Authority>,
    pub(crate) holder: Holder,
    pub(crate) door: Arc<TlsServer>,
    pub(crate) heartbeat_server: HeartbeatServer,
    pub(crate) observed: Arc<Observed>,
}

impl Session {
    pub(crate) fn new(
        config: MonitorConfig,
        ready: MonitorReady,
        heartbeat_server: HeartbeatServer,
    ) -> Result<Self, MonitorError> {
        let (authority, holder, door) = load_authority(&config)?;
        let observed = Arc::new(Observed::new(Arc::clone(&door)));
        Ok(Self { config, ready, authority, holder, door, heartbeat_server, observed })
    }

    /// Takes up the authority on the disk, with a new certificate.
    pub(crate) fn load_authority(&mut self) -> Result<(), MonitorError> {
        (self.authority, self.holder, self.door) = load_authority(&self.config)?;
        self.observed.set_door(&self.door);
        Ok(())
    }

    /// Opens the store and reads its records, with their revisions.
    pub(crate) async fn open(
        &self,
        etcd: Option<&EtcdStore>,
    ) -> Result<(RecordStore, Vec<(u64, Record)>), MonitorError> {
        let claim = self.claim()?;
        match etcd {
            Some(etcd) => SharedStore::open(etcd.clone(), &claim).await,
            None => {
                let path = PathBuf::from(&claim.store);
                let (file, records) = FileStore::open(path, &claim).await?;
                let records = records.into_iter().map(|record| (0, record)).collect();
                Ok((RecordStore::File(file), records))
            }
        }
    }

    fn claim(&self) -> Result<Claim, MonitorError> {
        Ok(Claim {
            authority: self.authority.fingerprint(),
            former: self.authority.authorities().former().map(|it| Fingerprint::of(it)),
            identity: self.config.identity_dir(),
            addr: self.ready.addr.to_string(),
            store: self.config.store_location()?.to_string(),
        })
    }

    /// Serves until `shutdown` completes. An error is the reason why serving ended early.
    pub(crate) async fn serve(
        &mut self,
        listener: TcpListener,
        (store, records): (RecordStore, Vec<(u64, Record)>),
        shutdown: &mut Pin<&mut (impl Future<Output = ()> + Send)>,
    ) -> Result<(), MonitorError> {
        let (addr, count) = (self.ready.addr, records.len());
        let peer_tasks = PeerTasks::of(&store);
        let mut tasks = JoinSet::new();
        let (inputs, received) = mpsc::channel(INPUT_QUEUE);
        let tenure = store.tenure();
        let driver = self.driver(store, records)?;
        // In a set, so that the driver ends when this future is dropped.
        let (reports, heard) = self.heartbeat_server.reports();
        tasks.spawn(driver.run(received, heard));
        let authority = Arc::clone(&self.authority);
        let channels = (inputs.clone(), reports);
        let rotation = Rotation {
            dir: self.config.identity_dir(),
            user_life: self.config.lifetimes().user,
            changed: Arc::default(),
        };
        let changed = Arc::clone(&rotation.changed);
        let counters = Arc::clone(&self.observed.counters);
        let service = Service::new(channels, authority, addr, tenure.clone(), rotation, counters);
        let service = Arc::new(service);
        let _background = self.background(&service, peer_tasks.renewal)?;
        let (stop, stopped) = oneshot::channel();
        // A send and a dropped sender both stop the server.
        let stopped = async { drop(stopped.await) };
        let (door, nodes) = (Arc::clone(&self.door), self.heartbeat_server.handle());
        let nodes = (nodes, self.config.user_calls);
        let serving = serve_monitor(listener, door, Arc::clone(&service), nodes, stopped);
        let mut serving = std::pin::pin!(serving);
        tracing::info!(%addr, records = count, "the Monitor Node listens");
        if let Some(addr) = self.ready.metrics_addr {
            tracing::info!(%addr, "metrics and health are served, at /metrics, /healthz, /readyz");
        }
        self.observed.note_serving(&service);
        std::mem::take(&mut self.config.on_ready).call(self.ready);
        let is_rotated = tokio::select! {
            served = &mut serving => served.map(|()| false)?,
            () = tenure.over() => return Err(MonitorError::CutOff),
            // The driver ends by itself only when the store fails.
            driven = tasks.join_next() => return outcome(driven),
            () = shutdown => false,
            () = changed.notified() => true,
        };
        let _ = stop.send(());
        if let Ok(served) = tokio::time::timeout(SHUTDOWN_GRACE, serving).await {
            served?;
        }
        let last = async {
            let _ = inputs.send(Input::Stop).await;
            tasks.join_next().await
        };
        let Ok(driven) = tokio::time::timeout(STOP_TIMEOUT, last).await else {
            tracing::warn!("the store accepts no changes in time: the last changes are not made");
            return Ok(());
        };
        peer_tasks.withdrawal.await;
        if is_rotated {
            outcome(driven)?;
            tracing::info!("the authority was rotated; all connections are made anew");
            return Err(MonitorError::AuthorityChanged);
        }
        tracing::info!(%addr, "the Monitor Node has stopped");
        outcome(driven)
    }

    fn driver(&self, store: RecordStore, seen: Vec<(u64, Record)>) -> Result<Driver, MonitorError> {
        let (clock, keys) = (Clock::start(), Box::new(SystemKeys::new()?));
        let recover = match store.shared() {
            Some(_) => MonitorCore::recover_with_peers,
            None => MonitorCore::recover,
        };
        let records: Vec<Record> = seen.iter().map(|(_, record)| record.clone()).collect();
        let core = recover(self.config.settings(), keys, clock.now_ns(), records);
        let view = store.shared().map(|_| View::new(seen));
        let life_ms = self.config.longest_life_ms();
        let node = MonitorNode::new(core, view, clock.now_ns(), life_ms);
        let login = Login::held(self.holder.clone());
        let donors = Donors::new(login, self.config.donor_timeout());
        let (door, authority) = (Arc::clone(&self.door), Arc::clone(&self.authority));
        let version = authority.authorities().version();
        let trust = TrustState { door, authority, version };
        let counters = Arc::clone(&self.observed.counters);
        Ok(Driver::new(node, store, clock, donors, trust, counters))
    }

    /// Starts the background tasks.
    fn background(
        &self,
        service: &Arc<Service>,
        renewal: impl Future<Output = ()> + Send + 'static,
    ) -> Result<JoinSet<()>, MonitorError> {
        let mut background = JoinSet::new();
        background.spawn(renewal::keep(self.holder.clone(), Arc::clone(&self.authority)));
        background.spawn(renewal);
        let bind_socket = |path: &PathBuf| LocalSocket::bind(path, &self.config.socket_group);
        let socket = self.config.local_socket.as_ref().map(bind_socket).transpose()?;
        if let Some(socket) = socket {
            let service = Arc::clone(service);
            background.spawn(async move {
                if let Err(error) = socket.serve(service).await {
                    tracing::error!(%error, "the socket for this machine's programs failed");
                }
            });
        }
        Ok(background)
    }
}

type Credentials = (Arc<Authority>, Holder, Arc<TlsServer>);

fn load_authority(config: &MonitorConfig) -> Result<Credentials, MonitorError> {
    let authority = Authority::open(&config.identity_dir())?.with_lifetimes(config.lifetimes());
    let holder = Holder::new(authority.credential(&Caller::Monitor)?)?;
    let door = TlsServer::new(holder.clone())?;
    Ok((Arc::new(authority), holder, door))
}

type BoxedTask = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The tasks that keep this member's record for its peers, if there may be any.
struct PeerTasks {
    renewal: BoxedTask,
    withdrawal: BoxedTask,
}

impl PeerTasks {
    fn of(store: &RecordStore) -> Self {
        let Some(shared) = store.shared() else {
            return Self { renewal: Box::pin(async {}), withdrawal: Box::pin(async {}) };
        };
        let (member, etcd) = (shared.member(), shared.etcd());
        let renewal = Box::pin(member.keep_renewed(etcd.clone()));
        Self { renewal, withdrawal: Box::pin(member.withdraw(etcd.clone())) }
    }
}

fn outcome(
    driven: Option<Result<Result<(), MonitorError>, JoinError>>,
) -> Result<(), MonitorError> {
    driven.map_or(Ok(()), |driven| driven.map_err(MonitorError::Driver)?)
}
