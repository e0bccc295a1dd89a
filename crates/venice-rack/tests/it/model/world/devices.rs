//! Devices in the model: requested, lent, released, faulty; no device is ever lent twice.

use super::etcd::{Monitor, PendingCall};
use super::{World, name_of, note_promise, owner_of, take};
use crate::model::{DONORS, DeviceOp, LEASE_MS, MS, Waits};
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::caller::Owner;
use venice_rack::monitor::MonitorCore;
use venice_rack::queueing::{Preempt, Queueing};
use venice_rack::resource::STORAGE_UNIT_BYTES;
use venice_rack::rows::ResourceRow;
use venice_rack::types::{
    DeviceRequest, Grant, HeldState, Identity, LeaseState, NoticeReason, RackError, ResourceKind,
    ResourceSpec,
};
use venice_wire::{ByteSize, GrantId, GrantKey};

/// Devices of each donor.
pub const DEVICES: [(ResourceKind, &str, u64); 3] = [
    (ResourceKind::Accelerator, "gpu0", 0),
    (ResourceKind::Nic, "eth1", 0),
    (ResourceKind::Storage, "sdb", 6),
];
/// First number of device requests; memory requests use lower ones.
const FIRST_CLIENT: u128 = 1 << 64;

/// A recipient of a device.
pub struct Taker {
    owner: Owner,
    request: DeviceRequest,
    asked_ns: u64,
    /// The Monitor Node it called last.
    asked: usize,
    answer: Option<Result<GrantId, RackError>>,
    held: Option<Grant>,
    alive: bool,
}

/// A grant: donor, device, bytes, owner.
type Held = (String, String, u64, Owner);

/// Returns the devices of every donor.
pub fn devices() -> impl Iterator<Item = ResourceSpec> {
    DEVICES.into_iter().map(|(kind, address, units)| ResourceSpec {
        kind,
        address: address.to_owned(),
        bytes: units * STORAGE_UNIT_BYTES,
        slab_bytes: kind.device_unit_bytes(),
        capabilities: vec![],
    })
}

impl World {
    pub(super) fn device(&mut self, op: DeviceOp) {
        match op {
            DeviceOp::Get { which, units, named, waits } => {
                let queueing = self.queueing_of_taker(waits);
                self.get_device((which, units), named, queueing);
            }
            DeviceOp::Leave(pick) => self.leave_device(pick),
            DeviceOp::AskAgain(pick) => {
                let alive = self.takers.iter().filter(|taker| taker.alive);
                let mut alive: Vec<_> =
                    alive.map(|it| (it.owner.clone(), it.request.clone())).collect();
                if let Some((owner, request)) = take(&mut alive, pick) {
                    self.ask_for_device(owner, request);
                }
            }
            DeviceOp::Return(pick) => self.return_device(pick),
            DeviceOp::Abandon(pick) => {
                if let Some(taker) = self.pick_taker(pick) {
                    taker.held = None;
                    taker.alive = false;
                }
            }
            DeviceOp::Break { index, which, fault } => {
                let (kind, address, _) = DEVICES[which];
                let fault = if fault { "broken" } else { "" };
                self.donors[index].core.handle_device_health(kind, address, fault);
            }
        }
    }

    /// The first user is an administrator, the second is not.
    fn queueing_of_taker(&self, waits: Option<Waits>) -> Queueing {
        let Some(Waits { wait_ms, priority, preempts }) = waits else {
            return Queueing::default();
        };
        let preempt = match (preempts, self.takers.len() % 2) {
            (false, _) => Preempt::No,
            (true, 0) => Preempt::All,
            (true, _) => Preempt::Own,
        };
        Queueing { wait_ms, waited_ms: 0, priority, preempt }
    }

    fn leave_device(&mut self, pick: usize) {
        let waits = |taker: &&mut Taker| taker.alive && taker.answer.is_none();
        let mut waiting: Vec<_> = self.takers.iter_mut().filter(waits).collect();
        let Some(taker) = take(&mut waiting, pick) else { return };
        taker.alive = false;
        let (owner, client_id) = (taker.owner.clone(), taker.request.client_id);
        self.queue.answered(client_id);
        let now_ns = self.now_ns;
        self.core().handle_leave(now_ns, &owner, client_id).unwrap();
    }

    fn get_device(
        &mut self,
        (which, units): (usize, u64),
        named: Option<usize>,
        queueing: Queueing,
    ) {
        let (kind, _, most) = DEVICES[which];
        let index = self.takers.len();
        let request = DeviceRequest {
            client_id: FIRST_CLIENT + index as u128,
            recipient: format!("taker{index}"),
            kind,
            bytes: ByteSize(if most == 0 { 0 } else { units * STORAGE_UNIT_BYTES }),
            capabilities: vec![],
            donors: named.map(name_of).into_iter().collect(),
            purpose: "model".to_owned(),
            queueing,
        };
        let owner = owner_of(index);
        let (asked_ns, asked) = (self.now_ns, self.at);
        let (taker, wanted) = (owner.clone(), request.clone());
        let taker = Taker {
            owner: taker,
            request: wanted,
            asked_ns,
            asked,
            answer: None,
            held: None,
            alive: true,
        };
        self.takers.push(taker);
        self.ask_for_device(owner, request);
    }

    /// Sends the request to the selected Monitor Node; answers of others are ignored from now on.
    /// An invalid request is refused at once.
    fn ask_for_device(&mut self, owner: Owner, request: DeviceRequest) {
        let (at, now_ns, client_id) = (self.at, self.now_ns, request.client_id);
        let taker = &mut self.takers[(client_id - FIRST_CLIENT) as usize];
        taker.asked = at;
        let waited_ms = (now_ns - taker.asked_ns) / MS;
        let queueing = Queueing { waited_ms, ..request.queueing };
        let request = DeviceRequest { queueing, ..request };
        self.queue.note_call(client_id, now_ns);
        self.monitors[at].requests.insert(client_id);
        self.note_limits();
        if let Err(error) = self.core().handle_device_request(now_ns, owner, request) {
            self.queue.answered(client_id);
            self.device_answered(client_id, &Err(error));
        }
        self.collect_actions();
    }

    /// Repeats a device request without an answer; returns false for a memory request.
    pub(super) fn repeat_device_request(&mut self, client_id: u128) -> bool {
        let Some(index) = client_id.checked_sub(FIRST_CLIENT) else { return false };
        let taker = &self.takers[index as usize];
        let (owner, request, now_ns) = (taker.owner.clone(), taker.request.clone(), self.now_ns);
        if let Err(error) = self.core().handle_device_request(now_ns, owner, request) {
            self.device_answered(client_id, &Err(error));
        }
        true
    }

    fn return_device(&mut self, pick: usize) {
        let grant = self.pick_taker(pick).and_then(|taker| {
            taker.alive = false;
            taker.held.take()
        });
        if let Some(grant) = grant {
            self.put(PendingCall::Release(vec![(grant.id, grant.key)]));
        }
    }

    fn pick_taker(&mut self, pick: usize) -> Option<&mut Taker> {
        let mut holders: Vec<_> = self.takers.iter_mut().filter(|it| it.held.is_some()).collect();
        take(&mut holders, pick)
    }

    /// Delivers an answer: the same as before, for a device that is really lent. Returns false for
    /// an answer about memory.
    pub(super) fn device_answered(
        &mut self,
        client_id: u128,
        result: &Result<Vec<Grant>, RackError>,
    ) -> bool {
        let Some(index) = client_id.checked_sub(FIRST_CLIENT) else { return false };
        let at = self.at;
        let taker = &mut self.takers[index as usize];
        if taker.asked != at {
            return true;
        }
        let answer = result.as_ref().map(|grants| grants[0].id).map_err(Clone::clone);
        let is_fresh = self.now_ns < taker.asked_ns + LEASE_MS * MS;
        if let Some(before) = &taker.answer {
            // After that time an unheard donor counts as dead at the Monitor Nodes, whatever it
            // lends: a repeated request counts as a new one.
            let held = taker.held.as_ref().filter(|_| is_fresh);
            if let (Some(held), Ok(answer), true) = (held, &answer, taker.alive) {
                assert_eq!((Ok(held.id), *answer), (before.clone(), held.id), "another device");
            }
            return true;
        }
        if !taker.alive {
            return true;
        }
        taker.answer = Some(answer);
        let Ok(grants) = result else { return true };
        assert_eq!(grants.len(), 1, "one device");
        let grant = grants[0].clone();
        let share = grant.device.as_ref().expect("it is a device");
        assert_eq!(share.kind, taker.request.kind);
        assert!(share.bytes >= taker.request.bytes.0, "too little");
        let donor = &self.donors[grant.donor_node.0 as usize - 1];
        let identity = Identity { node: grant.donor_node, epoch: grant.donor_epoch };
        if donor.alive && donor.identity == Some(identity) && is_fresh {
            let view = donor.core.grant(grant.id).expect("the donor has no such grant");
            assert_eq!((view.state, view.key), (HeldState::Committed, grant.key));
        }
        taker.held = Some(grant);
        true
    }

    /// Renews all leases; every other recipient releases a reclaimed grant, as for memory.
    pub(super) fn renew_devices(&mut self) {
        let (now_ns, donors) = (self.now_ns, &mut self.donors);
        let mut returned = Vec::new();
        for (index, taker) in self.takers.iter_mut().enumerate() {
            let Some(grant) = &taker.held else { continue };
            let donor = &mut donors[grant.donor_node.0 as usize - 1];
            let state = match donor.alive {
                true => donor.core.handle_renew(now_ns, grant.id, grant.key),
                false => LeaseState::Unknown,
            };
            match state {
                LeaseState::Unknown => taker.held = None,
                LeaseState::Live { notice: None, .. } => {
                    self.promised_ns.remove(&grant.id);
                }
                LeaseState::Live { notice: Some(notice), .. } => {
                    note_promise(&mut self.promised_ns, now_ns, grant.id, notice);
                    self.wanted.insert(grant.id);
                    if index % 2 == 0 && notice.reason == NoticeReason::Preempted {
                        returned.push((grant.id, grant.key));
                        (taker.held, taker.alive) = (None, false);
                    }
                }
            }
        }
        if !returned.is_empty() {
            self.put(PendingCall::Release(returned));
        }
    }

    /// Returns owner and queueing options of a device request; `None` for other numbers.
    pub(super) fn taker(&self, client_id: u128) -> Option<(&Owner, Queueing)> {
        let taker = &self.takers[client_id.checked_sub(FIRST_CLIENT)? as usize];
        Some((&taker.owner, taker.request.queueing))
    }

    /// Returns recipient, owner and kind of a device request; `None` for other numbers.
    pub(super) fn taking(&self, client_id: u128) -> Option<(String, &Owner, ResourceKind)> {
        let taker = &self.takers[client_id.checked_sub(FIRST_CLIENT)? as usize];
        Some((taker.request.recipient.clone(), &taker.owner, taker.request.kind))
    }

    /// Iterates over the devices in use: owner, kind, and count or bytes of storage.
    pub(super) fn devices_held(&self) -> impl Iterator<Item = (&Owner, ResourceKind, u64)> {
        let held = self.takers.iter().filter_map(|it| Some((&it.owner, it.held.as_ref()?)));
        held.map(|(owner, grant)| {
            let share = grant.device.as_ref().expect("it is a device");
            let amount = if share.kind == ResourceKind::Storage { share.bytes } else { 1 };
            (owner, share.kind, amount)
        })
    }

    /// Returns the number of a recipient's device request; `None` if it is a memory recipient.
    pub(super) fn client_of_taker(recipient: &str) -> Option<u128> {
        let index = recipient.strip_prefix("taker")?.parse::<u128>().ok()?;
        Some(FIRST_CLIENT + index)
    }

    /// Checks that no request waits for a free device that no request ahead wants, for longer than
    /// from one check to the next: one ahead may just have been withdrawn.
    pub(super) fn check_devices_are_served(&mut self) {
        let mut unserved = BTreeSet::new();
        for Monitor { core, life, .. } in &self.monitors {
            let rows = core.queue_rows(self.now_ns);
            for kind in DEVICES.map(|(kind, ..)| kind.name()) {
                let Some(row) = rows.iter().find(|row| row.kind == kind) else { continue };
                if row.needs != "device" {
                    continue;
                }
                let would_do = |it: &ResourceRow| {
                    let is_named = row.donors.is_empty() || row.donors.contains(&it.node);
                    let is_enough = it.slab_bytes == 0 || it.free_bytes >= row.bytes;
                    it.kind == row.kind && it.available && is_named && is_enough
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
        for grant in self.takers.iter().filter_map(|taker| taker.held.as_ref()) {
            let index = grant.donor_node.0 as usize - 1;
            let donor = &self.donors[index];
            let is_of_epoch = donor.identity.is_some_and(|it| it.epoch == grant.donor_epoch);
            let key = |id| donor.core.grant(id).map(|view| view.key);
            if donor.alive && is_of_epoch && key(grant.id) == Some::<GrantKey>(grant.key) {
                let share = grant.device.as_ref().expect("it is a device");
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

    /// Repeats all requests without an answer, and repairs all devices.
    pub(super) fn quiesce_devices(&mut self) {
        for core in self.donors.iter_mut().map(|donor| &mut donor.core) {
            for (kind, address, _) in DEVICES {
                core.handle_device_health(kind, address, "");
            }
        }
        let waiting = self.takers.iter().filter(|it| it.alive && it.answer.is_none());
        let waiting: Vec<_> = waiting.map(|it| (it.owner.clone(), it.request.clone())).collect();
        for (owner, request) in waiting {
            self.ask_for_device(owner, request);
        }
    }

    /// Checks at quiescence that recipients, donors, table and store agree about devices.
    pub(super) fn check_devices_agree(&self) {
        assert!(self.takers.iter().all(|it| !it.alive || it.answer.is_some()), "no answer");
        let holders = self.takers.iter().filter_map(|it| Some((it.held.as_ref()?, &it.owner)));
        let used: BTreeMap<u64, Held> = holders
            .map(|(grant, owner)| {
                let address = grant.device.as_ref().unwrap().address.clone();
                (grant.id.0, (grant.donor.clone(), address, grant.bytes, owner.clone()))
            })
            .collect();
        assert_eq!(self.devices_of_donors(), used, "donors and recipients");
        for monitor in &self.monitors {
            assert_eq!(listed(&monitor.core, self.now_ns), used, "table and recipients");
        }
        assert_eq!(listed(&self.recovered(), self.now_ns), used, "store and recipients");
        let rows = self.monitors.iter().flat_map(|monitor| monitor.core.resource_rows());
        for row in rows.filter(|row| row.kind != "memory") {
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
            for held in self.donors[index].core.report().held {
                let Some(share) = held.device else { continue };
                assert_eq!(held.state, HeldState::Committed, "left prepared");
                let owner = held.owner.expect("the donor has the owner");
                found.insert(held.id.0, (name_of(index), share.address, share.bytes, owner));
            }
        }
        found
    }

    /// Returns the number of devices granted, for tests that need some activity.
    pub fn devices_granted(&self) -> usize {
        self.takers.iter().filter(|taker| matches!(taker.answer, Some(Ok(_)))).count()
    }
}

fn listed(monitor: &MonitorCore, now_ns: u64) -> BTreeMap<u64, Held> {
    let rows = monitor.grant_rows(now_ns).into_iter().filter(|row| row.kind != "memory");
    rows.map(|row| {
        assert_eq!(row.state, "committed", "grant {}", row.id);
        let owner = Owner { node: row.owner_node, user: row.owner_user };
        (row.id, (row.donor, row.address, row.bytes, owner))
    })
    .collect()
}
