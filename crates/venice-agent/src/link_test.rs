//! Link tests: latency and bandwidth to other nodes, measured on the data path.
//!
//! A test opens a link to the peer's UDP data port and reads a few times from a grant that does not
//! exist. The refusals take the same path as pages, through the peer's own serving thread, and need
//! no memory there. The rare bandwidth bursts work the same way.

mod bandwidths;
mod burst;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use venice_control::{LinkPort, LinkProtection, LinkReport, LinkState, Peer};
use venice_fabric::{InitiatorConfig, PeerIndex, PeerState};
use venice_ports::seal::{SealedAs, preferred_algorithm};
use venice_ports::udp::{UdpDriver, unspecified_like};
use venice_ports::{PortError, monotonic_ns};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, SealAlgorithm};

use bandwidths::Bandwidths;

/// Reads in a test.
const ECHOES: u64 = 5;
/// Timeout of a test in nanoseconds.
const PATIENCE_NS: u64 = 300_000_000;
/// Most peers tested in a round; with more peers, rounds rotate.
const PEERS_PER_ROUND: usize = 16;
/// Weight of a test's loss against all earlier ones.
const LOSS_WEIGHT: f64 = 0.1;
/// A grant id that no Monitor Node issues.
const NO_GRANT: GrantId = GrantId(0);
const NO_PANIC: &str = "no thread panics with the results";

/// Tests the links to the peers of the latest round, in the background.
#[derive(Debug)]
pub(crate) struct LinkTests {
    round: watch::Sender<Round>,
    results: Arc<Mutex<Results>>,
}

/// The peers to test.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    /// This node.
    pub(crate) own: NodeId,
    /// The far ends.
    pub(crate) peers: Vec<Peer>,
    /// Traffic of this node's programs at present, in megabits a second.
    pub(crate) busy_mbps: f64,
    /// True if only bandwidth is to be measured: the hop links report the rest.
    pub(crate) bandwidth_alone: bool,
}

#[derive(Debug, Default)]
struct Results {
    /// Reports since they were last taken.
    reports: Vec<LinkReport>,
    /// Bandwidths in megabits a second, where known.
    bandwidths: BTreeMap<NodeId, f64>,
}

impl LinkTests {
    /// Starts the background task; it ends when the tests are dropped.
    pub(crate) fn start() -> Self {
        let (round, mut rounds) = watch::channel(Round::default());
        let results = Arc::new(Mutex::new(Results::default()));
        let new = Arc::clone(&results);
        tokio::spawn(async move {
            let mut history = History::default();
            while rounds.changed().await.is_ok() {
                let round = rounds.borrow_and_update().clone();
                let tested = tokio::task::spawn_blocking(move || {
                    let reports = history.test(&round);
                    (history, reports)
                });
                let Ok((kept, reports)) = tested.await else { return };
                history = kept;
                let bandwidths = history.bandwidths.known();
                *new.lock().expect(NO_PANIC) = Results { reports, bandwidths };
            }
        });
        Self { round, results }
    }

    /// The results since the last call.
    pub(crate) fn take(&self) -> Vec<LinkReport> {
        std::mem::take(&mut self.results.lock().expect(NO_PANIC).reports)
    }

    /// Returns the bandwidth of links in megabits a second, by far end, where known.
    pub(crate) fn bandwidths_mbps(&self) -> BTreeMap<NodeId, f64> {
        self.results.lock().expect(NO_PANIC).bandwidths.clone()
    }

    /// Starts a round; if one is in progress, after that.
    pub(crate) fn test(&self, round: Round) {
        self.round.send_replace(round);
    }
}

/// State kept between rounds.
#[derive(Debug, Default)]
struct History {
    /// Loss by peer. A round in a large rack covers some peers: the others keep their values.
    loss: BTreeMap<NodeId, f64>,
    bandwidths: Bandwidths,
    turn: usize,
}

impl History {
    fn test(&mut self, round: &Round) -> Vec<LinkReport> {
        let count = round.peers.len();
        let first = if count == 0 { 0 } else { self.turn % count };
        self.turn = first + PEERS_PER_ROUND.min(count);
        let in_turn = round.peers.iter().cycle().skip(first).take(count.min(PEERS_PER_ROUND));
        let in_turn: Vec<&Peer> = in_turn.collect();
        self.measure_bandwidth(round, &in_turn);
        if round.bandwidth_alone {
            return Vec::new();
        }
        in_turn.into_iter().filter_map(|peer| self.test_peer(round.own, peer)).collect()
    }

    /// Measures the bandwidth to at most one of the peers.
    fn measure_bandwidth(&mut self, round: &Round, peers: &[&Peer]) {
        let nodes: Vec<NodeId> = peers.iter().map(|peer| peer.node).collect();
        let node = self.bandwidths.next(monotonic_ns(), &nodes, round.busy_mbps);
        let Some(peer) = peers.iter().find(|peer| Some(peer.node) == node) else { return };
        let measured = reached(round.own, peer).map(|(address, named)| {
            burst::measure(round.own, peer.node, address, named).unwrap_or_else(|error| {
                tracing::debug!(peer = peer.name, %error, "bandwidth test failed");
                None
            })
        });
        self.bandwidths.note(monotonic_ns(), peer.node, measured.flatten());
    }

    /// Tests a peer; `None` for one without a reachable UDP port.
    fn test_peer(&mut self, own: NodeId, peer: &Peer) -> Option<LinkReport> {
        let (address, named) = reached(own, peer)?;
        let measured = measure(own, peer.node, address, named).unwrap_or_else(|error| {
            tracing::debug!(peer = peer.name, %error, "link test failed");
            None
        });
        let lost = measured.as_ref().map_or(1.0, |measured| measured.loss_ratio);
        let loss = self.loss.entry(peer.node).or_insert(lost);
        *loss += LOSS_WEIGHT * (lost - *loss);
        Some(LinkReport {
            to: peer.node,
            port: LinkPort::Udp,
            state: if measured.is_some() { LinkState::Up } else { LinkState::Down },
            latency_us: measured.map_or(0.0, |measured| measured.latency_us),
            loss_ratio: *loss,
            bandwidth_mbps: self.bandwidths.mbps(peer.node),
            bytes_per_s: None,
            protection: protection(named.is_some()),
        })
    }
}

/// Returns the address of a peer's UDP port, and its key; `None` if it has no reachable port.
fn reached(own: NodeId, peer: &Peer) -> Option<(SocketAddr, Option<SealedAs>)> {
    let named = peer.seal_key.map(|key| SealedAs { name: KeyName::Peer(own), key });
    Some((peer.udp_addr.parse().ok()?, named))
}

/// Returns the protection of this node's datagrams.
pub(crate) fn protection(is_sealed: bool) -> LinkProtection {
    match is_sealed.then(preferred_algorithm) {
        None => LinkProtection::Plain,
        Some(SealAlgorithm::Aes256Gcm) => LinkProtection::Aes256Gcm,
        Some(SealAlgorithm::ChaCha20Poly1305) => LinkProtection::ChaCha20Poly1305,
    }
}

struct Measured {
    /// Median round trip in microseconds.
    latency_us: f64,
    loss_ratio: f64,
}

/// Measures a link; `Ok(None)` without an answer.
fn measure(
    own: NodeId,
    to: NodeId,
    address: SocketAddr,
    named: Option<SealedAs>,
) -> Result<Option<Measured>, PortError> {
    let mut config = InitiatorConfig::new(own, venice_ports::random_u64().unwrap_or(1));
    (config.crma_depth, config.rdma_depth) = (1, 1);
    let deadline_ns = monotonic_ns() + PATIENCE_NS;
    let (mut driver, peer) = to_nowhere(config, to, address, named)?;
    let mut trips_ns = Vec::new();
    if connected(&mut driver, peer, deadline_ns)? {
        for token in 0..ECHOES {
            trips_ns.extend(echo(&mut driver, token, deadline_ns)?);
        }
    }
    let stats = driver.initiator().peer_stats(peer);
    driver.initiator().close_peer(peer);
    driver.pump(monotonic_ns())?;
    trips_ns.sort_unstable();
    Ok(trips_ns.get(trips_ns.len() / 2).map(|median_ns| Measured {
        latency_us: *median_ns as f64 / 1000.0,
        loss_ratio: stats.loss_ratio(),
    }))
}

/// Returns a driver whose only mapping is of a grant that does not exist.
fn to_nowhere(
    config: InitiatorConfig,
    to: NodeId,
    address: SocketAddr,
    named: Option<SealedAs>,
) -> Result<(UdpDriver, PeerIndex), PortError> {
    let (mut driver, peer) =
        UdpDriver::towards(unspecified_like(address), config, to, address, named)?;
    let mapped = driver.initiator().map_window(0, 4096, peer, 0, NO_GRANT, GrantKey(0));
    mapped.expect("the first mapping of a new initiator");
    Ok((driver, peer))
}

fn connected(driver: &mut UdpDriver, peer: PeerIndex, deadline_ns: u64) -> Result<bool, PortError> {
    loop {
        let now_ns = monotonic_ns();
        driver.pump(now_ns)?;
        match driver.initiator().peer_state(peer) {
            PeerState::Up => return Ok(true),
            PeerState::Connecting if now_ns < deadline_ns => {
                driver.wait(now_ns, deadline_ns - now_ns)?;
            }
            PeerState::Connecting | PeerState::Down { .. } => return Ok(false),
        }
    }
}

/// Measures one read and its refusal in nanoseconds; `None` without an answer.
fn echo(driver: &mut UdpDriver, token: u64, deadline_ns: u64) -> Result<Option<u64>, PortError> {
    let start_ns = monotonic_ns();
    if driver.initiator().read(start_ns, token, 0, 64).is_err() {
        return Ok(None);
    }
    loop {
        let now_ns = monotonic_ns();
        driver.pump(now_ns)?;
        if let Some(completion) = driver.initiator().poll_completion() {
            use venice_fabric::AccessError;
            let answered = matches!(completion.result, Ok(()) | Err(AccessError::Refused(_)));
            return Ok(answered.then(|| monotonic_ns() - start_ns));
        }
        if now_ns >= deadline_ns {
            return Ok(None);
        }
        driver.wait(now_ns, deadline_ns - now_ns)?;
    }
}
