//! The reporting task of one Monitor Node: a dead or slow Monitor Node does not delay reports to
//! the others.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout};
use venice_control::client::{Heartbeats, MonitorClient};
use venice_control::{
    ControlError, HeartbeatAck, HeartbeatReport, NodeRegistration, PeerList, RackError, Registered,
    Revocation,
};

use crate::identity::NodeIdentity;

/// Timeout of a heartbeat's answer.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause between two connection attempts.
const PAUSE: Duration = Duration::from_secs(1);
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
    fn clear(&mut self) -> bool {
        !std::mem::take(&mut self.0).is_empty()
    }
}

/// A report to all Monitor Nodes.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) report: HeartbeatReport,
    /// Revocations in force here that a Monitor Node lacks, by its index.
    pub(crate) besides: Vec<Vec<Revocation>>,
}

/// Answer of a Monitor Node.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The acknowledgement, and the near peers according to that Monitor Node.
    Ack(HeartbeatAck, Arc<PeerList>),
    /// No usable answer, and the reason.
    None(String),
    /// The Monitor Node assigned another identity: the agent must register again.
    Other,
}

/// Reports to one Monitor Node.
pub(crate) struct Reporter {
    /// Index of the Monitor Node.
    pub(crate) at: usize,
    pub(crate) identity: NodeIdentity,
    pub(crate) registration: NodeRegistration,
    pub(crate) registered: Registered,
    pub(crate) outgoing: watch::Receiver<Option<Arc<Outgoing>>>,
    pub(crate) answers: mpsc::Sender<(usize, Answer)>,
}

impl Reporter {
    /// Reports until the receiver of the answers is dropped. `client` is an existing connection.
    pub(crate) async fn run(mut self, client: Option<MonitorClient>) {
        let issued_ms = self.identity.issued_ms();
        let mut connection = client.map(|client| Connection::to(client, issued_ms));
        let monitor = self.identity.access.monitor.clone();
        let mut logged = LoggedErrors::default();
        while self.outgoing.changed().await.is_ok() {
            let Some(outgoing) = self.outgoing.borrow_and_update().clone() else { continue };
            let answer = match timeout(HEARTBEAT_TIMEOUT, self.tell(&mut connection, &outgoing))
                .await
            {
                Ok(answer) => answer.map_err(|error| self.drop_connection(&mut connection, error)),
                Err(_) => Err(format!("no answer within {} s", HEARTBEAT_TIMEOUT.as_secs())),
            };
            let answer = match answer {
                Ok(answer) => {
                    if logged.clear() {
                        tracing::info!(monitor, "the Monitor Node answers again");
                    }
                    answer
                }
                Err(error) => {
                    if logged.is_new(&error) {
                        tracing::warn!(monitor, error, "heartbeat failed; grants stay in force");
                    }
                    Answer::None(error)
                }
            };
            if self.answers.send((self.at, answer)).await.is_err() {
                return;
            }
            if connection.is_none() {
                sleep(PAUSE).await;
            }
        }
    }

    /// Sends a report over the existing connection, or a new one. Registers first if the Monitor
    /// Node does not list this agent: it may have restarted, or not know of the registration yet.
    /// A renewed certificate gets a new connection, before the Monitor Node closes the old one.
    async fn tell(
        &self,
        known: &mut Option<Connection>,
        outgoing: &Outgoing,
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
        let mut report = outgoing.report.clone();
        report.door.revoked_besides = outgoing.besides.get(self.at).cloned().unwrap_or_default();
        let ack = match connection.send(report.clone()).await {
            Err(ControlError::Rack(RackError::NotRegistered)) => {
                let registered = connection.client.register(self.registration.clone()).await?;
                match registered.identity == self.registered.identity {
                    true => Some(connection.send(report).await?),
                    false => None,
                }
            }
            done => Some(done?),
        };
        let near = || Arc::clone(&connection.near);
        let answer = ack.map_or(Answer::Other, |ack| Answer::Ack(ack, near()));
        *known = Some(connection);
        Ok(answer)
    }

    /// Drops the connection after an error.
    fn drop_connection(&self, connection: &mut Option<Connection>, error: ControlError) -> String {
        *connection = None;
        if matches!(error, ControlError::NotAdmitted { .. } | ControlError::WrongPeer { .. }) {
            // The credential was refused. The connection may use an old certificate: reload the one
            // on disk.
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
