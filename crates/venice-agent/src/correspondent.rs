//! Reporting to one of the rack's Monitor Nodes, beside the others: one that is dead or slow holds up
//! nobody else.

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

/// A heartbeat whose answer takes longer than this has failed.
const HEARTBEAT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two attempts to reach a Monitor Node.
const PAUSE: Duration = Duration::from_secs(1);

/// What the Monitor Nodes are told.
#[derive(Debug)]
pub(crate) struct Letter {
    pub(crate) report: HeartbeatReport,
    /// Whom the door does not let in and that Monitor Node does not know, by its place among them.
    pub(crate) besides: Vec<Vec<Revocation>>,
}

/// What one of them has answered.
#[derive(Debug)]
pub(crate) enum Answer {
    /// And whom this node is near, as that Monitor Node has it.
    Ack(HeartbeatAck, Arc<PeerList>),
    /// Nothing, or nothing good.
    None,
    /// It takes this agent for another node than it is: it has to join anew.
    Other,
}

/// Who reports to one Monitor Node.
pub(crate) struct Correspondent {
    /// Its place among them.
    pub(crate) at: usize,
    pub(crate) identity: NodeIdentity,
    pub(crate) registration: NodeRegistration,
    pub(crate) registered: Registered,
    pub(crate) letters: watch::Receiver<Option<Arc<Letter>>>,
    pub(crate) answers: mpsc::Sender<(usize, Answer)>,
}

impl Correspondent {
    /// Reports whenever there is something to, until nobody wants the answers any more. `client` is
    /// a connection that is there already.
    pub(crate) async fn run(mut self, client: Option<MonitorClient>) {
        let mut line = client.map(Line::to);
        let monitor = self.identity.access.monitor.clone();
        let mut away = false;
        while self.letters.changed().await.is_ok() {
            let Some(letter) = self.letters.borrow_and_update().clone() else { continue };
            let answer = match timeout(HEARTBEAT_TIMEOUT, self.tell(&mut line, &letter)).await {
                Ok(answer) => answer.map_err(|error| self.think_over(&mut line, error)),
                Err(late) => Err(late.to_string()),
            };
            let answer = match answer {
                Ok(answer) => {
                    if away {
                        tracing::info!(monitor, "the Monitor Node is back");
                        away = false;
                    }
                    answer
                }
                Err(error) => {
                    if !away {
                        tracing::warn!(monitor, error, "heartbeat failed; what is lent stays lent");
                        away = true;
                    }
                    Answer::None
                }
            };
            if self.answers.send((self.at, answer)).await.is_err() {
                return;
            }
            if line.is_none() {
                sleep(PAUSE).await;
            }
        }
    }

    /// Over the connection that is there, or a new one. A Monitor Node that does not know this agent
    /// is told who it is: it may have started anew, or not have heard yet where it was registered.
    async fn tell(
        &self,
        known: &mut Option<Line>,
        letter: &Letter,
    ) -> Result<Answer, ControlError> {
        let mut line = match known.take() {
            Some(line) => line,
            None => Line::to(MonitorClient::connect(&self.identity.access).await?),
        };
        let mut report = letter.report.clone();
        report.door.revoked_besides = letter.besides.get(self.at).cloned().unwrap_or_default();
        let ack = match line.send(report.clone()).await {
            Err(ControlError::Rack(RackError::NotRegistered)) => {
                let registered = line.client.register(self.registration.clone()).await?;
                match registered.identity == self.registered.identity {
                    true => Some(line.send(report).await?),
                    false => None,
                }
            }
            done => Some(done?),
        };
        let near = || Arc::clone(&line.near);
        let answer = ack.map_or(Answer::Other, |ack| Answer::Ack(ack, near()));
        *known = Some(line);
        Ok(answer)
    }

    /// A connection over which nothing came is made anew.
    fn think_over(&self, line: &mut Option<Line>, error: ControlError) -> String {
        *line = None;
        if matches!(error, ControlError::NotAdmitted { .. } | ControlError::Stranger { .. }) {
            // What it showed is worth nothing there, which may be the connection's: its certificate
            // is the one of when it was made.
            self.identity.take_up();
        }
        error.to_string()
    }
}

/// A connection to a Monitor Node.
struct Line {
    client: MonitorClient,
    /// The call over which reports go, once one did.
    heartbeats: Option<Heartbeats>,
    /// Whom this node is near, by what came over that call.
    near: Arc<PeerList>,
}

impl Line {
    fn to(client: MonitorClient) -> Self {
        Self { client, heartbeats: None, near: Arc::default() }
    }

    /// Reports over the call that is open, or a new one.
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
