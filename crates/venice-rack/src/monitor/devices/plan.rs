//! Dry runs of device requests: the chosen device, and the reasons against the others. No donor is
//! called.

use super::super::MonitorCore;
use super::{Sought, Tried};
use crate::caller::Owner;
use crate::rows::{DevicePlan, DevicePlanRow};
use crate::types::{DeviceRequest, RackError};

impl MonitorCore {
    /// Returns what [`Self::handle_device_request`] would do with a request of `owner` at this
    /// moment. No state changes.
    ///
    /// # Errors
    /// The request is invalid, whatever the rack has free.
    pub fn plan_device(
        &self,
        owner: &Owner,
        request: &DeviceRequest,
    ) -> Result<DevicePlan, RackError> {
        let named = self.check_device_request(owner, request)?;
        let (place, tried) = (self.queue.place_to_be(request.queueing.priority), Tried::default());
        let sought = Sought { request, named: named.as_ref(), place, tried: &tried };
        let allowed = self.check_device_quota(owner, request);
        let chosen = self.choose_device(&sought).filter(|_| allowed.is_ok());
        let mut refusal = match (allowed, chosen) {
            (Err(error), _) => error.to_string(),
            (Ok(()), None) => self.why_no_device(&sought),
            (Ok(()), Some(_)) => String::new(),
        };
        let mut would_wait = String::new();
        if !refusal.is_empty() && request.queueing.left_ms() > 0 {
            match self.plan_to_wait_for_device(owner, request, named.clone()) {
                Ok(how) => would_wait = how,
                Err(error) => refusal = error.to_string(),
            }
        }
        let is_chosen = |node, address: &str| {
            chosen.is_some_and(|(donor, spec)| donor.node == node && spec.address == address)
        };
        let devices = self.devices_of_kind(request.kind);
        let devices = devices.filter(|(_, entry, _)| !entry.record.is_revoked);
        let devices = devices.map(|(node, entry, spec)| {
            let is_chosen = is_chosen(node, &spec.address);
            let why = match self.why_not(&sought, node, entry, spec) {
                Some(why) => why,
                None if is_chosen => "chosen".to_owned(),
                None if !refusal.is_empty() => "would do, but the request is refused".to_owned(),
                None => "would do as well: another comes first".to_owned(),
            };
            DevicePlanRow {
                node: entry.record.name.clone(),
                address: spec.address.clone(),
                bytes: spec.bytes,
                free_bytes: self.free_of(entry, spec).unwrap_or(0),
                capabilities: spec.capabilities.clone(),
                is_chosen,
                why,
            }
        });
        let (wanted, devices) = (request.wanted(), devices.collect());
        Ok(DevicePlan { wanted, refusal, would_wait, devices })
    }
}
