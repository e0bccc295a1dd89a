//! The Topology Status Table: the state and quality of the links.

use crate::types::{LinkPort, LinkReport, LinkState};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};
use venice_wire::NodeId;

/// The share of the hop links that may have changed before their median is computed again, as one of so
/// many: it takes a look at each of them.
const CHANGED_PART: u64 = 8;

/// The newest test of every link, by tester, far end and port. It is not durable: agents test again
/// with every heartbeat.
#[derive(Debug, Default)]
pub struct Tst {
    links: BTreeMap<(NodeId, NodeId, LinkPort), LinkReport>,
    /// The nodes that test links to a node.
    testers: BTreeMap<NodeId, BTreeSet<NodeId>>,
    /// The UDP links that living testers found down, by far end.
    cut: BTreeSet<(NodeId, NodeId)>,
    /// Hop links, and changes of them so far.
    hops: u64,
    hop_changes: u64,
    usual_hop: Mutex<UsualHop>,
}

/// The median round trip of the hop links, as last computed.
#[derive(Debug, Default)]
struct UsualHop {
    /// Changes until then.
    changes: u64,
    ns: u64,
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
        let is_hop = report.port == LinkPort::Hop;
        let before = self.links.insert((from, report.to, report.port), report);
        self.hop_changes += u64::from(is_hop);
        self.hops += u64::from(is_hop && before.is_none());
    }

    /// Marks all links of a dead node as down, whichever end tested them.
    pub(crate) fn node_down(&mut self, node: NodeId) {
        for ((from, to, _), report) in &mut self.links {
            if *from == node || *to == node {
                report.state = LinkState::Down;
                self.hop_changes += 1;
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

    /// Returns the median round trip of a hop, in nanoseconds; 0: not tested. The last eighth of the
    /// tests may be left out.
    pub(crate) fn usual_hop_ns(&self) -> u64 {
        let mut usual = self.usual_hop.lock().unwrap_or_else(PoisonError::into_inner);
        if (self.hop_changes - usual.changes) * CHANGED_PART > self.hops {
            let hops = self.links.values().filter(|report| report.port == LinkPort::Hop);
            let mut tested: Vec<u64> = hops.filter_map(LinkReport::round_trip_ns).collect();
            let middle = tested.len() / 2;
            let ns = match tested.is_empty() {
                true => 0,
                false => *tested.select_nth_unstable(middle).1,
            };
            *usual = UsualHop { changes: self.hop_changes, ns };
        }
        usual.ns
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
