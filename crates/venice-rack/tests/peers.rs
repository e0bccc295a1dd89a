//! Whom nodes are told to test their links to.

mod common;

use common::{OneTwoThree, S, registration, settings};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::monitor::{MonitorCore, Token};
use venice_rack::types::*;
use venice_wire::NodeId;

/// As the Monitor Node promises.
const TESTED: usize = 64;
const AT_ONCE: usize = 16;

/// A Monitor Node with nodes 1 to `count`.
fn rack(count: u32) -> MonitorCore {
    let mut core = MonitorCore::recover(settings(), Box::new(OneTwoThree(0)), 0, vec![]);
    for number in 1..=count {
        core.handle_register(0, Token(0), registration(&format!("node{number}"), 5, 1));
    }
    while core.poll_action().is_some() {}
    core
}

fn peers(core: &mut MonitorCore, now_ns: u64, node: u32) -> Vec<u32> {
    let status = DonorStatus { total_slabs: 1, free_slabs: 1, revision: 0 };
    let report = HeartbeatReport {
        identity: Identity { node: NodeId(node), epoch: 1 },
        instance: 5,
        memory: DonorReport { status, held: vec![], devices: vec![] },
        links: vec![],
        port: PortReport::default(),
        pressure: Default::default(),
        door: Default::default(),
    };
    let ack = core.handle_heartbeat(now_ns, report).unwrap();
    ack.peers.iter().map(|peer| peer.node.0).collect()
}

#[test]
fn a_small_rack_is_tested_whole_with_each_heartbeat() {
    let mut core = rack(17);
    for node in 1..=17 {
        let told: BTreeSet<u32> = peers(&mut core, S, node).into_iter().collect();
        assert_eq!(told, (1..=17).filter(|other| *other != node).collect());
    }
}

proptest! {
    #[test]
    fn a_large_rack_is_tested_in_turns(
        count in 18u32..200,
        silent in prop::collection::btree_set(1u32..200, 0..40),
        node in 1u32..200,
    ) {
        let node = (node - 1) % count + 1;
        let mut core = rack(count);
        // Who is silent for more than three heartbeats is down.
        let living: Vec<u32> =
            (1..=count).filter(|other| *other == node || !silent.contains(other)).collect();
        for second in 1..=4 {
            for other in &living {
                peers(&mut core, second * S, *other);
            }
            core.handle_timeout(second * S);
        }
        // Those that follow it by number, the lowest after the highest.
        let after = living.iter().filter(|other| **other > node);
        let before = living.iter().filter(|other| **other < node);
        let expected: BTreeSet<u32> = after.chain(before).copied().take(TESTED).collect();
        let rounds = expected.len().div_ceil(AT_ONCE);
        let mut told: BTreeMap<u32, usize> = BTreeMap::new();
        for _ in 0..rounds {
            let now = peers(&mut core, 4 * S, node);
            prop_assert!(now.len() <= AT_ONCE);
            now.into_iter().for_each(|peer| *told.entry(peer).or_default() += 1);
        }
        // Each has had its turn, and nobody had two more than another.
        prop_assert_eq!(told.keys().copied().collect::<BTreeSet<_>>(), expected);
        prop_assert!(told.values().all(|times| *times <= 2), "{:?}", told);
    }
}
