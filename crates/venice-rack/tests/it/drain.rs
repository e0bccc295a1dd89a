//! Drains of nodes at the Monitor Node.

use crate::common::{CountingKeys, S, owner, registration, settings};
use venice_rack::monitor::{Action, Change, MonitorCore, Record, Token};
use venice_rack::monitor_node::{DonorCall, Reply};
use venice_rack::pressure::PressureReport;
use venice_rack::types::*;
use venice_wire::{NodeId, SLAB_BYTES};

const SLABS: u32 = 8;

/// A Monitor Node and the records of its nodes.
struct Rack {
    core: MonitorCore,
    nodes: Vec<Record>,
}

/// The outcome of the performed actions.
#[derive(Default)]
struct Done {
    /// The prepares: node and slabs.
    shares: Vec<(u32, u32)>,
    /// The answers to drains.
    drains: Vec<Result<(), RackError>>,
    /// The answer to a request, if it is a refusal.
    refused: Option<RackError>,
}

impl Rack {
    /// Creates two nodes that lend 8 slabs each.
    fn new() -> Rack {
        let core = MonitorCore::recover(settings(), Box::new(CountingKeys(0)), 0, vec![]);
        let mut rack = Rack { core, nodes: Vec::new() };
        for name in ["node1", "node2"] {
            rack.core.handle_register(0, Token(0), registration(name, 5, SLABS));
        }
        rack.act();
        rack
    }

    /// Performs all actions.
    fn act(&mut self) -> Done {
        let mut done = Done::default();
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Store(changes) => {
                    let nodes = changes.into_iter().filter_map(|change| match change {
                        Change::PutNode(node) => Some(Record::Node(node)),
                        _ => None,
                    });
                    self.nodes.extend(nodes);
                }
                Action::Call { donor, call: DonorCall::Prepare(request), .. } => {
                    done.shares.push((donor.node.0, request.share.slabs()));
                }
                Action::Reply(_, Reply::Done(result)) => done.drains.push(result),
                Action::ReplyRequest { result, .. } => done.refused = result.err(),
                _ => {}
            }
        }
        done
    }

    fn drain(&mut self, name: &str, drains: bool) -> Result<(), RackError> {
        self.core.handle_drain(S, Token(1), name, drains);
        self.act().drains.remove(0)
    }

    fn ask(&mut self, slabs: u64, donors: &[&str]) -> Result<Vec<(u32, u32)>, RackError> {
        let request = AllocationRequest {
            wants: vec![Want::memory(slabs * SLAB_BYTES, 1)],
            client_id: u128::from(slabs),
            recipient: "r".into(),
            donors: donors.iter().map(|name| (*name).to_owned()).collect(),
            home: String::new(),
            placement: None,
            purpose: "p".into(),
            queueing: Default::default(),
        };
        self.core.handle_request(S, owner(), request).unwrap();
        let done = self.act();
        done.refused.map_or(Ok(done.shares), Err)
    }

    fn is_draining(&self, name: &str) -> bool {
        let rows = self.core.node_rows(S);
        rows.iter().find(|row| row.name == name).unwrap().draining
    }

    /// Replaces the Monitor Node by one that recovers from the records.
    fn restart(&mut self) {
        let keys = Box::new(CountingKeys(1000));
        self.core = MonitorCore::recover(settings(), keys, 0, self.nodes.clone());
    }
}

#[test]
fn drained_node_gets_no_grants() {
    let mut rack = Rack::new();
    assert_eq!(rack.drain("node9", true), Err(RackError::UnknownNode("node9".into())));
    rack.drain("node1", true).unwrap();
    rack.drain("node1", true).unwrap();
    assert!(rack.is_draining("node1") && !rack.is_draining("node2"));
    assert_eq!(rack.ask(6, &[]).unwrap(), [(2, 6)]);
    let full = rack.ask(3, &[]).unwrap_err();
    assert!(matches!(full, RackError::NoRoom { .. }), "{full:?}");
    let named = rack.ask(1, &["node1"]).unwrap_err().to_string();
    assert!(named.contains("node1 is being drained"), "{named}");
    rack.drain("node1", false).unwrap();
    assert_eq!(rack.ask(7, &[]).unwrap(), [(1, 7)]);
}

#[test]
fn drain_survives_restarts() {
    let mut rack = Rack::new();
    rack.drain("node1", true).unwrap();
    rack.restart();
    assert!(rack.is_draining("node1"));
    // The same process registers again, and then another one after its death.
    rack.core.handle_register(S, Token(2), registration("node1", 5, SLABS));
    rack.act();
    assert!(rack.is_draining("node1"));
    let died = Identity { node: NodeId(1), epoch: 1 };
    rack.core.handle_register(S, Token(3), registration("node1", 6, SLABS));
    rack.core.handle_pinged(S, died, Err(venice_rack::monitor::CallError::Gone));
    rack.act();
    let row = &rack.core.node_rows(S)[0];
    assert_eq!((row.epoch, row.draining, row.free_bytes), (2, true, 0));
    rack.restart();
    assert!(rack.is_draining("node1"));
    assert_eq!(rack.ask(2, &[]).unwrap(), [(2, 2)]);
}

#[test]
fn drain_is_recorded_before_answer() {
    let mut rack = Rack::new();
    rack.core.handle_drain(S, Token(7), "node2", true);
    assert!(matches!(rack.core.poll_action(), Some(Action::Store(_))));
    let answers = std::iter::from_fn(|| rack.core.poll_action());
    assert!(
        answers
            .into_iter()
            .any(|action| { action == Action::Reply(Token(7), Reply::Done(Ok(()))) })
    );
}

#[test]
fn drain_reaches_node_with_heartbeat() {
    let mut rack = Rack::new();
    let is_told_to_drain = |rack: &mut Rack, revision| {
        let status = DonorStatus { total_slabs: SLABS, free_slabs: SLABS, revision };
        let report = HeartbeatReport {
            usage: Vec::new(),
            peers_version: 0,
            door: Default::default(),
            identity: Identity { node: NodeId(1), epoch: 1 },
            instance: 5,
            memory: DonorReport { status, held: vec![], devices: vec![] },
            links: vec![],
            port: PortReport::default(),
            pressure: PressureReport::default(),
        };
        rack.core.handle_heartbeat(S, report).unwrap().is_draining
    };
    assert!(!is_told_to_drain(&mut rack, 1));
    rack.drain("node1", true).unwrap();
    assert!(is_told_to_drain(&mut rack, 2));
    rack.drain("node1", false).unwrap();
    assert!(!is_told_to_drain(&mut rack, 3));
}
