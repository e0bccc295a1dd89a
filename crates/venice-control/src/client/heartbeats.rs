//! An agent's reports to a Monitor Node.

use crate::convert;
use crate::error::{ControlError, PeerKind};
use crate::proto::{HeartbeatRequest, HeartbeatResponse, monitor_node_client::MonitorNodeClient};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use venice_rack::types::{HeartbeatAck, HeartbeatReport};

/// A call over which an agent reports: it stays open, since a call costs several times what a message of
/// one does. Dropped, it ends.
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
        // One goes out when the one before it has its answer.
        let (reports, to_send) = mpsc::channel(1);
        let called = monitor.heartbeats(ReceiverStream::new(to_send)).await;
        let answers = called.map_err(|status| error(&addr, status))?.into_inner();
        Ok(Self { addr, reports, answers })
    }

    /// Reports, and waits for the answer, however long that takes. The call is over after an error: another
    /// has to be opened then.
    ///
    /// # Errors
    /// [`venice_rack::types::RackError::NotRegistered`] when the agent has to register first,
    /// [`ControlError::NotAdmitted`] when it is not of the rack any more, [`ControlError::Unreachable`]
    /// when the connection broke.
    pub async fn send(&mut self, report: HeartbeatReport) -> Result<HeartbeatAck, ControlError> {
        // Where nobody takes it the call is over, and what comes of that says why.
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
