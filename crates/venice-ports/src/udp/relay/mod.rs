//! A node's relay: its switch, joined to a socket, on a thread of its own.
//!
//! Neighbours' relays send hop datagrams, this node's programs packets; both arrive at one socket,
//! and their first bytes distinguish them. Packets for the node's agent are frames of its own
//! `Target`, which serves the node's memory to recipients that reach it through the network. A
//! packet in transit is copied into the switch's buffer and out of it, and costs a share of one
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

use self::neighbours::NeighbourRoute;
use self::thread::RelayThread;
use super::UdpSocket;
use super::orders::Orders;
use super::traffic::{Traffic, TrafficTable};
use crate::PortError;
use crate::seal::{SealCounters, SealCounts, SealKeys, SealedAs};

/// Configuration of a relay.
#[derive(Clone)]
pub struct RelayConfig {
    /// Configuration of the switch: the node's position, and the other nodes of the network.
    pub switch: SwitchConfig,
    /// Configuration of the node's own end, for accesses to the memory it lends.
    pub target: TargetConfig,
    /// Link that every hop link leaving this node emulates; `None`: no emulation.
    pub link: Option<LinkModel>,
    /// Keys of this node. Accesses to its memory are sealed under them from end to end; its
    /// neighbours' hop datagrams are too, in a seal of their own. `None`: all are plain.
    pub keys: Option<Arc<dyn SealKeys + Send + Sync>>,
}

/// A running relay; stops on drop.
#[derive(Debug)]
pub struct Relay {
    shared: Arc<Shared>,
    local: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the relay's thread and its owner.
#[derive(Debug)]
struct Shared {
    orders: Orders,
    stop: AtomicBool,
    /// Neighbours by port; the generation signals a change.
    neighbours: Mutex<Vec<Option<NeighbourRoute>>>,
    generation: AtomicU64,
    stats: Mutex<RelayStats>,
    counters: SealCounters,
    traffic: TrafficTable,
}

/// Counters of a relay. At most some tenths of a second old.
#[derive(Clone, Debug, Default)]
pub struct RelayStats {
    /// Counters of the switch as a whole.
    pub switch: SwitchStats,
    /// Counters of its links, by port.
    pub hops: Vec<(SwitchPort, HopStats)>,
    /// Number of programs of this node for which packets were carried.
    pub endpoints: usize,
    /// Datagrams that were neither a neighbour's nor a program's packet, or found no room.
    pub dropped: u64,
}

impl Relay {
    /// Starts to relay on `socket`, and to serve `memory`. Set the neighbours' addresses with
    /// [`Relay::set_neighbour`].
    ///
    /// # Errors
    /// Fails if the thread or its descriptors cannot be made.
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

    /// Returns the address of its socket.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Sets the present address of the neighbour behind `port`, and its key where datagrams are
    /// sealed. Ignores a port that does not exist.
    pub fn set_neighbour(&self, port: SwitchPort, address: SocketAddr, seal: Option<SealedAs>) {
        let mut neighbours =
            self.shared.neighbours.lock().expect("no thread panics under this lock");
        let Some(neighbour) = neighbours.get_mut(usize::from(port.0)) else { return };
        let route = NeighbourRoute { address, seal };
        if neighbour.replace(route) != Some(route) {
            self.shared.generation.fetch_add(1, Ordering::Release);
            self.shared.orders.wake();
        }
    }

    /// Tells every recipient that reaches the grant through the network that it has ended; see
    /// [`super::UdpServer::revoke`].
    pub fn revoke(&self, grant: GrantId) {
        self.shared.orders.revoke(grant);
    }

    /// Ends the links under the key of an ended grant; see [`super::UdpServer::forget`].
    pub fn forget(&self, grant: GrantId) {
        self.shared.orders.forget(grant);
    }

    /// Marks a grant as shared; see [`super::UdpServer::share`].
    pub fn share(&self, grant: GrantId) {
        self.shared.orders.share(grant);
    }

    /// True if all recipients have acknowledged; see [`super::UdpServer::are_notified`].
    pub fn are_notified(&self) -> bool {
        self.shared.orders.are_done()
    }

    /// Returns the numbers of datagrams and accesses dropped because of their seals, by reason.
    pub fn dropped(&self) -> SealCounts {
        self.shared.counters.counts()
    }

    /// Returns the traffic between this node and the programs that use its memory, under each key
    /// since the relay started; without protection, under no name. At most some tenths of a second
    /// old.
    pub fn traffic(&self) -> Vec<Traffic> {
        self.shared.traffic.all()
    }

    /// Returns the sum of [`Self::traffic`] over all keys, also over those long forgotten.
    pub fn total_traffic(&self) -> Traffic {
        self.shared.traffic.total()
    }

    /// Returns its counters.
    pub fn stats(&self) -> RelayStats {
        self.shared.stats.lock().expect("no thread panics under this lock").clone()
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

/// Yields the ports of a switch's neighbours, for a caller that sets their addresses.
pub fn neighbour_ports(config: &SwitchConfig) -> impl Iterator<Item = (SwitchPort, Position)> {
    let (topology, own) = (config.topology, config.position);
    let ports = (0..topology.ports(own)).map(SwitchPort);
    ports.filter_map(move |port| Some((port, topology.neighbour(own, port)?.0)))
}
