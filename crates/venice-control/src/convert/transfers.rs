//! Transfers and claims of grants.

use super::{client_id_in, grant_in, grant_out, name_in, owner_in, owner_out};
use crate::proto;
use proto::transferred_grant::State;
use tonic::Status;
use venice_rack::types::{
    ClaimRequest, Grant, MAX_TRANSFER_GRANTS, TransferRequest, TransferState, TransferStep,
    Transferred,
};
use venice_wire::{GrantId, GrantKey};

pub(crate) fn transfer_in(
    request: proto::TransferGrantsRequest,
) -> Result<TransferRequest, Status> {
    let proto::TransferGrantsRequest { client_id, grants, to, claim_ms } = request;
    if grants.len() > MAX_TRANSFER_GRANTS {
        let most = format!("a transfer is of 1 to {MAX_TRANSFER_GRANTS} grants");
        return Err(Status::invalid_argument(most));
    }
    Ok(TransferRequest {
        client_id: client_id_in(&client_id)?,
        grants: grants.into_iter().map(GrantId).collect(),
        to: owner_in(to.ok_or_else(|| Status::invalid_argument("a transfer to nobody"))?),
        claim_ms,
    })
}

pub(crate) fn transfer_out(request: TransferRequest) -> proto::TransferGrantsRequest {
    let TransferRequest { client_id, grants, to, claim_ms } = request;
    proto::TransferGrantsRequest {
        client_id: client_id.to_le_bytes().to_vec(),
        grants: grants.into_iter().map(|grant| grant.0).collect(),
        to: Some(owner_out(to)),
        claim_ms,
    }
}

pub(crate) fn transferred_in(
    response: proto::TransferGrantsResponse,
) -> Result<Vec<Transferred>, Status> {
    let row = |row: proto::TransferredGrant| {
        let state = match row.state() {
            State::Done => TransferState::Done,
            State::Pending => TransferState::Pending,
            State::Gone => TransferState::Gone,
            State::Unspecified => {
                return Err(Status::internal("a transferred grant in an unknown state"));
            }
        };
        Ok(Transferred { from: GrantId(row.from), to: GrantId(row.to), state })
    };
    response.grants.into_iter().map(row).collect()
}

pub(crate) fn transferred_out(rows: Vec<Transferred>) -> proto::TransferGrantsResponse {
    let row = |Transferred { from, to, state }| {
        let state = match state {
            TransferState::Done => State::Done,
            TransferState::Pending => State::Pending,
            TransferState::Gone => State::Gone,
        };
        proto::TransferredGrant { from: from.0, to: to.0, state: state.into() }
    };
    proto::TransferGrantsResponse { grants: rows.into_iter().map(row).collect() }
}

pub(crate) fn claim_in(request: proto::ClaimGrantsRequest) -> Result<ClaimRequest, Status> {
    let proto::ClaimGrantsRequest { recipient, transfer } = request;
    let transfer = (!transfer.is_empty()).then(|| client_id_in(&transfer)).transpose()?;
    Ok(ClaimRequest { recipient: name_in(recipient, "the claiming program")?, transfer })
}

pub(crate) fn claim_out(request: ClaimRequest) -> proto::ClaimGrantsRequest {
    let ClaimRequest { recipient, transfer } = request;
    let transfer = transfer.map_or_else(Vec::new, |id| id.to_le_bytes().to_vec());
    proto::ClaimGrantsRequest { recipient, transfer }
}

pub(crate) fn claimed_in(response: proto::ClaimGrantsResponse) -> Result<Vec<Grant>, Status> {
    response.grants.into_iter().map(grant_in).collect()
}

pub(crate) fn claimed_out(grants: Vec<Grant>) -> proto::ClaimGrantsResponse {
    proto::ClaimGrantsResponse { grants: grants.into_iter().map(grant_out).collect() }
}

pub(crate) fn transfer_step_in(step: proto::TransferStep) -> Result<TransferStep, Status> {
    let owner = step.owner.ok_or_else(|| Status::invalid_argument("a transfer to nobody"))?;
    Ok(TransferStep {
        from: GrantId(step.from),
        grant: GrantId(step.grant),
        key: GrantKey(step.key),
        donor_epoch: step.donor_epoch,
        ownership: step.ownership,
        claim_ms: step.claim_ms,
        owner: owner_in(owner),
    })
}

pub(crate) fn transfer_step_out(step: TransferStep) -> proto::TransferStep {
    proto::TransferStep {
        from: step.from.0,
        grant: step.grant.0,
        key: step.key.0,
        donor_epoch: step.donor_epoch,
        ownership: step.ownership,
        claim_ms: step.claim_ms,
        owner: Some(owner_out(step.owner)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_rack::caller::Owner;

    fn bob() -> Owner {
        Owner { node: "n2".into(), user: "bob".into(), is_bound: false }
    }

    #[test]
    fn transfer_messages_roundtrip() {
        let grants = vec![GrantId(7), GrantId(u64::MAX)];
        let request = TransferRequest { client_id: 9 << 90, grants, to: bob(), claim_ms: 5 };
        assert_eq!(transfer_in(transfer_out(request.clone())).unwrap(), request);
        let states = [TransferState::Done, TransferState::Pending, TransferState::Gone];
        let rows = states.map(|state| Transferred { from: GrantId(1), to: GrantId(2), state });
        assert_eq!(transferred_in(transferred_out(rows.to_vec())).unwrap(), rows);
        for transfer in [None, Some(1)] {
            let claim = ClaimRequest { recipient: "r".into(), transfer };
            assert_eq!(claim_in(claim_out(claim.clone())).unwrap(), claim);
        }
        let step = TransferStep {
            from: GrantId(1),
            grant: GrantId(2),
            key: GrantKey(3),
            donor_epoch: 4,
            ownership: 5,
            claim_ms: 6,
            owner: bob(),
        };
        assert_eq!(transfer_step_in(transfer_step_out(step.clone())).unwrap(), step);
    }

    #[test]
    fn oversized_transfer_is_refused() {
        let grants = vec![1; MAX_TRANSFER_GRANTS + 1];
        let client_id = vec![0; 16];
        let request = proto::TransferGrantsRequest { client_id, grants, ..Default::default() };
        assert!(transfer_in(request).is_err());
        assert!(transfer_step_in(proto::TransferStep::default()).is_err());
    }
}
