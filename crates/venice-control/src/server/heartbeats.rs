//! The heartbeat call of an agent: stays open and answers each report.

use super::door::Door;
use super::monitor_handler::MonitorHandler;
use super::visitor::{Visitor, visitor};
use crate::convert;
use crate::error::rack_status;
use crate::proto::{HeartbeatRequest, HeartbeatResponse};
use futures_util::stream::try_unfold;
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::watch;
use tokio_stream::Stream;
use tonic::{Request, Status, Streaming};
use venice_rack::caller::Caller;
use venice_rack::types::RackError;

/// Stream of answers.
pub(super) type Answers = Pin<Box<dyn Stream<Item = Result<HeartbeatResponse, Status>> + Send>>;

/// An open heartbeat call.
pub(super) struct Heartbeats<H> {
    pub(super) handler: Arc<H>,
    pub(super) door: Arc<Door>,
    /// Its sender is dropped when serving ends.
    pub(super) serving: watch::Receiver<()>,
}

impl<H: MonitorHandler> Heartbeats<H> {
    /// Returns the stream of answers.
    ///
    /// # Errors
    /// Fails if the caller is not a node of the rack.
    pub(super) fn answer(
        self,
        request: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Answers, Status> {
        let visitor = visitor(&request);
        self.name_of(&visitor)?;
        let call = (self, visitor, request.into_inner());
        Ok(Box::pin(try_unfold(call, |(mut desk, visitor, mut reports)| async move {
            let answer = desk.answer_next(&visitor, &mut reports).await?;
            Ok(answer.map(|answer| (answer, (desk, visitor, reports))))
        })))
    }

    /// Answers the next report; `None` if the agent has ended the call.
    async fn answer_next(
        &mut self,
        visitor: &Visitor,
        reports: &mut Streaming<HeartbeatRequest>,
    ) -> Result<Option<HeartbeatResponse>, Status> {
        let report = tokio::select! {
            report = reports.message() => report?,
            _ = self.serving.changed() => return Err(rack_status(&RackError::Stopping)),
        };
        let Some(report) = report else { return Ok(None) };
        // The node may have been revoked since the last report.
        let name = self.name_of(visitor)?;
        let report = convert::heartbeat_in(report)?;
        let ack = self.handler.heartbeat(name, report).await.map_err(|e| rack_status(&e))?;
        Ok(Some(convert::ack_out(ack)))
    }

    fn name_of(&self, visitor: &Visitor) -> Result<String, Status> {
        match self.door.admit_visitor(visitor)? {
            Caller::Node(name) => Ok(name),
            caller => Err(self.door.forbid(&caller, "agents")),
        }
    }
}
