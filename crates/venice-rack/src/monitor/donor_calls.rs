//! Calls to donors, and their results.

use super::{Action, CallError, MonitorCore};
use crate::monitor_node::{DonorAnswer, DonorCall};
use crate::types::Identity;

impl MonitorCore {
    pub(super) fn call_donor(&mut self, donor: Identity, call: DonorCall) {
        let addr = self.control_addr(donor.node);
        self.actions.push_back(Action::Call { donor, addr, call });
    }

    /// Handles the result of [`Action::Call`].
    pub fn handle_returned(
        &mut self,
        now_ns: u64,
        donor: Identity,
        call: DonorCall,
        result: Result<DonorAnswer, CallError>,
    ) {
        let pong = match &result {
            Ok(DonorAnswer::Pong(pong)) => Ok(pong.clone()),
            Ok(DonorAnswer::Status(_)) => Err(CallError::NoAnswer),
            Err(error) => Err(error.clone()),
        };
        let status = result.and_then(|answer| match answer {
            DonorAnswer::Status(status) => Ok(status),
            DonorAnswer::Pong(_) => Err(CallError::NoAnswer),
        });
        match call {
            DonorCall::Prepare(request) => {
                self.handle_prepared(now_ns, donor, request.grant, status);
            }
            DonorCall::Commit { grant, .. } => self.handle_committed(now_ns, donor, grant, status),
            DonorCall::PrepareTransfer(step) => {
                self.handle_transfer_prepared(now_ns, donor, (step.from, step.grant), status);
            }
            DonorCall::CommitTransfer(step) => {
                self.handle_transfer_committed(now_ns, donor, step.grant, status);
            }
            DonorCall::AbortTransfer { .. } => self.handle_transfer_aborted(now_ns, donor, status),
            DonorCall::Abort(_) => self.handle_aborted(now_ns, donor, status),
            DonorCall::Release(grants) => self.handle_released(now_ns, donor, &grants, status),
            DonorCall::Ping => self.handle_pinged(now_ns, donor, pong),
        }
    }
}
