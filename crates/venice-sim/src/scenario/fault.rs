//! What goes wrong, from when on and for how long.

use serde::{Deserialize, Serialize};

use super::{BadScenario, Impairment};
use crate::units::Nanos;

/// One thing that goes wrong and is right again after a while.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fault {
    /// When it begins.
    pub at: Nanos,
    /// How long it lasts.
    #[serde(rename = "for")]
    pub lasts: Nanos,
    /// What it is.
    #[serde(flatten)]
    pub kind: FaultKind,
}

/// Kinds of fault. Nodes are numbered from 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum FaultKind {
    /// No frame gets from one node to the other; back it does, unless `both`.
    Cut {
        /// Where frames come from.
        from: u16,
        /// Where they do not arrive.
        to: u16,
        /// Whether the way back is cut too.
        #[serde(default)]
        both: bool,
    },
    /// A node is cut off from all others.
    Isolate {
        /// Which.
        node: u16,
    },
    /// A node loses all its state; afterwards it starts anew.
    Crash {
        /// Which.
        node: u16,
        /// Its memory comes back zeroed under the same grants and keys, so that a frame of the old
        /// life that gets through does harm; otherwise the grants are gone.
        #[serde(default)]
        same_keys: bool,
    },
    /// The program that borrows on a node is killed and started anew; what the node lends stays.
    KillRecipient {
        /// Which.
        node: u16,
    },
    /// A node does nothing (as after SIGSTOP); what arrives waits for it.
    Freeze {
        /// Which.
        node: u16,
    },
    /// All links behave worse.
    Storm {
        /// How.
        #[serde(flatten)]
        impairment: Impairment,
    },
    /// A donor ends all it has lent; the fault lasts until it lends again.
    Revoke {
        /// Which.
        node: u16,
        /// The memory is gone at once, and nobody is told; otherwise recipients are told, and the
        /// memory stays until they have said that they are done with it, or lending begins again.
        #[serde(default)]
        abrupt: bool,
    },
}

impl Fault {
    /// When it is over.
    pub fn end_ns(&self) -> u64 {
        self.at.0.saturating_add(self.lasts.0)
    }

    /// What it is called.
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

    /// The nodes it names.
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
