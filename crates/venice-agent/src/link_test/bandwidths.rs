//! Measured bandwidths of links, and the choice of the next link to measure.

use std::collections::{BTreeMap, VecDeque};

use venice_wire::NodeId;

/// Pause between two bursts in nanoseconds, once every link has been measured.
const PAUSE_NS: u64 = 10_000_000_000;
/// Measurements kept per link. The bandwidth is their maximum: concurrent traffic lowers single
/// ones.
const REMEMBERED: usize = 8;
/// Most traffic of this node's programs, in megabits a second, during which an unmeasured link is
/// measured.
const QUIET_MBPS: f64 = 100.0;
/// Most share of a link's bandwidth in use by this node's programs during which it is measured.
const QUIET_SHARE: f64 = 0.125;

/// Bandwidths by far end.
#[derive(Debug, Default)]
pub(super) struct Bandwidths {
    links: BTreeMap<NodeId, Measured>,
    /// Time of the last burst.
    burst_ns: Option<u64>,
}

#[derive(Debug, Default)]
struct Measured {
    tried_ns: u64,
    mbps: VecDeque<f64>,
}

impl Measured {
    fn best_mbps(&self) -> Option<f64> {
        self.mbps.iter().copied().max_by(f64::total_cmp)
    }
}

impl Bandwidths {
    /// Returns the bandwidth of the link to a node, in megabits a second, if known.
    pub(super) fn mbps(&self, to: NodeId) -> Option<f64> {
        self.links.get(&to)?.best_mbps()
    }

    /// Returns all known bandwidths.
    pub(super) fn known(&self) -> BTreeMap<NodeId, f64> {
        let known = self.links.iter().filter_map(|(to, it)| Some((*to, it.best_mbps()?)));
        known.collect()
    }

    /// Chooses the node to measure now, if any, while this node's traffic is `busy_mbps`: first
    /// unmeasured ones, one at a time; then, rarely, the one measured longest ago.
    pub(super) fn next(&self, now_ns: u64, nodes: &[NodeId], busy_mbps: f64) -> Option<NodeId> {
        let tried_ns = |node: &NodeId| self.links.get(node).map(|it| it.tried_ns);
        let next = *nodes.iter().min_by_key(|node| tried_ns(node))?;
        let is_new = tried_ns(&next).is_none();
        let is_time = is_new
            || self.burst_ns.is_none_or(|last_ns| now_ns.saturating_sub(last_ns) >= PAUSE_NS);
        let quiet_mbps = self.mbps(next).map_or(QUIET_MBPS, |mbps| mbps * QUIET_SHARE);
        (is_time && busy_mbps <= quiet_mbps).then_some(next)
    }

    /// Records a burst to a node; `mbps` is its result.
    pub(super) fn note(&mut self, now_ns: u64, node: NodeId, mbps: Option<f64>) {
        self.burst_ns = Some(now_ns);
        let link = self.links.entry(node).or_default();
        link.tried_ns = now_ns;
        link.mbps.extend(mbps);
        if link.mbps.len() > REMEMBERED {
            link.mbps.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const NODES: [NodeId; 2] = [NodeId(1), NodeId(2)];

    #[test]
    fn each_link_is_measured_then_rarely() {
        let mut links = Bandwidths::default();
        for node in NODES {
            assert_eq!(links.next(S, &NODES, 0.0), Some(node));
            links.note(S, node, Some(1000.0));
        }
        assert_eq!(links.next(2 * S, &NODES, 0.0), None);
        assert_eq!(links.next(11 * S, &NODES, 0.0), Some(NodeId(1)));
        links.note(11 * S, NodeId(1), None);
        assert_eq!(links.next(20 * S, &NODES, 0.0), None);
        assert_eq!(links.next(21 * S, &NODES, 0.0), Some(NodeId(2)));
        assert_eq!(links.known().len(), 2, "a failed burst keeps earlier results");
    }

    #[test]
    fn busy_link_is_not_measured() {
        let mut links = Bandwidths::default();
        assert_eq!(links.next(S, &NODES[..1], 101.0), None);
        links.note(S, NodeId(1), Some(8000.0));
        assert_eq!(links.next(20 * S, &NODES[..1], 1001.0), None);
        assert_eq!(links.next(20 * S, &NODES[..1], 1000.0), Some(NodeId(1)));
    }

    #[test]
    fn bandwidth_is_recent_maximum() {
        let mut links = Bandwidths::default();
        for mbps in [900.0, 1000.0, 300.0] {
            links.note(S, NodeId(1), Some(mbps));
        }
        assert_eq!(links.mbps(NodeId(1)), Some(1000.0));
        for _ in 0..REMEMBERED {
            links.note(S, NodeId(1), Some(100.0));
        }
        assert_eq!(links.mbps(NodeId(1)), Some(100.0), "a link that has become slower");
    }
}
