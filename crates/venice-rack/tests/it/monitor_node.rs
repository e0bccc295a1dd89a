//! The Monitor Node around its core: callers, writes and peers.

use crate::common::{CountingKeys, owner, registration, settings};
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::monitor::{Change, MonitorCore, RecordKey, Token, View};
use venice_rack::monitor_node::{
    Call, FRESH_FOR_NS, Membership, MonitorNode, Now, Order, Output, Reply, Sign, Written,
};
use venice_rack::queueing::Queueing;
use venice_rack::quota::{Limits, QuotaFor, QuotaRecord};
use venice_rack::types::{AllocationRequest, Want};
use venice_wire::{NodeId, SLAB_BYTES};

const MADE: Written = Written::Made { revision: 0 };

fn now(clock_ns: u64) -> Now {
    Now { clock_ns, wall_ms: 1, signed_until_ms: 1 }
}

fn lone() -> MonitorNode {
    let core = MonitorCore::recover(settings(), Box::new(CountingKeys(0)), 0, []);
    MonitorNode::new(core, None, 0, 0)
}

fn among_peers() -> MonitorNode {
    let core = MonitorCore::recover_with_peers(settings(), Box::new(CountingKeys(0)), 0, []);
    MonitorNode::new(core, Some(View::new([])), 0, 0)
}

fn request(client_id: u128) -> Call {
    let request = AllocationRequest {
        wants: vec![Want::memory(SLAB_BYTES, 1)],
        client_id,
        recipient: "r".into(),
        donors: vec![],
        home: String::new(),
        placement: None,
        purpose: "p".into(),
        queueing: Queueing::default(),
    };
    Call::Request(owner(), request)
}

fn quota(user: &str) -> Call {
    let (of, limits) = (QuotaFor::User(user.into()), Limits::of_memory(Some(1)));
    Call::Order(Order::SetQuota { quota: QuotaRecord { of, limits }, by: "root@h".into() })
}

/// Returns all outputs but notes, up to a write.
fn outputs(node: &mut MonitorNode) -> Vec<Output> {
    let all = std::iter::from_fn(|| node.poll_output());
    all.filter(|output| !matches!(output, Output::Note(_))).collect()
}

/// Returns the answered calls, and the changes to be written last.
fn performed(node: &mut MonitorNode) -> (Vec<(u64, bool)>, Vec<Change>) {
    let (mut answered, mut written) = (Vec::new(), Vec::new());
    for output in outputs(node) {
        match output {
            Output::Reply(token, Reply::Done(result)) => answered.push((token.0, result.is_ok())),
            Output::Reply(token, Reply::Asked(result)) => answered.push((token.0, result.is_ok())),
            Output::Write { changes, .. } => written = changes,
            Output::Revoked => {}
            other => panic!("{other:?}"),
        }
    }
    (answered, written)
}

#[test]
fn waiting_changes_are_written_together() {
    let mut node = lone();
    node.handle_call(now(0), Token(1), quota("ada"));
    node.handle_call(now(0), Token(2), quota("bob"));
    let (answered, written) = performed(&mut node);
    assert_eq!((answered, written.len()), (vec![], 2));
    assert!(!node.takes_input());
    node.handle_written(now(0), MADE);
    assert_eq!(performed(&mut node), (vec![(1, true), (2, true)], vec![]));
    assert!(node.takes_input());
}

#[test]
fn revocation_applies_before_its_write() {
    let mut node = lone();
    let revoke = Order::Revoke { name: "node7".into(), is_sure: true };
    node.handle_call(now(0), Token(1), Call::Order(revoke));
    let outputs = outputs(&mut node);
    assert!(matches!(outputs.as_slice(), [Output::Revoked, Output::Write { .. }]), "{outputs:?}");
}

#[test]
fn full_store_refuses_and_completes_later() {
    let mut node = lone();
    node.handle_call(now(0), Token(1), quota("ada"));
    let (_, written) = performed(&mut node);
    let no_room = || Written::NoRoom { why: "full".into() };
    node.handle_written(now(0), no_room());
    assert_eq!(node.obstacle(), Some("full"));
    // A new caller is refused; the first one is told at the second failure.
    node.handle_call(now(0), Token(2), request(2));
    assert_eq!(performed(&mut node), (vec![(2, false)], vec![]));
    let revoke = Order::Revoke { name: "node7".into(), is_sure: true };
    node.handle_call(now(0), Token(3), Call::Order(revoke));
    let retry_ns = node.poll_timeout();
    node.handle_timeout(now(retry_ns - 1));
    assert_eq!(performed(&mut node), (vec![], vec![]));
    node.handle_timeout(now(retry_ns));
    let (answered, again) = performed(&mut node);
    assert_eq!((answered, &again[..1]), (vec![], &written[..]));
    node.handle_written(now(retry_ns), no_room());
    assert_eq!(performed(&mut node), (vec![(1, false), (3, false)], vec![]));
    // There is room: all is made, and nobody is answered twice.
    node.handle_tick(now(retry_ns));
    node.handle_timeout(now(node.poll_timeout()));
    assert!(!performed(&mut node).1.is_empty());
    node.handle_written(now(retry_ns), MADE);
    assert_eq!((performed(&mut node), node.obstacle()), ((vec![], vec![]), None));
    assert_eq!(node.core().quota_table().users.len(), 1);
    assert_eq!(node.core().revocations().list().len(), 1);
}

#[test]
fn conflict_repeats_calls_with_callers() {
    let mut node = among_peers();
    node.handle_call(now(0), Token(1), quota("ada"));
    node.handle_call(now(0), Token(2), Call::Register(registration("node1", 1, 8)));
    node.handle_call(now(0), Token(3), Call::Register(registration("node2", 2, 8)));
    let (answered, written) = performed(&mut node);
    assert!(answered.is_empty() && !written.is_empty());
    // A peer set the same quota before.
    let theirs: Vec<Change> =
        written.iter().filter(|it| matches!(it, Change::PutQuota(_))).cloned().collect();
    let found = theirs.iter().map(|it| (it.key(), 7)).collect::<BTreeMap<RecordKey, u64>>();
    node.handle_written(now(0), Written::Conflict { found });
    assert!(node.awaits_news());
    node.handle_hang_up(|token| token == Token(3));
    node.handle_news(now(0), (7, theirs), None);
    assert!(!node.awaits_news());
    let (mut answered, mut nodes, mut revision) = (Vec::new(), Vec::new(), 8);
    while let Some(output) = node.poll_output() {
        match output {
            Output::Reply(token, _) => answered.push(token.0),
            Output::Write { changes, .. } => {
                nodes.extend(changes.into_iter().filter_map(|change| match change {
                    Change::PutNode(node) => Some(node.name),
                    _ => None,
                }));
                node.handle_written(now(0), Written::Made { revision });
                revision += 1;
            }
            Output::Call { .. } | Output::Granted(..) | Output::Note(_) | Output::Revoked => {}
        }
    }
    assert_eq!(answered, [1, 2]);
    assert_eq!(nodes, ["node1"], "only the waiting agent is registered");
}

#[test]
fn hung_up_request_is_not_repeated() {
    let mut node = among_peers();
    node.handle_call(now(0), Token(1), Call::Register(registration("node1", 1, 8)));
    let (_, written) = performed(&mut node);
    assert!(!written.is_empty());
    for (token, client_id) in [(2, 1), (3, 2), (4, 2)] {
        node.handle_call(now(0), Token(token), request(client_id));
    }
    node.handle_hang_up(|token| token == Token(2) || token == Token(3));
    let found = written.iter().map(|it| (it.key(), 7)).collect();
    node.handle_written(now(0), Written::Conflict { found });
    node.handle_news(now(0), (7, written), None);
    let answered = |output: &Output| match output {
        Output::Reply(token, _) => Some(token.0),
        Output::Granted(request, _) => panic!("{request:?} is granted without a donor"),
        _ => None,
    };
    let outputs = outputs(&mut node);
    let answered: BTreeSet<u64> = outputs.iter().filter_map(answered).collect();
    assert!(!answered.contains(&2) && !answered.contains(&3), "{outputs:?}");
}

#[test]
fn own_sign_prolongs_the_tenure() {
    const S: u64 = 1_000_000_000;
    let mut members = Membership::new("a", 0);
    assert_eq!(members.until_ns(), FRESH_FOR_NS);
    let silent = |nodes: [u32; 2]| nodes.map(NodeId).into_iter().collect::<BTreeSet<_>>();
    members.set_silent(silent([1, 2]));
    let [first, second] = [members.next_sign(S), members.next_sign(2 * S)];
    assert_eq!((first.number, &first.silent), (1, &silent([1, 2])));
    assert!(!members.handle_sign("a", Some(second)));
    assert_eq!(members.until_ns(), 2 * S + FRESH_FOR_NS);
    assert!(!members.handle_sign("a", Some(first)), "an older sign arrives");
    assert_eq!(members.until_ns(), 2 * S + FRESH_FOR_NS);
    assert_eq!(members.silent_at_peers(), None);
    for (peer, nodes) in [("b", [1, 2]), ("c", [2, 3])] {
        assert!(members.handle_sign(peer, Some(Sign { number: 1, silent: silent(nodes) })));
    }
    assert_eq!(members.silent_at_peers(), Some([NodeId(2)].into()));
    members.handle_sign("c", None);
    assert_eq!(members.silent_at_peers(), Some(silent([1, 2])));
    members.end();
    let last = members.next_sign(3 * S);
    members.handle_sign("a", Some(last));
    assert_eq!(members.until_ns(), 0, "an ended membership stays ended");
}
