//! Services of held devices: found at their agents, and watched for as long as the grant is held.

use std::time::Duration;

use venice_control::client::{Access, ServiceWatch};
use venice_control::{ControlError, Grant, ServiceState};

use crate::loan::agent_of;

/// Pause before a broken watch is opened again.
const AGAIN_AFTER: Duration = Duration::from_millis(200);

/// A state of a grant's service, or the failure of its watch.
#[derive(Debug)]
pub(crate) struct Seen {
    /// Index of the grant.
    pub(crate) index: usize,
    pub(crate) state: Result<ServiceState, ControlError>,
    /// The watch, if it goes on.
    pub(crate) watch: Option<ServiceWatch>,
}

/// Opens the watch of a grant's service and waits for its first state.
pub(crate) async fn open(access: Access, grant: Grant, index: usize) -> Seen {
    let opened = async {
        let mut agent = agent_of(&access, &grant).await?;
        agent.watch_service((grant.id, grant.key)).await
    };
    match opened.await {
        Ok(watch) => next(watch, index).await,
        Err(error) => Seen { index, state: Err(error), watch: None },
    }
}

/// Opens it again after a failure.
pub(crate) async fn open_again(access: Access, grant: Grant, index: usize) -> Seen {
    tokio::time::sleep(AGAIN_AFTER).await;
    open(access, grant, index).await
}

/// Waits for the next state.
pub(crate) async fn next(mut watch: ServiceWatch, index: usize) -> Seen {
    let state = watch.next().await;
    let goes_on = matches!(state, Ok(ServiceState::Serving(_) | ServiceState::Starting));
    Seen { index, state, watch: goes_on.then_some(watch) }
}
