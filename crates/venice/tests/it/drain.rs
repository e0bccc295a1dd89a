//! `venice drain`: a node becomes empty, and stays so until --undo.

use std::process::{Child, Stdio};

use crate::common::{Place, kill, pid, wait, wait_until};
use serde_json::Value;

/// A program that holds 16 MiB of `donor`'s memory until it is killed; its memory cannot move.
fn borrower(place: &Place, donor: &str) -> Child {
    let before = grants(place);
    let words = ["run", "--mode", "window", "--local", "4MiB", "--remote", "16MiB"];
    let mut command = place.command(&words);
    command.args(["--reclaim-to", "donors", "--donor", donor, "--", "sleep", "600"]);
    let mut child = command.stdout(Stdio::null()).spawn().unwrap();
    wait_until("the memory is lent", || {
        let ended = child.try_wait().unwrap();
        assert!(ended.is_none(), "{words:?}: {ended:?}; cargo build -p venice-preload");
        grants(place) > before
    });
    child
}

fn ended(mut child: Child) {
    use rustix::process::{Pid, Signal, kill_process};
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    wait(&mut child, &["run"]);
}

fn grants(place: &Place) -> usize {
    place.venice(&["grants", "--json"]).expect(0).json().as_array().unwrap().len()
}

fn node(place: &Place, name: &str) -> Value {
    let rows = place.venice(&["nodes", "--json"]).expect(0).json();
    rows.as_array().unwrap().iter().find(|row| row["name"] == name).unwrap().clone()
}

/// State of the node in `venice nodes`.
fn state(place: &Place, name: &str) -> String {
    let table = place.venice(&["nodes"]).expect(0).out;
    let line = table.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().to_owned()
}

#[test]
fn drain_waits_and_undo_lends_again() {
    let place = Place::new();
    place.up(2);
    let first = borrower(&place, "node1");
    let said = place.venice(&["drain", "node1", "--wait-s", "1"]).expect(1);
    assert!(said.out.contains("it still lends 16MiB") && said.out.contains("sleep"), "{said:?}");
    assert!(said.err.contains("node1 still lends"), "{said:?}");
    assert_eq!(
        (state(&place, "node1").as_str(), state(&place, "node2").as_str()),
        ("draining", "up")
    );
    let row = node(&place, "node1");
    assert_eq!((&row["draining"], &row["free_bytes"]), (&true.into(), &0.into()));

    let words = ["run", "--mode", "window", "--local", "4MiB", "--remote", "16MiB"];
    let named = place.venice(&[&words[..], &["--donor", "node1", "--", "true"]].concat());
    assert!(named.expect(125).complaint().contains("node1 is being drained"));
    place.venice(&[&words[..], &["--", "true"]].concat()).expect(0);
    let second = borrower(&place, "node2");
    let left = place.venice(&["drain", "node1", "--no-wait", "--json"]).expect(0).json();
    assert_eq!((&left["granted_bytes"], &left["draining"]), (&(16 << 20).into(), &true.into()));
    assert_eq!(left["grants"].as_array().unwrap().len(), 1);

    ended(first);
    let said = place.venice(&["drain", "node1"]).expect(0);
    assert!(said.out.contains("node1 is empty"), "{said:?}");
    assert_eq!(state(&place, "node1"), "drained");
    ended(second);
    let said = place.venice(&["drain", "--undo", "node1"]).expect(0);
    assert!(said.out.contains("node1 lends again"), "{said:?}");
    assert_eq!(state(&place, "node1"), "up");
    ended(borrower(&place, "node1"));
}

#[test]
fn drain_survives_daemon_restarts() {
    let place = Place::new();
    place.up(2);
    place.venice(&["drain", "node2"]).expect(0);
    let status = place.status();
    kill(pid(&status["agents"][1]));
    kill(pid(&status["monitor"]));
    place.up(2);
    assert_eq!(state(&place, "node2"), "drained");
    assert_eq!(node(&place, "node2")["draining"], true);
    let unknown = place.venice(&["drain", "node9"]).expect(1);
    assert!(unknown.complaint().contains("no node named node9"), "{unknown:?}");
    place.venice(&["drain"]).expect(2);
    place.venice(&["drain", "node1", "--undo", "--no-wait"]).expect(2);
}
