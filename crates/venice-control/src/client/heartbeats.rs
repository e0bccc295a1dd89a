//! The heartbeat call of an agent to a Monitor Node.

use crate::convert;
use crate::error::{ControlError, PeerKind};
use crate::proto::{HeartbeatRequest, HeartbeatResponse, monitor_node_client::MonitorNodeClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use venice_rack::types::{HeartbeatAck, HeartbeatReport};

/// A heartbeat call. It stays open, since a call costs several times as much as a message within
/// one. Dropping it ends the call.
#[derive(Debug)]
pub struct Heartbeats {
    addr: String,
    reports: mpsc::Sender<HeartbeatRequest>,
    answers: Streaming<HeartbeatResponse>,
}

impl Heartbeats {
    pub(super) async fn open(
        addr: String,
        monitor: &mut MonitorNodeClient<Channel>,
    ) -> Result<Self, ControlError> {
        // A report is sent after the answer to the one before.
        let (reports, to_send) = mpsc::channel(1);
        let called = monitor.heartbeats(ReceiverStream::new(to_send)).await;
        let answers = called.map_err(|status| error(&addr, status))?.into_inner();
        Ok(Self { addr, reports, answers })
    }

    /// Sends a report and waits for the answer, without a timeout. After an error the call is over:
    /// open another one.
    ///
    /// # Errors
    /// [`venice_rack::types::RackError::NotRegistered`] if the agent must register first,
    /// [`ControlError::NotAdmitted`] if the node has left the rack, [`ControlError::Unreachable`]
    /// if the connection broke.
    pub async fn send(&mut self, report: HeartbeatReport) -> Result<HeartbeatAck, ControlError> {
        // If the call is over, the receive below returns the reason.
        let _ = self.reports.send(convert::heartbeat_out(report)).await;
        let answer = match self.answers.message().await {
            Ok(Some(answer)) => convert::ack_in(answer),
            Ok(None) => Err(Status::unavailable("the Monitor Node has ended the call")),
            Err(status) => Err(status),
        };
        answer.map_err(|status| error(&self.addr, status))
    }
}

fn error(addr: &str, status: Status) -> ControlError {
    ControlError::from_status(PeerKind::MonitorNode, addr, status)
}
