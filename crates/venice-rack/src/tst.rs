//! The Topology Status Table: which links work, and how well.

use crate::types::{LinkPort, LinkReport, LinkState};
use std::collections::{BTreeMap, BTreeSet};
use venice_wire::NodeId;

/// The newest test of every link, by tester, far end and port. It is not durable: agents test
/// again on every heartbeat.
#[derive(Debug, Default)]
pub struct Tst {
    links: BTreeMap<(NodeId, NodeId, LinkPort), LinkReport>,
    /// Who tests the links to a node.
    testers: BTreeMap<NodeId, BTreeSet<NodeId>>,
}

impl Tst {
    /// Takes a test made by `from`.
    pub(crate) fn record(&mut self, from: NodeId, report: LinkReport) {
        self.testers.entry(report.to).or_default().insert(from);
        self.links.insert((from, report.to, report.port), report);
    }

    /// A dead node's links are down, whichever end tested them.
    pub(crate) fn node_down(&mut self, node: NodeId) {
        for ((from, to, _), report) in &mut self.links {
            if *from == node || *to == node {
                report.state = LinkState::Down;
            }
        }
    }

    /// The newest test that `from` has made of its link to `to`.
    pub fn get(&self, from: NodeId, to: NodeId, port: LinkPort) -> Option<&LinkReport> {
        self.links.get(&(from, to, port))
    }

    /// The newest tests of the links to a node that are of this kind.
    pub fn towards(&self, to: NodeId, port: LinkPort) -> impl Iterator<Item = &LinkReport> {
        let testers = self.testers.get(&to).into_iter().flatten();
        testers.filter_map(move |from| self.get(*from, to, port))
    }

    /// Every link with its tester.
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &LinkReport)> {
        self.links.iter().map(|((from, _, _), report)| (*from, report))
    }
}
