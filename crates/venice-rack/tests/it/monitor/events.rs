//! Events that the Monitor Node notes.

use super::{Rack, granted, request, status};
use crate::common::{S, owner};
use venice_rack::monitor::Token;
use venice_rack::queueing::Queueing;
use venice_rack::types::{AllocationRequest, HeldState};

fn waiting(client_id: u128, slabs: u64) -> AllocationRequest {
    let queueing = Queueing { wait_ms: 600_000, ..Queueing::default() };
    AllocationRequest { queueing, ..request(client_id, slabs) }
}

#[test]
fn grant_is_noted_once() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, prepare) = rack.ask(0, 1, 2).remove(0);
    rack.core.handle_prepared(0, donor, prepare.grant, Ok(status(6, 1)));
    assert_eq!(rack.noted(), ["granted"]);
    // A client that lost the answer gets it again.
    rack.core.handle_request(S, owner(), request(1, 2)).unwrap();
    assert!(granted(rack.deeds()).is_ok());
    rack.keys.insert(prepare.grant, prepare.key);
    rack.release(prepare.grant);
    rack.release(prepare.grant);
    rack.core.handle_released(0, donor, &[prepare.grant], Ok(status(8, 2)));
    assert_eq!(rack.noted(), ["released"]);
}

#[test]
fn missing_grant_has_ended() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.report(0, donor, 2, &[(grant, HeldState::Committed)]);
    assert!(rack.noted().is_empty());
    rack.report(0, donor, 3, &[]);
    assert_eq!(rack.noted(), ["ended"]);
}

#[test]
fn grants_are_lost_with_node() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, grant) = rack.lend(2);
    rack.actions();
    rack.core.handle_timeout(100 * S);
    assert_eq!(rack.noted(), ["node-down", "lost"]);
    // Its agent was only cut off: the grant is in force again.
    rack.report(101 * S, donor, 2, &[(grant, HeldState::Committed)]);
    assert_eq!(rack.noted(), ["node-back"]);
    rack.core.handle_deregister(102 * S, Token(5), donor, 1);
    assert_eq!(rack.noted(), ["node-stopped", "lost"]);
}

#[test]
fn queued_request_is_withdrawn() {
    let mut rack = Rack::new(&["node1"]);
    rack.lend(8);
    rack.actions();
    rack.core.handle_request(0, owner(), waiting(7, 4)).unwrap();
    assert_eq!(rack.noted(), ["queued"]);
    // Its repetition is no other request.
    rack.core.handle_request(0, owner(), waiting(7, 4)).unwrap();
    assert!(rack.noted().is_empty());
    rack.core.handle_leave(0, &owner(), 7).unwrap();
    assert_eq!(rack.noted(), ["withdrawn"]);
    // One for which there is room is not queued at all.
    let mut rack = Rack::new(&["node1"]);
    rack.core.handle_request(0, owner(), waiting(8, 4)).unwrap();
    assert!(rack.noted().is_empty());
}
