//! Kinds, shares and device reports.

use crate::proto;
use tonic::Status;
use venice_rack::types::{DeviceReport, ResourceKind, Share};

/// A device's kind has its number in the table of kinds less this: memory and memory blocks are no
/// devices.
const DEVICES_AFTER: i32 = 2;

/// Parses a kind's number.
pub(crate) fn kind_in(number: i32) -> Result<ResourceKind, Status> {
    ResourceKind::of_number(number).ok_or_else(|| unknown_kind(&number.to_string()))
}

pub(crate) fn kind_out(kind: ResourceKind) -> i32 {
    kind.spec().number
}

/// Parses a kind's name, in a row.
pub(super) fn kind_name_in(name: String) -> Result<ResourceKind, Status> {
    let named = ResourceKind::ALL.into_iter().find(|kind| kind.name() == name);
    named.ok_or_else(|| unknown_kind(&name))
}

pub(super) fn kind_name_out(kind: ResourceKind) -> String {
    kind.name().to_owned()
}

fn unknown_kind(kind: &str) -> Status {
    let why = "this process is of an earlier release than its peer";
    Status::invalid_argument(format!("resource of unknown kind {kind}: {why}"))
}

fn device_kind_in(number: i32) -> Result<ResourceKind, Status> {
    let kind = kind_in(number.saturating_add(DEVICES_AFTER))?;
    match kind.is_device() {
        true => Ok(kind),
        false => Err(Status::invalid_argument(format!("{kind} is no device"))),
    }
}

fn device_kind_out(kind: ResourceKind) -> i32 {
    kind_out(kind) - DEVICES_AFTER
}

/// Parses a share: slabs, or a device.
pub(super) fn share_in(slabs: u32, device: Option<proto::DeviceShare>) -> Result<Share, Status> {
    match device {
        None => Ok(Share::of_slabs(slabs)),
        Some(_) if slabs > 0 => Err(Status::invalid_argument("a share of slabs and a device")),
        Some(device) => device_in(device),
    }
}

pub(super) fn share_out(share: Share) -> (u32, Option<proto::DeviceShare>) {
    match share.kind.is_device() {
        true => (0, Some(device_out(share))),
        false => (share.slabs(), None),
    }
}

pub(super) fn device_in(device: proto::DeviceShare) -> Result<Share, Status> {
    let proto::DeviceShare { kind, address, bytes, capabilities } = device;
    Ok(Share { kind: device_kind_in(kind)?, address, bytes, capabilities })
}

fn device_out(share: Share) -> proto::DeviceShare {
    let Share { kind, address, bytes, capabilities } = share;
    proto::DeviceShare { kind: device_kind_out(kind), address, bytes, capabilities }
}

pub(super) fn device_report_in(report: proto::DeviceReport) -> Result<DeviceReport, Status> {
    let proto::DeviceReport { kind, address, fault } = report;
    Ok(DeviceReport { kind: device_kind_in(kind)?, address, fault })
}

pub(super) fn device_report_out(report: DeviceReport) -> proto::DeviceReport {
    let DeviceReport { kind, address, fault } = report;
    proto::DeviceReport { kind: device_kind_out(kind), address, fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_last_release_are_kept() {
        let share = |kind| {
            let (address, capabilities) = ("d".to_owned(), Vec::new());
            share_out(Share { kind, address, bytes: 0, capabilities }).1.unwrap().kind
        };
        let kinds = [ResourceKind::Accelerator, ResourceKind::Nic, ResourceKind::Storage];
        assert_eq!(kinds.map(share), [1, 2, 3]);
        assert_eq!(kinds.map(kind_out), [3, 4, 5]);
        assert_eq!(kind_out(ResourceKind::Memory), 1);
    }

    #[test]
    fn unknown_kind_is_refused() {
        for number in [-2, -1, 0, i32::MAX] {
            assert!(device_kind_in(number).is_err(), "{number}");
        }
        let text = kind_in(77).unwrap_err().message().to_owned();
        assert!(text.contains("unknown kind 77: this process is of an earlier"), "{text}");
    }
}
