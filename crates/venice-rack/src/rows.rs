//! The tables shown to users: one struct per line, ready for JSON.

use crate::resource::ResourceKind;
use crate::want::Want;
use serde::Serialize;
use std::collections::BTreeMap;

/// A line of `venice nodes`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeRow {
    /// The node's name.
    pub name: String,
    /// The node's number.
    pub node_id: u32,
    /// Process id of its agent, where reported.
    pub pid: Option<u32>,
    /// `up`; `down`: it does not report; `stopped`: its agent was stopped in an orderly way.
    pub state: String,
    /// Bytes it lends altogether, less those withheld for its own machine.
    pub lent_bytes: u64,
    /// Free bytes of these.
    pub free_bytes: u64,
    /// Granted bytes of these.
    pub granted_bytes: u64,
    /// The agent's epoch.
    pub epoch: u64,
    /// `host:port` of its gRPC service.
    pub control_addr: String,
    /// `host:port` of its UDP data port.
    pub udp_addr: String,
    /// Path of its unix socket.
    pub shm_socket: String,
    /// Milliseconds since its last heartbeat; `None` if none has come since the Monitor Node
    /// started.
    pub last_heartbeat_ms: Option<u64>,
    /// `sealed` or `plain`: the protection of its UDP datagrams.
    pub protection: String,
    /// Datagrams dropped by its UDP port as replays.
    pub replayed: u64,
    /// Datagrams dropped because of a wrong seal.
    pub forged: u64,
    /// Datagrams dropped because they had no seal.
    pub unsealed: u64,
    /// Datagrams dropped because of an unknown or expired key.
    pub unknown_key: u64,
    /// Datagrams received by AF_XDP, past the kernel's network stack; `None` without AF_XDP.
    pub xdp_received: Option<u64>,
    /// Datagrams sent by AF_XDP.
    pub xdp_sent: Option<u64>,
    /// Datagrams received by AF_XDP and dropped for lack of room.
    pub xdp_lost: Option<u64>,
    /// The shape of its relay network, for example `mesh:2x2x2`; empty: none.
    pub topology: String,
    /// Its position in that network.
    pub position: Option<u32>,
    /// `host:port` of its relay's UDP port; empty: it has none.
    pub relay_addr: String,
    /// The emulated link, for example `latency=1.4us,bandwidth=5Gbps`; empty: none.
    pub link: String,
    /// `peer`, or `pool`: it lends and borrows nothing.
    pub role: String,
    /// `none`, `low` or `high`: the memory pressure on its machine. A node under pressure gets no
    /// new grants.
    pub pressure: String,
    /// Bytes of memory available on its machine; `None` before its first report.
    pub available_bytes: Option<u64>,
    /// Share of the last ten seconds in which tasks there waited for memory, 0 to 1; `None` where
    /// the kernel has no PSI.
    pub stall_ratio: Option<f64>,
    /// True if the node is being drained: it gets no new grants.
    pub draining: bool,
    /// Expiry of its certificate, in seconds since 1970; `None` if no heartbeat has come since the
    /// Monitor Node started.
    pub certificate_expires_s: Option<u64>,
    /// Callers refused by its server since its agent started.
    pub refused: u64,
}

impl NodeRow {
    /// True if its heartbeats arrive, whether calls reach it or not.
    pub fn reports(&self) -> bool {
        matches!(&*self.state, "up" | "unreachable")
    }
}

/// A line of `venice resources`: the Resource Registration Table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceRow {
    /// The node that offers it.
    pub node: String,
    /// Its kind.
    pub kind: ResourceKind,
    /// Its address.
    pub address: String,
    /// Its whole size in bytes.
    pub bytes: u64,
    /// Free bytes; for a device that is lent whole its size or 0.
    pub free_bytes: u64,
    /// The unit it is lent in, in bytes; 0: whole.
    pub slab_bytes: u64,
    /// Its capabilities.
    pub capabilities: Vec<String>,
    /// `ok`, or its fault.
    pub health: String,
    /// True if some of it would be granted now.
    pub available: bool,
}

/// A line of `venice grants`: the Resource Allocation Table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GrantRow {
    /// The grant's number.
    pub id: u64,
    /// The donor's name.
    pub donor: String,
    /// The donor's epoch it belongs to: a restarted agent has another epoch, and lost the grant.
    pub donor_epoch: u64,
    /// The owner's user name; empty: unknown.
    pub owner_user: String,
    /// The node that vouched for that user.
    pub owner_node: String,
    /// The recipient's own description of itself.
    pub recipient: String,
    /// The node whose relay the recipient sends through; empty: none.
    pub home: String,
    /// Hops from there to the donor, where nodes relay for each other.
    pub hops: Option<u32>,
    /// Its kind.
    pub kind: ResourceKind,
    /// The device's name at its donor; empty for memory.
    pub address: String,
    /// Its size in bytes; 0 for a device without a size.
    pub bytes: u64,
    /// Bandwidth promised to it, in bits a second; 0: none.
    pub bandwidth_bps: u64,
    /// `prepared`, `committed`, `transferring`, `releasing` or `lost`.
    pub state: String,
    /// Its lease in seconds.
    pub lease_s: f64,
    /// Seconds since it was granted.
    pub age_s: f64,
    /// Its purpose.
    pub purpose: String,
    /// Its priority, 0 to 255.
    pub priority: u32,
    /// Seconds until it is preempted for a request of higher priority; `None` if it is not.
    pub preempted_in_s: Option<f64>,
    /// Its ownership epoch: 1 for the first owner, and one more for each transfer.
    pub ownership: u64,
    /// Share of the last seconds in which the device had something to do, 0 to 1; `None` where its
    /// donor does not know, as for memory and devices without a service. The same holds for the
    /// next three.
    pub busy_ratio: Option<f64>,
    /// Bytes that the recipient has sent to the device's service.
    pub in_bytes: Option<u64>,
    /// Bytes that the recipient has received from it.
    pub out_bytes: Option<u64>,
    /// Commands or tasks that the service has carried out.
    pub commands: Option<u64>,
}

/// A line of `venice queue`: a request that waits for room, or for a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueRow {
    /// Its number since this Monitor Node began to serve.
    pub id: u64,
    /// Its rank in the queue; 1 is the first.
    pub rank: u32,
    /// The owner's user name.
    pub owner_user: String,
    /// The node that vouched for that user.
    pub owner_node: String,
    /// The recipient's own description of itself.
    pub recipient: String,
    /// Its purpose.
    pub purpose: String,
    /// The wanted resources.
    pub wants: Vec<QueuedWant>,
    /// The donors it names; empty: any.
    pub donors: Vec<String>,
    /// Its priority, 0 to 255.
    pub priority: u32,
    /// Seconds waited so far.
    pub waited_s: f64,
    /// Seconds of its wait that are left.
    pub left_s: f64,
    /// The reason of its wait: `room` or a `device` in use, its user's `quota`, or `donors` that
    /// failed.
    pub needs: String,
}

/// One want of a queued request. Amounts are bytes of a divisible kind, else counts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct QueuedWant {
    /// The kind.
    pub kind: ResourceKind,
    /// Capabilities the devices must have.
    pub capabilities: Vec<String>,
    /// The amount of each piece; of a device that is lent whole its least size in bytes.
    pub bytes: u64,
    /// Pieces: devices, or copies of memory, each on another node.
    pub count: u32,
    /// The amount it wants in all.
    pub wanted: u64,
    /// The amount that is free at the donors it may use; of storage on one device.
    pub free: u64,
    /// The amount granted to requests behind it (backfill): never more than its own.
    pub backfilled: u64,
    /// The amount that is being preempted for it and not yet returned.
    pub preempting: u64,
}

impl QueuedWant {
    /// Returns the want.
    pub fn want(&self) -> Want {
        let Self { kind, bytes, count, .. } = *self;
        let capabilities = self.capabilities.clone();
        Want { count, capabilities, ..Want::device(kind, bytes) }
    }
}

/// Amounts by kind: bytes of a divisible kind, else counts.
pub type AmountsByKind = BTreeMap<ResourceKind, u64>;

/// The output of `venice quota list`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct QuotaTable {
    /// The amounts that users without an own quota may have granted; a kind that is missing is
    /// unlimited.
    pub default: AmountsByKind,
    /// The users with an own quota, or with any grant, by name.
    pub users: Vec<QuotaRow>,
}

/// A line of `venice quota list`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct QuotaRow {
    /// The user.
    pub user: String,
    /// True if the user has an own quota. Kinds it does not limit follow the default.
    pub is_own: bool,
    /// The amounts granted to the user, all copies together; no kind is missing.
    pub used: AmountsByKind,
    /// The amounts the user may have granted at a time; a kind that is missing is unlimited.
    pub quota: AmountsByKind,
}

/// A line of `venice links`: the Topology Status Table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LinkRow {
    /// The node that tested, or the recipient of a grant.
    pub from: String,
    /// The node at the far end.
    pub to: String,
    /// `udp`, `shm`, or `hop` between the relays of two neighbours.
    pub port: String,
    /// `up` or `down`.
    pub state: String,
    /// Round-trip time in microseconds; `None` if not tested.
    pub latency_us: Option<f64>,
    /// Share of tests lost, 0 to 1; `None` if not tested.
    pub loss_ratio: Option<f64>,
    /// Bandwidth in megabits a second, where measured.
    pub bandwidth_mbps: Option<f64>,
    /// Present traffic in bytes a second, both directions, as counted at the far end; `None` where
    /// it is not counted.
    pub bytes_per_s: Option<f64>,
    /// `aes-256-gcm`, `chacha20-poly1305`, `plain`, or `descriptor`: memory whose descriptor only
    /// the recipient holds.
    pub protection: String,
    /// The relaying nodes on the shortest path, in order; traffic goes around one that is down.
    /// Empty: the two ends reach each other directly.
    pub via: Vec<String>,
    /// Hops between relays on that path, where there are relays.
    pub hops: Option<u32>,
    /// The emulated link, for example `latency=1.4us,bandwidth=5Gbps`; empty: none.
    pub emulated: String,
    /// The node that reports this line.
    pub reported_by: String,
}

/// The outcome that a request would have now.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct AllocationPlan {
    /// The reason of a refusal; empty: it would be granted.
    pub refusal: String,
    /// The reason and the rivals of a wait, if it may wait; empty: it would not wait, or in vain.
    pub would_wait: String,
    /// The placement of its memory; `None`: it wants none.
    pub memory: Option<PlacementPlan>,
    /// The choices of its devices, a plan for each want.
    pub devices: Vec<DevicePlan>,
}

/// The placement that memory would get.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PlacementPlan {
    /// `nearest`, `spread` or `pack`.
    pub policy: String,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Requested slabs, all copies together.
    pub slabs: u32,
    /// Copies, each on another node.
    pub copies: u32,
    /// Every node.
    pub nodes: Vec<PlacementRow>,
}

/// A line of `venice place`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PlacementRow {
    /// The node.
    pub node: String,
    /// Slabs it would give.
    pub slabs: u32,
    /// Slabs it can give.
    pub free_slabs: u32,
    /// Hops to it, where nodes relay for each other.
    pub hops: Option<u32>,
    /// The price of its distance, in slabs.
    pub distance_slabs: u32,
    /// The price of the traffic on its path, in slabs.
    pub traffic_slabs: u32,
    /// The price of its machine's memory stalls, in slabs.
    pub stall_slabs: u32,
    /// Free slabs less these prices.
    pub score_slabs: i64,
    /// Bandwidth left on its path, in bits a second, for a request that states its need.
    pub link_left_bps: Option<u64>,
    /// The reason of its share, or of none.
    pub why: String,
}

/// The devices that a want would get.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DevicePlan {
    /// The want, in words.
    pub wanted: String,
    /// All devices of that kind.
    pub devices: Vec<DevicePlanRow>,
}

/// A line of a [`DevicePlan`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DevicePlanRow {
    /// The node that offers it.
    pub node: String,
    /// The device's name on that node.
    pub address: String,
    /// Its whole size in bytes; 0: unknown.
    pub bytes: u64,
    /// Free bytes; for a device that is lent whole its size or 0.
    pub free_bytes: u64,
    /// Its capabilities.
    pub capabilities: Vec<String>,
    /// True for the chosen device.
    pub is_chosen: bool,
    /// The reason of the choice, or against it.
    pub why: String,
}

/// A line of `venice forecast`: the forecast need of a workload in the current prediction window,
/// and the memory reserved for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForecastRow {
    /// The user.
    pub user: String,
    /// The purpose.
    pub purpose: String,
    /// The forecast of each kind.
    pub resources: BTreeMap<ResourceKind, ResourceForecast>,
    /// Free memory reserved for it, in bytes.
    pub reserved_bytes: u64,
    /// Prediction windows that are over.
    pub windows: u64,
    /// Windows in which it used at least a slab more memory than forecast.
    pub under_windows: u64,
    /// The same for the persistence forecast.
    pub persistence_under_windows: u64,
    /// Mean forecast error of memory, in bytes; `None`: no window is over.
    pub mean_error_bytes: Option<u64>,
    /// The same for the persistence forecast.
    pub persistence_mean_error_bytes: Option<u64>,
}

/// The forecast of one kind of a workload, in bytes of a divisible kind, else in counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ResourceForecast {
    /// The use at the last sample.
    pub in_use: u64,
    /// The forecast peak; `None`: no forecast yet.
    pub forecast: Option<u64>,
    /// The persistence forecast: the peak of the window before.
    pub persistence: Option<u64>,
}

/// Formats a bandwidth to three digits: `1.25Gbps`.
pub fn bandwidth_text(bps: u64) -> String {
    const T: u64 = 1_000_000_000_000;
    let units =
        [(T, "Tbps"), (1_000_000_000, "Gbps"), (1_000_000, "Mbps"), (1000, "Kbps"), (1, "bps")];
    let (unit_bps, unit) = units.into_iter().find(|(it, _)| bps >= *it).unwrap_or((1, "bps"));
    let number = bps as f64 / unit_bps as f64;
    let places = if number < 10.0 { 2 } else { usize::from(number < 100.0) };
    let digits = format!("{number:.places$}");
    let digits =
        if places > 0 { digits.trim_end_matches('0').trim_end_matches('.') } else { &digits };
    format!("{digits}{unit}")
}
