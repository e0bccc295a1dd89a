//! Renewals of leases at their donors, at all of them concurrently: a silent one delays no other.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::time::{Duration, Instant};

use tokio::net::TcpStream;
use tokio::task::JoinSet;
use venice_control::client::{Access, AgentClient};
use venice_control::{ControlError, Grant, LeaseState};
use venice_rack::lease_holder::Renewed;

use crate::loan::agent_of;

/// Timeout of a connection that shows whether a donor's machine runs.
const CONNECT_WITHIN: Duration = Duration::from_secs(1);

/// The renewals under way. Its methods are for use within a runtime.
#[derive(Debug)]
pub(crate) struct Renewals {
    access: Access,
    /// Connections, by address: a handshake costs more than a renewal.
    agents: BTreeMap<String, AgentClient>,
    /// The grants with a renewal under way, by the caller's index.
    asked: BTreeSet<usize>,
    answers: JoinSet<Answer>,
}

/// The result of one renewal.
#[derive(Debug)]
pub(crate) struct Renewal {
    /// The caller's index of the grant.
    pub(crate) index: usize,
    /// Time at which it was sent: the donor counts the lease from later on.
    pub(crate) sent: Instant,
    /// The donor's answer.
    pub(crate) outcome: Renewed,
}

#[derive(Debug)]
struct Answer {
    index: usize,
    sent: Instant,
    addr: String,
    outcome: Result<(LeaseState, AgentClient), Renewed>,
}

impl Renewals {
    pub(crate) fn new(access: Access) -> Self {
        let (agents, asked, answers) = (BTreeMap::new(), BTreeSet::new(), JoinSet::new());
        Self { access, agents, asked, answers }
    }

    /// Renews a grant, unless a renewal of it is under way.
    pub(crate) fn begin(&mut self, index: usize, grant: &Grant) {
        if !self.asked.insert(index) {
            return;
        }
        let (access, grant) = (self.access.clone(), grant.clone());
        let known = self.agents.get(&grant.control_addr).cloned();
        let sent = Instant::now();
        self.answers.spawn(async move {
            let outcome = match renew(&access, &grant, known).await {
                Ok(answer) => Ok(answer),
                Err(ControlError::Unreachable { refused: true, .. }) => Err(Renewed::Refused),
                Err(ControlError::NotAdmitted { .. } | ControlError::WrongPeer { .. }) => {
                    Err(Renewed::NotAdmitted)
                }
                Err(_) => Err(look_at(&grant.control_addr).await),
            };
            Answer { index, sent, addr: grant.control_addr, outcome }
        });
    }

    /// Returns a renewal that was answered, or is not; `None`: none at the moment.
    pub(crate) fn poll(&mut self) -> Option<Renewal> {
        let answer = self.answers.try_join_next()?;
        Some(self.judged(answer.expect("a renewal does not panic")))
    }

    /// Waits for the next one; `None`: none is under way.
    pub(crate) async fn next(&mut self) -> Option<Renewal> {
        let answer = self.answers.join_next().await?;
        Some(self.judged(answer.expect("a renewal does not panic")))
    }

    /// Keeps the connection if it answered, and drops it if not.
    fn judged(&mut self, answer: Answer) -> Renewal {
        let Answer { index, sent, addr, outcome } = answer;
        self.asked.remove(&index);
        let outcome = match outcome {
            Ok((state, agent)) => {
                self.agents.insert(addr, agent);
                match state {
                    LeaseState::Live { notice, .. } => Renewed::Live(notice),
                    LeaseState::Transferred { to } => Renewed::Transferred(to),
                    LeaseState::Unknown => Renewed::Unknown,
                }
            }
            Err(failed) => {
                self.agents.remove(&addr);
                failed
            }
        };
        Renewal { index, sent, outcome }
    }
}

/// Looks why a donor did not answer. The kernel of a machine that runs accepts connections for a
/// process that stands still.
async fn look_at(addr: &str) -> Renewed {
    match tokio::time::timeout(CONNECT_WITHIN, TcpStream::connect(addr)).await {
        Ok(Ok(_)) => Renewed::Silent,
        Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => Renewed::Refused,
        Ok(Err(_)) | Err(_) => Renewed::Unreachable,
    }
}

/// Renews a grant over the known connection, if there is one.
async fn renew(
    access: &Access,
    grant: &Grant,
    known: Option<AgentClient>,
) -> Result<(LeaseState, AgentClient), ControlError> {
    let mut agent = match known {
        Some(agent) => agent,
        None => agent_of(access, grant).await?,
    };
    let states = agent.renew(&[(grant.id, grant.key)]).await?;
    Ok((states.into_iter().next().unwrap_or(LeaseState::Unknown), agent))
}
