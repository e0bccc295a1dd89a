//! Devices in the model: requested, lent, released, faulty; no device is ever lent twice.

use super::etcd::Monitor;
use super::{Recipient, World, name_of};
use crate::model::{DONORS, DeviceOp};
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::caller::Owner;
use venice_rack::monitor::MonitorCore;
use venice_rack::rows::{QueueRow, ResourceRow};
use venice_rack::types::{Grant, HeldState, ResourceKind, ResourceSpec, Want};
use venice_wire::GrantKey;

const STORAGE_UNIT_BYTES: u64 = ResourceKind::Storage.spec().unit_bytes;

/// Devices of each donor.
pub const DEVICES: [(ResourceKind, &str, u64); 3] = [
    (ResourceKind::Accelerator, "gpu0", 0),
    (ResourceKind::Nic, "eth1", 0),
    (ResourceKind::Storage, "sdb", 6),
];
/// A grant: donor, device, bytes, owner.
type Held = (String, String, u64, Owner);

/// Returns the devices of every donor.
pub fn devices() -> impl Iterator<Item = ResourceSpec> {
    DEVICES.into_iter().map(|(kind, address, units)| ResourceSpec {
        kind,
        address: address.to_owned(),
        bytes: units * STORAGE_UNIT_BYTES,
        slab_bytes: kind.spec().unit_bytes,
        capabilities: vec![],
    })
}

/// Returns a want for one of the devices; only a divisible one counts in units.
pub(super) fn device_want(which: usize, units: u64) -> Want {
    let (kind, _, most) = DEVICES[which];
    Want::device(kind, if most == 0 { 0 } else { units * STORAGE_UNIT_BYTES })
}

impl World {
    pub(super) fn device(&mut self, op: DeviceOp) {
        match op {
            DeviceOp::Get { which, units, named, waits } => {
                self.request(vec![device_want(which, units)], named, waits);
            }
            DeviceOp::Break { index, which, fault } => {
                let (kind, address, _) = DEVICES[which];
                let fault = if fault { "broken" } else { "" };
                self.donors[index].core.handle_device_health(kind, address, fault);
            }
        }
    }

    /// Iterates over the device grants that recipients hold, with their owners.
    fn devices_held(&self) -> impl Iterator<Item = (&Grant, &Owner)> {
        let held = self.recipients.iter().flat_map(|it| it.held.iter().map(|g| (g, &it.owner)));
        held.filter(|(grant, _)| grant.share.device().is_some())
    }

    /// Checks that no request waits for a free device that no request ahead wants, for longer than
    /// from one check to the next: one ahead may just have been withdrawn.
    pub(super) fn check_devices_are_served(&mut self) {
        let mut unserved = BTreeSet::new();
        for Monitor { core, life, .. } in &self.monitors {
            let rows = core.queue_rows(self.now_ns);
            for kind in DEVICES.map(|(kind, ..)| kind) {
                let wants = |row: &QueueRow| row.wants.iter().position(|want| want.kind == kind);
                let first = rows.iter().find_map(|row| Some((row, &row.wants[wants(row)?])));
                // One that wants memory too may wait for both together.
                let Some((row, want)) = first.filter(|(row, _)| row.wants.len() == 1) else {
                    continue;
                };
                if row.needs != "device" {
                    continue;
                }
                let would_do = |it: &ResourceRow| {
                    let is_named = row.donors.is_empty() || row.donors.contains(&it.node);
                    let is_enough = it.slab_bytes == 0 || it.free_bytes >= want.bytes;
                    it.kind == kind && it.available && is_named && is_enough
                };
                if let Some(free) = core.resource_rows().into_iter().find(would_do) {
                    let is_new = !self.queue.unserved.contains(&(*life, row.id));
                    assert!(is_new, "{row:?} waits for {free:?}");
                    unserved.insert((*life, row.id));
                }
            }
        }
        self.queue.unserved = unserved;
    }

    /// Checks that no device is in use twice, as recipients and donors see it.
    pub(super) fn check_devices(&self) {
        let mut lent: BTreeMap<(usize, &str), (u64, u64)> = BTreeMap::new();
        for (grant, _) in self.devices_held() {
            let index = grant.donor_node.0 as usize - 1;
            let donor = &self.donors[index];
            let is_of_epoch = donor.identity.is_some_and(|it| it.epoch == grant.donor_epoch);
            let key = |id| donor.core.grant(id).map(|view| view.key);
            if donor.alive && is_of_epoch && key(grant.id) == Some::<GrantKey>(grant.key) {
                let share = &grant.share;
                let (count, bytes) = lent.entry((index, &share.address)).or_default();
                *count += 1;
                *bytes += share.bytes;
            }
        }
        for ((index, address), (count, bytes)) in lent {
            let device = DEVICES.iter().find(|(_, name, _)| *name == address).unwrap();
            match device.2 {
                0 => assert_eq!(count, 1, "{} {address} is lent twice", name_of(index)),
                units => assert!(bytes <= units * STORAGE_UNIT_BYTES, "{address} is overcommitted"),
            }
        }
    }

    /// Repairs all devices.
    pub(super) fn quiesce_devices(&mut self) {
        for core in self.donors.iter_mut().map(|donor| &mut donor.core) {
            for (kind, address, _) in DEVICES {
                core.handle_device_health(kind, address, "");
            }
        }
    }

    /// Checks at quiescence that recipients, donors, table and store agree about devices.
    pub(super) fn check_devices_agree(&self) {
        let used: BTreeMap<u64, Held> = self
            .devices_held()
            .map(|(grant, owner)| {
                let (donor, share) = (grant.donor.clone(), &grant.share);
                (grant.id.0, (donor, share.address.clone(), share.bytes, owner.clone()))
            })
            .collect();
        assert_eq!(self.devices_of_donors(), used, "donors and recipients");
        for monitor in &self.monitors {
            assert_eq!(listed(&monitor.core, self.now_ns), used, "table and recipients");
        }
        assert_eq!(listed(&self.recovered(), self.now_ns), used, "store and recipients");
        let rows = self.monitors.iter().flat_map(|monitor| monitor.core.resource_rows());
        for row in rows.filter(|row| row.kind.is_device()) {
            let taken = used.values().filter(|it| (&it.0, &it.1) == (&row.node, &row.address));
            let taken: Vec<u64> = taken.map(|it| it.2).collect();
            let left = row.bytes - taken.iter().sum::<u64>();
            let expected = if row.slab_bytes == 0 { taken.is_empty() } else { left > 0 };
            assert_eq!((row.available, row.health.as_str()), (expected, "ok"), "{row:?}");
        }
    }

    fn devices_of_donors(&self) -> BTreeMap<u64, Held> {
        let mut found = BTreeMap::new();
        for index in 0..DONORS {
            let held = self.donors[index].core.report().held.into_iter();
            for held in held.filter(|held| held.share.device().is_some()) {
                let share = held.share;
                assert_eq!(held.state, HeldState::Committed, "left prepared");
                let owner = held.owner.expect("the donor has the owner");
                found.insert(held.id.0, (name_of(index), share.address, share.bytes, owner));
            }
        }
        found
    }

    /// Returns the number of requests granted with devices, for tests that need some activity.
    pub fn devices_granted(&self) -> usize {
        let with_device = |it: &&Recipient| it.request.wants.iter().any(|it| it.kind.is_device());
        let granted = self.recipients.iter().filter(|it| matches!(it.answer, Some(Ok(()))));
        granted.filter(with_device).count()
    }
}

fn listed(monitor: &MonitorCore, now_ns: u64) -> BTreeMap<u64, Held> {
    let rows = monitor.grant_rows(now_ns).into_iter().filter(|row| row.kind.is_device());
    rows.map(|row| {
        assert_eq!(row.state, "committed", "grant {}", row.id);
        let owner = Owner { node: row.owner_node, user: row.owner_user, is_bound: false };
        (row.id, (row.donor, row.address, row.bytes, owner))
    })
    .collect()
}
