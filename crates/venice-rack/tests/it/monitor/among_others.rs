//! One of several Monitor Nodes: conflicts with its peers.

use super::*;
use venice_rack::monitor::View;
use venice_rack::monitor_node::DonorCall;
use venice_rack::queueing::Queueing;
use venice_rack::rat::{GrantRecord, Origin};

fn with_peers(life: u64) -> MonitorCore {
    MonitorCore::recover_with_peers(settings(), Box::new(CountingKeys(life)), 0, [])
}

/// Returns the first changes to record.
fn changes(core: &mut MonitorCore) -> Vec<Change> {
    match core.poll_action() {
        Some(Action::Store(changes)) => changes,
        other => {
            assert!(matches!(other, Some(Action::Note(_))), "{other:?}");
            changes(core)
        }
    }
}

#[test]
fn colliding_node_numbers_are_resolved() {
    let (mut one, mut other) = (with_peers(1), with_peers(100));
    one.handle_register(0, Token(1), registration("node1", 1));
    other.handle_register(0, Token(2), registration("node2", 2));
    let (made, failed) = (changes(&mut one), changes(&mut other));

    let mut view = View::default();
    let news = view.learn(1, made);
    other.handle_conflict(0, failed, &view, news);
    // Its driver repeats the calls without an answer.
    other.handle_register(0, Token(2), registration("node2", 2));
    let actions: Vec<Action> = std::iter::from_fn(|| other.poll_action()).collect();
    let registered = registered(actions).unwrap();
    assert_eq!(registered.identity, Identity { node: NodeId(2), epoch: 1 });
    let rows = other.node_rows(0);
    let names: Vec<(&str, u32)> = rows.iter().map(|row| (row.name.as_str(), row.node_id)).collect();
    assert_eq!(names, [("node1", 1), ("node2", 2)]);
}

/// Two at each, so that both numbers belong to others and both names have other numbers.
#[test]
fn crossed_node_numbers_are_resolved() {
    let (mut one, mut other) = (with_peers(1), with_peers(100));
    let nodes = ["node1", "node2"].map(|name| registration(name, name.len() as u64));
    for (token, node) in (1..).zip(nodes.clone()) {
        one.handle_register(0, Token(token), node);
    }
    for (token, node) in (1..).zip(nodes.iter().rev()) {
        other.handle_register(0, Token(token), node.clone());
    }
    let all = |core: &mut MonitorCore| -> Vec<Change> {
        std::iter::from_fn(|| core.poll_action())
            .filter_map(|it| match it {
                Action::Store(changes) => Some(changes),
                _ => None,
            })
            .flatten()
            .collect()
    };
    let made = all(&mut one);
    let failed = changes(&mut other);
    let mut view = View::default();
    let news = view.learn(1, made);
    other.handle_conflict(0, failed, &view, news);
    let rows = other.node_rows(0);
    let names: Vec<(&str, u32)> = rows.iter().map(|row| (row.name.as_str(), row.node_id)).collect();
    assert_eq!(names, [("node1", 1), ("node2", 2)]);
}

/// Returns a grant that another Monitor Node has, or is having, lent to client 7.
fn granted_by_another(state: GrantState) -> GrantRecord {
    GrantRecord {
        ownership: 1,
        from: None,
        claim_ms: 0,
        charged: None,
        id: GrantId(999),
        origin: Some(Origin { client_id: 7, key: GrantKey(5), at_once: false }),
        owner: Some(owner()),
        recipient: "r".to_owned(),
        home: None,
        purpose: "p".to_owned(),
        priority: 100,
        donor: NodeId(1),
        donor_epoch: 1,
        share: Share::of_slabs(8),
        bandwidth_bps: 0,
        lease_ms: 10_000,
        granted_ns: 0,
        state,
        confirmed_revision: 1,
    }
}

#[test]
fn queued_request_gets_peers_grant() {
    let mut rack = Rack { core: with_peers(1), keys: BTreeMap::new() };
    rack.register("node1", 1).unwrap().unwrap();
    let nine = AllocationRequest {
        queueing: Queueing { wait_ms: 60_000, ..Queueing::default() },
        ..eight_slabs(7)
    };
    // Another request takes one of the eight slabs.
    rack.ask(0, 1, 1);
    rack.core.handle_request(0, owner(), nine).unwrap();
    assert_eq!(rack.core.queue_rows(0).len(), 1);
    rack.actions();
    let grant = granted_by_another(GrantState::Committed);
    rack.core.handle_stored(0, vec![Change::PutGrant(grant)]);
    let grants = granted(rack.actions()).unwrap();
    assert_eq!(grants[0].id, GrantId(999));
    assert!(rack.core.queue_rows(0).is_empty(), "it waits no longer");
}

/// After a failed change the driver repeats all calls without an answer. A withdrawn request has
/// one; else it would be granted once more, at any later time.
#[test]
fn withdrawal_is_answered_before_recording() {
    let mut rack = Rack { core: with_peers(1), keys: BTreeMap::new() };
    rack.register("node1", 1).unwrap().unwrap();
    let waiting = |client_id| AllocationRequest {
        queueing: Queueing { wait_ms: 60_000, ..Queueing::default() },
        ..eight_slabs(client_id)
    };
    let withdraws = |rack: &mut Rack, client_id| {
        rack.core.handle_leave(0, &owner(), client_id).unwrap();
        let first = rack.core.poll_action();
        let Some(Action::ReplyRequest { client_id: of, result: Err(_) }) = first else {
            panic!("{first:?} comes first")
        };
        assert_eq!(of, client_id);
        rack.deeds()
    };
    // Queued, behind one in its handshake.
    let (donor, one) = rack.ask(0, 1, 8).remove(0);
    rack.core.handle_request(0, owner(), waiting(7)).unwrap();
    assert_eq!(rack.core.queue_rows(0).len(), 1);
    assert!(withdraws(&mut rack, 7).is_empty());
    assert!(rack.core.queue_rows(0).is_empty());
    // Its donor is about to lend.
    rack.core.handle_prepared(0, donor, one.grant, Ok(status(0, 1)));
    rack.actions();
    assert!(matches!(
        withdraws(&mut rack, 1)[..],
        [Action::Store(_), Action::Call { call: DonorCall::Release(_), .. }]
    ));
    rack.core.handle_released(0, donor, &[one.grant], Ok(status(8, 3)));
    rack.actions();
    // Its answer is about to be recorded.
    let (donor, two) = rack.ask(0, 2, 8).remove(0);
    rack.core.handle_prepared(0, donor, two.grant, Ok(status(0, 4)));
    rack.actions();
    rack.core.handle_committed(0, donor, two.grant, Ok(status(0, 5)));
    let answers = withdraws(&mut rack, 2);
    assert!(!answers.iter().any(|it| matches!(it, Action::ReplyRequest { .. })), "{answers:?}");
    // An unknown request gets no answer.
    rack.core.handle_leave(0, &owner(), 2).unwrap();
    assert!(rack.actions().is_empty());
}

fn waiting(client_id: u128) -> AllocationRequest {
    let queueing = Queueing { wait_ms: 60_000, ..Queueing::default() };
    AllocationRequest { queueing, ..eight_slabs(client_id) }
}

/// Returns a request in its handshake, and behind it one that is queued and has its first answer,
/// at 0.1 s.
fn queued_behind_handshake() -> (Rack, (Identity, PrepareRequest)) {
    let mut rack = Rack { core: with_peers(1), keys: BTreeMap::new() };
    rack.register("node1", 1).unwrap().unwrap();
    let first = rack.ask(0, 1, 8).remove(0);
    rack.core.handle_request(0, owner(), waiting(7)).unwrap();
    rack.core.handle_timeout(S / 10);
    assert_eq!(standings(&mut rack), [7]);
    (rack, first)
}

fn standings(rack: &mut Rack) -> Vec<u128> {
    let answers = rack.actions().into_iter().filter_map(|action| match action {
        Action::ReplyStanding { client_id, .. } => Some(client_id),
        _ => None,
    });
    answers.collect()
}

/// Sends the request at 0.2 s. Every quarter of a second a peer's write wins at the store, and the
/// driver repeats the call. Returns the time of the answer about the queue.
fn answered_after_ns(rack: &mut Rack) -> Option<u64> {
    rack.core.handle_request(S / 5, owner(), waiting(7)).unwrap();
    let mut after = (1..8).map(|times| times * S / 4);
    after.find(|after_ns| {
        let now_ns = S / 5 + after_ns;
        rack.core.handle_conflict(now_ns, Vec::new(), &View::default(), Vec::new());
        rack.core.handle_request(now_ns, owner(), waiting(7)).unwrap();
        let answers = standings(rack);
        rack.core.handle_timeout(now_ns);
        [answers, standings(rack)].concat() == [7]
    })
}

#[test]
fn conflicts_do_not_delay_queue_answers() {
    let (mut rack, _) = queued_behind_handshake();
    assert_eq!(answered_after_ns(&mut rack), Some(S));
}

/// The client counts its lease from its last answer.
#[test]
fn no_queue_answer_while_peer_lends() {
    let (mut rack, _) = queued_behind_handshake();
    rack.core.handle_request(S / 5, owner(), waiting(7)).unwrap();
    let lending = granted_by_another(GrantState::Committing);
    rack.core.handle_stored(S / 4, vec![Change::PutGrant(lending.clone())]);
    rack.core.handle_timeout(2 * S);
    assert_eq!(standings(&mut rack), []);
    // Nothing came of it.
    rack.core.handle_stored(2 * S, vec![Change::DeleteGrant(lending.id)]);
    let next_ns = rack.core.poll_timeout();
    assert!(next_ns > 2 * S, "there is no busy loop");
    rack.core.handle_timeout(3 * S);
    assert_eq!(standings(&mut rack), [7]);
}

/// The caller hung up before the conflict, so its call is not repeated.
#[test]
fn repeated_request_gets_earlier_grant() {
    let mut rack = Rack { core: with_peers(1), keys: BTreeMap::new() };
    rack.register("node1", 1).unwrap().unwrap();
    let (donor, one) = rack.ask(0, 1, 8).remove(0);
    rack.core.handle_prepared(0, donor, one.grant, Ok(status(0, 1)));
    let intent = rack.actions().into_iter().find_map(|action| match action {
        Action::Store(changes) => Some(changes),
        _ => None,
    });
    let mut view = View::default();
    view.made(1, intent.unwrap());
    rack.core.handle_committed(0, donor, one.grant, Ok(status(0, 2)));
    let failed = changes(&mut rack.core);
    rack.core.handle_conflict(0, failed, &view, Vec::new());
    rack.actions();
    rack.core.handle_request(S, owner(), request(1, 8)).unwrap();
    let grants = granted(rack.actions()).unwrap();
    assert_eq!(grants.iter().map(|grant| grant.id).collect::<Vec<_>>(), [one.grant]);
}
