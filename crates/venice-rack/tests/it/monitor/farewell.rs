//! Deregistration of agents that stop in an orderly way.

use super::*;
use venice_rack::monitor_node::Reply;

fn node_states(core: &MonitorCore) -> Vec<String> {
    core.node_rows(0).into_iter().map(|row| row.state).collect()
}

fn deregister(rack: &mut Rack, donor: Identity) -> (Vec<Action>, Result<(), RackError>) {
    rack.core.handle_deregister(S, Token(7), donor, u64::from(donor.node.0));
    let actions = rack.actions();
    let answer = actions.iter().find_map(|action| match action {
        Action::Reply(Token(7), Reply::Done(result)) => Some(result.clone()),
        _ => None,
    });
    (actions, answer.expect("an answer"))
}

#[test]
fn deregistered_agent_stays_stopped() {
    let mut rack = Rack::new(&["node1", "node2"]);
    let (donor, grant) = rack.lend(1);
    let (actions, answer) = deregister(&mut rack, donor);
    assert_eq!(answer, Ok(()));
    assert!(matches!(&actions[..], [Action::Store(_), ..]), "recorded first: {actions:?}");
    assert_eq!(node_states(&rack.core), ["stopped", "up"]);
    assert_eq!(rack.states(), ["lost"]);
    let resources = rack.core.resource_rows();
    assert_eq!((resources[0].free_bytes, &*resources[0].health), (0, "its node is stopped"));

    // Late messages: an answer, a report, a registration.
    rack.core.handle_aborted(S, donor, Ok(status(8, 9)));
    let memory =
        DonorReport { status: status(7, 9), held: vec![held_of(grant, 1)], devices: vec![] };
    let report = HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        door: Default::default(),
        identity: donor,
        instance: 1,
        memory,
        links: vec![],
        port: PortReport::default(),
        pressure: Default::default(),
    };
    let late = rack.core.handle_heartbeat(S, report);
    assert!(matches!(late, Err(RackError::NotRegistered)), "{late:?}");
    let again = rack.register("node1", 1).unwrap();
    assert!(matches!(again, Err(RackError::BadRequest(_))), "{again:?}");
    assert_eq!(node_states(&rack.core), ["stopped", "up"]);
    let shares = rack.ask(S, 2, 8);
    assert!(shares.iter().all(|(of, _)| of.node == NodeId(2)), "{shares:?}");
    // Its grant is lost for a lease, as with any dead donor.
    rack.core.handle_timeout(12 * S);
    assert!(rack.core.grant_rows(12 * S).iter().all(|row| row.id != grant.0));

    // Another process of that name registers without a ping.
    let next = rack.register("node1", 11).expect("no ping").unwrap();
    assert_eq!(next, Identity { epoch: donor.epoch + 1, ..donor });
    assert_eq!(node_states(&rack.core)[0], "up");
    // A deregistration of the former epoch is refused.
    let (actions, answer) = deregister(&mut rack, donor);
    assert!(matches!(answer, Err(RackError::NotRegistered)), "{actions:?}");
    assert_eq!(node_states(&rack.core)[0], "up");
}

#[test]
fn stopped_state_survives_recovery() {
    let mut rack = Rack::new(&[]);
    rack.core.handle_register(0, Token(1), registration("node1", 1));
    let mut actions = rack.actions();
    let donor = Identity { node: NodeId(1), epoch: 1 };
    actions.extend(deregister(&mut rack, donor).0);
    let records = actions.iter().filter_map(stored).flatten();
    let core = MonitorCore::recover(settings(), Box::new(CountingKeys(100)), S, records);
    assert_eq!(node_states(&core), ["stopped"]);
    assert_eq!(core.node_rows(S)[0].free_bytes, 0);
}
