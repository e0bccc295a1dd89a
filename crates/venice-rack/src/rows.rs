//! The tables as people are shown them: one struct a line, ready for JSON.

use serde::Serialize;

/// A line of `venice nodes`.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NodeRow {
    /// The node's name.
    pub name: String,
    /// The node's number.
    pub node_id: u32,
    /// Process id of its agent, where the agent told it.
    pub pid: Option<u32>,
    /// `up`; `down`: nothing is heard of it; `stopped`: its agent was ended in an orderly way.
    pub state: String,
    /// Bytes it lends altogether, less what its machine has taken back for itself.
    pub lent_bytes: u64,
    /// Bytes of these that are free.
    pub free_bytes: u64,
    /// Bytes of these that are granted.
    pub granted_bytes: u64,
    /// The agent's epoch.
    pub epoch: u64,
    /// `host:port` of its gRPC service.
    pub control_addr: String,
    /// `host:port` of its UDP data port.
    pub udp_addr: String,
    /// Path of its unix socket.
    pub shm_socket: String,
    /// Milliseconds since its last heartbeat; `None` when none has come since the Monitor Node
    /// started.
    pub last_heartbeat_ms: Option<u64>,
    /// `sealed` or `plain`: how its UDP datagrams are protected.
    pub protection: String,
    /// Datagrams that its UDP port has dropped because they had come before.
    pub replayed: u64,
    /// Because their seal did not fit.
    pub forged: u64,
    /// Because they had none.
    pub unsealed: u64,
    /// Because their key does not exist (any more).
    pub unknown_key: u64,
    /// Datagrams that came to it past the kernel, by AF_XDP; `None`: it has none.
    pub xdp_received: Option<u64>,
    /// Datagrams that went out by it.
    pub xdp_sent: Option<u64>,
    /// Datagrams that came by it and found no room.
    pub xdp_lost: Option<u64>,
    /// The shape of the network of relays it belongs to, for example `mesh:2x2x2`; empty: none.
    pub topology: String,
    /// Its position in that network.
    pub position: Option<u32>,
    /// `host:port` of its relay's UDP port; empty: it has none.
    pub relay_addr: String,
    /// The link it emulates, for example `latency=1.4us,bandwidth=5Gbps`; empty: none.
    pub link: String,
    /// `peer`, or `pool`: it lends and borrows nothing.
    pub role: String,
    /// `none`, `low` or `high`: how short of memory its machine is. Nothing is placed on a node
    /// under pressure.
    pub pressure: String,
    /// Bytes of memory its machine has available; `None` when it has not said.
    pub available_bytes: Option<u64>,
    /// Share of the last ten seconds in which tasks there waited for memory, 0 to 1; `None` where
    /// the kernel does not say.
    pub stall_ratio: Option<f64>,
    /// It is to be empty: nothing more is placed on it.
    pub draining: bool,
    /// When its certificate ends, in seconds since 1970; `None` when no heartbeat has come since
    /// the Monitor Node started.
    pub certificate_expires_s: Option<u64>,
    /// Callers that its door has refused since its agent started.
    pub refused: u64,
}

/// A line of `venice resources`: the Resource Registration Table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ResourceRow {
    /// The node that offers it.
    pub node: String,
    /// `memory`, `window` (blocks of physical memory), `accelerator`, `nic` or `storage`.
    pub kind: String,
    /// Where it is reached.
    pub address: String,
    /// Its whole size.
    pub bytes: u64,
    /// What of it is free; of a device that is lent whole its size or 0.
    pub free_bytes: u64,
    /// The unit it is lent in; 0: whole.
    pub slab_bytes: u64,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// `ok`, or what is wrong with it.
    pub health: String,
    /// Something of it would be granted now.
    pub available: bool,
}

/// A line of `venice grants`: the Resource Allocation Table.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GrantRow {
    /// The grant's number.
    pub id: u64,
    /// The donor's name.
    pub donor: String,
    /// The donor's epoch that it is of: an agent that starts anew has another, and not this grant.
    pub donor_epoch: u64,
    /// Whose it is: the name of a user; empty: nobody knows.
    pub owner_user: String,
    /// The node that vouched for that user.
    pub owner_node: String,
    /// Who borrowed, in its own words.
    pub recipient: String,
    /// The node whose relay the recipient sends through; empty: none.
    pub home: String,
    /// Hops from there to the donor, where nodes relay for each other.
    pub hops: Option<u32>,
    /// `memory`, `accelerator`, `nic` or `storage`.
    pub kind: String,
    /// The device's name at its donor; empty: it is memory.
    pub address: String,
    /// How much; 0 of a device that has no size.
    pub bytes: u64,
    /// What was promised to it of the bandwidth of its way, in bits a second; 0: nothing.
    pub bandwidth_bps: u64,
    /// `prepared`, `committed`, `releasing` or `lost`.
    pub state: String,
    /// Seconds of its lease.
    pub lease_s: f64,
    /// Seconds since it was granted.
    pub age_s: f64,
    /// What for.
    pub purpose: String,
    /// Its priority, 0 to 255.
    pub priority: u32,
    /// Seconds until it ends, since it is called back for a request of higher priority; `None`: it
    /// is not.
    pub preempted_in_s: Option<f64>,
}

/// A line of `venice queue`: a request that waits for room, or for a device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct QueueRow {
    /// Its number since this Monitor Node began to serve.
    pub id: u64,
    /// Its place in line; 1 is the first.
    pub rank: u32,
    /// Whose it is.
    pub owner_user: String,
    /// The node that vouched for that user.
    pub owner_node: String,
    /// Who asks, in its own words.
    pub recipient: String,
    /// What for.
    pub purpose: String,
    /// `memory`, `accelerator`, `nic` or `storage`.
    pub kind: String,
    /// What the device has to be able to do.
    pub capabilities: Vec<String>,
    /// What it asks for, all copies together; of an accelerator how large it is to be at least.
    pub bytes: u64,
    /// Copies, each of another node; 1 of a device.
    pub copies: u32,
    /// The donors it names; empty: any.
    pub donors: Vec<String>,
    /// Its priority, 0 to 255.
    pub priority: u32,
    /// Seconds that it has waited.
    pub waited_s: f64,
    /// Seconds that it goes on waiting.
    pub left_s: f64,
    /// What the donors have free that it may use; of storage what one device has; 0 of devices that
    /// are lent whole.
    pub free_bytes: u64,
    /// Bytes that went to requests behind it: never more than its own.
    pub backfilled_bytes: u64,
    /// What is called back for it, and has not come yet.
    pub preempting_bytes: u64,
    /// Devices lent whole that it may use and nobody has.
    pub free_devices: u32,
    /// Such devices that went to requests behind it: one at most.
    pub backfilled_devices: u32,
    /// Such devices that are called back for it.
    pub preempting_devices: u32,
    /// What it waits for: `room` or a `device` that others have, its user's `quota`, or `donors` that
    /// did not do their share.
    pub needs: String,
}

/// What `venice quota list` shows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct QuotaTable {
    /// Bytes that those may have borrowed who have no quota of their own; `None`: what there is.
    pub default_bytes: Option<u64>,
    /// Accelerators that they may have.
    pub default_accelerators: Option<u64>,
    /// Network cards.
    pub default_nics: Option<u64>,
    /// Bytes of storage.
    pub default_storage_bytes: Option<u64>,
    /// The users who have a quota of their own, or anything borrowed, by name.
    pub users: Vec<QuotaRow>,
}

/// A line of `venice quota list`.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct QuotaRow {
    /// The user.
    pub user: String,
    /// What it has borrowed, copies and all, in bytes.
    pub used_bytes: u64,
    /// What it may have borrowed at a time, in bytes; `None`: what there is.
    pub quota_bytes: Option<u64>,
    /// It has a quota of its own: what that does not say is as for all others.
    pub is_own: bool,
    /// Accelerators that it has.
    pub used_accelerators: u64,
    /// That it may have at a time.
    pub quota_accelerators: Option<u64>,
    /// Network cards that it has.
    pub used_nics: u64,
    /// That it may have at a time.
    pub quota_nics: Option<u64>,
    /// Storage that it has, in bytes.
    pub used_storage_bytes: u64,
    /// That it may have at a time.
    pub quota_storage_bytes: Option<u64>,
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
    /// Round-trip time in microseconds; `None` where nobody tests.
    pub latency_us: Option<f64>,
    /// Share of tests lost, 0 to 1; `None` where nobody tests.
    pub loss_ratio: Option<f64>,
    /// Bandwidth in megabits a second, where it was measured.
    pub bandwidth_mbps: Option<f64>,
    /// Present traffic in bytes a second, both directions, as the far end counts it; `None` where
    /// it cannot tell.
    pub bytes_per_s: Option<f64>,
    /// `aes-256-gcm`, `chacha20-poly1305`, `plain`, or `descriptor`: memory that nobody but the
    /// recipient has the descriptor of.
    pub protection: String,
    /// Datagrams that the far end has, of whomever they came from, dropped because they had come before.
    pub replayed: u64,
    /// Because their seal did not fit.
    pub forged: u64,
    /// Because they had none.
    pub unsealed: u64,
    /// Because their key does not exist (any more).
    pub unknown_key: u64,
    /// The nodes that relay on the way, in the order of the short way; round one that is down it
    /// goes another way. Empty: the two ends reach each other directly.
    pub via: Vec<String>,
    /// Hops between relays on that way, where there are relays.
    pub hops: Option<u32>,
    /// The link that is emulated there, for example `latency=1.4us,bandwidth=5Gbps`; empty: none.
    pub emulated: String,
    /// The node that reports this line.
    pub reported_by: String,
}

/// What `venice place` shows: where a request would be placed.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct PlacementPlan {
    /// `nearest`, `spread` or `pack`.
    pub policy: String,
    /// Bytes of a slab.
    pub slab_bytes: u64,
    /// Slabs asked for, all copies together.
    pub slabs: u32,
    /// Copies, each of another node.
    pub copies: u32,
    /// Why it would be refused; empty: it would be granted.
    pub refusal: String,
    /// It would wait, if it may: why, and for whom; empty: it would not, or nothing comes of it.
    pub would_wait: String,
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
    /// Slabs that may be had of it.
    pub free_slabs: u32,
    /// Hops to it, where nodes relay for each other.
    pub hops: Option<u32>,
    /// What its distance counts against it, in slabs.
    pub distance_slabs: u32,
    /// What the traffic on the way counts against it, in slabs.
    pub traffic_slabs: u32,
    /// What its machine's waiting for memory counts against it, in slabs.
    pub stall_slabs: u32,
    /// Free slabs less all that.
    pub score_slabs: i64,
    /// What its way has left, in bits a second, for a request that says what it needs.
    pub link_left_bps: Option<u64>,
    /// Why it gives that, or nothing.
    pub why: String,
}

/// What `venice get accelerator --dry-run` shows: which device a request would get.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct DevicePlan {
    /// What is asked for, in words.
    pub wanted: String,
    /// Why it would be refused; empty: it would be granted.
    pub refusal: String,
    /// It would wait, if it may: how; empty: it would not, or nothing comes of it.
    pub would_wait: String,
    /// Every device of that kind.
    pub devices: Vec<DevicePlanRow>,
}

/// A line of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct DevicePlanRow {
    /// The node that offers it.
    pub node: String,
    /// The device's name there.
    pub address: String,
    /// Its whole size; 0: nobody knows.
    pub bytes: u64,
    /// What of it nobody has; of one that is lent whole its size or 0.
    pub free_bytes: u64,
    /// What it can do.
    pub capabilities: Vec<String>,
    /// It is the one.
    pub is_chosen: bool,
    /// Why it is, or is not.
    pub why: String,
}

/// A line of `venice forecast`: what a workload is foretold to need in the prediction window that
/// goes on, and what is kept for it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ForecastRow {
    /// The user.
    pub user: String,
    /// What for.
    pub purpose: String,
    /// Memory, in bytes.
    pub memory_bytes: ResourceForecast,
    /// Accelerators.
    pub accelerators: ResourceForecast,
    /// Network cards.
    pub nics: ResourceForecast,
    /// Storage, in bytes.
    pub storage_bytes: ResourceForecast,
    /// Free memory that is kept from others for it, in bytes.
    pub reserved_bytes: u64,
    /// Prediction windows that are over.
    pub windows: u64,
    /// Those in which it used more memory, by a slab or more, than was foretold.
    pub under_windows: u64,
    /// Than persistence would have said.
    pub persistence_under_windows: u64,
    /// By how much forecasts of memory were off, in bytes; `None`: no window is over.
    pub mean_error_bytes: Option<u64>,
    /// By how much persistence would have been.
    pub persistence_mean_error_bytes: Option<u64>,
}

/// One resource of a workload.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct ResourceForecast {
    /// What it used at the last sample.
    pub in_use: u64,
    /// The peak foretold; `None`: nothing is foretold yet.
    pub forecast: Option<u64>,
    /// The peak of the window before: what plain persistence says.
    pub persistence: Option<u64>,
}

/// A bandwidth as people write it, to three digits: `1.25Gbps`.
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
