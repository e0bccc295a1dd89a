//! Facts shared by every process of a rack: the scenario, the port, and all addresses.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result};
use venice_fabric::{EndConfig, LinkConfig, Topology};
use venice_ports::qpair::{QPairAddress, QPairSeal};
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_sim::scenario::Scenario;
use venice_testkit::network::{HUB_ADDRESS, node_address};
use venice_wire::{KeyName, NodeId, NodeSecret};

/// Port of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// On mapped slabs; QPairs over rings.
    Shm,
    /// Frames through shared memory.
    Ring,
    /// Frames in datagrams, each node in a network namespace of its own.
    Udp,
    /// The same with AF_XDP beside the donors' sockets, for memory.
    Xdp,
}

impl Port {
    /// True if data goes in datagrams.
    pub fn is_datagrams(self) -> bool {
        matches!(self, Self::Udp | Self::Xdp)
    }
}

/// A service of a donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// Accesses to memory.
    Memory,
    /// QPairs of messages.
    Talk,
    /// QPairs of byte streams.
    Stream,
}

impl Service {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Memory, Self::Talk, Self::Stream];
}

/// The longest message.
pub const MAX_MESSAGE_BYTES: usize = 3000;

/// Facts shared by every process of a rack.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The scenario, with times that suit real processes.
    pub scenario: Scenario,
    /// The port.
    pub port: Port,
    /// Folder of notes and sockets.
    pub folder: PathBuf,
}

impl Plan {
    const FILE: &str = "scenario.toml";

    /// Writes the scenario for [`Plan::read`].
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self) -> Result<()> {
        std::fs::write(self.folder.join(Self::FILE), self.scenario.to_toml())
            .context("cannot write the scenario")
    }

    /// Reads the scenario of [`Plan::write`].
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn read(folder: &Path, port: Port) -> Result<Self> {
        let text =
            std::fs::read_to_string(folder.join(Self::FILE)).context("cannot read the scenario")?;
        let scenario = Scenario::from_toml(&text)?;
        Ok(Self { scenario, port, folder: folder.to_path_buf() })
    }

    /// Returns the unix socket of a donor's service.
    pub fn socket(&self, donor: u16, service: Service) -> PathBuf {
        self.folder.join(format!("{service:?}-{donor}.sock").to_lowercase())
    }

    /// Returns the address of a donor's service in its namespace.
    pub fn donor_address(donor: u16, service: Service) -> SocketAddr {
        SocketAddr::from((node_address(donor), 7000 + service as u16))
    }

    /// Returns the forwarder's address of a donor's service, for a program.
    pub fn forwarder_address(&self, program: u16, donor: u16, service: Service) -> SocketAddr {
        let pair = program * self.scenario.nodes + donor;
        let number = pair * Service::ALL.len() as u16 + service as u16;
        SocketAddr::from((HUB_ADDRESS, 20_000 + number))
    }

    /// Returns the topology, if nodes relay; otherwise all reach each other directly.
    ///
    /// # Panics
    /// When the scenario was not checked.
    pub fn relays(&self) -> Option<Topology> {
        let topology = self.scenario.wiring().expect("it was checked");
        topology.has_relays().then_some(topology)
    }

    /// Returns the number of namespaces: one for each node, and the external router's.
    pub fn places(&self) -> u16 {
        self.relays().map_or(self.scenario.nodes, |topology| topology.switches() as u16)
    }

    /// Returns the address of a node's relay in its namespace.
    pub fn relay_address(node: u16) -> SocketAddr {
        SocketAddr::from((node_address(node), 7010))
    }

    /// Returns the forwarder's address for a relay's datagrams to a neighbour, and from it.
    pub fn hop_address(&self, from: u16, to: u16) -> SocketAddr {
        SocketAddr::from((HUB_ADDRESS, 30_000 + from * self.places() + to))
    }

    /// True if datagrams are sealed: with every other seed. Without seals the frames' own checksums
    /// have to detect damage.
    pub fn is_sealed(&self) -> bool {
        self.port.is_datagrams() && self.scenario.seed.is_multiple_of(2)
    }

    /// Returns the keys by which a donor opens datagrams.
    pub fn keys(&self, donor: u16) -> Option<Arc<dyn SealKeys + Send + Sync>> {
        self.is_sealed().then(|| Arc::new(secret(donor)) as Arc<dyn SealKeys + Send + Sync>)
    }

    /// Returns the key context of a program's datagrams to a donor.
    pub fn seal(&self, program: u16, donor: u16) -> Option<SealedAs> {
        let name = KeyName::Peer(NodeId(program.into()));
        self.is_sealed().then(|| SealedAs { name, key: node_key(&secret(donor), name) })
    }

    /// Returns the address at which a donor accepts QPairs of a service.
    pub fn listens_at(&self, donor: u16, service: Service) -> QPairAddress {
        match self.port {
            Port::Udp | Port::Xdp => QPairAddress::Udp {
                address: Self::donor_address(donor, service),
                seal: self.keys(donor).map(QPairSeal::Keys),
            },
            Port::Shm | Port::Ring => QPairAddress::ring(self.socket(donor, service)),
        }
    }

    /// Returns the address at which a program requests QPairs of a donor's service.
    pub fn talks_at(&self, program: u16, donor: u16, service: Service) -> QPairAddress {
        match self.port {
            Port::Udp | Port::Xdp => QPairAddress::Udp {
                address: self.forwarder_address(program, donor, service),
                seal: self.seal(program, donor).map(QPairSeal::As),
            },
            Port::Shm | Port::Ring => QPairAddress::ring(self.socket(donor, service)),
        }
    }

    /// Returns the link settings of a node.
    pub fn link(&self, node: u16) -> LinkConfig {
        let protocol = &self.scenario.protocol;
        LinkConfig {
            // The ends of a link may have different numbers of buffers.
            window: protocol.window << (node % 2),
            ack_delay_ns: protocol.ack_delay.0,
            replay_min_ns: protocol.replay_min.0,
            replay_max_ns: protocol.replay_max.0,
            keepalive_ns: protocol.keepalive.0,
            silence_ns: protocol.silence.0,
            ..LinkConfig::default()
        }
    }
}

/// Returns the settings of a small QPair, so that credit matters.
pub fn end_config() -> EndConfig {
    EndConfig { send_bytes: 8 << 10, recv_bytes: 4 << 10, recv_messages: 8, ..EndConfig::default() }
}

fn secret(donor: u16) -> NodeSecret {
    NodeSecret([donor as u8 + 1; 32])
}

impl Port {
    /// Returns its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Ring => "ring",
            Self::Udp => "udp",
            Self::Xdp => "xdp",
        }
    }
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Shm, Self::Ring, Self::Udp, Self::Xdp];
        let known = all.into_iter().find(|port| port.name() == text);
        known.ok_or_else(|| format!("'{text}' is none of shm, ring, udp, xdp"))
    }
}
