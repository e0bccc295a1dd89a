//! Nodes that report, and that calls do not reach.

use super::{MORE_THAN_ONE_HAS, Rack, granted, request, status};
use crate::common::owner;
use venice_rack::monitor::{Action, CallError, Event};
use venice_rack::monitor_node::DonorCall;
use venice_rack::types::{DonorReport, Identity, Pong, RackError};
use venice_wire::NodeId;

const NODE2: Identity = Identity { node: NodeId(2), epoch: 1 };

impl Rack {
    /// Sends a heartbeat of the node; returns the nodes that are called then, and the events.
    fn calls_after_report(&mut self, now_ns: u64, node: Identity) -> (Vec<NodeId>, Vec<Event>) {
        let memory = DonorReport { status: status(8, 0), held: vec![], devices: vec![] };
        self.report_alone(now_ns, node, memory);
        self.calls()
    }

    fn calls(&mut self) -> (Vec<NodeId>, Vec<Event>) {
        let (mut called, mut events) = (Vec::new(), Vec::new());
        for action in self.actions() {
            match action {
                Action::Call { donor, call: DonorCall::Ping, .. } => called.push(donor.node),
                Action::Note(event) => events.push(event),
                _ => {}
            }
        }
        (called, events)
    }

    fn state_of(&self, name: &str) -> String {
        let rows = self.core.node_rows(0);
        rows.into_iter().find(|row| row.name == name).expect("it is there").state
    }
}

/// A rack whose second node announces an address that nobody reaches.
fn half_reached() -> Rack {
    let mut rack = Rack::new(&["node1", "node2"]);
    assert_eq!(rack.calls_after_report(0, NODE2).0, [NODE2.node]);
    assert_eq!(rack.calls_after_report(0, NODE2).0, [], "one call at a time");
    rack.core.handle_pinged(0, NODE2, Err(CallError::Gone));
    let (_, events) = rack.calls();
    let name = "node2".to_owned();
    assert!(
        matches!(&events[..], [Event::NodeUnreachable { name: it, .. }] if *it == name),
        "{events:?}"
    );
    rack
}

#[test]
fn reporting_node_is_not_down() {
    let mut rack = half_reached();
    assert_eq!(rack.state_of("node2"), "unreachable");
    // It is called again after each report, and its state is told once.
    for error in [CallError::Gone, CallError::NoAnswer] {
        assert_eq!(rack.calls_after_report(0, NODE2), (vec![NODE2.node], vec![]));
        rack.core.handle_pinged(0, NODE2, Err(error));
        assert_eq!(rack.calls(), (vec![], vec![]));
    }
    assert_eq!(rack.calls_after_report(0, NODE2).0, [NODE2.node]);
    rack.core.handle_pinged(0, NODE2, Ok(Pong { name: "node2".into(), instance: 2 }));
    assert_eq!(rack.calls().1, [Event::NodeReached { name: "node2".into() }]);
    assert_eq!(rack.state_of("node2"), "up");
    assert_eq!(rack.calls_after_report(0, NODE2).0, []);
}

#[test]
fn unreachable_node_lends_nothing() {
    let mut rack = half_reached();
    rack.core.handle_request(0, owner(), request(1, MORE_THAN_ONE_HAS)).unwrap();
    let Err(RackError::NoRoom { free, .. }) = granted(rack.actions()) else {
        panic!("node1 has not so much");
    };
    let [(one, 1..), (two, 0)] = &free[..] else { panic!("{free:?}") };
    assert_eq!(one, "node1");
    assert!(two.starts_with("node2, which cannot be reached at "), "{two}");
    let rows = rack.core.resource_rows();
    assert!(rows[1].health.starts_with("its node cannot be reached at "), "{rows:?}");
}

#[test]
fn unanswered_request_leads_to_call() {
    let mut rack = Rack::new(&["node1"]);
    let (donor, _) = rack.lend(2);
    assert_eq!(rack.calls_after_report(0, donor).0, [], "it has answered");
    let (donor, request) = rack.ask(0, 2, 2).remove(0);
    rack.core.handle_prepared(0, donor, request.grant, Err(CallError::NoAnswer));
    rack.actions();
    assert_eq!(rack.calls_after_report(0, donor).0, [donor.node]);
}
