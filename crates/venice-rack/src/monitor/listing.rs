//! The tables for users.

use super::MonitorCore;
use crate::NS_PER_S;
use crate::kind::Lending;
use crate::pressure::PressureLevel;
use crate::rat::{GrantRecord, GrantState};
use crate::rows::{GrantRow, NodeRow, ResourceRow};
use crate::rrt::NodeEntry;
use crate::types::{GrantUsage, ResourceSpec};
use std::collections::BTreeMap;
use venice_wire::{NodeId, SLAB_BYTES};

impl MonitorCore {
    /// Returns the nodes, by number.
    pub fn node_rows(&self, now_ns: u64) -> Vec<NodeRow> {
        let mut granted: BTreeMap<NodeId, u64> = BTreeMap::new();
        for grant in self.rat.iter().filter(|grant| self.lost_since_ns(grant).is_none()) {
            *granted.entry(grant.donor).or_default() += bytes(grant.share.slabs());
        }
        let granted = |node| granted.get(&node).copied().unwrap_or(0);
        self.rrt.iter().map(|(id, entry)| node_row(entry, granted(id), now_ns)).collect()
    }

    /// Returns the version of the authorities that each node trusts; 0: unknown. Revoked nodes are
    /// left out.
    pub fn trust_versions(&self) -> Vec<(String, u64)> {
        let members = self.rrt.iter().filter(|(_, entry)| !entry.record.is_revoked);
        let version = |entry: &NodeEntry| entry.door.as_ref().map_or(0, |door| door.trust_version);
        members.map(|(_, entry)| (entry.record.name.clone(), version(entry))).collect()
    }

    /// Returns the Resource Registration Table, by node.
    pub fn resource_rows(&self) -> Vec<ResourceRow> {
        let rows_of = |entry: &NodeEntry| -> Vec<ResourceRow> {
            let row = |resource: &ResourceSpec| ResourceRow {
                node: entry.record.name.clone(),
                kind: resource.kind,
                address: resource.address.clone(),
                bytes: resource.bytes,
                free_bytes: resource.bytes * u64::from(entry.up),
                slab_bytes: resource.slab_bytes,
                capabilities: resource.capabilities.clone(),
                health: health(entry),
                available: false,
            };
            let complete = |spec: &ResourceSpec| match spec.kind.spec().lending {
                Lending::Slabs => memory_row(entry, row(spec)),
                Lending::Device => self.device_row(entry, spec, row(spec)),
                Lending::Listed => row(spec),
            };
            entry.record.resources.iter().map(complete).collect()
        };
        self.rrt.iter().flat_map(|(_, entry)| rows_of(entry)).collect()
    }

    /// Returns the Resource Allocation Table, by grant.
    pub fn grant_rows(&self, now_ns: u64) -> Vec<GrantRow> {
        let mut rows: Vec<_> = self.rat.iter().map(|grant| self.grant_row(grant, now_ns)).collect();
        for pending in self.requests.values() {
            let early = pending.early_parts();
            let records = early.map(|part| self.record_of_part(now_ns, pending, part));
            rows.extend(records.map(|record| self.grant_row(&record, now_ns)));
        }
        rows.sort_by_key(|row| row.id);
        rows
    }

    pub(super) fn grant_row(&self, grant: &GrantRecord, now_ns: u64) -> GrantRow {
        let state = match grant.state {
            GrantState::Committing => "prepared",
            _ if self.lost_since_ns(grant).is_some() => "lost",
            GrantState::Committed => "committed",
            GrantState::Transferring => "transferring",
            GrantState::Releasing => "releasing",
        };
        let owner = grant.owner.as_ref();
        let usage = self.usage_of(grant);
        GrantRow {
            id: grant.id.0,
            donor: self.name_of(grant.donor),
            donor_epoch: grant.donor_epoch,
            owner_user: owner.map(|owner| owner.user.clone()).unwrap_or_default(),
            owner_node: owner.map(|owner| owner.node.clone()).unwrap_or_default(),
            recipient: grant.recipient.clone(),
            home: grant.home.map(|home| self.name_of(home)).unwrap_or_default(),
            hops: grant.home.and_then(|home| self.hops(home, grant.donor)),
            kind: grant.share.kind,
            address: grant.share.address.clone(),
            bytes: grant.share.bytes,
            bandwidth_bps: grant.bandwidth_bps,
            state: state.to_owned(),
            lease_s: grant.lease_ms as f64 * 1e6 / NS_PER_S,
            age_s: now_ns.saturating_sub(grant.granted_ns) as f64 / NS_PER_S,
            purpose: grant.purpose.clone(),
            priority: u32::from(grant.priority),
            ownership: grant.ownership,
            preempted_in_s: self.preempted_in_s(now_ns, grant.id),
            busy_ratio: usage.and_then(|usage| usage.busy_ratio),
            in_bytes: usage.and_then(|usage| usage.in_bytes),
            out_bytes: usage.and_then(|usage| usage.out_bytes),
            commands: usage.map(|usage| usage.commands),
        }
    }

    /// Returns the usage of a granted device, if its donor is up and has reported it.
    fn usage_of(&self, grant: &GrantRecord) -> Option<GrantUsage> {
        let donor = self
            .rrt
            .get(grant.donor)
            .filter(|entry| entry.up && entry.record.identity.epoch == grant.donor_epoch)?;
        donor.usage.iter().find(|usage| usage.grant == grant.id).copied()
    }
}

/// Completes the row of memory.
fn memory_row(entry: &NodeEntry, row: ResourceRow) -> ResourceRow {
    let free_bytes = bytes(entry.available_slabs()).min(row.bytes);
    ResourceRow { free_bytes, available: entry.available_slabs() > 0, ..row }
}

fn state(entry: &NodeEntry) -> &'static str {
    match () {
        () if entry.record.is_revoked => "revoked",
        () if entry.record.is_stopped => "stopped",
        () if !entry.up => "down",
        () if entry.is_unreachable() => "unreachable",
        () => "up",
    }
}

/// Returns the health of a node's memory, in words.
fn health(entry: &NodeEntry) -> String {
    let is_unloaded = entry.pressure.level == PressureLevel::None;
    let pressure = if is_unloaded { "ok" } else { "its machine is short of memory" };
    entry.absence().unwrap_or_else(|| pressure.to_owned())
}

fn bytes(slabs: u32) -> u64 {
    u64::from(slabs) * SLAB_BYTES
}

fn node_row(entry: &NodeEntry, granted_bytes: u64, now_ns: u64) -> NodeRow {
    let record = &entry.record;
    NodeRow {
        name: record.name.clone(),
        node_id: record.identity.node.0,
        pid: record.pid,
        state: state(entry).to_owned(),
        lent_bytes: bytes(entry.status.total_slabs),
        free_bytes: bytes(entry.available_slabs()),
        granted_bytes,
        epoch: record.identity.epoch,
        control_addr: record.control_addr.clone(),
        udp_addr: record.udp_addr.clone(),
        shm_socket: record.shm_socket.clone(),
        last_heartbeat_ms: entry
            .last_heartbeat_ns
            .map(|heartbeat| now_ns.saturating_sub(heartbeat) / crate::NS_PER_MS),
        protection: if record.secret.is_some() { "sealed" } else { "plain" }.to_owned(),
        replayed: entry.port.dropped.replayed,
        forged: entry.port.dropped.forged,
        unsealed: entry.port.dropped.unsealed,
        unknown_key: entry.port.dropped.unknown_key,
        xdp_received: entry.port.xdp.map(|frames| frames.received),
        xdp_sent: entry.port.xdp.map(|frames| frames.sent),
        xdp_lost: entry.port.xdp.map(|frames| frames.lost),
        topology: record.relay.as_ref().map(|relay| relay.topology.clone()).unwrap_or_default(),
        position: record.relay.as_ref().map(|relay| relay.position),
        relay_addr: record.relay.as_ref().map(|relay| relay.addr.clone()).unwrap_or_default(),
        link: record.link.clone(),
        role: if record.is_pool { "pool" } else { "peer" }.to_owned(),
        pressure: entry.pressure.level.name().to_owned(),
        available_bytes: entry.pressure.available_bytes,
        stall_ratio: entry.pressure.stall_ratio,
        draining: record.is_draining,
        certificate_expires_s: entry.door.as_ref().map(|door| door.certificate_expires_s),
        refused: entry.door.as_ref().map_or(0, |door| door.refused.total()),
    }
}
