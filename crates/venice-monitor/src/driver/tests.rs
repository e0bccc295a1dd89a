//! Tests of the driver alone, without a server.

use super::*;
use crate::clock::wall_ms;
use crate::config::MonitorConfig;
use crate::file_store::FileStore;
use crate::keys::SystemKeys;
use crate::trust::SIGNING_MARGIN_MS;
use tokio::sync::oneshot;
use venice_control::client::Login;
use venice_control::identity::Holder;
use venice_control::server::TlsServer;
use venice_control::{Caller, Limits, NodeRegistration, QuotaFor, QuotaRecord};
use venice_rack::monitor::Record;
use venice_rack::monitor_node::Order;

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
    let clock = Clock::start();
    let node = MonitorNode::new(core, None, clock.now_ns(), 0);
    Driver::new(node, store, clock, donors, trust, counters)
}

fn order(driver: &mut Driver, order: Order) -> oneshot::Receiver<CallReply> {
    let (reply, answer) = oneshot::channel();
    driver.handle_input(Input::Call(Box::new(Call::Order(order)), reply));
    answer
}

#[tokio::test]
async fn revocation_voids_certificates_signed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = driver(dir.path()).await;
    let authority = Arc::clone(&driver.trust.authority);
    // A clock that ran ahead for a while dated a certificate an hour later.
    authority.sign_after(wall_ms() + 3_600_000);
    let node7 = Caller::Node("node7".into());
    let early = authority.credential(&node7).unwrap().info().issued_ms;
    let _answer = order(&mut driver, Order::Revoke { name: "node7".into(), is_sure: true });
    driver.perform_all().await.unwrap();

    let until_ms = driver.trust.door.revoked_until_ms("node7");
    assert!(until_ms.is_some_and(|until_ms| until_ms > early), "{until_ms:?}, {early}");
    assert!(driver.core().revocations().covers(&node7, wall_ms() + SIGNING_MARGIN_MS / 2));
    // A certificate signed from now on is valid.
    let renewed = authority.credential(&node7).unwrap().info().issued_ms;
    assert!(!driver.core().revocations().covers(&node7, renewed));
}

#[tokio::test]
async fn expired_tenure_stops_the_driver() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = driver(dir.path()).await;
    driver.tenure = Tenure::past();
    let mut answer = order(&mut driver, Order::DeleteToken(1));
    let ended = driver.perform_all().await;
    assert!(matches!(ended, Err(MonitorError::CutOff)), "{ended:?}");
    assert!(answer.try_recv().is_err(), "the order was answered");
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
        (Input::Call(Box::new(Call::Order(order)), reply), answer)
    };
    let (before, mut done) = quota("ada");
    let (reply, mut listed) = oneshot::channel();
    let list = move |driver: &Driver| drop(reply.send(driver.core().quota_table()));
    let (after, mut late) = quota("bob");
    // All inputs are queued before the driver runs.
    for input in [before, Input::Query(Box::new(list)), Input::Stop, after] {
        assert!(inputs.send(input).await.is_ok());
    }
    driver.run(received, mpsc::channel(1).1).await.unwrap();
    assert!(matches!(done.try_recv(), Ok(CallReply::Done(Ok(())))));
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
    driver.handle_call(Call::Register(registration("node1")), reply);
    driver.perform_all().await.unwrap();
    assert!(matches!(registered.try_recv(), Ok(CallReply::Registered(Ok(_)))));
    let (to_driver, heard) = mpsc::channel(64);
    driver.heard = heard;
    let is_up = |driver: &Driver| driver.core().node_rows(driver.now_ns())[0].state == "up";
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
