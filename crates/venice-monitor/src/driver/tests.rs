//! Tests of the driver alone, without a server.

use super::*;
use crate::config::MonitorConfig;
use crate::file_store::FileStore;
use crate::keys::SystemKeys;
use crate::trust::SIGNING_MARGIN_MS;
use tokio::sync::oneshot;
use venice_control::client::Login;
use venice_control::identity::Holder;
use venice_control::server::TlsServer;
use venice_control::{AllocationRequest, Caller, Limits, QuotaFor, QuotaRecord, Want};
use venice_rack::monitor::Record;
use venice_wire::SLAB_BYTES;

async fn driver(dir: &std::path::Path) -> Driver {
    driver_of(dir, &MonitorConfig::default()).await
}

async fn driver_of(dir: &std::path::Path, config: &MonitorConfig) -> Driver {
    let authority = Arc::new(venice_testkit::identity::authority());
    let holder = Holder::new(authority.credential(&Caller::Monitor).unwrap()).unwrap();
    let door = TlsServer::new(holder.clone()).unwrap();
    let mut file = FileStore::at(dir.join("store"));
    let records = file.records().await.unwrap();
    let store = RecordStore::File(file);
    let keys = Box::new(SystemKeys::new().unwrap());
    let settings = config.settings();
    let core = MonitorCore::recover(settings, keys, 0, records);
    let donors = Donors::new(Login::held(holder), Duration::from_secs(1));
    let counters = Arc::new(Counters::new());
    let trust = TrustState { door, authority, version: 1 };
    Driver::new(core, store, Clock::start(), donors, trust, 0, counters)
}

#[tokio::test]
async fn revocation_applies_before_it_is_durable() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = driver(dir.path()).await;
    let authority = Arc::clone(&driver.trust.authority);
    // A clock that ran ahead for a while dated a certificate an hour later.
    authority.sign_after(wall_ms() + 3_600_000);
    let node7 = Caller::Node("node7".into());
    let early = authority.credential(&node7).unwrap().info().issued_ms;
    let (reply, _answer) = oneshot::channel();
    let revoke = Order::Revoke { name: "node7".into(), is_sure: true };
    driver.handle_input(Input::Order(revoke, reply));

    let until_ms = driver.trust.door.revoked_until_ms("node7");
    assert!(until_ms.is_some_and(|until_ms| until_ms > early), "{until_ms:?}, {early}");
    assert!(driver.core.revocations().covers(&node7, wall_ms() + SIGNING_MARGIN_MS / 2));
    // A certificate signed from now on is valid.
    let renewed = authority.credential(&node7).unwrap().info().issued_ms;
    assert!(!driver.core.revocations().covers(&node7, renewed));
    driver.perform_all().await.unwrap();
}

#[tokio::test]
async fn expired_tenure_stops_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = driver(dir.path()).await;
    driver.tenure = Tenure::past();
    let (reply, mut answer) = oneshot::channel();
    driver.handle_input(Input::Order(Order::DeleteToken(1), reply));
    let ended = driver.perform_all().await;
    assert!(matches!(ended, Err(MonitorError::CutOff)), "{ended:?}");
    assert!(answer.try_recv().is_err(), "the order was answered");
}

fn request(client_id: u128) -> AllocationRequest {
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

/// Returns the requests that are answered.
///
/// # Panics
/// On any other action but a note.
fn answered(driver: &mut Driver) -> Vec<u128> {
    let actions = std::iter::from_fn(|| driver.core.poll_action());
    let answered = actions.filter_map(|action| match action {
        Action::ReplyRequest { client_id, .. } => Some(client_id),
        Action::Note(_) => None,
        other => panic!("{other:?}"),
    });
    answered.collect()
}

#[tokio::test]
async fn stop_completes_earlier_inputs_only() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver(dir.path()).await;
    let (inputs, received) = tokio::sync::mpsc::channel(INPUTS_AT_ONCE);
    let quota = |user: &str| {
        let (of, limits) = (QuotaFor::User(user.into()), Limits::of_memory(Some(1)));
        let (reply, answer) = oneshot::channel();
        let order = Order::SetQuota { quota: QuotaRecord { of, limits }, by: "root@h".into() };
        (Input::Order(order, reply), answer)
    };
    let (before, mut done) = quota("ada");
    let (reply, mut listed) = oneshot::channel();
    let (after, mut late) = quota("bob");
    // All inputs are queued before the driver runs.
    for input in [before, Input::List(Listing::Quotas(reply)), Input::Stop, after] {
        inputs.send(input).await.unwrap();
    }
    driver.run(received, mpsc::channel(1).1).await.unwrap();
    assert_eq!(done.try_recv(), Ok(Ok(())));
    assert_eq!(listed.try_recv().unwrap().users.len(), 1);
    assert!(late.try_recv().is_err(), "the late order was answered");
    let records = FileStore::at(dir.path().join("store")).records().await.unwrap();
    let is_quota = |record: &&Record| matches!(record, Record::Quota(_));
    assert_eq!(records.iter().filter(is_quota).count(), 1, "exactly one quota is durable");
}

/// A node that says nothing is down only once the driver has heard the time pass.
#[tokio::test]
async fn standstill_marks_no_node_down() {
    let dir = tempfile::tempdir().unwrap();
    let config = MonitorConfig { missed_heartbeats: 1, ..MonitorConfig::default() };
    let mut driver = driver_of(dir.path(), &config).await;
    let (reply, mut registered) = oneshot::channel();
    driver.handle_input(Input::Register(registration("node1"), reply));
    driver.perform_all().await.unwrap();
    registered.try_recv().unwrap().unwrap();
    let (to_driver, heard) = mpsc::channel(64);
    driver.heard = heard;
    let is_up = |driver: &Driver| driver.core.node_rows(driver.clock.now_ns())[0].state == "up";
    // The process stands still for longer than the silence that means death, many times.
    let silence = Duration::from_millis(600);
    for _ in 0..4 {
        std::thread::sleep(silence);
        driver.handle_timeout();
    }
    assert!(is_up(&driver), "a standstill counts against the node");
    // Silence that it hears counts.
    for _ in 0..4 {
        to_driver.send(Heard::Tick).await.unwrap();
        std::thread::sleep(silence);
        driver.handle_timeout();
    }
    assert!(!is_up(&driver));
}

fn registration(name: &str) -> NodeRegistration {
    NodeRegistration {
        name: name.to_owned(),
        instance: 1,
        pid: None,
        control_addr: format!("{name}:1"),
        udp_addr: String::new(),
        shm_socket: String::new(),
        resources: vec![],
        previous: None,
        secret: None,
        is_plain: false,
        relay: None,
        link: String::new(),
        is_pool: false,
    }
}

#[tokio::test]
async fn abandoned_calls_are_dropped() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = driver(dir.path()).await;
    let owner = Owner { node: "node1".into(), user: "alice".into(), is_bound: false };
    let ask = |driver: &mut Driver, client_id| {
        let (reply, answer) = oneshot::channel();
        driver.handle_input(Input::Request(owner.clone(), request(client_id), reply));
        answer
    };
    let (mut first, _second) = (ask(&mut driver, 1), ask(&mut driver, 2));
    let (reply, order) = oneshot::channel();
    driver.handle_input(Input::Order(Order::DeleteToken(7), reply));
    // Simulates a lost conflict: no caller is answered.
    while driver.core.poll_action().is_some() {}
    first.close();
    drop(order);
    driver.repeat_calls();
    assert_eq!(answered(&mut driver), [2]);
    assert_eq!((driver.requests.len(), driver.orders.len()), (1, 0));

    // The caller hangs up while its call is in the queue.
    let (reply, answer) = oneshot::channel();
    drop(answer);
    driver.handle_input(Input::Request(owner.clone(), request(3), reply));
    assert!(answered(&mut driver).is_empty());
    // A repeated request is answered.
    let _again = ask(&mut driver, 1);
    assert_eq!(answered(&mut driver), [1]);
}
