//! The watch of a grant's service.

use crate::convert;
use crate::error::{ControlError, PeerKind};
use crate::proto::WatchServiceResponse;
use tonic::Streaming;
use venice_rack::types::ServiceState;

/// An open watch of the service of a grant. Dropping it ends the call.
#[derive(Debug)]
pub struct ServiceWatch {
    pub(super) addr: String,
    pub(super) states: Option<Streaming<WatchServiceResponse>>,
    pub(super) is_first: bool,
}

impl ServiceWatch {
    /// Waits for the next state, without a timeout: where the service is, or why it has ended.
    /// The first one is [`ServiceState::None`] for a grant without a service.
    ///
    /// # Errors
    /// [`ControlError::Unreachable`] if the connection broke. After an error the watch is over.
    pub async fn next(&mut self) -> Result<ServiceState, ControlError> {
        let failed = |status| ControlError::from_status(PeerKind::Agent, &self.addr, status);
        let Some(states) = &mut self.states else { return Ok(ServiceState::None) };
        match states.message().await {
            Ok(Some(state)) => {
                self.is_first = false;
                convert::service_in(state).map_err(failed)
            }
            Ok(None) if self.is_first => Ok(ServiceState::None),
            Ok(None) => Err(failed(tonic::Status::unavailable("the agent has ended the call"))),
            Err(status) => Err(failed(status)),
        }
    }
}
