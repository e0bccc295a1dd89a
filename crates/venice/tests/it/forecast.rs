//! Forecast needs of workloads and their reservations, over a rack's real processes.

use std::process::{Child, Stdio};

use crate::common::{self, Daemon, Place, signal, wait, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A Monitor Node that samples every fifth of a second, forecasts two seconds from eight and
/// reserves up to half of the rack; and two donors of 128 MiB each.
struct Rack {
    place: Place,
    addr: String,
    _daemons: Vec<Daemon>,
}

impl Rack {
    fn start() -> Rack {
        let place = Place::new();
        let addr = format!("127.0.0.1:{}", common::port_of_its_own());
        let path = |name: &str| place.file(name).display().to_string();
        let (state, ready) = (path("state"), path("ready"));
        place.venice(&["init", "--state-dir", &state]).expect(0);
        let words = ["monitor", "--listen", &addr, "--state-dir", &state, "--ready-file", &ready];
        let ahead = ["--sample-s", "0.2", "--window", "10", "--observe", "40"];
        let words = [&words[..], &ahead, &["--reserve-ahead", "50%"]].concat();
        let mut daemons = vec![Daemon::start(&place, &words)];
        wait_until("the Monitor Node serves", || common::exists(&place.file("ready")));
        for name in ["donor1", "donor2"] {
            let identity = place.join(name, &addr);
            let words = ["agent", "--name", name, "--lend", "128MiB", "--local-socket", "none"];
            let words = [&words[..], &["--monitor", &addr, "--identity", &identity]].concat();
            daemons.push(Daemon::start_named(&place, name, &words));
        }
        let rack = Rack { place, addr, _daemons: daemons };
        wait_until("both donors are there", || {
            rack.rows("nodes").iter().filter(|node| node["state"] == "up").count() == 2
        });
        rack
    }

    fn rows(&self, what: &str) -> Vec<Value> {
        let said = self.place.venice(&[what, "--json", "--monitor", &self.addr]).expect(0);
        said.json().as_array().unwrap().clone()
    }

    /// Forecast of a purpose, once it has been sampled.
    fn forecast(&self, purpose: &str) -> Option<Value> {
        self.rows("forecast").into_iter().find(|row| row["purpose"] == purpose)
    }

    /// Holds memory for a purpose until it is given back.
    fn hold(&self, size: &str, purpose: &str) -> Child {
        let want = format!("memory={size}");
        let words = ["get", &want, "--for", purpose, "--monitor", &self.addr];
        let child = self.place.command(&words).stdout(Stdio::null()).spawn().unwrap();
        wait_until("it is granted", || {
            self.rows("grants").iter().any(|row| row["purpose"] == purpose)
        });
        child
    }

    /// True if that much is available now.
    fn can_get(&self, size: &str, purpose: &str) -> bool {
        let want = format!("memory={size}");
        let words = ["get", &want, "--for", purpose, "--monitor", &self.addr];
        let said = self.place.venice(&[&words[..], &["--", "true"]].concat());
        assert!(said.code() == 0 || said.complaint().contains("no room for"), "{said:?}");
        said.code() == 0
    }
}

fn give_back(mut child: Child) {
    signal(child.id().into(), Signal::INT);
    assert_eq!(wait(&mut child, &["get"]).code(), Some(0));
}

fn number(row: &Value, pointer: &str) -> u64 {
    row.pointer(pointer).and_then(Value::as_u64).unwrap_or(0)
}

#[test]
fn periodic_need_is_forecast_and_reserved() {
    let rack = Rack::start();
    // It alternates between 128 MiB and nothing. After each release, the forecast of that window
    // and of the following ones still includes the memory.
    let has_kept = || {
        let holder = rack.hold("128MiB", "train");
        let has_forecast = |row: Value| number(&row, "/resources/memory/forecast") >= 128 * MIB;
        wait_until("a forecast of its need", || rack.forecast("train").is_some_and(has_forecast));
        give_back(holder);
        let row = rack.forecast("train").expect("it is followed");
        let is_kept = number(&row, "/reserved_bytes") > 0;
        // Others cannot have all memory, although all is free; the workload with the reservation
        // can. The window may end meanwhile: then it is tried again.
        let refused = is_kept && !rack.can_get("256MiB", "other");
        let is_its_own = refused && rack.can_get("16MiB", "train");
        is_kept && refused && is_its_own
    };
    wait_until("it is kept from others", has_kept);

    let scored = |row: &Value| number(row, "/windows") >= 2;
    let mut row = Value::Null;
    wait_until("forecasts are judged", || {
        row = rack.forecast("train").unwrap_or_default();
        scored(&row)
    });
    for told in ["/resources/memory/forecast", "/resources/memory/persistence", "/mean_error_bytes"]
    {
        assert!(row.pointer(told).is_some_and(Value::is_u64), "{told}: {row}");
    }
    assert!(row["persistence_mean_error_bytes"].is_u64(), "{row}");
    assert!(row["user"].as_str().is_some_and(|user| !user.is_empty()), "{row}");
    let table = rack.place.venice(&["forecast", "--monitor", &rack.addr]).expect(0).out;
    assert!(table.contains("PERSISTENCE MEAN-ERR") && table.contains("train"), "{table}");

    wait_until("what was kept is released", || {
        rack.rows("forecast").iter().all(|row| number(row, "/reserved_bytes") == 0)
    });
    wait_until("everybody may have all of it", || rack.can_get("256MiB", "other"));
}

#[test]
fn up_passes_monitor_settings() {
    let place = Place::new();
    let port = common::port_of_its_own();
    let up = ["up", "--nodes", "1", "--lend", "32MiB", "--monitor-port", &port];
    let settings = ["--reserve-ahead", "50%", "--preempt-notice-s", "5", "--sample-s", "0.2"];
    let words = [&up[..], &settings, &["--window", "5", "--observe", "20"]].concat();
    place.venice(&words).expect(0);
    place.venice(&words).expect(0);
    let said = place.venice(&[&up[..], &["--reserve-ahead", "off"]].concat()).expect(1);
    assert!(said.complaint().contains("with --reserve-ahead 0.5"), "{said:?}");
    // The sampling interval is short enough to catch a short run.
    let words = ["get", "memory=16MiB", "--for", "quick"];
    let mut holder = place.command(&words).stdout(Stdio::null()).spawn().unwrap();
    let has = || place.venice(&["forecast", "--json"]).expect(0).json();
    wait_until("a forecast", || {
        has().as_array().unwrap().iter().any(|row| row["resources"]["memory"]["forecast"].is_u64())
    });
    common::kill(common::pid(&place.status()["monitor"]));
    place.venice(&up).expect(0);
    wait_until("the forecast to resume", || {
        has().as_array().unwrap().iter().any(|row| row["resources"]["memory"]["forecast"].is_u64())
    });
    signal(holder.id().into(), Signal::INT);
    wait(&mut holder, &["get"]);

    for (wrong, told) in [
        (["--sample-s", "0"], "--sample-s is 0"),
        (["--window", "9999"], "--window is 9999"),
        (["--preempt-notice-s", "1e9"], "--preempt-notice-s is 1000000000.0:"),
        (["--reserve-ahead", "most"], "is not a share"),
    ] {
        let other = Place::new();
        let said = other.venice(&[&["up", "--nodes", "1"], &wrong[..]].concat()).expect(2);
        assert!(said.err.contains(told), "{said:?}");
    }
}
