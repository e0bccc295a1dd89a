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
    /// The UDP links that living testers found down, by far end.
    cut: BTreeSet<(NodeId, NodeId)>,
}

impl Tst {
    /// Records a test made by `from`.
    pub(crate) fn record(&mut self, from: NodeId, report: LinkReport) {
        self.testers.entry(report.to).or_default().insert(from);
        match (report.port, report.state) {
            (LinkPort::Udp, LinkState::Down) => self.cut.insert((report.to, from)),
            (LinkPort::Udp, LinkState::Up) => self.cut.remove(&(report.to, from)),
            (LinkPort::Shm | LinkPort::Hop, _) => false,
        };
        self.links.insert((from, report.to, report.port), report);
    }

    /// Marks all links of a dead node as down, whichever end tested them.
    pub(crate) fn node_down(&mut self, node: NodeId) {
        for ((from, to, _), report) in &mut self.links {
            if *from == node || *to == node {
                report.state = LinkState::Down;
            }
        }
        // A dead node's word counts no more, and calls to a dead node fail anyhow.
        self.cut.retain(|(to, from)| *to != node && *from != node);
    }

    /// True if UDP packets do not reach `to`: `from` has found its link down; or, where it does not
    /// test that link, every node that does.
    pub(crate) fn is_cut(&self, from: Option<NodeId>, to: NodeId) -> bool {
        let mut down = self.cut.range((to, NodeId(0))..=(to, NodeId(u32::MAX)));
        if down.next().is_none() {
            return false;
        }
        if let Some(report) = from.and_then(|from| self.get(from, to, LinkPort::Udp)) {
            return report.state == LinkState::Down;
        }
        let is_up = |report: &LinkReport| report.state == LinkState::Up;
        !self.towards(to, LinkPort::Udp).any(is_up)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::LinkProtection;

    #[test]
    fn own_test_counts_before_others() {
        let [one, two, three] = [1, 2, 3].map(NodeId);
        let mut tst = Tst::default();
        let mut test = |from, to, state| {
            let report = LinkReport {
                to,
                port: LinkPort::Udp,
                state,
                latency_us: 1.0,
                loss_ratio: 0.0,
                bandwidth_mbps: None,
                bytes_per_s: None,
                protection: LinkProtection::Plain,
            };
            tst.record(from, report);
            [None, Some(one), Some(two)].map(|own| tst.is_cut(own, three))
        };
        assert_eq!(test(one, three, LinkState::Up), [false; 3]);
        assert_eq!(test(two, three, LinkState::Down), [false, false, true]);
        assert_eq!(test(one, three, LinkState::Down), [true; 3]);
        assert_eq!(test(two, three, LinkState::Up), [false, true, false]);
        test(two, three, LinkState::Down);
        tst.node_down(two);
        assert!(tst.is_cut(None, three), "the first still says so");
        tst.node_down(one);
        assert!(!tst.is_cut(None, three), "no living node says so");
    }
}
