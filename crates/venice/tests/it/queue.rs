//! The wait queue for memory, over a rack's real processes.

use crate::common::{self, Daemon, Place, exists, is_root, kill, pid, skipped, wait_until};
use rustix::process::Signal;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// A program that holds this much borrowed memory until it is ended.
fn holder(place: &Place, remote: &str) -> Daemon {
    let words = ["run", "--mode", "window", "--local", "4MiB", "--remote", remote];
    let holder =
        Daemon::start_named(place, "holder", &[&words[..], &["--", "sleep", "600"]].concat());
    wait_until("it has its memory", || {
        let grants = place.venice(&["grants", "--json"]).expect(0).json();
        let rows = grants.as_array().unwrap().iter();
        !grants.as_array().unwrap().is_empty()
            && rows.clone().all(|row| row["state"] == "committed")
    });
    holder
}

fn queue(place: &Place) -> Vec<Value> {
    let said = place.venice(&["queue", "--json"]);
    // Its Monitor Node may be away for a moment.
    if said.code() == 0 { said.json().as_array().unwrap().clone() } else { vec![] }
}

fn priorities(place: &Place) -> Vec<u64> {
    queue(place).iter().map(|row| row["priority"].as_u64().unwrap()).collect()
}

/// `venice run` with this amount and wait; the program then leaves a mark.
fn waiter(place: &Place, remote: &str, more: &[&str], mark: &str) -> Vec<String> {
    let words = ["run", "--mode", "window", "--local", "4MiB", "--remote", remote];
    let mark = place.file(mark).display().to_string();
    let program = ["--", "touch", &mark];
    [&words[..], more, &program].concat().into_iter().map(str::to_owned).collect()
}

#[test]
fn queue_survives_monitor_restart() {
    let place = Place::new();
    place.up(2);
    let mut first = holder(&place, "64MiB");
    let run = |remote: &str, more: &[&str]| {
        let words = waiter(&place, remote, more, "never");
        place.venice(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };

    let refused = place.venice(&["place", "32MiB", "--copies", "1"]).expect(1).out;
    assert!(refused.contains("would be refused: no room for 32MiB"), "{refused}");
    let waits = place.venice(&["place", "32MiB", "--copies", "1", "--wait", "1m"]).expect(0).out;
    assert!(waits.contains("would wait at rank 1 of the queue: no room for 32MiB"), "{waits}");
    let late = run("32MiB", &["--wait", "1s"]).expect(125);
    assert!(
        late.err.contains("waiting for 32MiB of memory: queue position 1, 0B free"),
        "{}",
        late.err
    );
    assert!(late.complaint().contains("no room for 32MiB: 0B free"), "{}", late.err);
    assert!(late.complaint().contains("; it waited 1.0 s"), "{}", late.err);
    let never = run("128MiB", &["--wait", "1h"]).expect(125);
    assert!(never.complaint().contains("waiting does not help"), "{}", never.err);
    assert!(never.complaint().contains("room for 64MiB when all is free"), "{}", never.err);

    let low = waiter(&place, "32MiB", &["--wait", "5m", "--priority", "50"], "low");
    let usual = waiter(&place, "32MiB", &["--wait", "5m"], "usual");
    let start = |name: &str, words: &[String]| {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        Daemon::start_named(&place, name, &words)
    };
    let mut low = start("low", &low);
    wait_until("one waits", || priorities(&place) == [50]);
    let mut usual = start("usual", &usual);
    wait_until("both wait, in order", || priorities(&place) == [100, 50]);
    let row = queue(&place).remove(0);
    let want = &row["wants"][0];
    let bytes = (want["bytes"].as_u64(), want["free"].as_u64(), &row["needs"]);
    assert_eq!(bytes, (Some(32 * MIB), Some(0), &Value::from("room")), "{row}");
    let late = run("16MiB", &["--wait", "1s", "--priority", "1"]).expect(125);
    assert!(late.complaint().contains("queued before it: "), "{}", late.err);
    assert!(late.complaint().contains("with 32MiB of memory (priority 100)"), "{}", late.err);

    assert_eq!(low.stop(Signal::INT), None, "it ends by the signal");
    wait_until("who is interrupted has left", || priorities(&place) == [100]);
    kill(pid(&place.status()["monitor"]));
    place.up(2);
    wait_until("who waits is in line again", || priorities(&place) == [100]);
    assert!(!exists(&place.file("usual")));

    first.stop(Signal::TERM);
    assert_eq!(common::wait(&mut usual.0, &["run"]).code(), Some(0));
    assert!(exists(&place.file("usual")) && !exists(&place.file("low")));
    assert!(!exists(&place.file("never")));
    place.venice(&["down"]).expect(0);
}

#[test]
fn get_memory_waits_in_queue() {
    let place = Place::new();
    place.up(2);
    let mut first = holder(&place, "64MiB");
    let mark = place.file("mark").display().to_string();
    let words =
        |more: &[&'static str]| -> Vec<&'static str> { [&["get", "memory=32MiB"], more].concat() };
    let get = |more: &[&'static str]| [&words(more)[..], &["--", "touch", &mark]].concat();
    let refused = place.venice(&get(&[])).expect(125);
    assert!(refused.complaint().contains("no room for 32MiB"), "{}", refused.err);
    let plan = place.venice(&get(&["--dry-run", "--wait", "1m"])).expect(0).out;
    assert!(plan.contains("would wait at rank 1 of the queue"), "{plan}");
    let late = place.venice(&get(&["--wait", "1s"])).expect(125);
    assert!(late.err.contains("waiting for 32MiB of memory: queue position 1"), "{}", late.err);

    let mut interrupted = Daemon::start_named(&place, "interrupted", &get(&["--wait", "5m"]));
    wait_until("it waits", || priorities(&place) == [100]);
    assert_eq!(interrupted.stop(Signal::INT), None, "it ends by the signal");
    wait_until("it has left the line", || priorities(&place).is_empty());
    assert!(!exists(mark.as_ref()));

    let words = get(&["--wait", "5m", "--priority", "60", "--for", "later"]);
    let mut waits = Daemon::start_named(&place, "waits", &words);
    wait_until("it waits", || priorities(&place) == [60]);
    first.stop(Signal::TERM);
    assert_eq!(common::wait(&mut waits.0, &["get"]).code(), Some(0));
    assert!(exists(mark.as_ref()));
    wait_until("all is given back", || {
        place.venice(&["grants", "--json"]).expect(0).json().as_array().unwrap().is_empty()
    });
    place.venice(&["down"]).expect(0);
}

#[test]
fn invalid_waits_are_refused() {
    let place = Place::new();
    let program = ["--", "true"];
    for (words, told) in [
        (&["--wait", "10m"][..], "--wait needs --remote"),
        (&["--wait", "5", "--remote", "16MiB"], "missing unit"),
        (&["--wait", "0s", "--remote", "16MiB"], "is not a time"),
        (&["--wait", "-1m", "--remote", "16MiB"], "not a time"),
        (&["--preempt"], "--wait"),
        (&["--priority", "256"], "256"),
        (&["--priority", "high"], "high"),
    ] {
        let said = place.venice(&[&["run", "--local", "16MiB"], words, &program].concat());
        let said = said.expect(125);
        assert!(said.complaint().contains(told), "{words:?}: {}", said.err);
    }
    place.venice(&["swap", "attach", "16MiB", "--rack-priority", "300"]).expect(2);
    place.venice(&["place", "16MiB", "--wait", "soon"]).expect(2);
    place.venice(&["queue", "--jsonl"]).expect(2);
}

#[test]
fn preemption_moves_memory_without_loss() {
    let test = "preemption_moves_memory_without_loss";
    if !is_root() {
        skipped(test, "needs root, who is the rack's administrator and may page");
        return;
    }
    let place = Place::new();
    place.up(2);
    // Its first pages are far; it reads them again after the grant has moved.
    let program = place.file("holder.sh").display().to_string();
    let (moved, ready) = (place.file("moved"), place.file("ready"));
    let script = format!(
        "import os, time\nblock = bytearray(os.urandom(1 << 20)) * 24\ncheck = hash(bytes(block))\n\
         open({ready:?}, 'w').close()\nwhile not os.path.exists({moved:?}): time.sleep(0.1)\n\
         assert hash(bytes(block)) == check\n"
    );
    std::fs::write(&program, script).unwrap();
    let run = ["run", "--local", "16MiB", "--remote", "64MiB", "--copies", "1", "--priority", "50"];
    let words = [&run[..], &["--", "python3", &program]].concat();
    let mut holder = Daemon::start_named(&place, "holder", &words);
    wait_until("it has written", || exists(&ready));

    let ask = ["32MiB", "--copies", "1", "--wait", "1m"];
    let plan = place.venice(&[&["place"][..], &ask, &["--preempt"]].concat()).expect(0).out;
    assert!(plan.contains("would wait at rank 1 of the queue, preempting grants"), "{plan}");
    let low = ["--preempt", "--priority", "50"];
    let plan = place.venice(&[&["place"][..], &ask, &low].concat()).expect(0).out;
    assert!(!plan.contains("preempting grants"), "of its own priority nothing is: {plan}");

    let words = waiter(&place, "32MiB", &["--wait", "2m", "--preempt"], "served");
    let words: Vec<_> = words.iter().map(String::as_str).collect();
    let mut waits = Daemon::start_named(&place, "waits", &words);
    wait_until("a grant is leaving", || {
        let grants = place.venice(&["grants", "--json"]).expect(0).json();
        grants.as_array().unwrap().iter().any(|row| row["preempted_in_s"].is_f64())
    });
    assert_eq!(common::wait(&mut waits.0, &["run"]).code(), Some(0));
    assert!(exists(&place.file("served")));
    std::fs::write(&moved, "").unwrap();
    let code = common::wait(&mut holder.0, &["run"]).code();
    let told = std::fs::read_to_string(place.file("holder.log")).unwrap();
    assert_eq!(code, Some(0), "{told}");
    assert!(told.contains("a request of higher priority needs the memory of node"), "{told}");
    place.venice(&["down"]).expect(0);
}
