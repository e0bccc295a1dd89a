//! The Resource Registration Table: the nodes, what they offer, and whether they live.

#[cfg(test)]
mod tests;

use crate::door::DoorReport;
use crate::pressure::{PressureLevel, PressureReport};
use crate::types::{
    DeviceReport, DonorStatus, FlowPeer, Identity, NodeRegistration, PortReport, RelayPlace,
    ResourceKind, ResourceSpec,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Unbounded};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use venice_wire::{NodeId, NodeSecret, SLAB_BYTES};

/// A machine stalls whose tasks wait for memory this share of the time.
const STALLED_RATIO: f64 = 0.10;

/// What outlives a restart of the Monitor Node about a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeRecord {
    /// Number and epoch.
    pub identity: Identity,
    /// Name, unique.
    pub name: String,
    /// The agent process of this epoch.
    pub instance: u64,
    /// Its process id.
    pub pid: Option<u32>,
    /// `host:port` of its gRPC service.
    pub control_addr: String,
    /// `host:port` of its UDP data port.
    pub udp_addr: String,
    /// Path of its unix socket.
    pub shm_socket: String,
    /// What it offers.
    pub resources: Vec<ResourceSpec>,
    /// What the keys of its UDP port are made of, drawn for this epoch; `None` in a rack without
    /// protection.
    #[serde(default)]
    pub secret: Option<NodeSecret>,
    /// Its place in the network of relays, if there is one.
    #[serde(default)]
    pub relay: Option<RelayPlace>,
    /// The link it emulates; empty: none.
    #[serde(default)]
    pub link: String,
    /// A passive pool node: it lends, and no program of it borrows.
    #[serde(default)]
    pub is_pool: bool,
    /// Its operator wants it empty: nothing more is placed on it. This is of the name, whatever
    /// agent bears it.
    #[serde(default)]
    pub is_draining: bool,
    /// It was turned out and no agent has borne its name since: the name is free.
    #[serde(default)]
    pub is_turned_out: bool,
    /// The agent process of this epoch was ended in an orderly way: it has said farewell, and nothing
    /// of it is left.
    #[serde(default)]
    pub is_stopped: bool,
}

impl NodeRecord {
    pub(crate) fn new(
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
            is_turned_out: false,
            is_stopped: false,
        }
    }

    /// Slabs it lends altogether, unless it withholds some.
    pub fn total_slabs(&self) -> u32 {
        let slabs = self.resources.iter().filter(|resource| resource.kind == ResourceKind::Memory);
        let bytes: u64 = slabs.map(|resource| resource.bytes).sum();
        u32::try_from(bytes / SLAB_BYTES).unwrap_or(u32::MAX)
    }
}

/// A node as the Monitor Node sees it now.
#[derive(Debug, Clone)]
pub struct NodeEntry {
    /// The durable part. It is shared with who has been told of it, and another one after each change.
    pub record: Arc<NodeRecord>,
    /// False once it missed its heartbeats, refused a connection or said farewell.
    pub up: bool,
    /// When it was last known to live, or when the Monitor Node started.
    pub seen_ns: u64,
    /// When its last heartbeat came, since the Monitor Node started.
    pub last_heartbeat_ns: Option<u64>,
    /// When it went down, if it is down.
    pub down_since_ns: u64,
    /// When this epoch was registered, or the Monitor Node started.
    pub epoch_since_ns: u64,
    /// Its memory by its newest report.
    pub status: DonorStatus,
    /// How its devices are, by its newest report.
    pub devices: Vec<DeviceReport>,
    /// Slabs of prepares it has not answered yet.
    pub reserved_slabs: u32,
    /// What its UDP port has seen, by its newest report.
    pub port: PortReport,
    /// How short of memory its machine is, by its newest report.
    pub pressure: PressureReport,
    /// What its door has seen; `None` until it reports.
    pub door: Option<DoorReport>,
    /// Whom it was told that it is near.
    pub(crate) told: Told,
}

/// Whom a node was told that it is near.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told {
    /// Of the table, when that was last looked at.
    pub(crate) revision: u64,
    /// Of the table, when it became that.
    pub(crate) version: u64,
    pub(crate) peers: Vec<Arc<NodeRecord>>,
    pub(crate) relays: Vec<Arc<NodeRecord>>,
}

impl NodeEntry {
    pub(crate) fn new(record: NodeRecord, now_ns: u64) -> Self {
        let total_slabs = record.total_slabs();
        Self {
            up: !record.is_turned_out && !record.is_stopped,
            record: Arc::new(record),
            seen_ns: now_ns,
            last_heartbeat_ns: None,
            down_since_ns: now_ns,
            epoch_since_ns: now_ns,
            status: DonorStatus { total_slabs, free_slabs: total_slabs, revision: 0 },
            devices: Vec::new(),
            reserved_slabs: 0,
            port: PortReport::default(),
            pressure: PressureReport::default(),
            door: None,
            told: Told::default(),
        }
    }

    /// Why nothing can be had of it: its agent is not there.
    pub(crate) fn absence(&self) -> Option<&'static str> {
        match self.up {
            true => None,
            false if self.record.is_stopped => Some("its node is stopped"),
            false => Some("its node is down"),
        }
    }

    /// Slabs that may be asked of it: none while it is down, is to be empty, or its machine needs
    /// them itself.
    pub fn available_slabs(&self) -> u32 {
        if !self.may_lend() {
            return 0;
        }
        self.status.free_slabs.saturating_sub(self.reserved_slabs)
    }

    /// Whether what it has free may be asked of it.
    pub(crate) fn may_lend(&self) -> bool {
        self.up && !self.record.is_draining && self.pressure.level == PressureLevel::None
    }

    /// Tasks of its machine wait for memory.
    pub(crate) fn is_stalled(&self) -> bool {
        self.pressure.stall_ratio.is_some_and(|ratio| ratio >= STALLED_RATIO)
    }

    /// What programs move to and fro at its port.
    pub(crate) fn used_bytes_per_s(&self) -> u64 {
        // What other nodes send are tests of the links.
        let flows = self.port.flows.iter();
        let flows = flows.filter(|flow| !matches!(flow.with, FlowPeer::Node(_)));
        flows.map(|flow| flow.bytes_per_s as u64).fold(0, u64::saturating_add)
    }

    /// Takes over a report unless a newer one came already. True if it did.
    pub(crate) fn update_status(&mut self, status: DonorStatus) -> bool {
        let newer = status.revision >= self.status.revision;
        if newer {
            self.status = status;
        }
        newer
    }
}

/// What a donor has that may be asked of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Room {
    pub(crate) free_slabs: u32,
    /// Nothing that it reports speaks against it.
    pub(crate) is_at_ease: bool,
}

impl Room {
    /// `None` where nothing may be asked of it.
    fn of(entry: &NodeEntry) -> Option<Self> {
        let free_slabs = entry.available_slabs();
        let is_at_ease = entry.used_bytes_per_s() == 0 && !entry.is_stalled();
        (free_slabs > 0).then_some(Self { free_slabs, is_at_ease })
    }
}

/// The nodes, by number and by name. A name keeps its number for good.
#[derive(Debug, Default)]
pub struct Rrt {
    nodes: BTreeMap<NodeId, NodeEntry>,
    by_name: BTreeMap<String, NodeId>,
    /// Of those that have any: in a rack of thousands a request cannot look at every node's entry.
    rooms: BTreeMap<NodeId, Room>,
    /// Changes so far of which nodes there are, what they have registered, and whether they are up.
    revision: u64,
}

impl Rrt {
    /// The node of this number.
    pub fn get(&self, node: NodeId) -> Option<&NodeEntry> {
        self.nodes.get(&node)
    }

    pub(crate) fn get_mut(&mut self, node: NodeId) -> Option<EntryMut<'_>> {
        let entry = self.nodes.get_mut(&node)?;
        let before = (entry.up, Arc::clone(&entry.record));
        Some(EntryMut { node, entry, before, rooms: &mut self.rooms, revision: &mut self.revision })
    }

    /// Changes what a node that is there has registered; its record then.
    pub(crate) fn change_record(
        &mut self,
        node: NodeId,
        change: impl FnOnce(&mut NodeRecord),
    ) -> NodeRecord {
        let mut entry = self.get_mut(node).expect("it was looked up by the caller");
        change(Arc::make_mut(&mut entry.record));
        NodeRecord::clone(&entry.record)
    }

    /// Changes so far of which nodes there are, what they have registered, and whether they are up.
    pub(crate) fn revision(&self) -> u64 {
        self.revision
    }

    /// Is what bears this number to be empty?
    pub(crate) fn is_draining(&self, node: NodeId) -> bool {
        self.get(node).is_some_and(|entry| entry.record.is_draining)
    }

    /// The node of this name.
    pub fn by_name(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.get(self.by_name.get(name)?)
    }

    /// Every node, by number.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &NodeEntry)> {
        self.nodes.iter().map(|(id, entry)| (*id, entry))
    }

    /// Those of which something may be asked, by number.
    pub(crate) fn with_room(&self) -> impl Iterator<Item = (NodeId, Room)> {
        self.rooms.iter().map(|(node, room)| (*node, *room))
    }

    /// Every other node, from the next number on, the numbers below it last.
    pub(crate) fn after(&self, node: NodeId) -> impl Iterator<Item = &NodeEntry> + Clone {
        let above = self.nodes.range((Excluded(node), Unbounded));
        above.chain(self.nodes.range(..node)).map(|(_, entry)| entry)
    }

    /// Adds a node or puts a new epoch in the place of the old.
    pub(crate) fn insert(&mut self, entry: NodeEntry) {
        let node = entry.record.identity.node;
        let holder = self.by_name.insert(entry.record.name.clone(), node);
        assert!(holder.is_none_or(|holder| holder == node), "a name has one number");
        self.revision += 1;
        note_room(&mut self.rooms, node, &entry);
        self.nodes.insert(node, entry);
    }

    /// Takes a node out that has turned out not to be there.
    pub(crate) fn remove(&mut self, node: NodeId) {
        self.revision += 1;
        self.rooms.remove(&node);
        if let Some(entry) = self.nodes.remove(&node)
            && self.by_name.get(&entry.record.name) == Some(&node)
        {
            self.by_name.remove(&entry.record.name);
        }
    }

    /// A number no node has; numbers start at 1.
    pub(crate) fn fresh_number(&self) -> NodeId {
        NodeId(self.nodes.keys().next_back().map_or(1, |last| last.0 + 1))
    }
}

/// A node's entry while it changes; what the table keeps of it besides follows.
pub(crate) struct EntryMut<'a> {
    node: NodeId,
    entry: &'a mut NodeEntry,
    /// Whether it was up, and its record: while that is held here, no change leaves it the same one.
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
