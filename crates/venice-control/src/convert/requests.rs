//! Requests, and their answers.

use super::{grant_in, grant_out, kind_in, kind_out, names_in, standing_in, standing_out};
use crate::proto;
use tonic::Status;
use venice_rack::label::{is_printable, to_label};
use venice_rack::placement::Policy;
use venice_rack::queueing::{Asked, DEFAULT_PRIORITY, Preempt, Queueing};
use venice_rack::types::{AllocationRequest, Want};
use venice_wire::ByteSize;

pub(crate) fn request_in(request: proto::AllocateRequest) -> Result<AllocationRequest, Status> {
    Ok(AllocationRequest {
        client_id: client_id_in(&request.client_id)?,
        recipient: request.recipient,
        wants: request.wants.into_iter().map(want_in).collect::<Result<_, _>>()?,
        donors: names_in(request.donors, "a donor")?,
        home: request.home,
        placement: placement_in(request.placement)?,
        purpose: request.purpose,
        queueing: queueing_in(request.queueing.unwrap_or_default())?,
    })
}

/// `is_bound`: see [`Owner`](venice_rack::caller::Owner).
pub(crate) fn request_out(request: AllocationRequest, is_bound: bool) -> proto::AllocateRequest {
    proto::AllocateRequest {
        client_id: request.client_id.to_le_bytes().to_vec(),
        recipient: request.recipient,
        wants: request.wants.into_iter().map(want_out).collect(),
        donors: request.donors,
        home: request.home,
        placement: placement_out(request.placement).into(),
        purpose: request.purpose,
        queueing: Some(queueing_out(request.queueing)),
        is_bound,
    }
}

/// Shortens a printable text of the last release, whose texts had up to 255 bytes. Others are left
/// to be refused.
fn shortened(text: String) -> String {
    if is_printable(&text) { to_label(&text) } else { text }
}

/// Converts a request of the last release.
pub(crate) fn memory_request_in(request: proto::RequestMemoryRequest) -> proto::AllocateRequest {
    let want = Want {
        bandwidth_bps: request.bandwidth_bps,
        ..Want::memory(request.bytes, request.copies.max(1))
    };
    proto::AllocateRequest {
        client_id: request.client_id,
        recipient: shortened(request.recipient),
        wants: vec![want_out(want)],
        donors: request.donors,
        home: request.home,
        placement: request.placement,
        purpose: shortened(request.purpose),
        queueing: request.queueing,
        is_bound: false,
    }
}

fn want_in(want: proto::Want) -> Result<Want, Status> {
    let proto::Want { kind, bytes, count, capabilities, bandwidth_bps } = want;
    let (kind, bytes) = (kind_in(kind)?, ByteSize(bytes));
    Ok(Want { kind, bytes, count, capabilities, bandwidth_bps })
}

fn want_out(want: Want) -> proto::Want {
    let Want { kind, bytes, count, capabilities, bandwidth_bps } = want;
    proto::Want { kind: kind_out(kind), bytes: bytes.0, count, capabilities, bandwidth_bps }
}

fn queueing_in(queueing: proto::Queueing) -> Result<Queueing, Status> {
    let proto::Queueing { wait_ms, waited_ms, priority, preempt } = queueing;
    let too_high = |_| Status::invalid_argument("a priority is a number from 0 to 255");
    let priority = priority.map(u8::try_from).transpose().map_err(too_high)?;
    let priority = priority.unwrap_or(DEFAULT_PRIORITY);
    // The server checks the ownership.
    let preempt = if preempt { Preempt::Own } else { Preempt::No };
    // The service knows who is an administrator.
    Ok(Queueing { wait_ms, waited_ms, priority, preempt, is_admin: false })
}

fn queueing_out(queueing: Queueing) -> proto::Queueing {
    let Queueing { wait_ms, waited_ms, priority, preempt, is_admin: _ } = queueing;
    let preempt = preempt != Preempt::No;
    proto::Queueing { wait_ms, waited_ms, priority: Some(priority.into()), preempt }
}

pub(crate) fn asked_in(response: proto::AllocateResponse) -> Result<Asked, Status> {
    Ok(match response.standing {
        Some(standing) => Asked::Waits(standing_in(standing)?),
        None => {
            Asked::Granted(response.grants.into_iter().map(grant_in).collect::<Result<_, _>>()?)
        }
    })
}

pub(crate) fn asked_out(asked: Asked) -> proto::AllocateResponse {
    match asked {
        Asked::Granted(grants) => {
            let grants = grants.into_iter().map(grant_out).collect();
            proto::AllocateResponse { grants, standing: None }
        }
        Asked::Waits(standing) => {
            let standing = Some(standing_out(standing));
            proto::AllocateResponse { grants: Vec::new(), standing }
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_old_purposes_are_shortened() {
        let request = |purpose: &str| proto::RequestMemoryRequest {
            purpose: purpose.to_owned(),
            ..proto::RequestMemoryRequest::default()
        };
        let path = format!("/{}/program", "d".repeat(100));
        let shortened = memory_request_in(request(&path)).purpose;
        assert!(shortened.ends_with("/program") && shortened.len() <= 64, "{shortened}");
        assert_eq!(memory_request_in(request("\u{1b}[2J")).purpose, "\u{1b}[2J", "refused later");
    }
}
