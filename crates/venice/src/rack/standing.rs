//! What the Monitor Node makes of an agent whose process lives, and what to do about it.

use std::path::Path;

use venice_control::identity::Credential;
use venice_control::{NodeRow, Revocation, Revocations};

use super::process::Identity;
use super::record::AgentRecord;
use super::run_dir::RunDir;

/// What the Monitor Node says of the nodes, and of who was turned out.
#[derive(Debug)]
pub struct Register {
    rows: Vec<NodeRow>,
    revoked: Revocations,
}

/// An agent that runs, as the Monitor Node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is known, and reports.
    Up,
    /// This process of it has not registered yet.
    Starting,
    /// It has, and does not report any more: it hangs, or cannot reach the Monitor Node.
    Silent,
    /// Its certificate was revoked.
    TurnedOut,
}

impl Register {
    /// From what the Monitor Node answered.
    pub fn new(rows: Vec<NodeRow>, revoked: Vec<Revocation>) -> Register {
        Register { rows, revoked: revoked.into_iter().collect() }
    }

    /// The row of a node.
    pub fn row(&self, name: &str) -> Option<&NodeRow> {
        self.rows.iter().find(|row| row.name == name)
    }

    /// How the agent stands that runs as `process`.
    pub fn standing(&self, dir: &RunDir, agent: &AgentRecord, process: Identity) -> Standing {
        let row = self.row(&agent.name);
        // Who has ended was another process, whatever its number.
        let row = row.filter(|row| row.state != "stopped");
        let row = row.filter(|row| row.pid.is_none_or(|pid| pid == process.pid));
        match row {
            Some(row) if row.state == "up" => Standing::Up,
            _ if self.is_turned_out(&dir.identity_dir(&agent.name)) => Standing::TurnedOut,
            Some(_) => Standing::Silent,
            None => Standing::Starting,
        }
    }

    /// Whether the certificate there is void. Who joined again has a newer one, and stays listed.
    fn is_turned_out(&self, identity: &Path) -> bool {
        let credential = Credential::load(identity).ok();
        credential.is_some_and(|it| self.revoked.covers(&it.said().caller, it.said().issued_ms))
    }
}

impl Standing {
    /// The word for it in `venice status`.
    pub fn word(self) -> &'static str {
        match self {
            Standing::Up => "up",
            Standing::Starting => "starting",
            Standing::Silent => "silent",
            Standing::TurnedOut => "turned out",
        }
    }

    /// What is wrong with the agent `name`, which runs as `pid`, and what to do; `None`: nothing.
    pub fn advice(self, dir: &RunDir, name: &str, pid: u32) -> Option<String> {
        match self {
            Standing::Up | Standing::Starting => None,
            Standing::Silent => Some(format!(
                "{name} is silent: its agent (pid {pid}) hangs, is stopped (kill -CONT {pid}), or \
                 does not get through to the Monitor Node ({} says): to start it anew, kill -9 \
                 {pid}, then `venice up`",
                dir.log_path(name).display()
            )),
            Standing::TurnedOut => Some(format!(
                "{name} was turned out (`venice node revoke`): to let it in again, `venice token \
                 new --node {name}`, then `venice join --name {name} --identity {} TOKEN`",
                dir.identity_dir(name).display()
            )),
        }
    }
}
