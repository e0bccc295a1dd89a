//! A node's relay: its switch, joined to a socket, on a thread of its own.
//!
//! Neighbours' relays send hop datagrams, this node's programs packets; both come to one socket
//! and are told apart by their first bytes. Packets for the node's agent are frames of its own
//! `Target`, which serves the node's memory to whoever reaches it through the network. A packet
//! that only passes is copied into the switch's buffer and out of it, and costs a share of one
//! `recvmmsg` and one `sendmmsg`.

mod delay;
mod endpoints;
mod far_ends;
mod neighbours;
mod thread;

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::io::Errno;
use venice_fabric::switch::{HopStats, SwitchConfig, SwitchStats};
use venice_fabric::{GrantedMemory, LinkModel, Position, TargetConfig};
use venice_wire::{GrantId, SwitchPort};

use self::neighbours::Told;
use self::thread::RelayThread;
use super::UdpSocket;
use super::orders::Orders;
use super::traffic::{Traffic, TrafficTable};
use crate::PortError;
use crate::seal::{SealCounters, SealCounts, SealKeys, SealedAs};

/// What a relay is and does.
#[derive(Clone)]
pub struct RelayConfig {
    /// The switch: where the node stands, and who else is in the network.
    pub switch: SwitchConfig,
    /// The node's own end, for accesses to the memory it lends.
    pub target: TargetConfig,
    /// What every hop link that leaves this node is made to look like; `None`: as it is.
    pub link: Option<LinkModel>,
    /// This node's keys. Accesses to its memory are sealed under them from end to end, and so, in
    /// a seal of their own, are its neighbours' hop datagrams. `None`: all are plain.
    pub keys: Option<Arc<dyn SealKeys + Send + Sync>>,
}

/// A relay at work, until dropped.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    local: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// What the relay's thread and its owner share.
#[derive(Debug)]
struct Shared {
    orders: Orders,
    stop: AtomicBool,
    /// By port; a change is told by the generation.
    neighbours: Mutex<Vec<Option<Told>>>,
    generation: AtomicU64,
    stats: Mutex<RelayStats>,
    counters: SealCounters,
    traffic: TrafficTable,
}

/// What a relay has seen. Not older than some tenths of a second.
#[derive(Clone, Debug, Default)]
pub struct RelayStats {
    /// The switch as a whole.
    pub switch: SwitchStats,
    /// Its links, by port.
    pub hops: Vec<(SwitchPort, HopStats)>,
    /// Programs of this node that packets were carried for.
    pub endpoints: usize,
    /// Datagrams that were neither a neighbour's nor a program's packet, or found no room.
    pub dropped: u64,
}

impl Relay {
    /// Starts to relay on `socket`, and to serve `memory`. Where the neighbours are has to be
    /// told by [`Relay::set_neighbour`].
    ///
    /// # Errors
    /// When the thread or what it needs cannot be made.
    pub fn start(
        socket: UdpSocket,
        config: RelayConfig,
        memory: impl GrantedMemory + Send + 'static,
    ) -> Result<Self, PortError> {
        let (topology, own) = (config.switch.topology, config.switch.position);
        let shared = Arc::new(Shared {
            orders: Orders::new()?,
            stop: AtomicBool::new(false),
            neighbours: Mutex::new(vec![None; usize::from(topology.ports(own))]),
            generation: AtomicU64::new(0),
            stats: Mutex::new(RelayStats::default()),
            counters: SealCounters::default(),
            traffic: TrafficTable::default(),
        });
        let local = socket.local_addr();
        let work = RelayThread::new(socket, Arc::clone(&shared), config, memory)?;
        let thread = std::thread::Builder::new()
            .name("venice-relay".into())
            .spawn(move || work.run())
            .map_err(|_| PortError::System { step: "starting a thread", source: Errno::AGAIN })?;
        Ok(Self { shared, local, thread: Some(thread) })
    }

    /// The address of its socket.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Where the neighbour behind `port` is now, and where datagrams are sealed a key of its. A port
    /// that does not exist is ignored.
    pub fn set_neighbour(&self, port: SwitchPort, address: SocketAddr, seal: Option<SealedAs>) {
        let mut neighbours = self.shared.neighbours.lock().expect("nobody panics with them");
        let Some(neighbour) = neighbours.get_mut(usize::from(port.0)) else { return };
        let told = Told { address, seal };
        if neighbour.replace(told) != Some(told) {
            self.shared.generation.fetch_add(1, Ordering::Release);
            self.shared.orders.wake();
        }
    }

    /// Tells every recipient that reaches the grant through the network that it is over; see
    /// [`super::UdpServer::revoke`].
    pub fn revoke(&self, grant: GrantId) {
        self.shared.orders.revoke(grant);
    }

    /// See [`super::UdpServer::share`].
    pub fn share(&self, grant: GrantId) {
        self.shared.orders.share(grant);
    }

    /// See [`super::UdpServer::are_told`].
    pub fn are_told(&self) -> bool {
        self.shared.orders.are_done()
    }

    /// Datagrams and accesses dropped so far because of their seals, by reason.
    pub fn dropped(&self) -> SealCounts {
        self.shared.counters.counts()
    }

    /// What has gone to and fro between this node and the programs that use its memory, under
    /// each key since the relay started; without protection, under no name. Not older than some
    /// tenths of a second.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.shared.traffic.all()
    }

    /// What it has seen.
    pub fn stats(&self) -> RelayStats {
        self.shared.stats.lock().expect("nobody panics with them").clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.orders.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The ports of a switch's neighbours, for who has to tell their addresses.
pub fn neighbour_ports(config: &SwitchConfig) -> impl Iterator<Item = (SwitchPort, Position)> {
    let (topology, own) = (config.topology, config.position);
    let ports = (0..topology.ports(own)).map(SwitchPort);
    ports.filter_map(move |port| Some((port, topology.neighbour(own, port)?.0)))
}
