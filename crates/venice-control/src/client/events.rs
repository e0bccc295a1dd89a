//! The watch of a Monitor Node's events.

use super::monitor::MonitorClient;
use crate::convert;
use crate::error::{ControlError, PeerKind};
use crate::proto::WatchEventsResponse;
use tonic::{Code, Streaming};
use venice_rack::event::{EventBatch, EventRequest};

/// An open watch of events. Dropping it ends the call.
#[derive(Debug)]
pub struct EventWatch {
    addr: String,
    batches: Streaming<WatchEventsResponse>,
}

impl MonitorClient {
    /// Begins to watch the events of one Monitor Node; others of the rack have events of their own.
    ///
    /// # Errors
    /// [`ControlError::EarlierRelease`] if it knows no events; the errors of [`Self::nodes`].
    pub async fn events(&mut self, request: EventRequest) -> Result<EventWatch, ControlError> {
        let request = convert::event_request_out(request);
        let called = self.inner.watch_events(request).await;
        let batches = called.map_err(|status| match status.code() {
            Code::Unimplemented => {
                ControlError::EarlierRelease { addr: self.addr().to_owned(), what: "events" }
            }
            _ => self.error(status),
        })?;
        Ok(EventWatch { addr: self.addr().to_owned(), batches: batches.into_inner() })
    }
}

impl EventWatch {
    /// Waits for the next events, without a timeout; `None` at the end of a watch that does not
    /// follow. The first answer comes at once, perhaps without an event.
    ///
    /// # Errors
    /// [`ControlError::Unreachable`] if the connection broke or the Monitor Node stops. After an
    /// error the watch is over: open another one after the last position.
    pub async fn next(&mut self) -> Result<Option<EventBatch>, ControlError> {
        let failed = |status| ControlError::from_status(PeerKind::MonitorNode, &self.addr, status);
        Ok(self.batches.message().await.map_err(failed)?.map(convert::event_batch_in))
    }
}
