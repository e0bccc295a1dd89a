//! A Monitor Node and agents in one process, and a recipient over UDP.

// Each test program uses a part of it.
#![allow(dead_code)]

use std::future::Future;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use venice_agent::{AgentConfig, AgentError, AgentReady};
use venice_control::client::{AgentClient, MonitorClient};
use venice_control::{AllocationRequest, Grant, LeaseState, Want};
use venice_fabric::{AccessError, FabricError, InitiatorConfig, PeerIndex, PeerState, Revocation};
use venice_monitor::{MonitorConfig, MonitorError};
use venice_ports::monotonic_ns;
use venice_ports::seal::SealedAs;
use venice_ports::udp::{UdpDriver, unspecified_like};
use venice_testkit::identity::access;
use venice_wire::{ByteSize, GrantId, GrantKey, KeyName, NodeId, PortId};

pub const PATIENCE: Duration = Duration::from_secs(30);

/// The task of a daemon; dropping it is the daemon's sudden death.
pub struct Daemon<E> {
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<Result<(), E>>,
}

impl<E> Daemon<E> {
    /// Stops the daemon in an orderly way.
    pub async fn stop(mut self) {
        let _ = self.stop.take().unwrap().send(());
        let ended = tokio::time::timeout(PATIENCE, &mut self.task).await.expect("it does not stop");
        assert!(matches!(ended, Ok(Ok(()))));
    }
}

impl<E> Drop for Daemon<E> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Starts a Monitor Node and waits until it listens.
pub async fn monitor(dir: &Path, listen: &str, lease_s: f64) -> (Daemon<MonitorError>, SocketAddr) {
    start_monitor(MonitorConfig { listen: listen.into(), ..monitor_config(dir, lease_s) }).await
}

pub fn monitor_config(dir: &Path, lease_s: f64) -> MonitorConfig {
    venice_testkit::identity::install(&dir.join("monitor"));
    MonitorConfig {
        listen: "127.0.0.1:0".into(),
        state_dir: dir.join("monitor"),
        heartbeat_interval_s: 0.1,
        lease_s,
        ..MonitorConfig::default()
    }
}

pub async fn start_monitor(config: MonitorConfig) -> (Daemon<MonitorError>, SocketAddr) {
    let (ready, listening) = oneshot::channel();
    let on_ready = venice_monitor::OnReady::new(move |at| {
        let _ = ready.send(at.addr);
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(venice_monitor::run(MonitorConfig { on_ready, ..config }, async {
        let _ = stopped.await;
    }));
    let addr = tokio::time::timeout(PATIENCE, listening).await.expect("no monitor").unwrap();
    (Daemon { stop: Some(stop), task }, addr)
}

pub fn agent_config(dir: &Path, name: &str, monitor: SocketAddr) -> AgentConfig {
    AgentConfig {
        name: name.into(),
        monitor: monitor.to_string(),
        identity: venice_testkit::identity::node(dir, name),
        lend: ByteSize::mib(32),
        shm_socket: Some(dir.join(format!("{name}.sock"))),
        ..AgentConfig::default()
    }
}

/// Starts an agent and waits until it listens.
pub async fn agent(
    dir: &Path,
    name: &str,
    monitor: SocketAddr,
) -> (Daemon<AgentError>, AgentReady) {
    start_agent(agent_config(dir, name, monitor)).await
}

pub async fn start_agent(config: AgentConfig) -> (Daemon<AgentError>, AgentReady) {
    let (ready, listening) = oneshot::channel();
    let on_ready = venice_agent::OnReady::new(move |at| {
        let _ = ready.send(at);
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let task = tokio::spawn(venice_agent::run(AgentConfig { on_ready, ..config }, async {
        let _ = stopped.await;
    }));
    let at = tokio::time::timeout(PATIENCE, listening).await.expect("no agent").unwrap();
    (Daemon { stop: Some(stop), task }, at)
}

/// Retries `attempt` until it yields a value, for a bounded time.
pub async fn eventually<T, F: Future<Output = Option<T>>>(
    what: &str,
    mut attempt: impl FnMut() -> F,
) -> T {
    let wait = async {
        loop {
            if let Some(found) = attempt().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, wait).await.unwrap_or_else(|_| panic!("in vain: {what}"))
}

/// Connects, and waits until `nodes` nodes are up with `free_bytes` bytes free altogether.
pub async fn rack_with(monitor: SocketAddr, nodes: usize, free_bytes: u64) -> MonitorClient {
    eventually(&format!("{nodes} nodes up, {free_bytes} bytes free"), || async {
        let mut client = MonitorClient::connect(&access(monitor)).await.ok()?;
        let rows = client.nodes().await.ok()?;
        let up = rows.iter().filter(|row| row.state == "up");
        let (count, free) = up.fold((0, 0), |(n, free), row| (n + 1, free + row.free_bytes));
        ((count, free) == (nodes, free_bytes)).then_some(client)
    })
    .await
}

pub fn request(bytes: u64, client_id: u128) -> AllocationRequest {
    AllocationRequest {
        wants: vec![Want::memory(bytes, 1)],
        client_id,
        recipient: "test".into(),
        donors: vec![],
        home: String::new(),
        placement: None,
        purpose: "test".into(),
        queueing: Default::default(),
    }
}

/// Returns the leases of these grants, for a release.
pub fn leases(grants: &[Grant]) -> Vec<(GrantId, GrantKey)> {
    grants.iter().map(|grant| (grant.id, grant.key)).collect()
}

/// A recipient over UDP with one grant mapped at 0.
pub struct Far {
    driver: UdpDriver,
    peer: PeerIndex,
}

impl Far {
    pub fn new(grant: &Grant) -> Self {
        assert!(grant.seal_key().is_some(), "protection is the default");
        Self::reaching(grant, None)
    }

    /// Reaches the donor directly, or through the relay of a node; sealed if the rack is.
    pub fn reaching(grant: &Grant, home: Option<SocketAddr>) -> Self {
        let address: SocketAddr = grant.address(PortId::Udp).parse().unwrap();
        let config = InitiatorConfig::new(NodeId(1000), monotonic_ns());
        let name = KeyName::Grant(grant.id);
        let named = grant.seal_key().map(|key| SealedAs { name, key });
        let (donor, local) = (grant.donor_node, unspecified_like(address));
        let (mut driver, peer) = match home {
            None => UdpDriver::towards(local, config, donor, address, named).unwrap(),
            Some(home) => {
                let make = if named.is_some() { UdpDriver::sealed } else { UdpDriver::new };
                let mut driver = make(local, config).unwrap();
                let peer = driver.add_peer_via(monotonic_ns(), donor, home, named).unwrap();
                (driver, peer)
            }
        };
        driver.initiator().map_window(0, grant.share.bytes, peer, 0, grant.id, grant.key).unwrap();
        Self { driver, peer }
    }

    /// Waits, idle, until the donor reports the end of the grant.
    pub fn await_revocation(&mut self) -> Revocation {
        let start = std::time::Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "nobody says that the grant is over");
            self.driver.pump(monotonic_ns()).unwrap();
            // A recipient that detects it by itself has not been notified.
            assert!(!matches!(self.state(), PeerState::Down { .. }), "{:?}", self.state());
            if let Some(revocation) = self.driver.initiator().poll_revoked() {
                return revocation;
            }
            self.driver.wait(monotonic_ns(), 10_000_000).unwrap();
        }
    }

    /// Returns the grant whose end the donor has reported, if any.
    pub fn poll_revocation(&mut self) -> Option<GrantId> {
        self.driver.initiator().poll_revoked().map(|revocation| revocation.grant)
    }

    pub fn state(&mut self) -> PeerState {
        let peer = self.peer;
        self.driver.initiator().peer_state(peer)
    }

    /// True if an access is accepted.
    pub fn try_read(&mut self) -> Result<(), FabricError> {
        self.driver.initiator().read(monotonic_ns(), 1, 0, 8)
    }

    pub fn read(&mut self, at: u64, len: u32) -> Result<Vec<u8>, AccessError> {
        self.driver.initiator().read(monotonic_ns(), 1, at, len).unwrap();
        self.finish()
    }

    pub fn write(&mut self, at: u64, bytes: &[u8]) -> Result<Vec<u8>, AccessError> {
        self.driver.initiator().write(monotonic_ns(), 1, at, bytes).unwrap();
        self.finish()
    }

    /// Writes, with the reason of a refusal at this end or at the donor's.
    pub fn try_write(&mut self, at: u64, bytes: &[u8]) -> Result<(), String> {
        let begun = self.driver.initiator().write(monotonic_ns(), 1, at, bytes);
        begun.map_err(|error| format!("at once: {error:?}"))?;
        self.finish().map(drop).map_err(|error| format!("by the donor: {error:?}"))
    }

    pub fn finish(&mut self) -> Result<Vec<u8>, AccessError> {
        let start = std::time::Instant::now();
        loop {
            assert!(start.elapsed() < PATIENCE, "the access never ends");
            let now_ns = monotonic_ns();
            self.driver.pump(now_ns).unwrap();
            if let Some(done) = self.driver.initiator().poll_completion() {
                return done.result.map(|()| done.data.to_vec());
            }
            self.driver.wait(monotonic_ns(), 10_000_000).unwrap();
        }
    }
}

pub async fn renew(grant: &Grant) -> LeaseState {
    let mut agent = agent_of(grant).await;
    agent.renew(&[(grant.id, grant.key)]).await.unwrap()[0].clone()
}

/// Connects to a grant's donor.
pub async fn agent_of(grant: &Grant) -> AgentClient {
    let login = venice_testkit::identity::login();
    AgentClient::connect(&login, &grant.donor, &grant.control_addr, PATIENCE).await.unwrap()
}
