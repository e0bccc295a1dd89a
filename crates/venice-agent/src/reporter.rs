//! The connection to one Monitor Node: a dead or slow Monitor Node does not delay reports to the
//! others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::timeout;
use venice_control::client::{Heartbeats, MonitorClient};
use venice_control::{
    ControlError, HeartbeatAck, HeartbeatReport, NodeRegistration, PeerList, RackError, Registered,
};
use venice_ports::monotonic_ns;
use venice_rack::agent_member::ReportCall;

use crate::identity::NodeIdentity;

/// Most different errors logged while a Monitor Node does not answer.
const MOST_LOGGED: usize = 8;

/// The errors logged since a Monitor Node last answered, each once: one that was away may come back
/// and refuse this agent.
#[derive(Debug, Default)]
pub(crate) struct LoggedErrors(BTreeSet<String>);

impl LoggedErrors {
    /// True if the error is to be logged.
    pub(crate) fn is_new(&mut self, error: &str) -> bool {
        self.0.len() < MOST_LOGGED && self.0.insert(error.to_owned())
    }

    /// Forgets them; true if there were any.
    pub(crate) fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

/// A call to a Monitor Node.
pub(crate) enum Call {
    Report(Box<HeartbeatReport>),
    Register(Box<NodeRegistration>),
}

/// The answer of a Monitor Node.
pub(crate) enum Answer {
    /// The acknowledgement, and the near peers according to that Monitor Node.
    Acknowledged(Box<HeartbeatAck>, Arc<PeerList>),
    /// The Monitor Node does not list this agent.
    NotRegistered,
    Registered(Registered),
}

/// Reports to one Monitor Node.
pub(crate) struct Reporter {
    pub(crate) identity: NodeIdentity,
    pub(crate) calls: mpsc::Receiver<(ReportCall, Call)>,
    /// The answers, or the reasons why there are none.
    pub(crate) answers: mpsc::Sender<(ReportCall, Result<Answer, String>)>,
}

impl Reporter {
    /// Makes the calls until their sender is dropped.
    pub(crate) async fn run(mut self) {
        let mut connection = None;
        let monitor = self.identity.access.monitor.clone();
        let mut logged = LoggedErrors::default();
        while let Some((call, what)) = self.calls.recv().await {
            let left = Duration::from_nanos(call.until_ns.saturating_sub(monotonic_ns()));
            let answer = match timeout(left, self.call(&mut connection, what)).await {
                Ok(answer) => answer.map_err(|error| self.reload_if_refused(error)),
                Err(_) => Err("no answer in time".to_owned()),
            };
            match &answer {
                Ok(Answer::Acknowledged(..)) => {
                    if logged.clear() {
                        tracing::info!(monitor, "the Monitor Node answers again");
                    }
                }
                Ok(Answer::NotRegistered | Answer::Registered(_)) => {}
                Err(error) => {
                    if logged.is_new(error) {
                        tracing::warn!(monitor, error, "heartbeat failed; grants stay in force");
                    }
                }
            }
            if self.answers.send((call, answer)).await.is_err() {
                return;
            }
        }
    }

    /// Makes a call over the existing connection, or a new one; after an error there is none. A
    /// renewed certificate gets a new connection, before the Monitor Node closes the old one.
    async fn call(
        &self,
        known: &mut Option<Connection>,
        call: Call,
    ) -> Result<Answer, ControlError> {
        let issued_ms = self.identity.issued_ms();
        let mut connection = match known.take() {
            Some(connection) if connection.issued_ms == issued_ms => connection,
            old => match (MonitorClient::connect(&self.identity.access).await, old) {
                (Ok(client), _) => Connection::to(client, issued_ms),
                (Err(_), Some(old)) => old,
                (Err(error), None) => return Err(error),
            },
        };
        let answer = match call {
            Call::Report(report) => match connection.send(*report).await {
                Err(ControlError::Rack(RackError::NotRegistered)) => Answer::NotRegistered,
                sent => Answer::Acknowledged(Box::new(sent?), Arc::clone(&connection.near)),
            },
            Call::Register(node) => Answer::Registered(connection.client.register(*node).await?),
        };
        *known = Some(connection);
        Ok(answer)
    }

    /// Reloads the certificate on disk if the credential was refused: the connection may have used an
    /// old one.
    fn reload_if_refused(&self, error: ControlError) -> String {
        if matches!(error, ControlError::NotAdmitted { .. } | ControlError::WrongPeer { .. }) {
            self.identity.reload();
        }
        error.to_string()
    }
}

/// A connection to a Monitor Node.
struct Connection {
    client: MonitorClient,
    /// Date of the certificate it was opened with.
    issued_ms: u64,
    /// The heartbeat call, once opened.
    heartbeats: Option<Heartbeats>,
    /// Near peers, as received over that call.
    near: Arc<PeerList>,
}

impl Connection {
    fn to(client: MonitorClient, issued_ms: u64) -> Self {
        Self { client, issued_ms, heartbeats: None, near: Arc::default() }
    }

    /// Sends a report over the open call, or a new one.
    async fn send(&mut self, mut report: HeartbeatReport) -> Result<HeartbeatAck, ControlError> {
        let mut heartbeats = match self.heartbeats.take() {
            Some(open) => open,
            None => {
                self.near = Arc::default();
                self.client.heartbeats().await?
            }
        };
        report.peers_version = self.near.version;
        let mut ack = heartbeats.send(report).await?;
        if let Some(near) = ack.peers.take() {
            self.near = Arc::new(near);
        }
        self.heartbeats = Some(heartbeats);
        Ok(ack)
    }
}
