//! Pool nodes: they lend, and their programs borrow nothing.

use crate::common::{CountingKeys, owner, registration, settings};
use venice_rack::caller::Owner;
use venice_rack::monitor::{Action, MonitorCore, Token};
use venice_rack::monitor_node::DonorCall;
use venice_rack::types::{
    AllocationRequest, Grant, NodeRegistration, RackError, ResourceKind, Want,
};
use venice_wire::SLAB_BYTES;

fn rack() -> MonitorCore {
    let mut core = MonitorCore::recover(settings(), Box::new(CountingKeys(0)), 0, []);
    let pool = NodeRegistration { is_pool: true, ..registration("pool", 1, 8) };
    for node in [pool, registration("node1", 2, 0)] {
        core.handle_register(0, Token(node.instance), node);
    }
    while core.poll_action().is_some() {}
    core
}

fn memory(client_id: u128) -> AllocationRequest {
    AllocationRequest {
        wants: vec![Want::memory(SLAB_BYTES, 1)],
        client_id,
        recipient: "r".into(),
        donors: vec![],
        home: String::new(),
        placement: None,
        purpose: "p".into(),
        queueing: Default::default(),
    }
}

fn check_refusal(refused: &RackError) {
    let text = refused.to_string();
    assert!(text.contains("pool is a pool node") && text.contains("--pool"), "{text}");
}

fn answer(core: &mut MonitorCore) -> Result<Vec<Grant>, RackError> {
    let answer = std::iter::from_fn(|| core.poll_action()).find_map(|action| match action {
        Action::ReplyRequest { result, .. } => Some(result),
        _ => None,
    });
    answer.expect("an answer")
}

#[test]
fn pool_node_lends_only() {
    let mut core = rack();
    let of_pool = Owner { node: "pool".to_owned(), ..owner() };
    check_refusal(&core.plan(&of_pool, &memory(1)).unwrap_err());
    core.handle_request(0, of_pool.clone(), memory(1)).unwrap();
    check_refusal(&answer(&mut core).unwrap_err());
    let device = AllocationRequest {
        wants: vec![Want::device(ResourceKind::Accelerator, 0)],
        home: String::new(),
        placement: None,
        client_id: 2,
        recipient: "r".into(),
        donors: vec![],
        purpose: "p".into(),
        queueing: Default::default(),
    };
    check_refusal(&core.plan(&of_pool, &device).unwrap_err());
    core.handle_request(0, of_pool, device).unwrap();
    check_refusal(&answer(&mut core).unwrap_err());

    core.handle_request(0, owner(), memory(3)).unwrap();
    let prepares = std::iter::from_fn(|| core.poll_action());
    let prepares = prepares
        .filter(|action| matches!(action, Action::Call { call: DonorCall::Prepare(_), .. }));
    assert_eq!(prepares.count(), 1);
}
