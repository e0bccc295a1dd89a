//! Lending in one call from a single donor (decision 0055).

use super::*;
use venice_rack::monitor_node::DonorCall;
use venice_rack::types::Refusal;

/// Requests one grant, and returns its prepare and the records so far.
fn asked() -> (Rack, Identity, PrepareRequest, Vec<Record>) {
    let core = MonitorCore::recover(settings(), Box::new(CountingKeys(1)), 0, []);
    let mut rack = Rack { core, keys: BTreeMap::new() };
    rack.core.handle_register(0, Token(1), registration("node1", 1));
    rack.core.handle_request(0, owner(), request(1, 2)).unwrap();
    let actions = rack.actions();
    let intent = actions.iter().position(|action| is_of_grant(action, GrantState::Committing));
    let call = actions
        .iter()
        .position(|action| matches!(action, Action::Call { call: DonorCall::Prepare(_), .. }));
    assert!(
        intent.is_some() && call.is_some() && call < intent,
        "the call precedes the record: {actions:?}"
    );
    let records = actions.iter().filter_map(stored).flatten().collect();
    let (donor, request) = prepares(actions).remove(0);
    assert!(request.at_once);
    (rack, donor, request, records)
}

fn is_of_grant(action: &Action, state: GrantState) -> bool {
    let Action::Store(changes) = action else { return false };
    matches!(&changes[..], [.., Change::PutGrant(grant)] if grant.state == state)
}

/// Recovers a Monitor Node from these records after a crash.
fn recovered(records: &[Record]) -> (Rack, Vec<(Identity, PrepareRequest)>) {
    let keys = Box::new(CountingKeys(100));
    let core = MonitorCore::recover(settings(), keys, S, records.to_vec());
    let mut rack = Rack { core, keys: BTreeMap::new() };
    let actions = rack.actions();
    assert_eq!(aborts_or_releases(&actions), 0, "its recipient may hold it: {actions:?}");
    (rack, prepares(actions))
}

#[test]
fn answer_precedes_final_record() {
    let (mut rack, donor, request, _) = asked();
    rack.core.handle_prepared(0, donor, request.grant, Ok(status(6, 2)));
    let actions = rack.deeds();
    assert!(
        matches!(&actions[..], [Action::ReplyRequest { result: Ok(_), .. }, stored]
            if is_of_grant(stored, GrantState::Committed)),
        "{actions:?}"
    );
    assert_eq!(rack.states(), ["committed"]);
}

#[test]
fn crash_repeats_call_and_keeps_grant() {
    let (_, donor, first, records) = asked();
    let (mut rack, again) = recovered(&records);
    assert_eq!(again, [(donor, first.clone())], "the same once more");
    // The outcome is unknown yet.
    rack.core.handle_request(S, owner(), request(1, 2)).unwrap();
    assert_eq!(granted(rack.actions()), Err(RackError::HandshakeFailed));
    rack.core.handle_prepared(S, donor, first.grant, Ok(status(6, 2)));
    assert_eq!(rack.states(), ["committed"]);
    rack.actions();
    rack.core.handle_request(S, owner(), request(1, 2)).unwrap();
    let grants = granted(rack.actions()).unwrap();
    assert_eq!((grants[0].id, grants[0].key), (first.grant, first.key));
}

#[test]
fn report_confirms_but_never_denies() {
    let (_, donor, first, records) = asked();
    let (mut rack, _) = recovered(&records);
    rack.core.handle_prepared(S, donor, first.grant, Err(CallError::NoAnswer));
    assert_eq!(rack.actions(), []);
    // It may be from before the first call.
    rack.report(S, donor, 9, &[]);
    assert_eq!(rack.states(), ["prepared"]);
    assert_eq!(prepares(rack.actions()), [(donor, first.clone())], "so the call is repeated");
    rack.report(S, donor, 10, &[(first.grant, HeldState::Committed)]);
    assert_eq!(rack.states(), ["committed"]);
    rack.actions();
    // The answer to the second call comes late, and changes nothing.
    rack.core.handle_prepared(S, donor, first.grant, Ok(status(6, 10)));
    assert_eq!(rack.actions(), []);
}

#[test]
fn refused_grant_in_doubt_is_deleted() {
    let (_, donor, first, records) = asked();
    let (mut rack, _) = recovered(&records);
    let over = Err(CallError::Refused(Refusal::UnknownGrant));
    rack.core.handle_prepared(S, donor, first.grant, over);
    assert_eq!(rack.states(), [""; 0]);
    // The same if the donor has died.
    let (mut rack, _) = recovered(&records);
    rack.core.handle_prepared(S, donor, first.grant, Err(CallError::Gone));
    rack.core.handle_timeout(1_000 * S);
    assert_eq!(rack.states(), [""; 0]);
}

#[test]
fn grant_in_doubt_can_be_released() {
    let (_, donor, first, records) = asked();
    let (mut rack, _) = recovered(&records);
    rack.core.handle_release(Token(9), &[(first.grant, first.key)]);
    assert_eq!(aborts_or_releases(&rack.actions()), 1);
    rack.core.handle_released(S, donor, &[first.grant], Ok(status(8, 3)));
    assert_eq!(rack.states(), [""; 0]);
    rack.actions();
    // The second call has lent it after all.
    rack.core.handle_prepared(S, donor, first.grant, Ok(status(6, 4)));
    assert_eq!(aborts_or_releases(&rack.actions()), 1);
}

#[test]
fn missing_answer_aborts_request() {
    let (mut rack, donor, first, _) = asked();
    rack.core.handle_prepared(0, donor, first.grant, Err(CallError::NoAnswer));
    let actions = rack.actions();
    assert_eq!(aborts_or_releases(&actions), 1, "{actions:?}");
    assert_eq!(granted(actions), Err(RackError::HandshakeFailed));
}

#[test]
fn unrecorded_grant_number_is_not_reused() {
    let (_, donor, first, mut records) = asked();
    // The donor was called, and the intent not yet recorded.
    records.retain(|record| !matches!(record, Record::Grant(_)));
    let (mut rack, again) = recovered(&records);
    assert_eq!(again, []);
    rack.report(S, donor, 9, &[(first.grant, HeldState::Committed)]);
    assert_eq!(rack.states(), ["committed"], "its donor lends it until the lease ends");
    rack.actions();
    let (_, second) = rack.ask(S, 1, 2).remove(0);
    assert!(second.grant > first.grant);
    rack.core.handle_prepared(S, donor, second.grant, Ok(status(4, 10)));
    assert_eq!(granted(rack.actions()).unwrap()[0].id, second.grant);
    rack.report(11 * S, donor, 11, &[(second.grant, HeldState::Committed)]);
    assert_eq!(rack.states(), ["committed"]);
}

#[test]
fn late_record_aborts_request() {
    let (mut rack, donor, request, _) = asked();
    let late_ns = settings().request_timeout_ns;
    rack.core.handle_prepared(late_ns, donor, request.grant, Ok(status(6, 2)));
    let actions = rack.actions();
    assert_eq!(aborts_or_releases(&actions), 1, "{actions:?}");
    assert_eq!(granted(actions), Err(RackError::HandshakeFailed));
}
