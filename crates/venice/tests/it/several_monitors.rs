//! Three Monitor Nodes that serve together with one etcd: any of them, and any member of etcd, may
//! die, stall or come back; memory is still lent, and never twice.

use std::fs;
use std::process::Command;
use std::time::Instant;

use crate::common::{self, Daemon, Place, signal, wait_until};
use rustix::process::Signal;
use serde_json::Value;
use venice_testkit::etcd::Etcd;

/// A Monitor Node of that name, with its own address.
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
        // This machine's programs use the first one's socket, and a donor's.
        let socket = if self.name == "one" { &[][..] } else { &["--local-socket", "none"] };
        let words = [&words[..], &["--store", &self.store], socket].concat();
        let daemon = Daemon::start_named(self.place, self.name, &words);
        wait_until("a Monitor Node serves", || fs::exists(&ready).unwrap());
        daemon
    }
}

struct Rack<'a> {
    place: &'a Place,
    monitors: [Monitor<'a>; 3],
}

impl Rack<'_> {
    fn all(&self) -> String {
        self.monitors.each_ref().map(|monitor| monitor.addr.clone()).join(",")
    }

    /// Answers of each Monitor Node, without volatile fields; `None` if one does not answer.
    fn said(&self, what: &str) -> Option<Vec<Vec<Value>>> {
        self.monitors.iter().map(|monitor| rows(self.place, what, &monitor.addr)).collect()
    }

    /// True if all three have the same tables, record by record, without pending grants, and each
    /// donor reports as free exactly what the tables have not granted.
    fn agrees(&self, donors: usize) -> bool {
        let (Some(grants), Some(nodes)) = (self.said("grants"), self.said("nodes")) else {
            return false;
        };
        let are_same = grants.iter().all(|said| *said == grants[0]);
        let are_lent = grants[0].iter().all(|grant| grant["state"] == "committed");
        let granted = |donor: &Value| {
            let its = grants[0].iter().filter(|grant| grant["donor"] == donor["name"]);
            its.map(|grant| grant["bytes"].as_u64().unwrap()).sum::<u64>()
        };
        let is_true = |donor: &Value| {
            let bytes = |key: &str| donor[key].as_u64().unwrap();
            donor["state"] == "up" && bytes("lent_bytes") - bytes("free_bytes") == granted(donor)
        };
        let are_true = nodes.iter().all(|said| said.len() == donors && said.iter().all(is_true));
        are_same && are_lent && are_true
    }

    fn program(&self, name: &str, bytes: &str, words: &[&str]) -> (String, Vec<String>) {
        let all = self.all();
        let run = ["run", "--monitor", &all, "--local", "16MiB", "--remote", bytes, "--"];
        let words = run.iter().chain(words).map(|word| (*word).to_owned()).collect();
        (name.to_owned(), words)
    }

    /// Prints the time until a program has had memory, as evidence for the decision record.
    fn lends_again(&self, after: &str) {
        let began = Instant::now();
        let (_, words) = self.program("quick", "16MiB", &["true"]);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        wait_until("memory is granted", || self.place.venice(&words).code() == 0);
        println!("granted {:.1} s after {after}", began.elapsed().as_secs_f64());
    }
}

fn rows(place: &Place, what: &str, addrs: &str) -> Option<Vec<Value>> {
    let said = place.venice(&[what, "--json", "--monitor", addrs]);
    if said.code() != 0 {
        return None;
    }
    let mut rows = said.json().as_array().unwrap().clone();
    for row in &mut rows {
        row.as_object_mut().unwrap().retain(|key, _| !key.starts_with("age"));
    }
    Some(rows)
}

#[test]
fn lending_survives_any_monitor_death() {
    let (mut etcd, place) = (Etcd::start(3), Place::new());
    let monitor = |name| Monitor {
        place: &place,
        name,
        addr: format!("127.0.0.1:{}", common::port_of_its_own()),
        store: format!("etcd://{}", etcd.addresses()),
    };
    let rack = Rack { place: &place, monitors: ["one", "two", "three"].map(monitor) };
    let one = &rack.monitors[0];
    place.venice(&["init", "--state-dir", &one.file("state")]).expect(0);
    for other in &rack.monitors[1..] {
        let copy = ["-a", &one.file("state"), &other.file("state")];
        assert!(Command::new("cp").args(copy).status().unwrap().success());
    }
    let mut daemons = rack.monitors.each_ref().map(Monitor::start);
    let all = rack.all();
    let mut agents = ["donor1", "donor2"].map(|name| {
        let identity = place.join(name, &one.addr);
        let words = ["agent", "--name", name, "--lend", "64MiB", "--monitor", &all];
        let socket = if name == "donor1" { &[][..] } else { &["--local-socket", "none"] };
        let words = [&words[..], &["--identity", &identity], socket].concat();
        Daemon::start_named(&place, name, &words)
    });
    wait_until("all three hear both donors", || rack.agrees(2));
    let (name, words) = rack.program("program", "32MiB", &["sleep", "600"]);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mut program = Daemon::start_named(&place, &name, &words);
    let lent = || rows(&place, "grants", &all).is_some_and(|grants| !grants.is_empty());
    wait_until("the program has its memory", lent);
    wait_until("all three know of it", || rack.agrees(2));
    let before = rack.said("grants").unwrap().remove(0);
    let is_as_before = || rack.agrees(2) && rack.said("grants").unwrap()[2] == before;
    rack.lends_again("nothing at all");

    // First the Monitor Node that is asked first by all, then another.
    for (at, monitor) in rack.monitors.iter().enumerate().take(2) {
        daemons[at].stop(Signal::KILL);
        rack.lends_again("a Monitor Node was killed");
        daemons[at] = monitor.start();
        wait_until("it knows what the others know", is_as_before);
    }
    for daemon in daemons.iter().take(2) {
        signal(daemon.0.id().into(), Signal::STOP);
        rack.lends_again("a Monitor Node stood still");
        signal(daemon.0.id().into(), Signal::CONT);
        wait_until("it knows what the others know", is_as_before);
    }
    let leader = etcd.leader().expect("one leads");
    etcd.kill(leader);
    rack.lends_again("etcd's leader was killed");
    etcd.restart(leader);
    wait_until("all know the same", is_as_before);
    let leader = loop {
        if let Some(leader) = etcd.leader() {
            break leader;
        }
    };
    etcd.stall(leader);
    rack.lends_again("etcd's leader stood still");
    etcd.go_on(leader);
    wait_until("all know the same", is_as_before);

    program.stop(Signal::TERM);
    wait_until("its memory is given back", || {
        rack.agrees(2) && rack.said("grants").unwrap()[0].is_empty()
    });
    assert_eq!(agents.each_mut().map(|agent| agent.stop(Signal::TERM)), [Some(0); 2]);
    assert_eq!(daemons.each_mut().map(|daemon| daemon.stop(Signal::TERM)), [Some(0); 3]);
}

#[test]
fn invalid_store_is_usage_error() {
    let place = Place::new();
    let state = place.file("state").display().to_string();
    for (words, named) in [
        (&["--store", "http://a"][..], "http:// is no store"),
        (&["--store", "etcd://a:port"], "`a:port` is no HOST[:PORT]"),
        (&["--store", "etcds://a"], "store_ca"),
        (&["--store", "etcd://a", "--store-ca", "/ca.pem"], "etcds://"),
        (
            &["--store", "etcds://a", "--store-ca", "/ca.pem", "--store-key", "/k"],
            "required together",
        ),
    ] {
        let words = [&["monitor", "--state-dir", &state], words].concat();
        let said = place.venice(&words).expect(2);
        assert!(said.complaint().contains(named), "{words:?}: {}", said.err);
    }
}

#[test]
fn monitor_reports_waiting_for_etcd() {
    let place = Place::new();
    let state = place.file("state").display().to_string();
    place.venice(&["init", "--state-dir", &state]).expect(0);
    let nobody = format!("etcd://127.0.0.1:{}", common::port_of_its_own());
    let words = ["monitor", "--listen", "127.0.0.1:0", "--local-socket", "none"];
    let words = [&words[..], &["--state-dir", &state, "--store", &nobody]].concat();
    let mut daemon = Daemon::start_named(&place, "monitor", &words);
    let log = || std::fs::read_to_string(place.file("monitor.log")).unwrap_or_default();
    wait_until("the log to name the store", || log().contains("waiting for etcd"));
    assert_eq!(daemon.stop(Signal::TERM), Some(0));

    let said = place.venice(&words).expect(1).err;
    assert!(said.contains("no answer from etcd://") && said.contains("refused"), "{said}");
    assert!(!said.contains("transport::Error") && !said.contains("Status {"), "{said}");
}
