//! What is remembered of the bandwidth of links, and whose turn it is to be measured.

use std::collections::{BTreeMap, VecDeque};

use venice_wire::NodeId;

/// From one burst to the next, once every link has had its own.
const PAUSE_NS: u64 = 10_000_000_000;
/// The most of so many is a link's bandwidth: what others have on it meanwhile makes some less.
const REMEMBERED: usize = 8;
/// A link of which nothing is known is not measured while this node's programs move more than this.
const QUIET_MBPS: f64 = 100.0;
/// Nor any other, while they move this share of it.
const QUIET_SHARE: f64 = 0.125;

/// Bandwidths by far end.
#[derive(Debug, Default)]
pub(super) struct Bandwidths {
    links: BTreeMap<NodeId, Measured>,
    /// When the last burst was.
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
    /// The bandwidth of the link to a node, in megabits a second, where it is known.
    pub(super) fn mbps(&self, to: NodeId) -> Option<f64> {
        self.links.get(&to)?.best_mbps()
    }

    /// All that are known.
    pub(super) fn known(&self) -> BTreeMap<NodeId, f64> {
        let known = self.links.iter().filter_map(|(to, it)| Some((*to, it.best_mbps()?)));
        known.collect()
    }

    /// Which of these is to be measured now, if any, while this node moves `busy_mbps`: first who never
    /// was, one at a time; then, seldom, the one for whom it is longest ago.
    pub(super) fn next(&self, now_ns: u64, nodes: &[NodeId], busy_mbps: f64) -> Option<NodeId> {
        let tried_ns = |node: &NodeId| self.links.get(node).map(|it| it.tried_ns);
        let next = *nodes.iter().min_by_key(|node| tried_ns(node))?;
        let is_new = tried_ns(&next).is_none();
        let is_time = is_new
            || self.burst_ns.is_none_or(|last_ns| now_ns.saturating_sub(last_ns) >= PAUSE_NS);
        let quiet_mbps = self.mbps(next).map_or(QUIET_MBPS, |mbps| mbps * QUIET_SHARE);
        (is_time && busy_mbps <= quiet_mbps).then_some(next)
    }

    /// A burst to a node was made; `mbps` is what came of it.
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
    fn everybody_has_one_turn_at_once_and_more_seldom() {
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
        assert_eq!(links.known().len(), 2, "one that failed once keeps what it had");
    }

    #[test]
    fn nobody_is_measured_while_programs_have_the_link() {
        let mut links = Bandwidths::default();
        assert_eq!(links.next(S, &NODES[..1], 101.0), None);
        links.note(S, NodeId(1), Some(8000.0));
        assert_eq!(links.next(20 * S, &NODES[..1], 1001.0), None);
        assert_eq!(links.next(20 * S, &NODES[..1], 1000.0), Some(NodeId(1)));
    }

    #[test]
    fn the_most_of_the_last_ones_counts() {
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
