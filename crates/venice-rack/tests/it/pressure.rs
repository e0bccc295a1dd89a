//! Nodes under memory pressure, and pool nodes, at the Monitor Node.

use crate::common::{CountingKeys, S, owner, registration, settings};
use venice_rack::monitor::{Action, MonitorCore, Token};
use venice_rack::monitor_node::DonorCall;
use venice_rack::pressure::{PressureLevel, PressureReport};
use venice_rack::types::*;
use venice_wire::{NodeId, SLAB_BYTES};

const SLABS: u32 = 8;

/// Creates nodes that lend 8 slabs each; those of the second list are pool nodes.
fn rack(peers: &[&str], pools: &[&str]) -> MonitorCore {
    let mut core = MonitorCore::recover(settings(), Box::new(CountingKeys(0)), 0, vec![]);
    let peers = peers.iter().map(|name| (*name, false));
    for (name, is_pool) in peers.chain(pools.iter().map(|name| (*name, true))) {
        core.handle_register(
            0,
            Token(0),
            NodeRegistration { is_pool, ..registration(name, 5, SLABS) },
        );
    }
    while core.poll_action().is_some() {}
    core
}

fn report(core: &mut MonitorCore, node: u32, level: PressureLevel, total: u32, revision: u64) {
    let stalled = if level == PressureLevel::None { 0.05 } else { 0.5 };
    report_stalled(core, node, (level, stalled), total, revision);
}

fn report_stalled(
    core: &mut MonitorCore,
    node: u32,
    (level, stalled): (PressureLevel, f64),
    total: u32,
    revision: u64,
) {
    let status = DonorStatus { total_slabs: total, free_slabs: total, revision };
    let report = HeartbeatReport {
        usage: Vec::new(),
        peers_version: 0,
        door: Default::default(),
        identity: Identity { node: NodeId(node), epoch: 1 },
        instance: 5,
        memory: DonorReport { status, held: vec![], devices: vec![] },
        links: vec![],
        port: PortReport::default(),
        pressure: PressureReport {
            level,
            available_bytes: Some(1 << 20),
            stall_ratio: Some(stalled),
        },
    };
    core.handle_heartbeat(S, report).unwrap();
}

/// Requests slabs, and returns the shares, or an immediate refusal.
fn ask(core: &mut MonitorCore, slabs: u64, home: &str) -> Result<Vec<(u32, u32)>, RackError> {
    let request = AllocationRequest {
        wants: vec![Want::memory(slabs * SLAB_BYTES, 1)],
        client_id: u128::from(slabs),
        recipient: "r".into(),
        donors: vec![],
        home: home.into(),
        placement: None,
        purpose: "p".into(),
        queueing: Default::default(),
    };
    core.handle_request(S, owner(), request).unwrap();
    let mut shares = Vec::new();
    while let Some(action) = core.poll_action() {
        match action {
            Action::Call { donor, call: DonorCall::Prepare(request), .. } => {
                shares.push((donor.node.0, request.share.slabs()))
            }
            Action::ReplyRequest { result, .. } => return result.map(|_| shares),
            _ => {}
        }
    }
    Ok(shares)
}

#[test]
fn node_under_pressure_gets_no_grants() {
    let mut core = rack(&["node1", "node2"], &[]);
    // It still reports its slabs as free; they do not count.
    report(&mut core, 1, PressureLevel::Low, SLABS, 1);
    assert_eq!(ask(&mut core, 6, "").unwrap(), [(2, 6)]);
    let full = ask(&mut core, 3, "").unwrap_err();
    assert!(matches!(full, RackError::NoRoom { .. }), "{full:?}");
    let row = &core.node_rows(S)[0];
    assert_eq!((row.pressure.as_str(), row.free_bytes), ("low", 0));
    assert_eq!((row.available_bytes, row.stall_ratio), (Some(1 << 20), Some(0.5)));

    report(&mut core, 1, PressureLevel::None, 3, 2);
    assert_eq!(core.node_rows(S)[0].lent_bytes, 3 * SLAB_BYTES, "withheld slabs are not lent");
    assert_eq!(ask(&mut core, 4, "").unwrap(), [(1, 3), (2, 1)]);
}

#[test]
fn stalled_node_lends_last() {
    let mut core = rack(&["node1", "node2"], &[]);
    report_stalled(&mut core, 1, (PressureLevel::None, 0.2), SLABS, 1);
    assert_eq!(ask(&mut core, 6, "").unwrap(), [(2, 6)]);
}

#[test]
fn pool_nodes_lend_only() {
    let mut core = rack(&["node1"], &["pool1"]);
    let error = ask(&mut core, 1, "pool1").unwrap_err();
    assert_eq!(error, RackError::BadRequest(pool_text("pool1")));
    assert_eq!(ask(&mut core, 16, "node1").unwrap(), [(1, 8), (2, 8)]);
    let roles: Vec<_> = core.node_rows(S).into_iter().map(|row| row.role).collect();
    assert_eq!(roles, ["peer", "pool"]);
}
