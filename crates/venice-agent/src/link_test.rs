//! Link tests: how far away the other nodes are, measured on the way the data takes.
//!
//! A test opens a link to the peer's UDP data port and reads a few times from a grant that does
//! not exist. The refusals take the same way as pages would, through the peer's own serving
//! thread, and need no memory there. So do, seldom, the bursts that tell how much a link carries.

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

/// Reads in one test.
const ECHOES: u64 = 5;
/// How long one test may take altogether.
const PATIENCE_NS: u64 = 300_000_000;
/// Peers tested in one round, in turns when there are more.
const PEERS_PER_ROUND: usize = 16;
/// What a test's loss counts against all earlier ones.
const LOSS_WEIGHT: f64 = 0.1;
/// A grant that no Monitor Node gives out.
const NO_GRANT: GrantId = GrantId(0);
const NOBODY_PANICS: &str = "nobody panics with the results";

/// Tests the links to the peers of the latest round, in the background.
#[derive(Debug)]
pub(crate) struct LinkTests {
    round: watch::Sender<Round>,
    results: Arc<Mutex<Results>>,
}

/// Whom to test.
#[derive(Debug, Clone, Default)]
pub(crate) struct Round {
    /// This node.
    pub(crate) own: NodeId,
    /// The far ends.
    pub(crate) peers: Vec<Peer>,
    /// What this node's programs move at present, in megabits a second.
    pub(crate) busy_mbps: f64,
    /// Only how much the links carry: the rest is known from elsewhere.
    pub(crate) bandwidth_alone: bool,
}

#[derive(Debug, Default)]
struct Results {
    /// Since they were last taken.
    reports: Vec<LinkReport>,
    /// In megabits a second, where it is known.
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
                *new.lock().expect(NOBODY_PANICS) = Results { reports, bandwidths };
            }
        });
        Self { round, results }
    }

    /// The results since the last call.
    pub(crate) fn take(&self) -> Vec<LinkReport> {
        std::mem::take(&mut self.results.lock().expect(NOBODY_PANICS).reports)
    }

    /// What the links carry, in megabits a second, by far end, where it is known.
    pub(crate) fn bandwidths_mbps(&self) -> BTreeMap<NodeId, f64> {
        self.results.lock().expect(NOBODY_PANICS).bandwidths.clone()
    }

    /// Starts a round, unless one is still going on: then it follows that one.
    pub(crate) fn test(&self, round: Round) {
        self.round.send_replace(round);
    }
}

/// What is remembered from round to round.
#[derive(Debug, Default)]
struct History {
    /// By peer. A round in a large rack is of some of them: the others are remembered.
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

    /// Of one of the peers at most.
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

    /// `None` for a peer without a UDP port that can be called.
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

/// Where a peer's UDP port is, and the key for it; `None`: it has none that can be called.
fn reached(own: NodeId, peer: &Peer) -> Option<(SocketAddr, Option<SealedAs>)> {
    let named = peer.seal_key.map(|key| SealedAs { name: KeyName::Peer(own), key });
    Some((peer.udp_addr.parse().ok()?, named))
}

/// How this node's datagrams are protected.
pub(crate) fn protection(is_sealed: bool) -> LinkProtection {
    match is_sealed.then(preferred_algorithm) {
        None => LinkProtection::Plain,
        Some(SealAlgorithm::Aes256Gcm) => LinkProtection::Aes256Gcm,
        Some(SealAlgorithm::ChaCha20Poly1305) => LinkProtection::ChaCha20Poly1305,
    }
}

struct Measured {
    /// Median round trip.
    latency_us: f64,
    loss_ratio: f64,
}

/// `Ok(None)` when no answer came.
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

/// A driver whose only window is of a grant that does not exist.
fn to_nowhere(
    config: InitiatorConfig,
    to: NodeId,
    address: SocketAddr,
    named: Option<SealedAs>,
) -> Result<(UdpDriver, PeerIndex), PortError> {
    let (mut driver, peer) =
        UdpDriver::towards(unspecified_like(address), config, to, address, named)?;
    let mapped = driver.initiator().map_window(0, 4096, peer, 0, NO_GRANT, GrantKey(0));
    mapped.expect("the first window of a new initiator");
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

/// One read there and its refusal back; nanoseconds, `None` when it did not come.
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
