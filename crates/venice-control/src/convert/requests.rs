//! Requests for memory, and their answers.

use super::{grant_in, grant_out, names_in, standing_in, standing_out};
use crate::proto;
use tonic::Status;
use venice_rack::placement::Policy;
use venice_rack::queueing::{Asked, DEFAULT_PRIORITY, Preempt, Queueing};
use venice_rack::types::MemoryRequest;
use venice_wire::ByteSize;

pub(crate) fn request_in(request: proto::RequestMemoryRequest) -> Result<MemoryRequest, Status> {
    Ok(MemoryRequest {
        client_id: client_id_in(&request.client_id)?,
        recipient: request.recipient,
        bytes: ByteSize(request.bytes),
        copies: request.copies.max(1),
        donors: names_in(request.donors, "a donor")?,
        home: request.home,
        placement: placement_in(request.placement)?,
        bandwidth_bps: request.bandwidth_bps,
        purpose: request.purpose,
        queueing: queueing_in(request.queueing.unwrap_or_default())?,
    })
}

pub(crate) fn request_out(request: MemoryRequest) -> proto::RequestMemoryRequest {
    proto::RequestMemoryRequest {
        client_id: request.client_id.to_le_bytes().to_vec(),
        recipient: request.recipient,
        bytes: request.bytes.0,
        copies: request.copies,
        donors: request.donors,
        home: request.home,
        placement: placement_out(request.placement).into(),
        bandwidth_bps: request.bandwidth_bps,
        purpose: request.purpose,
        queueing: Some(queueing_out(request.queueing)),
    }
}

pub(super) fn queueing_in(queueing: proto::Queueing) -> Result<Queueing, Status> {
    let proto::Queueing { wait_ms, waited_ms, priority, preempt } = queueing;
    let too_high = |_| Status::invalid_argument("a priority is a number from 0 to 255");
    let priority = priority.map(u8::try_from).transpose().map_err(too_high)?;
    let priority = priority.unwrap_or(DEFAULT_PRIORITY);
    // The server checks the ownership.
    let preempt = if preempt { Preempt::Own } else { Preempt::No };
    Ok(Queueing { wait_ms, waited_ms, priority, preempt })
}

pub(super) fn queueing_out(queueing: Queueing) -> proto::Queueing {
    let Queueing { wait_ms, waited_ms, priority, preempt } = queueing;
    let preempt = preempt != Preempt::No;
    proto::Queueing { wait_ms, waited_ms, priority: Some(priority.into()), preempt }
}

pub(crate) fn asked_in(response: proto::RequestMemoryResponse) -> Result<Asked, Status> {
    Ok(match response.standing {
        Some(standing) => Asked::Waits(standing_in(standing)),
        None => {
            Asked::Granted(response.grants.into_iter().map(grant_in).collect::<Result<_, _>>()?)
        }
    })
}

pub(crate) fn asked_out(asked: Asked) -> proto::RequestMemoryResponse {
    match asked {
        Asked::Granted(grants) => {
            let grants = grants.into_iter().map(grant_out).collect();
            proto::RequestMemoryResponse { grants, standing: None }
        }
        Asked::Waits(standing) => proto::RequestMemoryResponse {
            grants: Vec::new(),
            standing: Some(standing_out(standing)),
        },
    }
}

/// Parses the client's id of a request.
pub(crate) fn client_id_in(client_id: &[u8]) -> Result<u128, Status> {
    let client_id = <[u8; 16]>::try_from(client_id);
    let wrong = |_| Status::invalid_argument("client_id has to be 16 bytes");
    client_id.map(u128::from_le_bytes).map_err(wrong)
}

fn placement_in(placement: i32) -> Result<Option<Policy>, Status> {
    let unknown = |_| Status::invalid_argument(format!("unknown placement {placement}"));
    Ok(match proto::Placement::try_from(placement).map_err(unknown)? {
        proto::Placement::OfTheRack => None,
        proto::Placement::Nearest => Some(Policy::Nearest),
        proto::Placement::Spread => Some(Policy::Spread),
        proto::Placement::Pack => Some(Policy::Pack),
    })
}

fn placement_out(placement: Option<Policy>) -> proto::Placement {
    match placement {
        None => proto::Placement::OfTheRack,
        Some(Policy::Nearest) => proto::Placement::Nearest,
        Some(Policy::Spread) => proto::Placement::Spread,
        Some(Policy::Pack) => proto::Placement::Pack,
    }
}
