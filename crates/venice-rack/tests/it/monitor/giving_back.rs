//! Releases of grants.

use super::{Rack, aborts_or_releases, eight_slabs, granted, prepares, released, status};
use crate::common::{S, owner};
use venice_rack::monitor::{Action, CallError, Kept, Token};
use venice_rack::types::{HeldState, RackError};
use venice_wire::{GrantId, GrantKey};

#[test]
fn release_needs_the_key() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    let forged = GrantKey(rack.keys[&grant].0 ^ 1);
    // Unknown grants are ignored, whatever the key.
    rack.core.handle_release(Token(9), &[(grant, forged), (GrantId(77), forged)]);
    let kept = Kept { forged: vec![grant], ..Kept::default() };
    assert_eq!(rack.actions(), [released(kept)]);
    assert_eq!(rack.states(), ["committed"]);
    // The key of an adopted grant is known to its donor alone.
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
fn unanswered_release_is_repeated() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.release(grant);
    assert_eq!(aborts_or_releases(&rack.actions()), 1);
    // While the call is on its way it is not repeated.
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
fn release_at_dead_donor_succeeds() {
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
fn request_waits_for_returning_memory() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.release(grant);
    rack.actions();
    // The donor was slow to answer; it still wipes slabs.
    rack.core.handle_released(0, donor, &[grant], Err(CallError::NoAnswer));
    assert_eq!(rack.actions(), [released(Kept::default())]);
    assert_eq!(rack.ask(0, 2, 8), []);
    assert_eq!(rack.actions(), [], "neither placed nor refused");
    rack.core.handle_timeout(S);
    assert!(rack.actions().iter().all(|action| matches!(action, Action::Store(_))));
    rack.report(S, donor, 5, &[]);
    let asked = prepares(rack.actions());
    assert_eq!(asked.iter().map(|(_, request)| request.share.slabs()).collect::<Vec<_>>(), [8]);
}

#[test]
fn wait_for_returning_memory_is_bounded() {
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
