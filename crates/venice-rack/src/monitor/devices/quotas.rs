//! Quotas of devices and storage. Use counts as for memory: from the choice of a device until its
//! donor has confirmed the release.

use super::super::MonitorCore;
use super::{PendingDevice, table::clipped};
use crate::caller::Owner;
use crate::quota::OverDevices;
use crate::resource::MAX_DEVICE_GRANTS_OF_USER;
use crate::types::{DeviceRequest, RackError, ResourceKind};

impl MonitorCore {
    /// Checks the quota for another device of `owner`.
    pub(in super::super) fn check_device_quota(
        &self,
        owner: &Owner,
        request: &DeviceRequest,
    ) -> Result<(), RackError> {
        let used = self.used_of_devices(&owner.user, request.kind);
        self.check_devices(owner, request, used)?;
        self.check_device_count(owner)
    }

    /// The same for a request in its handshake, which counts already.
    pub(super) fn check_device_quota_again(&self, client_id: u128) -> Result<(), RackError> {
        let Some(pending) = self.device_requests.get(&client_id) else { return Ok(()) };
        let PendingDevice { owner, request, .. } = pending;
        let used = self.used_of_devices(&owner.user, request.kind);
        self.check_devices(owner, request, used.saturating_sub(request.amount()))
    }

    /// Checks that the request alone does not exceed the quota.
    pub(in super::super) fn check_device_quota_ever(
        &self,
        owner: &Owner,
        request: &DeviceRequest,
    ) -> Result<(), RackError> {
        self.check_devices(owner, request, 0).map_err(|error| match error {
            RackError::OverDeviceQuota(over) => {
                let used = self.used_of_devices(&owner.user, request.kind);
                RackError::OverDeviceQuota(OverDevices { used, ..over })
            }
            other => other,
        })
    }

    fn check_devices(
        &self,
        owner: &Owner,
        request: &DeviceRequest,
        used: u64,
    ) -> Result<(), RackError> {
        let kind = request.kind;
        let Some(quota) = self.quotas.limit_of(&owner.user, kind) else { return Ok(()) };
        let asked = request.amount();
        if used.saturating_add(asked) <= quota {
            return Ok(());
        }
        let user = clipped(owner.user.clone());
        Err(RackError::OverDeviceQuota(OverDevices { user, kind, asked, used, quota }))
    }

    /// Returns the devices that a user has or is about to get, or bytes of storage.
    pub(in super::super) fn used_of_devices(&self, user: &str, kind: ResourceKind) -> u64 {
        let held = self.rat.of_user(user).filter(|grant| !self.is_surely_gone(grant));
        let held = held.filter_map(|grant| grant.device.as_ref());
        let held = held.filter(|share| share.kind == kind).map(|share| share.amount());
        let asking = self.device_requests.values().filter(|pending| {
            let is_in_table = pending.part.as_ref().is_some_and(|part| part.is_committing);
            pending.owner.user == user && pending.request.kind == kind && !is_in_table
        });
        let asking = asking.map(|pending| pending.request.amount());
        held.chain(asking).fold(0, u64::saturating_add)
    }

    /// Limits the device grants of one user: they all share the tables of the rack.
    fn check_device_count(&self, owner: &Owner) -> Result<(), RackError> {
        let granted = self.rat.iter().filter(|grant| grant.device.is_some());
        let granted = granted.filter(|grant| grant.owner.as_ref() == Some(owner)).count();
        let asked = self.device_requests.values().filter(|pending| pending.owner == *owner).count();
        if granted + asked < MAX_DEVICE_GRANTS_OF_USER {
            return Ok(());
        }
        let Owner { user, node } = owner;
        let most = MAX_DEVICE_GRANTS_OF_USER;
        Err(RackError::NoDevice(format!(
            "{user} of {node} has {most} grants of devices, the most at a time: give some back, or \
             ask for more storage at once"
        )))
    }
}
