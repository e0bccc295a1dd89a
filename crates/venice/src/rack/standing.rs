//! State of a living agent according to the Monitor Node, with advice.

use std::path::Path;

use venice_control::identity::Credential;
use venice_control::{NodeRow, Revocation, Revocations};

use super::process::Identity;
use super::record::AgentRecord;
use super::run_dir::RunDir;

/// Nodes and revocations, as listed by the Monitor Node.
#[derive(Debug)]
pub struct Register {
    rows: Vec<NodeRow>,
    revoked: Revocations,
}

/// State of a running agent, as the Monitor Node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Registered and reporting.
    Up,
    /// This process of the agent has not registered yet.
    Starting,
    /// Registered, but no longer reporting: it hangs, or cannot reach the Monitor Node.
    Silent,
    /// Its certificate was revoked.
    Revoked,
}

impl Register {
    /// Creates it from the Monitor Node's answers.
    pub fn new(rows: Vec<NodeRow>, revoked: Vec<Revocation>) -> Register {
        Register { rows, revoked: revoked.into_iter().collect() }
    }

    /// Returns the row of a node.
    pub fn row(&self, name: &str) -> Option<&NodeRow> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// Returns the state of the agent that runs as `process`.
    pub fn standing(&self, dir: &RunDir, agent: &AgentRecord, process: Identity) -> Standing {
        let row = self.row(&agent.name);
        // A stopped agent was another process, even if the pid is the same.
        let row = row.filter(|row| row.state != "stopped");
        let row = row.filter(|row| row.pid.is_none_or(|pid| pid == process.pid));
        match row {
            Some(row) if row.state == "up" => Standing::Up,
            _ if self.is_revoked(&dir.identity_dir(&agent.name)) => Standing::Revoked,
            Some(_) => Standing::Silent,
            None => Standing::Starting,
        }
    }

    /// True if the certificate there is revoked. A node that joined again has a newer one, and
    /// stays listed.
    fn is_revoked(&self, identity: &Path) -> bool {
        let credential = Credential::load(identity).ok();
        credential.is_some_and(|it| self.revoked.covers(&it.info().caller, it.info().issued_ms))
    }
}

impl Standing {
    /// Word for the state in `venice status`.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Up => "up",
            Standing::Starting => "starting",
            Standing::Silent => "silent",
            Standing::Revoked => "revoked",
        }
    }

    /// Explains the problem of the agent `name`, which runs as `pid`, with a remedy; `None` without
    /// one.
    pub fn advice(self, dir: &RunDir, name: &str, pid: u32) -> Option<String> {
        match self {
            Standing::Up | Standing::Starting => None,
            Standing::Silent => Some(format!(
                "{name} is silent: its agent (pid {pid}) hangs, is stopped (kill -CONT {pid}), or cannot \
                 reach the Monitor Node (see {}): to restart it, kill -9 {pid}, then `venice up`",
                dir.log_path(name).display()
            )),
            Standing::Revoked => Some(format!(
                "{name} was revoked (`venice node revoke`): to let it join again, `venice token \
                 new --node {name}`, then `venice join --name {name} --identity {} TOKEN`",
                dir.identity_dir(name).display()
            )),
        }
    }
}
