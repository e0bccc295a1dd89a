//! The heartbeat call of an agent: stays open and answers each report.

use super::monitor_handler::MonitorHandler;
use super::peer_identity::{Peer, peer};
use super::tls_server::TlsServer;
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
    pub(super) tls: Arc<TlsServer>,
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
        let peer = peer(&request);
        self.name_of(&peer)?;
        let call = (self, peer, request.into_inner());
        Ok(Box::pin(try_unfold(call, |(mut call, peer, mut reports)| async move {
            let answer = call.answer_next(&peer, &mut reports).await?;
            Ok(answer.map(|answer| (answer, (call, peer, reports))))
        })))
    }

    /// Answers the next report; `None` if the agent has ended the call.
    async fn answer_next(
        &mut self,
        peer: &Peer,
        reports: &mut Streaming<HeartbeatRequest>,
    ) -> Result<Option<HeartbeatResponse>, Status> {
        let report = tokio::select! {
            report = reports.message() => report?,
            _ = self.serving.changed() => return Err(rack_status(&RackError::Stopping)),
        };
        let Some(report) = report else { return Ok(None) };
        // The node may have been revoked since the last report.
        let name = self.name_of(peer)?;
        let report = convert::heartbeat_in(report)?;
        let ack = self.handler.heartbeat(name, report).await.map_err(|e| rack_status(&e))?;
        Ok(Some(convert::ack_out(ack)))
    }

    fn name_of(&self, peer: &Peer) -> Result<String, Status> {
        match self.tls.admit_peer(peer)? {
            Caller::Node(name) => Ok(name),
            caller => Err(self.tls.forbid(&caller, "agents")),
        }
    }
}
