//! The driver by itself, without calls that come from anywhere.

use super::*;
use crate::config::MonitorConfig;
use crate::file_store::FileStore;
use crate::keys::SystemKeys;
use crate::wardens::STILL_SIGNING_MS;
use tokio::sync::oneshot;
use venice_control::client::Login;
use venice_control::identity::Holder;
use venice_control::server::TlsServer;
use venice_control::{Caller, Limits, MemoryRequest, QuotaFor, QuotaRecord};
use venice_rack::monitor::Record;
use venice_wire::{ByteSize, SLAB_BYTES};

async fn driver(dir: &std::path::Path) -> Driver {
    let authority = Arc::new(venice_identity_test::authority());
    let holder = Holder::new(authority.credential(&Caller::Monitor).unwrap()).unwrap();
    let door = TlsServer::new(holder.clone()).unwrap();
    let mut file = FileStore::at(dir.join("store"));
    let records = file.records().await.unwrap();
    let store = RecordStore::File(file);
    let keys = Box::new(SystemKeys::new().unwrap());
    let settings = MonitorConfig::default().settings();
    let core = MonitorCore::recover(settings, keys, 0, records);
    let donors = Donors::new(Login::held(holder), Duration::from_secs(1));
    Driver::new(core, store, Clock::start(), donors, Wardens { door, authority }, 0)
}

#[tokio::test]
async fn the_door_is_closed_before_a_revocation_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = driver(dir.path()).await;
    let authority = Arc::clone(&driver.wardens.authority);
    // A clock that was ahead for a while dated a certificate an hour later.
    authority.sign_after(wall_ms() + 3_600_000);
    let node7 = Caller::Node("node7".into());
    let early = authority.credential(&node7).unwrap().info().issued_ms;
    let (reply, _answer) = oneshot::channel();
    let revoke = Order::Revoke { name: "node7".into(), is_sure: true };
    driver.take(Input::Order(revoke, reply));

    let until_ms = driver.wardens.door.revoked_until_ms("node7");
    assert!(until_ms.is_some_and(|until_ms| until_ms > early), "{until_ms:?}, {early}");
    assert!(driver.core.revocations().covers(&node7, wall_ms() + STILL_SIGNING_MS / 2));
    // It may come in anew at once all the same.
    let anew = authority.credential(&node7).unwrap().info().issued_ms;
    assert!(!driver.core.revocations().covers(&node7, anew));
    driver.perform_all().await.unwrap();
}

#[tokio::test]
async fn who_is_cut_off_from_the_others_does_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = driver(dir.path()).await;
    driver.tenure = Tenure::past();
    let (reply, mut answer) = oneshot::channel();
    driver.take(Input::Order(Order::DeleteToken(1), reply));
    let ended = driver.perform_all().await;
    assert!(matches!(ended, Err(MonitorError::CutOff)), "{ended:?}");
    assert!(answer.try_recv().is_err(), "it answered");
}

fn request(client_id: u128) -> MemoryRequest {
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

/// The requests that are answered; nothing else is to be done.
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
async fn what_is_asked_before_a_stop_is_done_and_what_is_asked_after_it_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let driver = driver(dir.path()).await;
    let (inputs, received) = tokio::sync::mpsc::channel(INPUTS_AT_ONCE);
    let quota = |user: &str| {
        let (of, limits) = (QuotaFor::User(user.into()), Limits::of_memory(Some(1)));
        let (reply, answer) = oneshot::channel();
        (Input::Order(Order::SetQuota(QuotaRecord { of, limits }), reply), answer)
    };
    let (before, mut done) = quota("ada");
    let (reply, mut listed) = oneshot::channel();
    let (after, mut late) = quota("bob");
    // All of it is there when the driver looks.
    for input in [before, Input::List(Listing::Quotas(reply)), Input::Stop, after] {
        inputs.send(input).await.unwrap();
    }
    driver.run(received).await.unwrap();
    assert_eq!(done.try_recv(), Ok(Ok(())));
    assert_eq!(listed.try_recv().unwrap().users.len(), 1);
    assert!(late.try_recv().is_err(), "it was told that it is done");
    let records = FileStore::at(dir.path().join("store")).records().await.unwrap();
    let is_quota = |record: &&Record| matches!(record, Record::Quota(_));
    assert_eq!(records.iter().filter(is_quota).count(), 1, "it is durable");
}

#[tokio::test]
async fn nothing_is_done_for_who_has_hung_up() {
    let dir = tempfile::tempdir().unwrap();
    let mut driver = driver(dir.path()).await;
    let owner = Owner { node: "node1".into(), user: "alice".into() };
    let ask = |driver: &mut Driver, client_id| {
        let (reply, answer) = oneshot::channel();
        driver.take(Input::Request(owner.clone(), request(client_id), reply));
        answer
    };
    let (mut first, _second) = (ask(&mut driver, 1), ask(&mut driver, 2));
    let (reply, order) = oneshot::channel();
    driver.take(Input::Order(Order::DeleteToken(7), reply));
    // Others were first at the store: nobody is answered.
    while driver.core.poll_action().is_some() {}
    first.close();
    drop(order);
    driver.ask_anew();
    assert_eq!(answered(&mut driver), [2]);
    assert_eq!((driver.requests.len(), driver.orders.len()), (1, 0));

    // Who hangs up while its call waits here.
    let (reply, answer) = oneshot::channel();
    drop(answer);
    driver.take(Input::Request(owner.clone(), request(3), reply));
    assert!(answered(&mut driver).is_empty());
    // And who comes again has its answer.
    let _again = ask(&mut driver, 1);
    assert_eq!(answered(&mut driver), [1]);
}
