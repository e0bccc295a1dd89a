//! `venice events` over real racks.

use std::fs::{self, File};

use rustix::process::Signal;
use serde_json::Value;
use venice_control::client::{Access, MonitorClient};
use venice_control::{Caller, EventRequest, User};
use venice_testkit::etcd::Etcd;

use crate::common::rack::Rack;
use crate::common::{Daemon, Place, kill, pid, wait_until};
use crate::metrics::{METRICS, Metrics};

/// Follows the events of the place's rack as JSON, from its beginning; returns the reader.
fn follow(place: &Place) -> Daemon {
    Daemon::start_named(place, "events", &["events", "--follow", "--since", "1h", "--json"])
}

/// Returns the events printed so far. Remarks of the same output are left out.
fn printed(place: &Place) -> Vec<Value> {
    let text = fs::read_to_string(place.file("events.log")).unwrap();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

/// Returns the kinds printed so far, with the nodes or owners that they are of.
fn kinds(place: &Place) -> Vec<String> {
    printed(place).iter().map(|row| row["kind"].as_str().unwrap().to_owned()).collect()
}

fn wait_for(place: &Place, kind: &str, count: usize) {
    wait_until(&format!("{count} events {kind}"), || {
        kinds(place).iter().filter(|it| *it == kind).count() >= count
    });
}

/// True if `wanted` is in `kinds`, in this order.
fn in_order(kinds: &[String], wanted: &[&str]) -> bool {
    let mut kinds = kinds.iter();
    wanted.iter().all(|wanted| kinds.any(|kind| kind == wanted))
}

#[test]
fn life_of_grants_is_followed() {
    let place = Place::new();
    place.up(2);
    let _reader = follow(&place);
    wait_for(&place, "node-joined", 2);
    place.venice(&["get", "memory=16MiB", "--for", "numbers", "--", "true"]).expect(0);
    wait_for(&place, "released", 1);
    place.venice(&["get", "memory=1GiB", "--", "true"]).expect(125);
    place.venice(&["quota", "set", "ada", "memory=1GiB"]).expect(0);
    place.venice(&["drain", "node2", "--no-wait"]).expect(0);
    place.venice(&["drain", "node2", "--undo"]).expect(0);
    wait_for(&place, "node-undrained", 1);
    let _holder =
        Daemon::start_named(&place, "holder", &["get", "memory=2x16MiB", "--", "sleep", "600"]);
    wait_for(&place, "granted", 3);
    kill(pid(&place.status()["agents"][0]));
    wait_for(&place, "lost", 1);
    let rows = printed(&place);
    let wanted = [
        "monitor-started",
        "node-joined",
        "granted",
        "released",
        "refused",
        "quota-set",
        "node-draining",
        "node-undrained",
        "granted",
        "node-down",
        "lost",
    ];
    assert!(in_order(&kinds(&place), &wanted), "{:?}", kinds(&place));
    let numbers: Vec<_> = rows.iter().map(|row| row["number"].as_u64().unwrap()).collect();
    assert!(numbers.iter().copied().eq(1..=rows.len() as u64), "{numbers:?}");
    let of = |kind: &str| rows.iter().find(|row| row["kind"] == kind).unwrap();
    let granted = of("granted");
    assert_eq!((&granted["purpose"], &granted["bytes"]), (&"numbers".into(), &(16 << 20).into()));
    assert_eq!(of("released")["grant"], granted["grant"]);
    assert!(granted["time_ms"].as_u64() <= of("released")["time_ms"].as_u64());
    assert_eq!(of("refused")["reason"], "no-room");
    assert_eq!(of("lost")["node"], "node1");
    assert_eq!(of("quota-set")["owner_user"], "ada");
    assert!(of("quota-set")["by"].as_str().unwrap().contains('@'), "{}", of("quota-set"));
    // The list has the same, as lines for people.
    let shown = place.venice(&["events", "--kind", "lost,node-down", "--node", "node1"]).expect(0);
    assert_eq!(shown.out.lines().count(), 3, "{}", shown.out);
    assert!(shown.out.contains("grant ") && shown.out.contains("memory 16MiB"), "{}", shown.out);
    let none = place.venice(&["events", "--user", "nobody-else", "--json"]).expect(0);
    assert!(none.out.is_empty() && none.complaint().contains("is of user nobody-else"), "{none:?}");
    let none = place.venice(&["events", "--node", "node2", "--kind", "lost"]).expect(0);
    assert!(none.complaint().contains("none of the 1 other events"), "{none:?}");
    let none = place.venice(&["events", "--node", "nodeX"]).expect(1);
    assert!(none.complaint().contains("no node named nodeX"), "{none:?}");
    let full = File::options().write(true).open("/dev/full").unwrap();
    let full = place.command(&["events"]).stdout(full).output().unwrap();
    let said = String::from_utf8_lossy(&full.stderr);
    assert!(said.contains("writing to standard output: "), "{said}");
    let wrong = place.venice(&["events", "--kind", "grants"]).expect(2);
    assert!(wrong.err.contains("expected one of monitor-started"), "{}", wrong.err);
}

#[test]
fn queue_and_preemption_are_events() {
    let mut rack = Rack::start(1, &["--preempt-notice-s", "0.5"]);
    rack.add_agent("node1", &["--lend", "32MiB"]);
    let place = &rack.place;
    place.find_monitor_at(&rack.all());
    let _reader = follow(place);
    let _low = Daemon::start_named(
        place,
        "low",
        &["get", "memory=32MiB", "--priority", "10", "--for", "low", "--", "sleep", "600"],
    );
    wait_for(place, "granted", 1);
    let words = ["get", "memory=32MiB", "--wait", "5m", "--", "true"];
    let mut waiter = Daemon::start_named(place, "waiter", &words);
    wait_for(place, "queued", 1);
    waiter.stop(Signal::INT);
    wait_for(place, "withdrawn", 1);
    let words = ["get", "memory=32MiB", "--wait", "5m", "--preempt", "--", "true"];
    rack.place.venice(&words).expect(0);
    wait_for(place, "released", 1);
    let kinds = kinds(place);
    let wanted = ["granted", "queued", "withdrawn", "queued", "preempted", "granted"];
    assert!(in_order(&kinds, &wanted) && !kinds.contains(&"refused".to_owned()), "{kinds:?}");
    let rows = printed(place);
    let preempted = rows.iter().find(|row| row["kind"] == "preempted").unwrap();
    assert_eq!(
        (&preempted["purpose"], &preempted["grant"]),
        (&"low".into(), &rows.iter().find(|row| row["kind"] == "granted").unwrap()["grant"])
    );
    assert!(preempted["by"].as_str().unwrap().contains('@'), "{preempted}");
    let queued = rows.iter().find(|row| row["kind"] == "queued").unwrap();
    assert_eq!((&queued["reason"], &queued["bytes"]), (&"room".into(), &(32 << 20).into()));
}

#[test]
fn follower_survives_monitor_restart() {
    let place = Place::new();
    place.up(1);
    let mut reader = follow(&place);
    wait_for(&place, "node-joined", 1);
    kill(pid(&place.status()["monitor"]));
    place.up(1);
    wait_for(&place, "monitor-started", 2);
    place.venice(&["get", "memory=16MiB", "--", "true"]).expect(0);
    wait_for(&place, "released", 1);
    let log = fs::read_to_string(place.file("events.log")).unwrap();
    assert!(log.contains("has restarted, with a new list"), "{log}");
    assert_eq!(reader.stop(Signal::INT), None, "it ends by the signal");
}

#[test]
fn every_monitor_node_is_asked() {
    let mut rack = Rack::start(1, &[]);
    rack.add_agent("node1", &["--lend", "32MiB"]);
    // One that is not there: its absence is told, and the other's events are shown.
    let both = format!("{},127.0.0.1:1", rack.all());
    let said = rack.place.venice(&["events", "--monitor", &both]).expect(0);
    assert!(said.out.starts_with("MONITOR") && said.out.contains(&rack.all()), "{}", said.out);
    assert!(said.err.contains("127.0.0.1:1"), "{}", said.err);
    rack.place.venice(&["events", "--monitor", "127.0.0.1:1"]).expect(1);
}

#[test]
fn monitor_nodes_have_own_events() {
    let etcd = Etcd::start(1);
    let store = format!("etcd://{}", etcd.addresses());
    let mut rack = Rack::start(2, &[&["--store", &*store], &METRICS[..]].concat());
    rack.add_agent("node1", &["--lend", "32MiB"]);
    let (all, first) = (rack.all(), rack.monitors[0].addr.clone());
    let place = &rack.place;
    place.venice(&["get", "memory=16MiB", "--monitor", &first, "--", "true"]).expect(0);
    let rows = || -> Vec<(String, String)> {
        let said = place.venice(&["events", "--json", "--monitor", &all]).expect(0).out;
        let rows = said.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let text = |row: &Value, key: &str| row[key].as_str().unwrap().to_owned();
        rows.map(|row| (text(&row, "monitor"), text(&row, "kind"))).collect()
    };
    wait_until("the one that was asked tells of the grant", || {
        let of = |kind: &str| -> Vec<String> {
            let rows = rows().into_iter().filter(|(_, it)| it == kind);
            rows.map(|(monitor, _)| monitor).collect()
        };
        of("monitor-started").len() == 2
            && of("granted") == [&*first]
            && of("released") == [&*first]
    });
    let mut agent = rack.agents.remove(0);
    agent.kill();
    wait_until("both see the node die", || {
        rows().iter().filter(|(_, kind)| kind == "node-down").count() == 2
    });
    for monitor in &rack.monitors {
        assert_eq!(Metrics::of(monitor).value("venice_node_up", &[("node", "node1")]), Some(0.0));
    }
}

#[test]
fn events_are_counted_and_private() {
    let mut rack = Rack::start(1, &METRICS);
    rack.add_agent("node1", &["--lend", "32MiB"]);
    rack.place.find_monitor_at(&rack.all());
    rack.place.venice(&["get", "memory=16MiB", "--", "true"]).expect(0);
    rack.place.venice(&["get", "memory=1GiB", "--", "true"]).expect(125);
    wait_until("the events are counted", || {
        let metrics = Metrics::of(&rack.monitors[0]);
        let kind = |kind: &str| metrics.value("venice_events_total", &[("kind", kind)]);
        (kind("granted"), kind("released"), kind("lost")) == (Some(1.0), Some(1.0), Some(0.0))
            && metrics.value("venice_requests_refused_total", &[("reason", "no-room")]) == Some(1.0)
    });
    let user = |name: &str, is_admin| {
        let (node, name) = ("node1".to_owned(), name.to_owned());
        Caller::User(User { node, uid: 1000, name, is_admin })
    };
    let kinds_for = |caller: Caller| -> Vec<String> {
        let login = venice_testkit::identity::login_of(&caller);
        let access = Access::new(rack.monitors[0].addr.clone(), login);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut client = MonitorClient::connect(&access).await.unwrap();
            let mut watch = client.events(EventRequest::default()).await.unwrap();
            let mut kinds = Vec::new();
            while let Some(batch) = watch.next().await.unwrap() {
                kinds.extend(batch.rows.into_iter().map(|row| row.kind));
            }
            kinds
        })
    };
    let all = kinds_for(user("root", true));
    assert!(in_order(&all, &["monitor-started", "node-joined", "granted", "released", "refused"]));
    assert_eq!(kinds_for(user("eve", false)), ["monitor-started", "node-joined"]);
}
