//! The Topology Status Table: the state and quality of the links.

use crate::types::{LinkPort, LinkReport, LinkState};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::NodeId;

/// The newest test of every link, by tester, far end and port. It is not durable: agents test again
/// with every heartbeat.
#[derive(Debug, Default)]
pub struct Tst {
    links: BTreeMap<(NodeId, NodeId, LinkPort), LinkReport>,
    /// The nodes that test links to a node.
    testers: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl Tst {
    /// Records a test made by `from`.
    pub(crate) fn record(&mut self, from: NodeId, report: LinkReport) {
        self.testers.entry(report.to).or_default().insert(from);
        self.links.insert((from, report.to, report.port), report);
    }

    /// Marks all links of a dead node as down, whichever end tested them.
    pub(crate) fn node_down(&mut self, node: NodeId) {
        for ((from, to, _), report) in &mut self.links {
            if *from == node || *to == node {
                report.state = LinkState::Down;
            }
        }
    }

    /// Returns the newest test by `from` of its link to `to`.
    pub fn get(&self, from: NodeId, to: NodeId, port: LinkPort) -> Option<&LinkReport> {
        self.links.get(&(from, to, port))
    }

    /// Iterates over the newest tests of the links of this kind to a node.
    pub fn towards(&self, to: NodeId, port: LinkPort) -> impl Iterator<Item = &LinkReport> {
        let testers = self.testers.get(&to).into_iter().flatten();
        testers.filter_map(move |from| self.get(*from, to, port))
    }

    /// Iterates over all links, with their testers.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &LinkReport)> {
        self.links.iter().map(|((from, _, _), report)| (*from, report))
    }
}
