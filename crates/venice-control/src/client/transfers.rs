//! Transfers of grants, and their claims, at the Monitor Node.

use super::monitor::MonitorClient;
use crate::convert;
use crate::error::ControlError;
use tonic::{Code, Response, Status};
use venice_rack::types::{ClaimRequest, Grant, RackError, TransferRequest, Transferred};

impl MonitorClient {
    /// Transfers grants to a new owner, all of them or none. The call may be repeated with the same
    /// `client_id` if the answer was lost; with several Monitor Nodes this method repeats it itself,
    /// at another one.
    ///
    /// # Errors
    /// Nothing was transferred by this call: [`ControlError::Forbidden`] for another's grants,
    /// [`ControlError::UnknownNode`], [`RackError::OverQuota`], [`RackError::TransferFailed`],
    /// [`RackError::BadRequest`]. If an earlier call under the same number was not answered, that
    /// one may have.
    pub async fn transfer(
        &mut self,
        request: TransferRequest,
    ) -> Result<Vec<Transferred>, ControlError> {
        let request = convert::transfer_out(request);
        let answer = self.answer(false, |mut monitor| {
            let request = request.clone();
            async move { monitor.transfer_grants(request).await.or_else(older) }
        });
        convert::transferred_in(answer.await?).map_err(|s| self.error(s))
    }

    /// Returns the grants that were transferred to the calling user and that no other program of
    /// its has claimed; none if there are none. Their leases are running: renew them at once.
    ///
    /// # Errors
    /// [`RackError::BadRequest`], and if the Monitor Node cannot be reached.
    pub async fn claim(&mut self, request: ClaimRequest) -> Result<Vec<Grant>, ControlError> {
        let request = convert::claim_out(request);
        let answer = self.answer(false, |mut monitor| {
            let request = request.clone();
            async move { monitor.claim_grants(request).await.or_else(older) }
        });
        convert::claimed_in(answer.await?).map_err(|s| self.error(s))
    }
}

/// Explains the error of a Monitor Node that does not know the call.
fn older<T>(status: Status) -> Result<Response<T>, Status> {
    match status.code() {
        Code::Unimplemented => {
            let why =
                "the Monitor Node is of an earlier release, which transfers no grants: upgrade it";
            Err(crate::error::rack_status(&RackError::TransferFailed(why.to_owned())))
        }
        _ => Err(status),
    }
}
