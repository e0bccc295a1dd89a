//! Two Monitor Nodes with one etcd: one serves the rack, and the other goes on where it dies.

mod common;

use std::fs;
use std::process::Command;

use common::{Daemon, Place, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use venice_etcd_test::Etcd;

/// The Monitor Node of that name, with an address of its own.
struct Monitor<'a> {
    place: &'a Place,
    name: &'static str,
    addr: String,
    store: String,
}

impl Monitor<'_> {
    fn file(&self, what: &str) -> String {
        self.place.file(&format!("{}-{what}", self.name)).display().to_string()
    }

    fn start(&self) -> Daemon {
        let (state, ready) = (self.file("state"), self.file("ready"));
        let _ = fs::remove_file(&ready);
        let words =
            ["monitor", "--listen", &self.addr, "--state-dir", &state, "--ready-file", &ready];
        let words = [&words[..], &["--store", &self.store]].concat();
        Daemon::start_named(self.place, self.name, &words)
    }

    fn is_ready(&self) -> bool {
        fs::exists(self.file("ready")).unwrap()
    }

    fn log(&self) -> String {
        fs::read_to_string(self.place.file(&format!("{}.log", self.name))).unwrap()
    }
}

fn rows(place: &Place, what: &str, addrs: &str) -> Option<Vec<Value>> {
    let said = place.venice(&[what, "--json", "--monitor", addrs]);
    if said.code() != 0 {
        return None;
    }
    Some(said.json().as_array().unwrap().clone())
}

/// The grants without what changes by itself.
fn grants(place: &Place, addrs: &str) -> Vec<Value> {
    let mut grants = rows(place, "grants", addrs).expect("a Monitor Node answers");
    for grant in &mut grants {
        grant.as_object_mut().unwrap().retain(|key, _| !key.starts_with("age"));
    }
    grants
}

#[test]
fn a_rack_goes_on_with_another_monitor_node() {
    let (etcd, place) = (Etcd::start(3), Place::new());
    let monitor = |name| Monitor {
        place: &place,
        name,
        addr: format!("127.0.0.1:{}", common::port_of_its_own()),
        store: format!("etcd://{}", etcd.addresses()),
    };
    let (one, two) = (monitor("one"), monitor("two"));
    let addrs = format!("{},{}", one.addr, two.addr);
    place.venice(&["init", "--state-dir", &one.file("state")]).expect(0);
    let copied = Command::new("cp").args(["-a", &one.file("state"), &two.file("state")]).status();
    assert!(copied.unwrap().success());
    let mut first = one.start();
    wait_until("the first serves", || one.is_ready());
    let mut second = two.start();
    wait_until("the second stands by", || two.log().contains("stands by"));
    let mut agents = ["donor1", "donor2"].map(|name| {
        let identity = place.join(name, &one.addr);
        let words = ["agent", "--name", name, "--lend", "64MiB", "--local-socket", "none"];
        let words = [&words[..], &["--monitor", &addrs, "--identity", &identity]].concat();
        Daemon::start_named(&place, name, &words)
    });
    let are_up = |count| {
        let nodes = rows(&place, "nodes", &addrs).unwrap_or_default();
        nodes.iter().filter(|node| node["state"] == "up").count() == count
    };
    wait_until("both donors are there", || are_up(2));
    let words = ["run", "--monitor", &addrs, "--local", "16MiB", "--remote", "32MiB"];
    let words = [&words[..], &["--copies", "1", "--", "sleep", "600"]].concat();
    let mut program = Daemon::start_named(&place, "program", &words);
    wait_until("the program has its memory", || !grants(&place, &addrs).is_empty());
    let before = grants(&place, &addrs);
    assert!(!two.is_ready(), "two serve");

    first.stop(Signal::KILL);
    wait_until("the second serves", || two.is_ready());
    wait_until("the donors have found it", || are_up(2));
    assert_eq!(grants(&place, &addrs), before);
    let quick = ["run", "--monitor", &addrs, "--local", "16MiB", "--remote", "16MiB", "--", "true"];
    wait_until("memory is granted again", || place.venice(&quick).code() == 0);

    // And back, as an operator does it.
    let mut first = one.start();
    wait_until("the first stands by", || one.log().contains("stands by"));
    assert_eq!(second.stop(Signal::TERM), Some(0));
    wait_until("the first serves", || one.is_ready());
    wait_until("the donors have found it", || are_up(2));
    assert_eq!(grants(&place, &addrs), before);
    program.stop(Signal::TERM);
    wait_until("its memory is given back", || grants(&place, &addrs).is_empty());
    assert_eq!(agents.each_mut().map(|agent| agent.stop(Signal::TERM)), [Some(0); 2]);
    assert_eq!(first.stop(Signal::TERM), Some(0));
}

#[test]
fn stores_that_make_no_sense_are_usage_errors() {
    let place = Place::new();
    let state = place.file("state").display().to_string();
    for (words, named) in [
        (&["--store", "http://a"][..], "http:// is no store"),
        (&["--store", "etcd://a:port"], "`a:port` is no HOST[:PORT]"),
        (&["--store", "etcds://a"], "store_ca"),
        (&["--store", "etcd://a", "--store-ca", "/ca.pem"], "etcds://"),
        (&["--store", "etcds://a", "--store-ca", "/ca.pem", "--store-key", "/k"], "go together"),
    ] {
        let words = [&["monitor", "--state-dir", &state], words].concat();
        let said = place.venice(&words).expect(2);
        assert!(said.complaint().contains(named), "{words:?}: {}", said.err);
    }
}
