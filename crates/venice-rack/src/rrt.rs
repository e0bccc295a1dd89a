//! The Resource Registration Table: the nodes, their resources, and their liveness.

mod relays;
#[cfg(test)]
mod tests;

pub(crate) use relays::{Positions, Relays};

use crate::door::DoorReport;
use crate::pressure::{PressureLevel, PressureReport};
use crate::types::{
    DeviceReport, DonorStatus, FlowPeer, GrantUsage, Identity, NodeRegistration, PortReport,
    RelayPlace, ResourceKind, ResourceSpec,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};
use venice_wire::{NodeId, NodeSecret, SLAB_BYTES};

/// Share of the time in which tasks wait for memory from which on a machine counts as stalled.
const STALLED_RATIO: f64 = 0.10;

/// The durable part of a node's entry: it survives a restart of the Monitor Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Number and epoch.
    pub identity: Identity,
    /// Name, unique.
    pub name: String,
    /// The instance number of the agent process of this epoch.
    pub instance: u64,
    /// Process id of that agent.
    pub pid: Option<u32>,
    /// `host:port` of its gRPC service.
    pub control_addr: String,
    /// `host:port` of its UDP data port.
    pub udp_addr: String,
    /// Path of its unix socket.
    pub shm_socket: String,
    /// The offered resources.
    pub resources: Vec<ResourceSpec>,
    /// The secret from which the keys of its UDP port are derived, drawn for this epoch; `None` in
    /// a rack without protection.
    #[serde(default)]
    pub secret: Option<NodeSecret>,
    /// Its place in the network of relays, if there is one.
    #[serde(default)]
    pub relay: Option<RelayPlace>,
    /// The emulated link; empty: none.
    #[serde(default)]
    pub link: String,
    /// True for a passive pool node: it lends, and its programs borrow nothing.
    #[serde(default)]
    pub is_pool: bool,
    /// True while the node is drained: it gets no new grants. This belongs to the name, whichever
    /// agent uses it.
    #[serde(default)]
    pub is_draining: bool,
    /// True if the node was revoked and no agent has used its name since: the name is free.
    #[serde(default, rename = "is_turned_out")]
    pub is_revoked: bool,
    /// True if the agent process of this epoch was stopped in an orderly way: it has deregistered,
    /// and its memory is gone.
    #[serde(default)]
    pub is_stopped: bool,
}

impl NodeRecord {
    /// Makes the record of a node that has just registered.
    pub fn new(
        identity: Identity,
        registration: NodeRegistration,
        secret: Option<NodeSecret>,
    ) -> Self {
        let NodeRegistration { name, instance, pid, control_addr, udp_addr, .. } = registration;
        let NodeRegistration { shm_socket, resources, relay, link, is_pool, .. } = registration;
        Self {
            identity,
            name,
            instance,
            pid,
            control_addr,
            udp_addr,
            shm_socket,
            resources,
            secret,
            relay,
            link,
            is_pool,
            is_draining: false,
            is_revoked: false,
            is_stopped: false,
        }
    }

    /// Returns the slabs it lends altogether, including withheld ones.
    pub fn total_slabs(&self) -> u32 {
        let slabs = self.resources.iter().filter(|resource| resource.kind == ResourceKind::Memory);
        let bytes: u64 = slabs.map(|resource| resource.bytes).sum();
        u32::try_from(bytes / SLAB_BYTES).unwrap_or(u32::MAX)
    }
}

/// A node as the Monitor Node sees it now.
#[derive(Debug, Clone)]
pub struct NodeEntry {
    /// The durable part. It is shared with peer lists already sent; each change replaces it.
    pub record: Arc<NodeRecord>,
    /// False once it missed its heartbeats, refused a connection or deregistered.
    pub up: bool,
    /// Time of its last sign of life, or of the Monitor Node's start.
    pub seen_ns: u64,
    /// Time of its last heartbeat since the Monitor Node started.
    pub last_heartbeat_ns: Option<u64>,
    /// The outcome of the newest call that asked whether it can be reached.
    pub(crate) reach: Reach,
    /// Time it went down, if it is down.
    pub down_since_ns: u64,
    /// Time this epoch was registered, or the Monitor Node started.
    pub epoch_since_ns: u64,
    /// Its memory by its newest report.
    pub status: DonorStatus,
    /// The health of its devices by its newest report.
    pub devices: Vec<DeviceReport>,
    /// Slabs in prepares without an answer yet.
    pub reserved_slabs: u32,
    /// The counters of its UDP port by its newest report.
    pub port: PortReport,
    /// The memory pressure on its machine by its newest report.
    pub pressure: PressureReport,
    /// The report of its server; `None` before the first.
    pub door: Option<DoorReport>,
    /// Usage of its granted devices by its newest report.
    pub usage: Vec<GrantUsage>,
    /// The peer list sent to it.
    pub(crate) sent_peers: SentPeers,
}

/// The outcome of calls to a node. Reports come from it, calls go to it: an address that is
/// wrong, or a closed port, breaks one of the two only.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reach {
    /// To be asked at its next report.
    Unknown,
    /// Its agent has answered.
    Answers,
    /// No connection, or no answer in time.
    Fails,
}

/// The peer list sent to a node.
#[derive(Debug, Clone, Default)]
pub(crate) struct SentPeers {
    /// Revision of the table when the list was last checked.
    pub(crate) revision: u64,
    /// Revision of the table when the list last changed.
    pub(crate) version: u64,
    pub(crate) peers: Vec<Arc<NodeRecord>>,
    pub(crate) relays: Arc<[Arc<NodeRecord>]>,
}

impl NodeEntry {
    pub(crate) fn new(record: NodeRecord, now_ns: u64) -> Self {
        let total_slabs = record.total_slabs();
        Self {
            up: !record.is_revoked && !record.is_stopped,
            record: Arc::new(record),
            seen_ns: now_ns,
            last_heartbeat_ns: None,
            reach: Reach::Unknown,
            down_since_ns: now_ns,
            epoch_since_ns: now_ns,
            status: DonorStatus { total_slabs, free_slabs: total_slabs, revision: 0 },
            devices: Vec::new(),
            reserved_slabs: 0,
            port: PortReport::default(),
            pressure: PressureReport::default(),
            door: None,
            usage: Vec::new(),
            sent_peers: SentPeers::default(),
        }
    }

    /// Returns the reason that its resources are unavailable, if its agent is not there or cannot
    /// be called.
    pub(crate) fn absence(&self) -> Option<String> {
        match self.up {
            true => self.is_unreachable().then(|| format!("its node {}", self.unreachable_text())),
            false if self.record.is_stopped => Some("its node is stopped".to_owned()),
            false => Some("its node is down".to_owned()),
        }
    }

    /// True if calls to it fail although it reports.
    pub(crate) fn is_unreachable(&self) -> bool {
        self.reach == Reach::Fails
    }

    /// Returns the statement that calls to it fail.
    pub(crate) fn unreachable_text(&self) -> String {
        format!("cannot be reached at {}", self.record.control_addr)
    }

    /// Returns the slabs that may be requested from it: none while it is down, unreachable, drained,
    /// or under memory pressure.
    pub fn available_slabs(&self) -> u32 {
        if !self.may_lend() {
            return 0;
        }
        self.status.free_slabs.saturating_sub(self.reserved_slabs)
    }

    /// True if its free slabs may be requested.
    pub(crate) fn may_lend(&self) -> bool {
        self.is_open() && self.pressure.level == PressureLevel::None
    }

    /// True if it is there, can be called, and is not drained.
    pub(crate) fn is_open(&self) -> bool {
        self.up && !self.is_unreachable() && !self.record.is_draining
    }

    /// True if tasks of its machine wait for memory.
    pub(crate) fn is_stalled(&self) -> bool {
        self.pressure.stall_ratio.is_some_and(|ratio| ratio >= STALLED_RATIO)
    }

    /// Returns the traffic of programs at its port, in bytes a second.
    pub(crate) fn used_bytes_per_s(&self) -> u64 {
        // Traffic with other nodes is link tests.
        let flows = self.port.flows.iter();
        let flows = flows.filter(|flow| !matches!(flow.with, FlowPeer::Node(_)));
        flows.map(|flow| flow.bytes_per_s as u64).fold(0, u64::saturating_add)
    }

    /// Takes a report unless a newer one came already. Returns true if it did.
    pub(crate) fn update_status(&mut self, status: DonorStatus) -> bool {
        let newer = status.revision >= self.status.revision;
        if newer {
            self.status = status;
        }
        newer
    }
}

/// The free room of a donor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Room {
    pub(crate) free_slabs: u32,
    /// True if it reports neither traffic nor stalls.
    pub(crate) is_unloaded: bool,
    /// Its position in the network of relays, if it is in one.
    pub(crate) position: Option<u32>,
}

impl Room {
    /// Returns `None` if nothing may be requested from it.
    fn of(entry: &NodeEntry) -> Option<Self> {
        let free_slabs = entry.available_slabs();
        let is_unloaded = entry.used_bytes_per_s() == 0 && !entry.is_stalled();
        let position = entry.record.relay.as_ref().map(|place| place.position);
        (free_slabs > 0).then_some(Self { free_slabs, is_unloaded, position })
    }
}

/// The nodes, by number and by name. A name keeps its number for good.
#[derive(Debug, Default)]
pub struct Rrt {
    nodes: BTreeMap<NodeId, NodeEntry>,
    by_name: BTreeMap<String, NodeId>,
    /// The donors with free room: in a rack of thousands a request cannot look at every entry.
    rooms: BTreeMap<NodeId, Room>,
    /// Count of changes to the set of nodes, their records, and their being up.
    revision: u64,
    /// The relays, as last computed.
    relays: Mutex<Arc<Relays>>,
}

impl Rrt {
    /// Returns the node of this number.
    pub fn get(&self, node: NodeId) -> Option<&NodeEntry> {
        self.nodes.get(&node)
    }

    pub(crate) fn get_mut(&mut self, node: NodeId) -> Option<EntryMut<'_>> {
        let entry = self.nodes.get_mut(&node)?;
        let before = (entry.up, Arc::clone(&entry.record));
        Some(EntryMut { node, entry, before, rooms: &mut self.rooms, revision: &mut self.revision })
    }

    /// Changes the record of an existing node and returns a copy of it.
    ///
    /// # Panics
    /// If there is no such node.
    pub(crate) fn change_record(
        &mut self,
        node: NodeId,
        change: impl FnOnce(&mut NodeRecord),
    ) -> NodeRecord {
        let mut entry = self.get_mut(node).expect("the caller looked up the node");
        change(Arc::make_mut(&mut entry.record));
        NodeRecord::clone(&entry.record)
    }

    /// Returns the count of changes to the set of nodes, their records, and their being up.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Returns the relays.
    pub(crate) fn relays(&self) -> Arc<Relays> {
        let mut known = self.relays.lock().unwrap_or_else(PoisonError::into_inner);
        if known.revision != self.revision {
            *known = Arc::new(Relays::of(self.revision, self.nodes.values(), &known));
        }
        Arc::clone(&known)
    }

    /// True if this node is being drained.
    pub(crate) fn is_draining(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|entry| entry.record.is_draining)
    }

    /// Returns the node of this name.
    pub fn by_name(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.get(self.by_name.get(name)?)
    }

    /// Iterates over all nodes, by number.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &NodeEntry)> {
        self.nodes.iter().map(|(id, entry)| (*id, entry))
    }

    /// Iterates over the donors with free room, by number.
    pub(crate) fn with_room(&self) -> impl Iterator<Item = (NodeId, Room)> {
        self.rooms.iter().map(|(node, room)| (*node, *room))
    }

    /// Iterates over all other nodes, from the next number on, the numbers below it last.
    pub(crate) fn after(&self, node: NodeId) -> impl Iterator<Item = &NodeEntry> + Clone {
        let above = self.nodes.range((Excluded(node), Unbounded));
        above.chain(self.nodes.range(..node)).map(|(_, entry)| entry)
    }

    /// Adds a node, or replaces its old epoch by the new one.
    pub(crate) fn insert(&mut self, entry: NodeEntry) {
        let node = entry.record.identity.node;
        let holder = self.by_name.insert(entry.record.name.clone(), node);
        assert!(holder.is_none_or(|holder| holder == node), "a name has one number");
        self.revision += 1;
        note_room(&mut self.rooms, node, &entry);
        self.nodes.insert(node, entry);
    }

    /// Removes a node whose registration another Monitor Node has overtaken.
    pub(crate) fn remove(&mut self, node: NodeId) {
        self.revision += 1;
        self.rooms.remove(&node);
        if let Some(entry) = self.nodes.remove(&node)
            && self.by_name.get(&entry.record.name) == Some(&node)
        {
            self.by_name.remove(&entry.record.name);
        }
    }

    /// Returns an unused number; numbers start at 1.
    pub(crate) fn fresh_number(&self) -> NodeId {
        NodeId(self.nodes.keys().next_back().map_or(1, |last| last.0 + 1))
    }
}

/// A node's entry under change. When dropped, it updates the indexes of the table.
pub(crate) struct EntryMut<'a> {
    node: NodeId,
    entry: &'a mut NodeEntry,
    /// The former up state and record. The `Arc` held here makes each change create a new
    /// record.
    before: (bool, Arc<NodeRecord>),
    rooms: &'a mut BTreeMap<NodeId, Room>,
    revision: &'a mut u64,
}

impl Deref for EntryMut<'_> {
    type Target = NodeEntry;

    fn deref(&self) -> &NodeEntry {
        self.entry
    }
}

impl DerefMut for EntryMut<'_> {
    fn deref_mut(&mut self) -> &mut NodeEntry {
        self.entry
    }
}

impl Drop for EntryMut<'_> {
    fn drop(&mut self) {
        let (was_up, record) = &self.before;
        if *was_up != self.entry.up || !Arc::ptr_eq(record, &self.entry.record) {
            *self.revision += 1;
        }
        note_room(self.rooms, self.node, self.entry);
    }
}

fn note_room(rooms: &mut BTreeMap<NodeId, Room>, node: NodeId, entry: &NodeEntry) {
    let room = Room::of(entry);
    match (rooms.get_mut(&node), room) {
        (Some(known), Some(room)) => *known = room,
        (None, Some(room)) => drop(rooms.insert(node, room)),
        (Some(_), None) => drop(rooms.remove(&node)),
        (None, None) => {}
    }
}
