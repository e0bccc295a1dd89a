//! A swap device whose donors reclaim memory, or stall for a while.

use std::fs;
use std::thread;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::{can_swap, ended, filled, grants, list, pages};
use crate::common::{Place, kill, pid, signal, wait_until};

/// Duration of a donor's stall: shorter than its lease, longer than the timeout of one answer.
const STALL: Duration = Duration::from_secs(5);

fn written_bytes(place: &Place) -> u64 {
    list(place)[0]["written_bytes"].as_u64().unwrap()
}

fn agents(place: &Place) -> Vec<Value> {
    place.status()["agents"].as_array().unwrap().clone()
}

fn granted_bytes(place: &Place) -> u64 {
    let nodes = place.venice(&["nodes", "--json"]).expect(0).json();
    nodes.as_array().unwrap().iter().map(|node| node["granted_bytes"].as_u64().unwrap()).sum()
}

/// Bytes of slabs that a process has mapped and locked.
fn locked_slab_bytes(pid: u64) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut is_slab, mut locked_kib) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        match words.next() {
            Some("Locked:") if is_slab => {
                locked_kib += words.next().unwrap().parse::<u64>().unwrap()
            }
            Some(word) if !word.ends_with(':') => is_slab = line.contains("/memfd:venice-slab"),
            _ => {}
        }
    }
    locked_kib << 10
}

/// Only this machine has room.
fn drain_all_under_swap(port: &str, more: &[&str]) {
    let place = Place::new();
    place.venice(&["up", "--nodes", "2", "--lend", "64MiB"]).expect(0);
    let words = ["run", "--mode", "swap", "--local", "8MiB", "--remote", "48MiB", "--copies", "1"];
    let words = [&words[..], &["--port", port], more].concat();
    let program = ["--", pages().to_str().unwrap(), "24", "wait"];
    let child = filled(place.command(&[&words[..], &program].concat()));
    for name in ["node1", "node2"] {
        place.venice(&["drain", name, "--no-wait"]).expect(0);
    }
    wait_until("all of it is here", || granted_bytes(&place) == 0);
    for agent in agents(&place) {
        kill(pid(&agent));
    }
    let before = written_bytes(&place);
    wait_until("the program goes on swapping", || written_bytes(&place) > before);
    let row = list(&place).remove(0);
    assert_eq!((&row["lost_slabs"], &row["state"]), (&0.into(), &"up".into()), "{row}");
    assert_eq!(row["donors"], Value::from(vec!["local"]), "{row}");
    assert!(locked_slab_bytes(pid(&row)) >= 48 << 20, "{row}");
    let (code, out, err) = ended(child);
    assert_eq!((code, out.as_str()), (Some(0), "right\n"), "{err}");
    assert_eq!(list(&place).len(), 0);
}

#[test]
fn drain_all_under_swap_shm() {
    let Some(_alone) = can_swap("drain_all_under_swap_shm") else {
        return;
    };
    drain_all_under_swap("shm", &[]);
}

#[test]
fn drain_all_under_swap_udp() {
    let Some(_alone) = can_swap("drain_all_under_swap_udp") else {
        return;
    };
    drain_all_under_swap("udp", &["--reclaim-to", "local"]);
}

#[test]
fn reclaim_to_limits_destinations() {
    let Some(_alone) = can_swap("reclaim_to_limits_destinations") else { return };
    let place = Place::new();
    place.up(1);
    let attach = ["swap", "attach", "16MiB", "--copies", "1", "--priority", "0"];
    place.venice(&[&attach[..], &["--reclaim-to", "donors"]].concat()).expect(0);
    let stays = place.venice(&["drain", "node1", "--wait-s", "5"]).expect(1);
    assert!(stays.out.contains("it still lends 16MiB"), "{stays:?}");
    assert_eq!(list(&place)[0]["donors"], Value::from(vec!["node1"]));
    place.venice(&["drain", "--undo", "node1"]).expect(0);
    place.venice(&["swap", "detach", "swap0"]).expect(0);

    place.venice(&attach).expect(0);
    place.venice(&["drain", "node1", "--wait-s", "120"]).expect(0);
    assert_eq!(list(&place)[0]["donors"], Value::from(vec!["local"]));
    place.venice(&["swap", "detach", "swap0"]).expect(0);
    assert_eq!(grants(&place), 0);
}

/// A stalled donor; dropping it resumes the donor, whatever the test's outcome.
struct Stalled(u64);

impl Stalled {
    fn stop(pid: u64) -> Stalled {
        signal(pid, Signal::STOP);
        Stalled(pid)
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        signal(self.0, Signal::CONT);
    }
}

/// Runs with the default number of copies.
fn donor_stall_under_swap(port: &str) {
    let place = Place::new();
    place.venice(&["up", "--nodes", "4", "--lend", "64MiB"]).expect(0);
    let words = ["run", "--mode", "swap", "--local", "8MiB", "--remote", "48MiB", "--port", port];
    let program = ["--", pages().to_str().unwrap(), "24", "wait"];
    let child = filled(place.command(&[&words[..], &program].concat()));
    let row = list(&place).remove(0);
    assert_eq!(row["copies"], 2, "{row}");
    let lends = |agent: &&Value| row["donors"].as_array().unwrap().contains(&agent["name"]);
    let agents = agents(&place);
    let stalled = Stalled::stop(pid(agents.iter().find(lends).unwrap()));
    thread::sleep(STALL);
    let before = written_bytes(&place);
    wait_until("the program goes on swapping", || written_bytes(&place) > before);
    drop(stalled);
    wait_until("both copies are there", || list(&place)[0]["short_slabs"] == 0);
    let before = written_bytes(&place);
    wait_until("the program goes on swapping", || written_bytes(&place) > before + (24 << 20));
    let row = list(&place).remove(0);
    assert_eq!((&row["lost_slabs"], &row["failed_requests"]), (&0.into(), &0.into()), "{row}");
    let (code, out, err) = ended(child);
    assert_eq!((code, out.as_str()), (Some(0), "right\n"), "{err}");
    assert_eq!(list(&place).len(), 0);
}

#[test]
fn donor_stall_under_swap_shm() {
    let Some(_alone) = can_swap("donor_stall_under_swap_shm") else {
        return;
    };
    donor_stall_under_swap("shm");
}

#[test]
fn donor_stall_under_swap_udp() {
    let Some(_alone) = can_swap("donor_stall_under_swap_udp") else { return };
    donor_stall_under_swap("udp");
}
