//! Pool nodes: they lend, and their programs borrow nothing.

use crate::common::{OneTwoThree, owner, registration, settings};
use venice_rack::caller::Owner;
use venice_rack::monitor::{Action, MonitorCore, Token};
use venice_rack::types::{DeviceRequest, MemoryRequest, NodeRegistration, RackError, ResourceKind};
use venice_wire::{ByteSize, SLAB_BYTES};

fn rack() -> MonitorCore {
    let mut core = MonitorCore::recover(settings(), Box::new(OneTwoThree(0)), 0, []);
    let pool = NodeRegistration { is_pool: true, ..registration("pool", 1, 8) };
    for node in [pool, registration("node1", 2, 0)] {
        core.handle_register(0, Token(node.instance), node);
    }
    while core.poll_action().is_some() {}
    core
}

fn memory(client_id: u128) -> MemoryRequest {
    MemoryRequest {
        client_id,
        recipient: "r".into(),
        bytes: ByteSize(SLAB_BYTES),
        copies: 1,
        donors: vec![],
        home: String::new(),
        placement: None,
        bandwidth_bps: 0,
        purpose: "p".into(),
        queueing: Default::default(),
    }
}

fn is_told_why(refused: &RackError) {
    let said = refused.to_string();
    assert!(said.contains("pool is a pool node") && said.contains("--pool"), "{said}");
}

#[test]
fn programs_of_a_pool_node_borrow_nothing_and_others_borrow_of_it() {
    let mut core = rack();
    let of_pool = Owner { node: "pool".to_owned(), ..owner() };
    is_told_why(&core.plan(&of_pool, &memory(1)).unwrap_err());
    core.handle_request(0, of_pool.clone(), memory(1)).unwrap();
    let answer = std::iter::from_fn(|| core.poll_action()).find_map(|action| match action {
        Action::ReplyRequest { result, .. } => Some(result),
        _ => None,
    });
    is_told_why(&answer.expect("an answer").unwrap_err());
    let device = DeviceRequest {
        client_id: 2,
        recipient: "r".into(),
        kind: ResourceKind::Accelerator,
        bytes: ByteSize(0),
        capabilities: vec![],
        donors: vec![],
        purpose: "p".into(),
        queueing: Default::default(),
    };
    is_told_why(&core.plan_device(&of_pool, &device).unwrap_err());
    is_told_why(&core.handle_device_request(0, of_pool, device).unwrap_err());

    core.handle_request(0, owner(), memory(3)).unwrap();
    let asked = std::iter::from_fn(|| core.poll_action());
    let asked = asked.filter(|action| matches!(action, Action::SendPrepare { .. }));
    assert_eq!(asked.count(), 1);
}
