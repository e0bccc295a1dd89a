//! Grants are given back.

use super::{Rack, aborts_or_releases, eight_slabs, granted, prepares, released, status};
use crate::common::{S, owner};
use venice_rack::monitor::{Action, CallError, Kept, Token};
use venice_rack::types::{HeldState, RackError};
use venice_wire::{GrantId, GrantKey};

#[test]
fn nothing_is_given_back_without_its_key() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    let forged = GrantKey(rack.keys[&grant].0 ^ 1);
    // What is gone already is no error, whatever its key was.
    rack.core.handle_release(Token(9), &[(grant, forged), (GrantId(77), forged)]);
    let kept = Kept { forged: vec![grant], ..Kept::default() };
    assert_eq!(rack.actions(), [released(kept)]);
    assert_eq!(rack.states(), ["committed"]);
    // What it learnt from the donor it has no key of: only the donor can tell.
    let other = GrantId(grant.0 + 1);
    rack.report(0, donor, 9, &[(grant, HeldState::Committed), (other, HeldState::Committed)]);
    rack.actions();
    rack.core.handle_release(Token(9), &[(other, forged), (grant, rack.keys[&grant])]);
    assert_eq!(aborts_or_releases(&rack.actions()), 1);
    rack.core.handle_released(0, donor, &[grant], Ok(status(8, 10)));
    let kept = Kept { keyless: vec![other], ..Kept::default() };
    assert!(rack.actions().contains(&released(kept)));
    assert_eq!(rack.states(), ["committed"]);
}

#[test]
fn a_release_without_an_answer_is_repeated_on_the_next_report() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.release(grant);
    assert_eq!(aborts_or_releases(&rack.actions()), 1);
    // While the call is on its way, once is enough.
    rack.report(0, donor, 2, &[(grant, HeldState::Committed)]);
    assert_eq!(rack.actions(), []);
    rack.core.handle_released(0, donor, &[grant], Err(CallError::NoAnswer));
    assert_eq!(rack.actions(), [released(Kept::default())]);
    assert_eq!(rack.states(), ["releasing"]);
    rack.report(0, donor, 2, &[(grant, HeldState::Committed)]);
    assert_eq!(aborts_or_releases(&rack.actions()), 1);
    rack.core.handle_released(0, donor, &[grant], Ok(status(8, 3)));
    assert_eq!(rack.states(), [""; 0]);
}

#[test]
fn what_is_released_at_a_donor_that_turns_out_dead_is_nobodys_loss() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.release(grant);
    assert_eq!(aborts_or_releases(&rack.actions()), 1);
    rack.core.handle_released(0, donor, &[grant], Err(CallError::Gone));
    assert_eq!(rack.states(), [""; 0]);
    let answered = |action: &Action| *action == released(Kept::default());
    assert!(rack.actions().iter().any(answered));
}

#[test]
fn a_request_waits_for_memory_on_its_way_back() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.release(grant);
    rack.actions();
    // The donor was slow to answer; it still makes fresh slabs.
    rack.core.handle_released(0, donor, &[grant], Err(CallError::NoAnswer));
    assert_eq!(rack.actions(), [released(Kept::default())]);
    assert_eq!(rack.ask(0, 2, 8), []);
    assert_eq!(rack.actions(), [], "neither placed nor refused");
    rack.core.handle_timeout(S);
    assert!(rack.actions().iter().all(|action| matches!(action, Action::Store(_))));
    rack.report(S, donor, 5, &[]);
    let asked = prepares(rack.actions());
    assert_eq!(asked.iter().map(|(_, request)| request.slabs).collect::<Vec<_>>(), [8]);
}

#[test]
fn a_request_waits_no_longer_than_its_patience_and_not_for_what_is_lent() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.core.handle_request(0, owner(), eight_slabs(2)).unwrap();
    assert!(matches!(granted(rack.actions()), Err(RackError::NoRoom { .. })));
    rack.release(grant);
    rack.core.handle_released(0, donor, &[grant], Ok(status(6, 3)));
    rack.actions();
    rack.core.handle_request(0, owner(), eight_slabs(3)).unwrap();
    assert_eq!(rack.actions(), []);
    rack.core.handle_timeout(2 * S - 1);
    assert_eq!(rack.actions(), []);
    rack.core.handle_timeout(2 * S);
    assert!(matches!(granted(rack.actions()), Err(RackError::NoRoom { .. })));
}
