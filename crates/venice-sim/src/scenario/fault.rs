//! Faults, with their begin and duration.

use serde::{Deserialize, Serialize};

use super::{BadScenario, Impairment};
use venice_simkernel::units::Nanos;

/// A temporary fault.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// Time of its begin.
    pub at: Nanos,
    /// Duration.
    #[serde(rename = "for")]
    pub lasts: Nanos,
    /// Its kind.
    #[serde(flatten)]
    pub kind: FaultKind,
}

/// Kinds of faults. Nodes are numbered from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FaultKind {
    /// No frame passes from one node to the other; the way back works, unless `both`.
    Cut {
        /// Sender of the lost frames.
        from: u16,
        /// Their receiver.
        to: u16,
        /// True if the way back is cut too.
        #[serde(default)]
        both: bool,
    },
    /// A node is cut off from all others.
    Isolate {
        /// The node.
        node: u16,
    },
    /// A node loses all its state, and restarts at the end.
    Crash {
        /// The node.
        node: u16,
        /// True if its memory returns zeroed under the same grants and keys, so that a frame of the
        /// old life would do harm; otherwise the grants are gone.
        #[serde(default)]
        same_keys: bool,
    },
    /// The program that borrows on a node is killed and restarted; the node's own grants stay.
    KillRecipient {
        /// The node.
        node: u16,
    },
    /// A node stops (as after SIGSTOP); input waits for it.
    Freeze {
        /// The node.
        node: u16,
    },
    /// All links are impaired more.
    Storm {
        /// The impairment.
        #[serde(flatten)]
        impairment: Impairment,
    },
    /// A donor ends all its grants; the fault lasts until it lends again.
    Revoke {
        /// The node.
        node: u16,
        /// True if the memory is gone at once without notice; otherwise recipients are notified,
        /// and the memory stays until they have released it, or lending begins again.
        #[serde(default)]
        abrupt: bool,
    },
}

impl Fault {
    /// Returns the time of its end, in nanoseconds.
    pub fn end_ns(&self) -> u64 {
        self.at.0.saturating_add(self.lasts.0)
    }

    /// Returns its name.
    pub fn name(&self) -> &'static str {
        match self.kind {
            FaultKind::Cut { .. } => "cut",
            FaultKind::Isolate { .. } => "isolate",
            FaultKind::Crash { .. } => "crash",
            FaultKind::KillRecipient { .. } => "kill-recipient",
            FaultKind::Freeze { .. } => "freeze",
            FaultKind::Storm { .. } => "storm",
            FaultKind::Revoke { .. } => "revoke",
        }
    }

    /// Returns the nodes that it names.
    pub fn nodes(&self) -> Vec<u16> {
        match self.kind {
            FaultKind::Cut { from, to, .. } => vec![from, to],
            FaultKind::Isolate { node }
            | FaultKind::Crash { node, .. }
            | FaultKind::KillRecipient { node }
            | FaultKind::Freeze { node }
            | FaultKind::Revoke { node, .. } => vec![node],
            FaultKind::Storm { .. } => Vec::new(),
        }
    }

    pub(super) fn check(&self, nodes: u16) -> Result<(), BadScenario> {
        if let Some(node) = self.nodes().into_iter().find(|&node| node >= nodes) {
            let name = self.name();
            return Err(BadScenario(format!(
                "a {name} names node {node}, but the rack has nodes 0 to {}",
                nodes - 1
            )));
        }
        match self.kind {
            FaultKind::Cut { from, to, .. } if from == to => {
                Err(BadScenario(format!("node {from} has no link to itself to cut")))
            }
            _ => Ok(()),
        }
    }
}
