//! Devices lent by a donor: each whole to one grant, or a divisible one by bytes.

use super::DonorCore;
use crate::NS_PER_MS;
use crate::caller::Owner;
use crate::resource::{MAX_DEVICE_GRANTS, too_many_grants};
use crate::types::{
    DeviceReport, HeldState, Notice, NoticeReason, Refusal, ResourceKind, ResourceSpec, Share,
};
use venice_wire::{ByteSize, GrantId};

/// An offered device.
#[derive(Debug)]
pub(super) struct Device {
    spec: ResourceSpec,
    /// Its fault; empty if it is healthy.
    fault: String,
}

impl DonorCore {
    /// Offers these devices, all healthy. An agent at an epoch after the first lends none of them
    /// for 1.25 leases from now: a recipient from the earlier epoch must have noticed that its
    /// grant ended.
    ///
    /// # Panics
    /// If a spec is not a device, or is offered twice.
    pub fn offer_devices(&mut self, now_ns: u64, specs: impl IntoIterator<Item = ResourceSpec>) {
        self.devices_since_ns = now_ns;
        for spec in specs {
            assert!(spec.kind.is_device(), "{} is no device", spec.address);
            assert!(self.device(spec.kind, &spec.address).is_none(), "{} twice", spec.address);
            self.devices.push(Device { spec, fault: String::new() });
        }
    }

    /// Records the health of a device: its fault, or empty. A faulty device is not lent, and its
    /// recipient gets a notice with the next renewal. Returns true if the health changed.
    pub fn handle_device_health(&mut self, kind: ResourceKind, address: &str, fault: &str) -> bool {
        let mut all = self.devices.iter_mut();
        let device = all.find(|it| it.spec.kind == kind && it.spec.address == address);
        let Some(device) = device.filter(|it| it.fault != fault) else { return false };
        device.fault = fault.to_owned();
        // The Monitor Node must take the report with the new health as the newer one.
        self.revision += 1;
        true
    }

    /// Returns the free bytes of a device; for one that is lent whole, its size or 0.
    pub fn free_device_bytes(&self, kind: ResourceKind, address: &str) -> u64 {
        let Some(device) = self.device(kind, address) else { return 0 };
        let mut taken = self.taken(kind, address).peekable();
        match device.spec.slab_bytes {
            0 if taken.peek().is_some() => 0,
            0 => device.spec.bytes,
            _ => taken.map(|share| share.bytes).fold(device.spec.bytes, u64::saturating_sub),
        }
    }

    /// Returns the share of a grant, prepared or committed.
    pub fn share(&self, grant: GrantId) -> Option<&Share> {
        self.held.get(&grant).map(|held| &held.request.share)
    }

    /// Returns the owner of a grant, as the Monitor Node named it.
    pub fn owner(&self, grant: GrantId) -> Option<&Owner> {
        self.held.get(&grant)?.request.owner.as_ref()
    }

    /// Checks that the device of a share is free; slabs are not checked here.
    pub(super) fn check_device(
        &self,
        now_ns: u64,
        share: &Share,
        lease_ms: u64,
    ) -> Result<(), Refusal> {
        let Some((kind, address)) = share.device() else { return Ok(()) };
        let refused = |why: String| Err(Refusal::NoDevice(why));
        let Some(device) = self.device(kind, address) else {
            return refused(format!("{kind} {address} is not offered"));
        };
        if !device.fault.is_empty() {
            return refused(device.fault.clone());
        }
        let age_ns = now_ns.saturating_sub(self.devices_since_ns);
        let wait_ns = lease_ms.saturating_mul(NS_PER_MS).saturating_mul(5) / 4;
        if self.epoch > 1 && age_ns < wait_ns {
            let ns_per_s = 1_000 * NS_PER_MS;
            let (age_s, left_s) = (age_ns / ns_per_s, (wait_ns - age_ns).div_ceil(ns_per_s));
            return refused(format!(
                "its agent started {age_s} s ago, and an earlier recipient may still use it: free in \
                 {left_s} s"
            ));
        }
        let held = self.held.values().filter(|held| held.request.share.device().is_some());
        if held.count() >= MAX_DEVICE_GRANTS {
            return refused(too_many_grants());
        }
        if device.spec.slab_bytes == 0 {
            return match self.taken(kind, address).next() {
                Some(_) => refused(format!("{address} is lent already")),
                None => Ok(()),
            };
        }
        let free_bytes = self.free_device_bytes(kind, address);
        if share.bytes == 0 || share.bytes > free_bytes {
            let (asked, free) = (ByteSize(share.bytes), ByteSize(free_bytes));
            return refused(format!("{address} has {free} free, not {asked}"));
        }
        Ok(())
    }

    pub(super) fn device_reports(&self) -> Vec<DeviceReport> {
        let report = |device: &Device| DeviceReport {
            kind: device.spec.kind,
            address: device.spec.address.clone(),
            fault: device.fault.clone(),
        };
        self.devices.iter().map(report).collect()
    }

    /// Returns the notice for the recipient of a faulty device.
    pub(super) fn faulty(&self, grant: GrantId) -> Option<Notice> {
        let held = self.held.get(&grant).filter(|held| held.state == HeldState::Committed)?;
        let (kind, address) = held.request.share.device()?;
        let is_faulty = self.device(kind, address).is_some_and(|it| !it.fault.is_empty());
        is_faulty.then_some(Notice { reason: NoticeReason::Fault, within_ms: None })
    }

    pub(super) fn assert_no_device_twice(&self) {
        for Device { spec, .. } in &self.devices {
            let taken = || self.taken(spec.kind, &spec.address);
            match spec.slab_bytes {
                0 => assert!(taken().count() <= 1, "{} is lent twice", spec.address),
                _ => {
                    let lent: u64 = taken().map(|share| share.bytes).sum();
                    assert!(lent <= spec.bytes, "more of {} is lent than there is", spec.address);
                }
            }
        }
    }

    fn device(&self, kind: ResourceKind, address: &str) -> Option<&Device> {
        self.devices.iter().find(|it| it.spec.kind == kind && it.spec.address == address)
    }

    /// Iterates over the shares of a device that are set aside, lent, or being freed.
    fn taken<'a>(
        &'a self,
        kind: ResourceKind,
        address: &'a str,
    ) -> impl Iterator<Item = &'a Share> {
        let held = self.held.values().map(|held| &held.request.share);
        let shares = held.chain(self.freeing.values());
        shares.filter(move |share| share.device() == Some((kind, address)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{DonorAction, DonorSettings, Prepared};
    use super::*;
    use crate::queueing::DEFAULT_PRIORITY;
    use crate::types::{LeaseState, PrepareRequest};
    use venice_wire::GrantKey;

    const GPU: ResourceKind = ResourceKind::Accelerator;
    const UNIT: u64 = ResourceKind::Storage.spec().unit_bytes;

    fn spec(kind: ResourceKind, address: &str, units: u64) -> ResourceSpec {
        ResourceSpec {
            kind,
            address: address.into(),
            bytes: units * UNIT,
            slab_bytes: kind.spec().unit_bytes,
            capabilities: vec![],
        }
    }

    fn donor() -> DonorCore {
        let settings = DonorSettings { total_slabs: 2, prepare_timeout_ns: 5_000_000_000 };
        let mut donor = DonorCore::new(settings);
        donor.set_epoch(1);
        let devices = [spec(GPU, "/dev/gpu0", 0), spec(ResourceKind::Storage, "/srv", 10)];
        donor.offer_devices(0, devices);
        donor
    }

    fn request(grant: u64, share: Share) -> PrepareRequest {
        PrepareRequest {
            grant: GrantId(grant),
            key: GrantKey(grant),
            share,
            donor_epoch: 1,
            lease_ms: 10_000,
            owner: None,
            recipient: "r".into(),
            purpose: "p".into(),
            priority: DEFAULT_PRIORITY,
            at_once: false,
        }
    }

    fn gpu(grant: u64) -> PrepareRequest {
        request(grant, spec(GPU, "/dev/gpu0", 0).share(0))
    }

    fn storage(grant: u64, units: u64) -> PrepareRequest {
        let share = spec(ResourceKind::Storage, "/srv", 10).share(units * UNIT);
        request(grant, share)
    }

    #[test]
    fn device_has_one_grant_until_freed() {
        let mut donor = donor();
        assert!(matches!(donor.handle_prepare(0, gpu(1)), Ok(Prepared::New(_))));
        assert!(matches!(donor.handle_prepare(0, gpu(1)), Ok(Prepared::Repeated(_))));
        let refused = Err(Refusal::NoDevice("/dev/gpu0 is lent already".into()));
        assert_eq!(donor.handle_prepare(0, gpu(2)), refused);
        donor.handle_commit(0, GrantId(1), 1).unwrap();
        donor.handle_release(1, GrantId(1));
        assert_eq!(donor.handle_prepare(1, gpu(2)), refused, "it is not free yet");
        let Some(DonorAction::FreeSlabs { grant, slabs: 0, .. }) = donor.poll_action() else {
            panic!("nothing to free");
        };
        donor.handle_freed(grant);
        donor.handle_prepare(2, gpu(2)).unwrap();
        assert_eq!(donor.status().free_slabs, 2, "devices have nothing to do with slabs");
    }

    #[test]
    fn storage_is_lent_by_bytes() {
        let mut donor = donor();
        donor.handle_prepare(0, storage(1, 4)).unwrap();
        donor.handle_prepare(0, storage(2, 6)).unwrap();
        let refused = donor.handle_prepare(0, storage(3, 1)).unwrap_err();
        assert!(refused.to_string().contains("has 0B free, not 1MiB"), "{refused}");
        donor.handle_timeout(5_000_000_000);
        while let Some(DonorAction::FreeSlabs { grant, .. }) = donor.poll_action() {
            donor.handle_freed(grant);
        }
        assert_eq!(donor.free_device_bytes(ResourceKind::Storage, "/srv"), 10 << 20);
        assert!(donor.handle_prepare(6, storage(4, 11)).is_err());
    }

    #[test]
    fn faulty_device_gives_notice() {
        let mut donor = donor();
        donor.handle_prepare(0, gpu(1)).unwrap();
        donor.handle_commit(0, GrantId(1), 1).unwrap();
        let revision = donor.status().revision;
        assert!(donor.handle_device_health(GPU, "/dev/gpu0", "it is there no longer"));
        assert!(!donor.handle_device_health(GPU, "/dev/gpu0", "it is there no longer"));
        assert!(donor.status().revision > revision);
        assert_eq!(donor.report().devices[0].fault, "it is there no longer");
        let LeaseState::Live { notice: Some(notice), .. } =
            donor.handle_renew(1, GrantId(1), GrantKey(1))
        else {
            panic!("no notice");
        };
        assert_eq!(notice.reason, NoticeReason::Fault);
        donor.handle_release(2, GrantId(1));
        let Some(DonorAction::FreeSlabs { grant, .. }) = donor.poll_action() else { panic!() };
        donor.handle_freed(grant);
        assert!(donor.handle_prepare(3, gpu(2)).is_err());
        assert!(donor.handle_device_health(GPU, "/dev/gpu0", ""));
        donor.handle_prepare(4, gpu(2)).unwrap();
    }

    #[test]
    fn restarted_donor_delays_devices() {
        const S: u64 = 1_000_000_000;
        let mut donor = DonorCore::new(DonorSettings { total_slabs: 2, prepare_timeout_ns: 5 * S });
        donor.offer_devices(100 * S, [spec(GPU, "/dev/gpu0", 0)]);
        donor.set_epoch(2);
        let second = |grant| PrepareRequest { donor_epoch: 2, ..gpu(grant) };
        let refused = donor.handle_prepare(103 * S, second(1)).unwrap_err().to_string();
        assert!(refused.contains("started 3 s ago"), "{refused}");
        assert!(refused.contains("free in 10 s"), "{refused}");
        assert!(donor.handle_prepare(112 * S, second(2)).is_err());
        donor.handle_prepare(113 * S, second(3)).unwrap();
    }

    #[test]
    fn device_grants_fit_the_heartbeat() {
        let mut donor = DonorCore::new(DonorSettings { total_slabs: 0, prepare_timeout_ns: 1 });
        donor.set_epoch(1);
        donor.offer_devices(0, [spec(ResourceKind::Storage, "/srv", 10_000)]);
        for grant in 1..=MAX_DEVICE_GRANTS as u64 {
            donor.handle_prepare(0, storage(grant, 1)).unwrap();
        }
        let refused = donor.handle_prepare(0, storage(1 << 40, 1)).unwrap_err().to_string();
        assert!(refused.contains("1024 grants of devices"), "{refused}");
    }

    #[test]
    fn unoffered_device_is_refused() {
        let mut donor = donor();
        let share = spec(ResourceKind::Nic, "eth7", 0).share(0);
        assert!(matches!(donor.handle_prepare(0, request(1, share)), Err(Refusal::NoDevice(_))));
        let nothing = PrepareRequest { share: Share::of_slabs(0), ..gpu(2) };
        assert!(matches!(donor.handle_prepare(0, nothing), Err(Refusal::Failed(_))));
    }
}
