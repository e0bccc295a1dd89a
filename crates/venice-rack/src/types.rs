//! The messages between recipients, donors and the Monitor Node.

mod endpoints;
mod peers;

use crate::caller::Owner;
use crate::door::DoorReport;
use crate::pressure::PressureReport;
use crate::queueing::{InLine, no_room_text};
use crate::quota::OverQuota;
use crate::revocation::RevocationNews;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use venice_wire::{GrantId, GrantKey, NodeId, NodeSecret, PortId, SealKey};

pub use endpoints::{Endpoint, ServiceAccess, ServiceState};
pub use peers::{Peer, PeerList, RelayPeer, RelayPlace};

pub use crate::request::{AllocationRequest, MAX_COPIES};
pub use crate::resource::{DeviceReport, ResourceKind, ResourceSpec, Share};
pub use crate::transfer::{
    ClaimRequest, MAX_CLAIM_MS, MAX_TRANSFER_GRANTS, TransferRequest, TransferState, TransferStep,
    Transferred,
};
pub use crate::want::{InvalidWant, Want};

/// Most bytes in the name of a node, a device or a capability.
pub const MAX_NAME_BYTES: usize = 255;

/// An agent's registration with the rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRegistration {
    /// The node's name, unique among living nodes.
    pub name: String,
    /// A random number drawn once per agent process. It distinguishes a retry from a second agent
    /// of the same name, and a restarted agent from its predecessor.
    pub instance: u64,
    /// The agent's process id, where it is meaningful on the same host.
    pub pid: Option<u32>,
    /// `host:port` of the agent's gRPC service.
    pub control_addr: String,
    /// `host:port` of the agent's UDP data port; empty when it has none.
    pub udp_addr: String,
    /// Path of the agent's unix socket for shared memory; empty when it has none.
    pub shm_socket: String,
    /// The offered resources.
    pub resources: Vec<ResourceSpec>,
    /// The result of an earlier registration of this instance: a Monitor Node that lost its store
    /// can give the agent its old identity back.
    pub previous: Option<Identity>,
    /// The secret from that registration, from which its recipients' keys are derived.
    pub secret: Option<NodeSecret>,
    /// True if the agent is configured to use UDP without protection.
    pub is_plain: bool,
    /// Its place in the network of relays, if the rack has one.
    pub relay: Option<RelayPlace>,
    /// The emulated link, for example `latency=1.4us,bandwidth=5Gbps`; empty: none.
    pub link: String,
    /// True for a passive pool node: it lends, and its programs borrow nothing.
    pub is_pool: bool,
}

impl NodeRegistration {
    /// Returns the bytes of memory the node lends altogether.
    pub fn lendable_bytes(&self) -> u64 {
        self.resources
            .iter()
            .filter(|resource| resource.kind == ResourceKind::Memory)
            .map(|resource| resource.bytes)
            .sum()
    }
}

/// The identity of a registered agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// The node's number; a name keeps it for good.
    pub node: NodeId,
    /// The count of agents that have used the name: a restarted agent has a new epoch.
    pub epoch: u64,
}

/// The Monitor Node's answer to a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// The agent's identity.
    pub identity: Identity,
    /// Milliseconds between two heartbeats.
    pub heartbeat_interval_ms: u64,
    /// The lease of a grant unless a request says otherwise, in milliseconds.
    pub lease_ms: u64,
    /// The secret for the keys of its UDP port; `None` in a rack without protection.
    pub secret: Option<NodeSecret>,
}

/// An agent's heartbeat report.
#[derive(Debug, Clone, PartialEq)]
pub struct HeartbeatReport {
    /// The reporting agent.
    pub identity: Identity,
    /// Its process, see [`NodeRegistration::instance`].
    pub instance: u64,
    /// The state of its memory, all of one moment.
    pub memory: DonorReport,
    /// Link tests made since the last report.
    pub links: Vec<LinkReport>,
    /// The counters of its UDP port.
    pub port: PortReport,
    /// The memory pressure on its machine.
    pub pressure: PressureReport,
    /// The report of its server.
    pub door: DoorReport,
    /// Usage of the granted devices that a service serves.
    pub usage: Vec<GrantUsage>,
    /// Version of the peer list received over this connection; 0: none yet.
    pub peers_version: u64,
}

/// Usage of a granted device, as its donor counts it since the service started. A counter that the
/// donor does not know is `None`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GrantUsage {
    /// The grant.
    pub grant: GrantId,
    /// Share of the last seconds in which the device had something to do, 0 to 1.
    pub busy_ratio: Option<f64>,
    /// Bytes that the recipient has sent to the service.
    pub in_bytes: Option<u64>,
    /// Bytes that the recipient has received from it.
    pub out_bytes: Option<u64>,
    /// Commands or tasks that the service has carried out.
    pub commands: u64,
}

/// The report of a node's UDP port.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PortReport {
    /// Datagrams dropped since the agent started.
    pub dropped: DroppedCounts,
    /// Present traffic, by the other end.
    pub flows: Vec<FlowReport>,
    /// Grants whose memory their recipients have mapped: traffic there cannot be counted.
    pub mapped: Vec<GrantId>,
    /// Datagrams sent and received by AF_XDP since the agent started, where it is on.
    pub xdp: Option<XdpFrames>,
}

/// Counts of single datagrams by AF_XDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XdpFrames {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
    /// Received and dropped for lack of room.
    pub lost: u64,
}

/// Datagrams dropped by a port, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DroppedCounts {
    /// Replays.
    pub replayed: u64,
    /// Wrong seal.
    pub forged: u64,
    /// No seal.
    pub unsealed: u64,
    /// Sealed under an unknown or expired key.
    pub unknown_key: u64,
}

/// The present traffic between a node and one other end.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowReport {
    /// The other end.
    pub with: FlowPeer,
    /// Bytes a second, both directions together.
    pub bytes_per_s: f64,
}

/// The other end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowPeer {
    /// The recipient of this grant.
    Grant(GrantId),
    /// Another node.
    Node(NodeId),
    /// Unknown: without protection a sender does not identify itself.
    Anybody,
}

/// The Monitor Node's answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatAck {
    /// The node's peer list, if it is newer than the version reported.
    pub peers: Option<PeerList>,
    /// True while the node is to be drained: its grants are to move elsewhere.
    pub is_draining: bool,
    /// All grants of the node under preemption; the preemption of any other grant is cancelled.
    pub called_back: Vec<CalledBack>,
    /// The revocations to enforce, if they differ from those in force there.
    pub revoked: Option<RevocationNews>,
    /// Version of the authorities to trust; 0: the core does not know them, its caller does.
    pub trust_version: u64,
}

/// A grant that is preempted for a request of higher priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalledBack {
    /// The grant.
    pub grant: GrantId,
    /// Milliseconds its recipient has, from when its donor receives this.
    pub within_ms: u64,
}

/// The port a link uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkPort {
    /// Datagrams.
    Udp,
    /// Shared memory of one host.
    Shm,
    /// A hop link between the relays of two neighbours.
    Hop,
}

/// The state of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// The last test came back.
    Up,
    /// The last test did not come back.
    Down,
}

/// The protection of a link's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkProtection {
    /// No protection.
    #[serde(rename = "plain")]
    Plain,
    /// Sealed with AES-256-GCM.
    #[serde(rename = "aes-256-gcm")]
    Aes256Gcm,
    /// Sealed with ChaCha20-Poly1305.
    #[serde(rename = "chacha20-poly1305")]
    ChaCha20Poly1305,
}

impl LinkProtection {
    /// Returns the name shown to users.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Aes256Gcm => "aes-256-gcm",
            Self::ChaCha20Poly1305 => "chacha20-poly1305",
        }
    }
}

/// The result of one link test: a line of the Topology Status Table, seen from the tester.
#[derive(Debug, Clone, PartialEq)]
pub struct LinkReport {
    /// The node at the far end.
    pub to: NodeId,
    /// The port tested.
    pub port: LinkPort,
    /// The state.
    pub state: LinkState,
    /// Round-trip time in microseconds.
    pub latency_us: f64,
    /// Share of tests lost, 0 to 1.
    pub loss_ratio: f64,
    /// Bandwidth in megabits a second, where it was measured.
    pub bandwidth_mbps: Option<f64>,
    /// Present traffic in bytes a second, both directions, where the tester counts it.
    pub bytes_per_s: Option<f64>,
    /// Its protection.
    pub protection: LinkProtection,
}

impl LinkReport {
    /// Returns the round trip in nanoseconds; `None` if the test did not come back.
    pub(crate) fn round_trip_ns(&self) -> Option<u64> {
        (self.state == LinkState::Up).then_some((self.latency_us * 1e3) as u64)
    }
}

/// A grant: a share of one donor's resources, lent under one key for as long as the lease is
/// renewed.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// Its number, unique in the rack.
    pub id: GrantId,
    /// The donor's name.
    pub donor: String,
    /// The donor's number.
    pub donor_node: NodeId,
    /// The donor's epoch: at any other epoch the donor does not have this grant.
    pub donor_epoch: u64,
    /// The share.
    pub share: Share,
    /// The key that every access must carry.
    pub key: GrantKey,
    /// `host:port` of the donor's gRPC service, for renewals.
    pub control_addr: String,
    /// The donor's ports at which memory is reached; a device has its service's instead
    /// ([`ServiceAccess`]).
    pub endpoints: Vec<Endpoint>,
    /// Seconds without a renewal after which the donor takes the share back.
    pub lease_s: f64,
}

impl Grant {
    /// Returns the address at a port of the donor; empty if the donor does not have the port.
    pub fn address(&self, port: PortId) -> &str {
        self.endpoint(port).map_or("", |endpoint| &endpoint.address)
    }

    /// Returns the key that seals what goes to the donor; `None` in a rack without protection.
    pub fn seal_key(&self) -> Option<SealKey> {
        Some(SealKey(self.endpoint(PortId::Udp)?.extra.as_slice().try_into().ok()?))
    }

    fn endpoint(&self, port: PortId) -> Option<&Endpoint> {
        self.endpoints.iter().find(|endpoint| endpoint.port == port)
    }
}

/// First step of the handshake, Monitor Node to donor: set a share aside. With `at_once` it is the
/// only step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrepareRequest {
    /// The number of the new grant.
    pub grant: GrantId,
    /// Its key.
    pub key: GrantKey,
    /// The share.
    pub share: Share,
    /// The epoch of the donor addressed.
    pub donor_epoch: u64,
    /// Lease after the commit, in milliseconds.
    pub lease_ms: u64,
    /// The owner.
    pub owner: Option<Owner>,
    /// The recipient's description of itself.
    pub recipient: String,
    /// The purpose.
    pub purpose: String,
    /// The priority of its request.
    pub priority: u8,
    /// True if no commit follows: the grant is lent at once.
    pub at_once: bool,
}

/// The reason why a donor refuses a step of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Fewer slabs are free than requested.
    #[error("only {free_slabs} slabs are free")]
    NoRoom {
        /// Free slabs.
        free_slabs: u32,
    },
    /// The device is unavailable, for the reason given.
    #[error("device unavailable: {0}")]
    NoDevice(String),
    /// The grant does not exist, or not any more.
    #[error("no such grant")]
    UnknownGrant,
    /// The request was for another epoch of this agent.
    #[error("meant for epoch {asked} of this agent, which is at epoch {current}")]
    WrongEpoch {
        /// The epoch addressed.
        asked: u64,
        /// The epoch of this agent; 0 while it is not registered.
        current: u64,
    },
    /// The grant's number is in use with another key or size.
    #[error("the grant's number is in use with another key or size")]
    Conflict,
    /// A transfer to an ownership epoch that the grant has reached already.
    #[error("the grant is at ownership {current}, and was to be transferred to {asked}")]
    StaleOwnership {
        /// The epoch of the transfer.
        asked: u64,
        /// The epoch of the grant.
        current: u64,
    },
    /// The donor failed, for the reason given.
    #[error("the donor failed: {0}")]
    Failed(String),
}

/// The state of a grant at its donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// Set aside; without a commit it is free again soon.
    Prepared,
    /// Lent, for as long as the lease is renewed.
    Committed,
}

/// A grant as its donor reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldGrant {
    /// Its number.
    pub id: GrantId,
    /// The share.
    pub share: Share,
    /// Prepared or committed.
    pub state: HeldState,
    /// Its lease in milliseconds.
    pub lease_ms: u64,
    /// The owner.
    pub owner: Option<Owner>,
    /// The recipient's description of itself.
    pub recipient: String,
    /// The purpose.
    pub purpose: String,
    /// The priority of its request; the default where the donor does not have it.
    pub priority: u8,
    /// Its ownership epoch; 1 where the donor does not have it.
    pub ownership: u64,
}

/// A donor's report on its grants, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DonorReport {
    /// The slab counts.
    pub status: DonorStatus,
    /// Every grant prepared or committed, by number.
    pub held: Vec<HeldGrant>,
    /// The health of its devices.
    pub devices: Vec<DeviceReport>,
}

/// A donor's slab counts at one moment; part of every answer in the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DonorStatus {
    /// Slabs lent, set aside or free altogether.
    pub total_slabs: u32,
    /// Slabs free to be lent.
    pub free_slabs: u32,
    /// A revision that grows with every change of the donor's grants: the newer of two reports is
    /// known in whatever order they arrive.
    pub revision: u64,
}

/// The state of a lease, as the donor answers a renewal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaseState {
    /// The lease is renewed.
    Live {
        /// Milliseconds until it ends, unless renewed again.
        remaining_ms: u64,
        /// The donor's reclaim notice; `None`: none, or it is cancelled.
        notice: Option<Notice>,
    },
    /// The grant was transferred to another owner, `user@node`.
    Transferred {
        /// The new owner.
        to: String,
    },
    /// The donor does not have such a grant, or the key is wrong: the memory is gone.
    Unknown,
}

/// A reclaim notice: the recipient is to move its data to another donor and then to release the
/// grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// The reason.
    pub reason: NoticeReason,
    /// Milliseconds until the donor ends the grant, released or not; `None`: it waits.
    pub within_ms: Option<u64>,
}

/// The reason of a reclaim notice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeReason {
    /// The node is being drained.
    Drain,
    /// The node's own programs need the memory.
    Pressure,
    /// A request of higher priority needs it.
    Preempted,
    /// The grant's device is gone or faulty.
    Fault,
}

/// An agent's answer to a ping: its identity.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pong {
    /// The agent's name.
    pub name: String,
    /// Its instance number, see [`NodeRegistration::instance`].
    pub instance: u64,
}

/// An error of the Monitor Node.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RackError {
    /// The donors (all, or those named) have less free than requested.
    #[error("{}", no_room_text(*.asked_bytes, .free, .line))]
    NoRoom {
        /// Requested bytes, in whole slabs.
        asked_bytes: u64,
        /// Free bytes, by node.
        free: Vec<(String, u64)>,
        /// The queueing part of the message.
        line: InLine,
    },
    /// There is memory, but the paths to it lack the requested bandwidth, for the reason given.
    #[error("{0}")]
    NoBandwidth(String),
    /// No suitable device is free, for the reasons given.
    #[error("{0}")]
    NoDevice(String),
    /// The user's quota of a kind has no room.
    #[error("{0}")]
    OverQuota(OverQuota),
    /// The rack has no node of the name given.
    #[error("the rack has no node named {0}")]
    UnknownNode(String),
    /// A living agent of that name is registered already.
    #[error("an agent named {name} is already registered (at {control_addr})")]
    NameTaken {
        /// The name.
        name: String,
        /// Address of the living agent.
        control_addr: String,
    },
    /// The agent is not registered under that epoch: it must register first.
    #[error("the agent is not registered under this epoch")]
    NotRegistered,
    /// The request is invalid, for the reason given.
    #[error("{0}")]
    BadRequest(String),
    /// The caller has reached a bound, named with a remedy.
    #[error("{0}")]
    TooMany(String),
    /// The donors had room, but failed or did not answer in time; no memory is set aside. A retry
    /// may help.
    #[error("the donors have room, but failed or did not answer in time")]
    HandshakeFailed,
    /// A transfer failed for the reason given, before anything changed. A retry may help.
    #[error("nothing was transferred: {0}")]
    TransferFailed(String),
    /// The join token is unknown, used or expired, for the reason given.
    #[error("{0}")]
    BadToken(String),
    /// The caller lacks permission for the call, for the reason given.
    #[error("{0}")]
    Forbidden(String),
    /// The disk of the Monitor Node's store is full, with details.
    #[error("the Monitor Node can grant and change nothing: {0}")]
    StoreFull(String),
    /// The Monitor Node is shutting down.
    #[error("the Monitor Node is stopping")]
    Stopping,
}

impl RackError {
    /// Returns the reason in a word, by which refusals are counted.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::NoRoom { .. } => "no-room",
            Self::NoBandwidth(_) => "no-bandwidth",
            Self::NoDevice(_) => "no-device",
            Self::OverQuota(_) => "over-quota",
            Self::UnknownNode(_) => "unknown-node",
            Self::NameTaken { .. } => "name-taken",
            Self::NotRegistered => "not-registered",
            Self::BadRequest(_) => "bad-request",
            Self::TooMany(_) => "too-many",
            Self::HandshakeFailed => "handshake-failed",
            Self::TransferFailed(_) => "transfer-failed",
            Self::BadToken(_) => "bad-token",
            Self::Forbidden(_) => "forbidden",
            Self::StoreFull(_) => "store-full",
            Self::Stopping => "stopping",
        }
    }
}

/// Formats the refusal of a node that is being drained.
pub fn drained_text(node: &str) -> String {
    format!("{node} is being drained and lends nothing more: name another donor, or none")
}

/// Formats the refusal of a pool node.
pub fn pool_text(node: &str) -> String {
    format!("{node} is a pool node: it lends its memory and borrows none")
}
