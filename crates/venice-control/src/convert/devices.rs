//! Devices: how they are asked for, granted and reported.

use crate::proto;
use tonic::Status;
use venice_rack::types::{DeviceReport, DeviceRequest, DeviceShare, ResourceKind};
use venice_wire::ByteSize;

fn kind_in(kind: proto::DeviceKind) -> Result<ResourceKind, Status> {
    Ok(match kind {
        proto::DeviceKind::Accelerator => ResourceKind::Accelerator,
        proto::DeviceKind::Nic => ResourceKind::Nic,
        proto::DeviceKind::Storage => ResourceKind::Storage,
        proto::DeviceKind::Unspecified => {
            return Err(Status::invalid_argument("a device of unknown kind"));
        }
    })
}

/// What is no device has no kind there: the other side says so.
fn kind_out(kind: ResourceKind) -> proto::DeviceKind {
    match kind {
        ResourceKind::Accelerator => proto::DeviceKind::Accelerator,
        ResourceKind::Nic => proto::DeviceKind::Nic,
        ResourceKind::Storage => proto::DeviceKind::Storage,
        ResourceKind::Memory | ResourceKind::Window => proto::DeviceKind::Unspecified,
    }
}

pub(super) fn share_in(share: proto::DeviceShare) -> Result<DeviceShare, Status> {
    let kind = kind_in(share.kind())?;
    let proto::DeviceShare { address, bytes, capabilities, .. } = share;
    Ok(DeviceShare { kind, address, bytes, capabilities })
}

pub(super) fn share_out(share: DeviceShare) -> proto::DeviceShare {
    let DeviceShare { kind, address, bytes, capabilities } = share;
    proto::DeviceShare { kind: kind_out(kind).into(), address, bytes, capabilities }
}

pub(super) fn device_report_in(report: proto::DeviceReport) -> Result<DeviceReport, Status> {
    let kind = kind_in(report.kind())?;
    Ok(DeviceReport { kind, address: report.address, fault: report.fault })
}

pub(super) fn device_report_out(report: DeviceReport) -> proto::DeviceReport {
    let DeviceReport { kind, address, fault } = report;
    proto::DeviceReport { kind: kind_out(kind).into(), address, fault }
}

pub(crate) fn device_request_in(
    request: proto::RequestDeviceRequest,
) -> Result<DeviceRequest, Status> {
    let kind = kind_in(request.kind())?;
    let client_id = <[u8; 16]>::try_from(request.client_id.as_slice())
        .map_err(|_| Status::invalid_argument("client_id has to be 16 bytes"))?;
    let proto::RequestDeviceRequest { recipient, bytes, capabilities, donors, purpose, .. } =
        request;
    Ok(DeviceRequest {
        client_id: u128::from_le_bytes(client_id),
        recipient,
        kind,
        bytes: ByteSize(bytes),
        capabilities,
        donors,
        purpose,
    })
}

pub(crate) fn device_request_out(request: DeviceRequest) -> proto::RequestDeviceRequest {
    let DeviceRequest { client_id, recipient, kind, bytes, capabilities, donors, purpose } =
        request;
    proto::RequestDeviceRequest {
        client_id: client_id.to_le_bytes().to_vec(),
        recipient,
        kind: kind_out(kind).into(),
        bytes: bytes.0,
        capabilities,
        donors,
        purpose,
    }
}
