//! Devices: requests, grants and reports.

use super::requests::{client_id_in, queueing_in, queueing_out};
use super::{grant_in, grant_out, names_in, standing_in, standing_out};
use crate::proto;
use tonic::Status;
use venice_rack::queueing::Asked;
use venice_rack::types::{DeviceReport, DeviceRequest, DeviceShare, ResourceKind};
use venice_wire::ByteSize;

pub(crate) fn kind_in(kind: proto::DeviceKind) -> Result<ResourceKind, Status> {
    Ok(match kind {
        proto::DeviceKind::Accelerator => ResourceKind::Accelerator,
        proto::DeviceKind::Nic => ResourceKind::Nic,
        proto::DeviceKind::Storage => ResourceKind::Storage,
        proto::DeviceKind::Unspecified => {
            return Err(Status::invalid_argument("a device of unknown kind"));
        }
    })
}

/// A kind that is not a device has no device kind on the wire: the peer refuses it.
pub(crate) fn kind_out(kind: ResourceKind) -> proto::DeviceKind {
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
    let client_id = client_id_in(&request.client_id)?;
    let queueing = queueing_in(request.queueing.unwrap_or_default())?;
    let proto::RequestDeviceRequest { recipient, bytes, capabilities, donors, purpose, .. } =
        request;
    Ok(DeviceRequest {
        client_id,
        recipient,
        kind,
        bytes: ByteSize(bytes),
        capabilities,
        donors: names_in(donors, "a donor")?,
        purpose,
        queueing,
    })
}

pub(crate) fn device_request_out(request: DeviceRequest) -> proto::RequestDeviceRequest {
    proto::RequestDeviceRequest {
        client_id: request.client_id.to_le_bytes().to_vec(),
        recipient: request.recipient,
        kind: kind_out(request.kind).into(),
        bytes: request.bytes.0,
        capabilities: request.capabilities,
        donors: request.donors,
        purpose: request.purpose,
        queueing: Some(queueing_out(request.queueing)),
    }
}

pub(crate) fn asked_for_device_in(response: proto::RequestDeviceResponse) -> Result<Asked, Status> {
    match (response.standing, response.grant) {
        (Some(standing), _) => Ok(Asked::Waits(standing_in(standing))),
        (None, Some(grant)) => Ok(Asked::Granted(vec![grant_in(grant)?])),
        (None, None) => Err(Status::internal("the answer has no grant")),
    }
}

pub(crate) fn asked_for_device_out(asked: Asked) -> proto::RequestDeviceResponse {
    match asked {
        Asked::Granted(grants) => {
            let grant = grants.into_iter().next().map(grant_out);
            proto::RequestDeviceResponse { grant, standing: None }
        }
        Asked::Waits(standing) => {
            proto::RequestDeviceResponse { grant: None, standing: Some(standing_out(standing)) }
        }
    }
}
