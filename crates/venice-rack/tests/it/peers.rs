//! Whom nodes are told to test their links to.

use crate::common::{OneTwoThree, S, registration, settings};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::monitor::{CallError, MonitorCore, Token};
use venice_rack::types::*;
use venice_wire::NodeId;

/// As the Monitor Node promises.
const TESTED: usize = 64;

/// Nodes and their Monitor Node.
struct Rack {
    core: MonitorCore,
    now_ns: u64,
    /// What each node has been told last.
    told: BTreeMap<u32, PeerList>,
    instances: BTreeMap<u32, u64>,
}

impl Rack {
    /// Of nodes 1 to `count`.
    fn of(count: u32) -> Self {
        let core = MonitorCore::recover(settings(), Box::new(OneTwoThree(0)), 0, vec![]);
        let (told, instances) = (BTreeMap::new(), BTreeMap::new());
        let mut rack = Self { core, now_ns: 0, told, instances };
        (1..=count).for_each(|number| rack.register(number, 1));
        rack
    }

    fn register(&mut self, number: u32, instance: u64) {
        let node = registration(&format!("node{number}"), instance, 1);
        self.core.handle_register(self.now_ns, Token(0), node);
        while self.core.poll_action().is_some() {}
        self.instances.insert(number, instance);
        self.told.remove(&number);
    }

    /// A node reports; whether it was told anything.
    fn report(&mut self, node: u32) -> bool {
        let status = DonorStatus { total_slabs: 1, free_slabs: 1, revision: 0 };
        let known_as = self.core.node_rows(self.now_ns);
        let epoch = known_as.iter().find(|row| row.node_id == node).map_or(1, |row| row.epoch);
        let report = HeartbeatReport {
            peers_version: self.told.get(&node).map_or(0, |told| told.version),
            identity: Identity { node: NodeId(node), epoch },
            instance: self.instances[&node],
            memory: DonorReport { status, held: vec![], devices: vec![] },
            links: vec![],
            port: PortReport::default(),
            pressure: Default::default(),
            door: Default::default(),
        };
        let ack = self.core.handle_heartbeat(self.now_ns, report).unwrap();
        let is_news = ack.peers.is_some();
        self.told.extend(ack.peers.map(|near| (node, near)));
        is_news
    }

    /// Nodes that are up, by what people see, and their epochs.
    fn living(&self) -> Vec<(u32, u64)> {
        let rows = self.core.node_rows(self.now_ns);
        rows.into_iter()
            .filter(|row| row.state == "up")
            .map(|row| (row.node_id, row.epoch))
            .collect()
    }

    /// Those that follow it by number, the lowest after the highest.
    fn near(&self, node: u32) -> Vec<(u32, u64)> {
        let living = self.living();
        let after = living.iter().filter(|(other, _)| *other > node);
        let before = living.iter().filter(|(other, _)| *other < node);
        after.chain(before).copied().take(TESTED).collect()
    }

    /// Whom the node thinks to be near.
    fn known_to(&self, node: u32) -> Vec<(u32, u64)> {
        self.told[&node].peers.iter().map(|peer| (peer.node.0, peer.epoch)).collect()
    }

    fn second(&mut self) {
        self.now_ns += S;
        self.core.handle_timeout(self.now_ns);
    }
}

#[test]
fn who_has_been_told_is_not_told_again() {
    let mut rack = Rack::of(200);
    for node in 1..=200 {
        assert!(rack.report(node), "the first time over a call");
        assert_eq!(rack.known_to(node).len(), TESTED);
    }
    rack.second();
    assert!((1..=200).all(|node| !rack.report(node)), "nothing has changed");
    // Another call: whoever is at its other end knows nothing.
    rack.told.remove(&7);
    assert!(rack.report(7));
    // One comes again as another process: those that it is near hear of it, and nobody else.
    let dead = Identity { node: NodeId(100), epoch: 1 };
    rack.core.handle_pinged(rack.now_ns, dead, Err(CallError::Gone));
    rack.register(100, 9);
    let told: Vec<u32> = (1..=200).filter(|node| rack.report(*node)).collect();
    assert_eq!(told, (36..=100).collect::<Vec<_>>());
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
    fn everybody_knows_whom_it_is_near(
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
                    rack.told.remove(&node);
                    BTreeSet::new()
                }
                Step::Again(_) => continue,
            };
            // Who is silent for more than three heartbeats is down.
            for _ in 1..=4 {
                rack.second();
                (1..=count).filter(|it| !silent.contains(it)).for_each(|it| { rack.report(it); });
            }
            for node in (1..=count).filter(|it| !silent.contains(it)) {
                rack.report(node);
                prop_assert_eq!(rack.known_to(node), rack.near(node));
                prop_assert!(!rack.report(node), "it is told again");
            }
        }
    }
}
