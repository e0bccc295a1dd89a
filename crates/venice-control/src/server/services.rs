//! The call by which a recipient watches the service of its grant.

use crate::convert;
use crate::proto::WatchServiceResponse;
use futures_util::stream::unfold;
use std::pin::Pin;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::Status;
use venice_rack::types::ServiceState;

/// Stream of states.
pub(super) type States = Pin<Box<dyn Stream<Item = Result<WatchServiceResponse, Status>> + Send>>;

/// Returns the stream of a service's states; ends with the service or its watch.
pub(super) fn states(mut watched: watch::Receiver<ServiceState>) -> States {
    watched.mark_changed();
    Box::pin(unfold(Some(watched), |watched| async move {
        let mut watched = watched?;
        loop {
            watched.changed().await.ok()?;
            let state = watched.borrow_and_update().clone();
            if state == ServiceState::None {
                return None;
            }
            let is_over = matches!(state, ServiceState::Ended(_));
            if let Some(message) = convert::service_out(state) {
                return Some((Ok(message), (!is_over).then_some(watched)));
            }
        }
    }))
}
