//! Peer lists: the nodes to which a node tests its links.

use crate::common::{CountingKeys, S, registration, settings};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::monitor::{CallError, MonitorCore, Token};
use venice_rack::types::*;
use venice_wire::NodeId;

/// The number the Monitor Node promises.
const TESTED: usize = 64;

/// Nodes and their Monitor Node.
struct Rack {
    core: MonitorCore,
    now_ns: u64,
    /// The last peer list of each node.
    sent: BTreeMap<u32, PeerList>,
    instances: BTreeMap<u32, u64>,
    /// Given at registration.
    epochs: BTreeMap<u32, u64>,
}

impl Rack {
    /// Creates nodes 1 to `count`.
    fn of(count: u32) -> Self {
        let core = MonitorCore::recover(settings(), Box::new(CountingKeys(0)), 0, vec![]);
        let (sent, instances, epochs) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut rack = Self { core, now_ns: 0, sent, instances, epochs };
        (1..=count).for_each(|number| rack.register(number, 1));
        rack
    }

    fn register(&mut self, number: u32, instance: u64) {
        let node = registration(&format!("node{number}"), instance, 1);
        self.core.handle_register(self.now_ns, Token(0), node);
        while self.core.poll_action().is_some() {}
        self.instances.insert(number, instance);
        let rows = self.core.node_rows(self.now_ns);
        self.epochs.extend(rows.iter().map(|row| (row.node_id, row.epoch)));
        self.sent.remove(&number);
    }

    /// Sends a heartbeat; returns true if it was answered with a peer list.
    fn report(&mut self, node: u32) -> bool {
        let status = DonorStatus { total_slabs: 1, free_slabs: 1, revision: 0 };
        let epoch = self.epochs[&node];
        let report = HeartbeatReport {
            peers_version: self.sent.get(&node).map_or(0, |sent| sent.version),
            identity: Identity { node: NodeId(node), epoch },
            instance: self.instances[&node],
            memory: DonorReport { status, held: vec![], devices: vec![] },
            links: vec![],
            port: PortReport::default(),
            pressure: Default::default(),
            door: Default::default(),
            usage: Vec::new(),
        };
        let ack = self.core.handle_heartbeat(self.now_ns, report).unwrap();
        let is_news = ack.peers.is_some();
        self.sent.extend(ack.peers.map(|near| (node, near)));
        is_news
    }

    /// Returns the nodes that are up, and their epochs.
    fn living(&self) -> Vec<(u32, u64)> {
        let rows = self.core.node_rows(self.now_ns);
        rows.into_iter()
            .filter(|row| row.state == "up")
            .map(|row| (row.node_id, row.epoch))
            .collect()
    }

    /// Returns the node's list.
    fn known_to(&self, node: u32) -> Vec<(u32, u64)> {
        self.sent[&node].peers.iter().map(|peer| (peer.node.0, peer.epoch)).collect()
    }

    fn second(&mut self) {
        self.now_ns += S;
        self.core.handle_timeout(self.now_ns);
    }
}

/// Returns the nodes of `living` that follow `node` by number, the lowest after the highest.
fn near(living: &[(u32, u64)], node: u32) -> Vec<(u32, u64)> {
    let after = living.iter().filter(|(other, _)| *other > node);
    let before = living.iter().filter(|(other, _)| *other < node);
    after.chain(before).copied().take(TESTED).collect()
}

#[test]
fn peer_list_is_sent_once() {
    let mut rack = Rack::of(200);
    for node in 1..=200 {
        assert!(rack.report(node), "the first heartbeat over a connection");
        assert_eq!(rack.known_to(node).len(), TESTED);
    }
    rack.second();
    assert!((1..=200).all(|node| !rack.report(node)), "nothing has changed");
    // On a new connection the agent has no list.
    rack.sent.remove(&7);
    assert!(rack.report(7));
    // One restarts as another process: only the nodes near it get a new list.
    let dead = Identity { node: NodeId(100), epoch: 1 };
    rack.core.handle_register(rack.now_ns, Token(0), registration("node100", 9, 1));
    rack.core.handle_pinged(rack.now_ns, dead, Err(CallError::Gone));
    rack.register(100, 9);
    let sent: Vec<u32> = (1..=200).filter(|node| rack.report(*node)).collect();
    assert_eq!(sent, (36..=100).collect::<Vec<_>>());
}

#[derive(Debug, Clone)]
enum Step {
    /// These do not report in the next four seconds.
    Silent(BTreeSet<u32>),
    /// A process takes the name of one that is down.
    Again(u32),
    /// An agent connects anew.
    Call(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        prop::collection::btree_set(1u32..200, 0..40).prop_map(Step::Silent),
        (1u32..200).prop_map(Step::Again),
        (1u32..200).prop_map(Step::Call),
    ]
}

proptest! {
    #[test]
    fn peer_lists_follow_membership(
        count in 2u32..200,
        steps in prop::collection::vec(step(), 1..8),
    ) {
        let mut rack = Rack::of(count);
        for step in steps {
            let silent = match step {
                Step::Silent(silent) => silent,
                Step::Again(node) if node <= count => {
                    if !rack.living().iter().any(|(living, _)| *living == node) {
                        rack.register(node, rack.instances[&node] + 1);
                    }
                    BTreeSet::new()
                }
                Step::Call(node) => {
                    rack.sent.remove(&node);
                    BTreeSet::new()
                }
                Step::Again(_) => continue,
            };
            // A node silent for more than three heartbeats is down.
            for _ in 1..=4 {
                rack.second();
                (1..=count).filter(|it| !silent.contains(it)).for_each(|it| { rack.report(it); });
            }
            let living = rack.living();
            for node in (1..=count).filter(|it| !silent.contains(it)) {
                rack.report(node);
                prop_assert_eq!(rack.known_to(node), near(&living, node));
                prop_assert!(!rack.report(node), "the list is sent twice");
            }
        }
    }
}
