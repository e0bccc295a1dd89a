//! Recovery of a Monitor Node from its records.

use super::*;
use venice_rack::monitor_node::DonorCall;

#[test]
fn recovery_aborts_unfinished_handshake() {
    let mut rack = Rack::new(&["node1"]);
    let mut records = Vec::new();
    for number in 1..=2 {
        let registration = registration(&format!("node{number}"), number);
        let registration = NodeRegistration { pid: Some(number as u32), ..registration };
        rack.core.handle_register(0, Token(number), registration);
    }
    let request = request(1, MORE_THAN_ONE_HAS);
    rack.core.handle_request(0, owner(), request).unwrap();
    let actions = rack.actions();
    records.extend(actions.iter().filter_map(stored).flatten());
    let shares = prepares(actions);
    for (donor, request) in &shares {
        rack.core.handle_prepared(
            0,
            *donor,
            request.grant,
            Ok(status(8 - request.share.slabs(), 1)),
        );
    }
    records.extend(rack.actions().iter().filter_map(stored).flatten());

    let core = MonitorCore::recover(settings(), Box::new(CountingKeys(100)), S, records);
    let mut rack = Rack { core, keys: BTreeMap::new() };
    let actions = rack.actions();
    let released = actions.iter().filter_map(|action| match action {
        Action::Call { call: DonorCall::Release(grants), .. } => Some(grants.clone()),
        _ => None,
    });
    let mut released: Vec<_> = released.flatten().collect();
    released.sort();
    let mut asked: Vec<_> = shares.iter().map(|(_, request)| request.grant).collect();
    asked.sort();
    assert_eq!(released, asked);
    assert!(matches!(&actions[..], [Action::Store(_), ..]), "recorded first: {actions:?}");
    let (_, fresh) = rack.ask(S, 2, 1).remove(0);
    assert!(fresh.grant > asked[1]);
}

/// A backup is older than the epoch of an agent that has gone on.
#[test]
fn restored_store_keeps_later_epoch() {
    let mut rack = Rack::new(&[]);
    rack.core.handle_register(0, Token(1), registration("node1", 1));
    let actions = rack.actions();
    let records: Vec<_> = actions.iter().filter_map(stored).flatten().collect();
    let number = registered(actions).unwrap().identity.node;

    let secret = venice_wire::NodeSecret([7; 32]);
    let again = |own: Identity| {
        let keys = Box::new(CountingKeys(100));
        let core = MonitorCore::recover(settings(), keys, S, records.clone());
        let mut rack = Rack { core, keys: BTreeMap::new() };
        rack.core.handle_timeout(100 * S);
        let known = NodeRegistration {
            previous: Some(own),
            secret: Some(secret),
            ..registration("node1", 9)
        };
        rack.core.handle_register(100 * S, Token(2), known);
        registered(rack.actions()).unwrap()
    };
    let later = again(Identity { node: number, epoch: 5 });
    assert_eq!((later.identity.epoch, later.secret), (5, Some(secret)));
    for other in [
        Identity { node: number, epoch: 1 },
        Identity { node: number, epoch: u64::MAX },
        Identity { node: NodeId(number.0 + 1), epoch: 5 },
    ] {
        assert_eq!(again(other).identity, Identity { node: number, epoch: 2 }, "{other:?}");
    }
}
