//! Lending, releases and refusals.

use crate::ANY_PORT;
use crate::kit::{Agent, Monitor, bounded, config, keep, leases, request, states, until};
use std::sync::atomic::Ordering;
use venice_control::client::{Access, EnrolmentClient, MonitorClient};
use venice_control::server::ServeError;
use venice_control::{Caller, ControlError, Owner, ResourceKind, TransferRequest, User};
use venice_monitor::MonitorError;
use venice_rack::types::RackError;
use venice_testkit::identity::{access, login_of};
use venice_wire::{GrantKey, PortId, SLAB_BYTES};

#[tokio::test]
async fn memory_is_spread_and_released() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let mut agents = Vec::new();
    for name in ["node1", "node2", "node3"] {
        agents.push(Agent::start(name, &monitor.addr, 4).await);
    }
    let mut client = monitor.client().await;

    let grants = client.allocate(request(1, 6, &[])).await.unwrap();
    let mut shares: Vec<_> =
        grants.iter().map(|grant| (&*grant.donor, grant.share.bytes)).collect();
    shares.sort();
    assert_eq!(shares, ["node1", "node2", "node3"].map(|name| (name, 2 * SLAB_BYTES)));
    for grant in &grants {
        assert_eq!(grant.lease_s, crate::kit::LEASE_S);
        assert!(grant.address(PortId::Shm).contains(&grant.donor));
    }
    let _kept = keep(&grants);
    assert_eq!(states(&mut client).await, ["committed"; 3]);
    for row in client.nodes().await.unwrap() {
        let figures = (row.lent_bytes, row.granted_bytes, row.free_bytes);
        assert_eq!(figures, (4 * SLAB_BYTES, 2 * SLAB_BYTES, 2 * SLAB_BYTES), "{}", row.name);
    }

    let leases = leases(&grants);
    client.release(&leases).await.unwrap();
    assert_eq!(states(&mut client).await, [""; 0]);
    for agent in &agents {
        assert_eq!(agent.held(), []);
    }
    for row in client.resources().await.unwrap() {
        assert_eq!((row.kind, row.free_bytes), (ResourceKind::Memory, 4 * SLAB_BYTES));
    }
    client.release(&leases).await.unwrap();
    monitor.stop().await;
}

#[tokio::test]
async fn release_with_wrong_key_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let agent = Agent::start("node1", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    let grants = client.allocate(request(1, 2, &[])).await.unwrap();
    let more = client.allocate(request(2, 1, &[])).await.unwrap();

    let eve = User { node: "node1".into(), uid: 7, name: "eve".into(), is_admin: false };
    let eve = Access::new(&monitor.addr, login_of(&Caller::User(eve)));
    let mut eve = MonitorClient::connect(&eve).await.unwrap();
    let forged = GrantKey(grants[0].key.0 ^ 1);
    match eve.release(&[(grants[0].id, forged), (more[0].id, more[0].key)]).await {
        Err(ControlError::Forbidden(said)) => assert!(said.contains("wrong key"), "{said}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(states(&mut client).await, ["committed"]);
    assert_eq!(agent.held(), [(grants[0].id, 2)]);
    let shown =
        EnrolmentClient::connect(&access(&monitor.addr)).await.unwrap().show().await.unwrap();
    assert_eq!(shown.refused.wrong_key, 1);
    assert_eq!(client.release(&leases(&grants)).await.unwrap(), []);
    assert_eq!(agent.held(), []);
}

#[tokio::test]
async fn only_named_donors_are_used() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let _one = Agent::start("node1", &monitor.addr, 8).await;
    let _two = Agent::start("node2", &monitor.addr, 2).await;
    let mut client = monitor.client().await;

    let grants = client.allocate(request(1, 2, &["node2"])).await.unwrap();
    assert_eq!(grants.len(), 1);
    assert_eq!(grants[0].donor, "node2");
    match client.allocate(request(2, 1, &["node2"])).await {
        Err(ControlError::NoRoom { free, .. }) => assert_eq!(free, [("node2".to_owned(), 0)]),
        other => panic!("{other:?}"),
    }
    match client.allocate(request(3, 1, &["node1", "node9"])).await {
        Err(ControlError::UnknownNode(name)) => assert_eq!(name, "node9"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn full_rack_error_lists_free_memory() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let mut client = monitor.client().await;
    match client.allocate(request(1, 1, &[])).await {
        Err(ControlError::NoRoom { free, .. }) => assert_eq!(free, []),
        other => panic!("{other:?}"),
    }

    let _one = Agent::start("node1", &monitor.addr, 3).await;
    let _two = Agent::start("node2", &monitor.addr, 2).await;
    match client.allocate(request(2, 6, &[])).await {
        Err(error @ ControlError::NoRoom { .. }) => {
            let plain = "no room for 96MiB: 80MiB free (node1 48MiB, node2 32MiB)";
            assert!(error.to_string().starts_with(plain), "{error}");
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(states(&mut client).await, [""; 0]);
}

#[tokio::test]
async fn repeated_request_returns_same_grants() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let agent = Agent::start("node1", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    let (mut one, mut two) = (client.clone(), client.clone());
    let (first, second) =
        tokio::join!(one.allocate(request(7, 2, &[])), two.allocate(request(7, 2, &[])));
    let third = client.allocate(request(7, 2, &[])).await;
    let first = first.unwrap();
    assert_eq!((&first, &first), (&second.unwrap(), &third.unwrap()));
    assert_eq!(agent.held(), [(first[0].id, 2)]);
}

#[tokio::test]
async fn failing_donor_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let broken = Agent::start("node1", &monitor.addr, 8).await;
    let sound = Agent::start("node2", &monitor.addr, 4).await;
    broken.donor.is_broken.store(true, Ordering::Relaxed);
    let mut client = monitor.client().await;

    let grants = client.allocate(request(1, 4, &[])).await.unwrap();
    assert!(grants.iter().all(|grant| grant.donor == "node2"), "{grants:?}");
    assert_eq!(broken.donor.prepares.load(Ordering::Relaxed), 1);
    assert_eq!(sound.held().iter().map(|(_, slabs)| slabs).sum::<u32>(), 4);

    match client.allocate(request(2, 1, &["node1"])).await {
        Err(ControlError::Rack(RackError::HandshakeFailed)) => {}
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn concurrent_requests_never_overcommit() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let agents = [
        Agent::start("node1", &monitor.addr, 5).await,
        Agent::start("node2", &monitor.addr, 5).await,
    ];
    let mut requests = tokio::task::JoinSet::new();
    for client_id in 1..=20 {
        let mut client = monitor.client().await;
        requests.spawn(async move { client.allocate(request(client_id, 3, &[])).await });
    }
    let mut granted = 0;
    for result in bounded(requests.join_all()).await {
        match result {
            Ok(grants) => {
                granted += grants.iter().map(|grant| grant.share.bytes / SLAB_BYTES).sum::<u64>()
            }
            Err(ControlError::NoRoom { .. }) => {}
            Err(other) => panic!("{other}"),
        }
    }
    assert_eq!(granted, 9);
    let held: u32 = agents.iter().flat_map(Agent::held).map(|(_, slabs)| slabs).sum();
    assert_eq!(held, 9);
}

#[tokio::test]
async fn expired_lease_frees_the_memory() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let agent = Agent::start("node1", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    client.allocate(request(1, 4, &[])).await.unwrap();
    assert_eq!(states(&mut client).await, ["committed"]);
    until(|| async { states(&mut client.clone()).await }, Vec::is_empty).await;
    assert_eq!(agent.held(), []);
    let kept = client.allocate(request(2, 4, &[])).await.unwrap();
    assert_eq!(kept[0].share.bytes, 4 * SLAB_BYTES);
}

#[tokio::test]
async fn port_and_store_conflicts_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let other_directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;

    let second = config(other_directory.path(), &monitor.addr);
    match bounded(venice_monitor::run(second, std::future::pending())).await {
        Err(MonitorError::Serve(error @ ServeError::PortTaken { .. })) => {
            assert!(error.to_string().contains(&monitor.addr), "{error}");
        }
        other => panic!("{other:?}"),
    }
    let second = config(directory.path(), ANY_PORT);
    let error = bounded(venice_monitor::run(second, std::future::pending())).await.unwrap_err();
    assert!(error.to_string().contains("in use by another Monitor Node"), "{error}");
}

#[tokio::test]
async fn unreachable_monitor_error_is_clear() {
    let unused = tokio::net::TcpListener::bind(ANY_PORT).await.unwrap();
    let addr = unused.local_addr().unwrap().to_string();
    drop(unused);
    let error = venice_control::client::MonitorClient::connect(&access(&addr)).await.unwrap_err();
    let said = error.to_string();
    assert!(said.starts_with(&format!("no Monitor Node answers at {addr}: check")), "{said}");
    // With an explicit address, `venice up` would start another rack.
    assert!(said.contains("`venice monitor`") && !said.contains("venice up"), "{said}");
    assert!(matches!(error, ControlError::Unreachable { refused: true, .. }), "{error:?}");
    let error =
        venice_control::client::MonitorClient::connect(&access("nonsense")).await.unwrap_err();
    assert!(matches!(error, ControlError::BadAddress { .. }), "{error:?}");
}

#[tokio::test]
async fn refused_transfer_changes_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let monitor = Monitor::start(directory.path(), ANY_PORT).await;
    let agent = Agent::start("node1", &monitor.addr, 4).await;
    let mut client = monitor.client().await;
    let grants = client.allocate(request(1, 2, &[])).await.unwrap();
    let _kept = keep(&grants);
    agent.donor.is_broken.store(true, Ordering::Relaxed);
    let transfer = TransferRequest {
        client_id: 2,
        grants: grants.iter().map(|grant| grant.id).collect(),
        to: Owner { node: "node1".into(), user: "bob".into(), is_bound: false },
        claim_ms: 0,
    };
    let refused = client.transfer(transfer).await.unwrap_err();
    let is_failed = matches!(&refused, ControlError::Rack(RackError::TransferFailed(_)));
    assert!(is_failed && refused.to_string().contains("node1"), "{refused}");
    assert_eq!(states(&mut client).await, ["committed"], "nothing has changed");
    monitor.stop().await;
}
