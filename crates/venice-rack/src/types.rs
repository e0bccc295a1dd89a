//! What recipients, donors and the Monitor Node tell each other.

mod peers;

use crate::caller::Owner;
use crate::door::DoorReport;
use crate::placement::Policy;
use crate::pressure::PressureReport;
use crate::queueing::{InLine, Queueing, no_room_text};
use crate::quota::{OverDevices, over_quota_text};
use crate::revocation::RevocationNews;
use serde::{Deserialize, Serialize};
use thiserror::Error;
use venice_wire::{ByteSize, GrantId, GrantKey, NodeId, NodeSecret, SealKey};

pub use peers::{Peer, PeerList, RelayPeer, RelayPlace};

pub use crate::resource::{DeviceReport, DeviceRequest, DeviceShare, ResourceKind, ResourceSpec};

/// Longest name of a node, a recipient or a purpose, in bytes.
pub const MAX_NAME_BYTES: usize = 255;

/// Most copies of memory that a request may ask for: the fragments of coded memory are such, as
/// many as its widest coding has (8+3).
pub const MAX_COPIES: u32 = 11;

/// What an agent says of itself when it joins the rack.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeRegistration {
    /// The node's name, unique among living nodes.
    pub name: String,
    /// A random number drawn once per agent process: it tells a retry from a second agent of the
    /// same name, and a restarted agent from the one that died.
    pub instance: u64,
    /// The agent's process id, where it makes sense to people on the same host.
    pub pid: Option<u32>,
    /// `host:port` of the agent's gRPC service.
    pub control_addr: String,
    /// `host:port` of the agent's UDP data port; empty when it has none.
    pub udp_addr: String,
    /// Path of the agent's unix socket for shared memory; empty when it has none.
    pub shm_socket: String,
    /// What the node offers.
    pub resources: Vec<ResourceSpec>,
    /// What an earlier registration of this very instance returned: lets a Monitor Node that lost
    /// its store give the agent its old identity back.
    pub previous: Option<Identity>,
    /// The secret it was given then, which its recipients' keys are made of.
    pub secret: Option<NodeSecret>,
    /// It was told to use UDP without protection.
    pub is_plain: bool,
    /// Where it stands in a network of relays, if the rack is wired as one.
    pub relay: Option<RelayPlace>,
    /// The link it emulates, for example `latency=1.4us,bandwidth=5Gbps`; empty: none.
    pub link: String,
    /// A passive pool node: it lends, and no program of it borrows.
    pub is_pool: bool,
}

impl NodeRegistration {
    /// Bytes of memory the node lends altogether.
    pub fn lendable_bytes(&self) -> u64 {
        self.resources
            .iter()
            .filter(|resource| resource.kind == ResourceKind::Memory)
            .map(|resource| resource.bytes)
            .sum()
    }
}

/// Who a registered agent is to the rack.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Identity {
    /// The node's number; a name keeps it for good.
    pub node: NodeId,
    /// Counts the agents that have borne the name: a restarted agent has a new epoch.
    pub epoch: u64,
}

/// The Monitor Node's answer to a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Registered {
    /// Who the agent now is.
    pub identity: Identity,
    /// How often it is to report.
    pub heartbeat_interval_ms: u64,
    /// The lease of a grant unless a request says otherwise.
    pub lease_ms: u64,
    /// What the keys of its UDP port are made of; `None` in a rack without protection.
    pub secret: Option<NodeSecret>,
}

/// What an agent reports on every heartbeat.
#[derive(Debug, Clone, PartialEq)]
pub struct HeartbeatReport {
    /// Who reports.
    pub identity: Identity,
    /// Which process reports.
    pub instance: u64,
    /// The state of its memory, all of one moment.
    pub memory: DonorReport,
    /// Link tests made since the last report.
    pub links: Vec<LinkReport>,
    /// What its UDP port has seen.
    pub port: PortReport,
    /// How short of memory its machine is.
    pub pressure: PressureReport,
    /// What its door has seen.
    pub door: DoorReport,
    /// Of the peers that it was told of over this call; 0: none yet.
    pub peers_version: u64,
}

/// What a node's UDP port has seen.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PortReport {
    /// Datagrams dropped since the agent started.
    pub dropped: DroppedCounts,
    /// Present traffic, by who is at the other end.
    pub flows: Vec<FlowReport>,
    /// The grants whose memory their recipients have mapped: what goes to and fro there nobody
    /// sees.
    pub mapped: Vec<GrantId>,
    /// What has gone past the kernel since the agent started, where that is wanted.
    pub xdp: Option<XdpFrames>,
}

/// Single datagrams that have gone by AF_XDP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct XdpFrames {
    /// That came.
    pub received: u64,
    /// That went out.
    pub sent: u64,
    /// That came and found no room.
    pub lost: u64,
}

/// Datagrams that a port did not take, by reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct DroppedCounts {
    /// They had come before.
    pub replayed: u64,
    /// Their seal did not fit.
    pub forged: u64,
    /// They had none.
    pub unsealed: u64,
    /// They were sealed under a key that does not exist (any more).
    pub unknown_key: u64,
}

/// What goes to and fro between a node and one other, at present.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FlowReport {
    /// Who is at the other end.
    pub with: FlowPeer,
    /// Bytes a second, both directions together.
    pub bytes_per_s: f64,
}

/// Who is at the other end of a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowPeer {
    /// The recipient of this grant.
    Grant(GrantId),
    /// Another node.
    Node(NodeId),
    /// Anybody: without protection nobody says who he is.
    Anybody,
}

/// The Monitor Node's answer to a heartbeat.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeartbeatAck {
    /// Whom it is near, where that is not the version that it named.
    pub peers: Option<PeerList>,
    /// The node is to be empty: what it lends is to go elsewhere.
    pub is_draining: bool,
    /// The grants that it is to give notice of, all there are: those that are no longer here are not
    /// wanted any more.
    pub called_back: Vec<CalledBack>,
    /// Whom its door is not to let in, where that is not what it goes by.
    pub revoked: Option<RevocationNews>,
}

/// A grant that is called back for a request of higher priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalledBack {
    /// Which.
    pub grant: GrantId,
    /// Milliseconds that its recipient has, from when its donor hears of it.
    pub within_ms: u64,
}

/// Which port a link uses.
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

/// Whether a link works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// The last test came back.
    Up,
    /// The last test did not come back.
    Down,
}

/// How a link's datagrams are protected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkProtection {
    /// Not at all.
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
    /// What people call it.
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
    /// Whether it works.
    pub state: LinkState,
    /// Round-trip time in microseconds.
    pub latency_us: f64,
    /// Share of tests lost, 0 to 1.
    pub loss_ratio: f64,
    /// Bandwidth in megabits a second, where it was measured.
    pub bandwidth_mbps: Option<f64>,
    /// Present traffic in bytes a second, both directions, where the tester counts it.
    pub bytes_per_s: Option<f64>,
    /// How it is protected.
    pub protection: LinkProtection,
}

/// A recipient's request for memory. Whose it is, its certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryRequest {
    /// A random number drawn by the client: the same number gets the same grants again, so that a
    /// request whose answer was lost can be repeated.
    pub client_id: u128,
    /// Who borrows, in words for people.
    pub recipient: String,
    /// How much; rounded up to whole slabs.
    pub bytes: ByteSize,
    /// How many copies of it, or fragments: so many times as much is granted, and no donor gives
    /// more than one.
    pub copies: u32,
    /// Names of the donors to use; empty for any.
    pub donors: Vec<String>,
    /// The node whose relay it sends through, where nodes relay for each other: near donors are
    /// taken first. Empty: no donor is nearer than another.
    pub home: String,
    /// Which donors are taken first; `None`: as the rack does.
    pub placement: Option<Policy>,
    /// What its way has to carry, in bits a second, evenly over its slabs; 0: it does not say. A
    /// donor gives no more slabs than there is bandwidth for.
    pub bandwidth_bps: u64,
    /// What for, in words for people.
    pub purpose: String,
    /// How it waits where there is no room.
    pub queueing: Queueing,
}

/// What was lent: `bytes` of one donor's memory, or a device of it, under one key, for as long as
/// the lease is renewed.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    /// Its number, unique in the rack.
    pub id: GrantId,
    /// The donor's name.
    pub donor: String,
    /// The donor's number.
    pub donor_node: NodeId,
    /// The donor's epoch: a donor of another epoch knows nothing of this grant.
    pub donor_epoch: u64,
    /// How much: of memory a whole number of slabs.
    pub bytes: u64,
    /// Which device it is; `None`: it is memory.
    pub device: Option<DeviceShare>,
    /// What the donor asks of every access.
    pub key: GrantKey,
    /// `host:port` of the donor's gRPC service, for renewals.
    pub control_addr: String,
    /// `host:port` of the donor's UDP data port.
    pub udp_addr: String,
    /// Path of the donor's unix socket.
    pub shm_socket: String,
    /// The key to seal with what goes to the donor by UDP; `None` in a rack without protection.
    pub seal_key: Option<SealKey>,
    /// Seconds without a renewal after which the donor takes the memory back.
    pub lease_s: f64,
}

/// First step of the handshake, Monitor Node to donor: set slabs, or a device, aside; or the only one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PrepareRequest {
    /// The grant to be.
    pub grant: GrantId,
    /// Its key.
    pub key: GrantKey,
    /// How many slabs; 0 of a device.
    pub slabs: u32,
    /// Which device; `None`: slabs.
    pub device: Option<DeviceShare>,
    /// The epoch of the donor meant.
    pub donor_epoch: u64,
    /// Lease after the commit, in milliseconds.
    pub lease_ms: u64,
    /// Whose it will be.
    pub owner: Option<Owner>,
    /// Who borrows.
    pub recipient: String,
    /// What for.
    pub purpose: String,
    /// Its request's priority.
    pub priority: u8,
    /// No commit follows: it is to be lent at once.
    pub at_once: bool,
}

/// Why a donor refuses a step of the handshake.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// Fewer slabs are free than were asked for.
    #[error("only {free_slabs} slabs are free")]
    NoRoom {
        /// How many are free.
        free_slabs: u32,
    },
    /// The device is not to be had, for the reason given.
    #[error("the device is not to be had: {0}")]
    NoDevice(String),
    /// There is no such grant (any more).
    #[error("no such grant")]
    UnknownGrant,
    /// The request was meant for another incarnation of this agent.
    #[error("meant for epoch {asked} of this agent, which is at epoch {current}")]
    WrongEpoch {
        /// The epoch meant.
        asked: u64,
        /// The epoch this agent is at; 0 while it is not registered.
        current: u64,
    },
    /// The grant's number is in use with another key or size.
    #[error("the grant's number is in use with another key or size")]
    Conflict,
    /// The donor could not do it, for the reason given.
    #[error("the donor failed: {0}")]
    Failed(String),
}

/// What state a grant is in at its donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeldState {
    /// Slabs are set aside; without a commit they are free again soon.
    Prepared,
    /// Lent, for as long as the lease is renewed.
    Committed,
}

/// One grant as its donor reports it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldGrant {
    /// Its number.
    pub id: GrantId,
    /// How many slabs; 0 of a device.
    pub slabs: u32,
    /// Which device; `None`: it is slabs.
    pub device: Option<DeviceShare>,
    /// Prepared or committed.
    pub state: HeldState,
    /// The lease it was given, in milliseconds.
    pub lease_ms: u64,
    /// Whose it is.
    pub owner: Option<Owner>,
    /// Who borrowed.
    pub recipient: String,
    /// What for.
    pub purpose: String,
    /// Its request's priority; the usual one where nobody told the donor.
    pub priority: u8,
}

/// What a donor lends, at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DonorReport {
    /// The counts.
    pub status: DonorStatus,
    /// Every grant prepared or committed, by number.
    pub held: Vec<HeldGrant>,
    /// How its devices are.
    pub devices: Vec<DeviceReport>,
}

/// A donor's counts at one moment; comes back with every step of the handshake.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DonorStatus {
    /// Slabs lent, set aside or free altogether.
    pub total_slabs: u32,
    /// Slabs free to be lent.
    pub free_slabs: u32,
    /// Grows with every change of the donor's grants, so that of two reports the newer is known
    /// whatever order they arrive in.
    pub revision: u64,
}

/// How a lease stands, as the donor answers a renewal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaseState {
    /// Renewed.
    Live {
        /// Milliseconds until it ends, unless renewed again.
        remaining_ms: u64,
        /// The donor wants the memory back; `None`: it does not, or not any more.
        notice: Option<Notice>,
    },
    /// The donor knows no such grant, or the key is wrong: the memory is gone.
    Unknown,
}

/// A donor wants the memory of a grant back: its recipient is to put elsewhere what it has there,
/// and then to release the grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Why.
    pub reason: NoticeReason,
    /// Milliseconds until the donor ends the grant, released or not; `None`: it waits.
    pub within_ms: Option<u64>,
}

/// Why a donor wants memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoticeReason {
    /// An operator wants the node empty.
    Drain,
    /// The node's own programs need it.
    Pressure,
    /// A request of higher priority needs it.
    Preempted,
    /// The device of the grant is there no longer, or does not work.
    Fault,
}

/// What an agent answers to a ping: who it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pong {
    /// The agent's name.
    pub name: String,
    /// Its instance number, see [`NodeRegistration::instance`].
    pub instance: u64,
}

/// Why the Monitor Node did not do what was asked of it.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum RackError {
    /// The donors (all, or those named) have less free than was asked for.
    #[error("{}", no_room_text(*.asked_bytes, .free, .line))]
    NoRoom {
        /// What was asked for, in whole slabs.
        asked_bytes: u64,
        /// What is free, by node.
        free: Vec<(String, u64)>,
        /// What waiting in line has to do with it.
        line: InLine,
    },
    /// There is memory, but the ways to it do not carry what was asked for, for the reason given.
    #[error("{0}")]
    NoBandwidth(String),
    /// No device is free that would do, for the reasons given.
    #[error("{0}")]
    NoDevice(String),
    /// The user may not have so much at a time.
    #[error("{}", over_quota_text(.user, *.asked_bytes, *.used_bytes, *.quota_bytes))]
    OverQuota {
        /// Who asked.
        user: String,
        /// What was asked for, in whole slabs and all copies together.
        asked_bytes: u64,
        /// What the user has.
        used_bytes: u64,
        /// What it may have.
        quota_bytes: u64,
    },
    /// The user may not have so many devices, or so much storage, at a time.
    #[error("{0}")]
    OverDeviceQuota(OverDevices),
    /// A donor was named that the rack does not know.
    #[error("the rack has no node named {0}")]
    UnknownNode(String),
    /// A living agent of that name is registered already.
    #[error("an agent named {name} is already registered (at {control_addr})")]
    NameTaken {
        /// The name.
        name: String,
        /// Where the living agent is.
        control_addr: String,
    },
    /// The agent is not registered (with that epoch): it has to register first.
    #[error("the agent is not registered under this epoch")]
    NotRegistered,
    /// The request makes no sense, for the reason given.
    #[error("{0}")]
    BadRequest(String),
    /// The donors had room, but failed or did not answer in time; nothing is held. Asking again
    /// may help.
    #[error("the donors have room, but failed or did not answer in time")]
    HandshakeFailed,
    /// A join token is worth nothing (any more), for the reason given.
    #[error("{0}")]
    BadToken(String),
    /// The caller is known and may not do this, for the reason given.
    #[error("{0}")]
    Forbidden(String),
    /// The disk of the Monitor Node's store is full, for which this says more.
    #[error("the Monitor Node can grant and change nothing: {0}")]
    StoreFull(String),
    /// The Monitor Node is being shut down.
    #[error("the Monitor Node is stopping")]
    Stopping,
}

/// Says that a node lends nothing more.
pub fn drained_text(node: &str) -> String {
    format!("{node} is being drained and lends nothing more: name another donor, or none")
}

/// Says that a node lends only.
pub fn pool_text(node: &str) -> String {
    format!("{node} is a pool node: it lends its memory and borrows none")
}
