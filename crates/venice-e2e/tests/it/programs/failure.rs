//! Donors, Monitor Nodes and recipients die; programs are notified or continue, and nothing leaks.

use std::fs::File;
use std::time::Duration;

use venice_e2e::programs::{CProgram, MIB, Port, Rack, Running};
use venice_e2e::programs::{is_alive, kill_now, paged_mode_is_missing, stop_now, wait_for};

const LEND_MIB: u64 = 128;
/// Memory in use: 64 MiB on 16 MiB local and 96 MiB far, spread over the four donors.
const USE_MIB: &str = "64";
const OPTIONS: [&str; 7] = ["--local", "16MiB", "--remote", "96MiB", "--stats", "--copies", "1"];
const SIGBUS_CODE: i32 = 128 + 7;
/// Time limit of a lease and the donors' next heartbeats.
const LEASE_LIMIT: Duration = Duration::from_secs(25);
const LIMIT: Duration = Duration::from_secs(60);

/// A program that uses its memory until told to stop.
struct Busy {
    program: CProgram,
    running: Running,
}

impl Busy {
    /// Starts it and waits until all its memory is in use.
    fn start(rack: &Rack) -> Busy {
        let program = CProgram::compile("keep_busy");
        let running = rack.run(&OPTIONS, &program.command(&[USE_MIB, "ready", "stop"]));
        let mut busy = Busy { program, running };
        wait_for("the program to use its memory", LIMIT, || {
            if !busy.running.is_running() {
                return Some(false);
            }
            busy.program.dir().join("ready").exists().then_some(true)
        });
        busy
    }

    /// Lets it check everything once more and end.
    fn stop(self) {
        File::create(self.program.dir().join("stop")).expect("a file");
        let outcome = self.running.finish(LIMIT);
        outcome.expect_code(0);
        assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
    }
}

/// Waits until no grant is left, and every lent byte is free.
fn wait_until_free(rack: &Rack, limit: Duration) {
    wait_for("all slabs to be free again", limit, || {
        (rack.grant_ids().is_empty() && rack.granted_bytes() == 0).then_some(())
    });
}

/// Ends a donor by `end`; returns the program's error text.
fn error_after_end_of_donor(test: &str, port: Port, end: fn(u32)) -> Option<String> {
    if paged_mode_is_missing(test) {
        return None;
    }
    let rack = Rack::start(port, LEND_MIB);
    let busy = Busy::start(&rack);
    let grants = rack.json(&["grants"]);
    let donor = grants[0]["donor"].as_str().expect("a donor").to_string();
    end(rack.agent_pid(&donor));
    let outcome = busy.running.finish(LIMIT);
    outcome.expect_code(SIGBUS_CODE);
    assert!(outcome.stdout.is_empty(), "the program claims success");
    let names = |line: &str| line.contains(&donor) && line.contains("region");
    assert!(
        outcome.stderr.lines().any(names),
        "no message names {donor} and the region:\n{}",
        outcome.stderr
    );
    Some(outcome.stderr)
}

#[test]
fn dead_donor_raises_an_error_on_shm() {
    let test = "dead_donor_raises_an_error_on_shm";
    error_after_end_of_donor(test, Port::Shm, kill_now);
}

#[test]
fn dead_donor_raises_an_error_on_udp() {
    let test = "dead_donor_raises_an_error_on_udp";
    error_after_end_of_donor(test, Port::Udp, kill_now);
}

#[test]
fn reclaimed_memory_raises_an_error() {
    let test = "reclaimed_memory_raises_an_error";
    let Some(told) = error_after_end_of_donor(test, Port::Udp, stop_now) else { return };
    assert!(told.contains("took its memory back"), "{told}");
    assert!(told.contains("took back the only copy"), "{told}");
}

/// The program's own handler is called, and `venice run` names node and region.
#[test]
fn own_handler_sees_a_dead_donor() {
    if paged_mode_is_missing("own_handler_sees_a_dead_donor") {
        return;
    }
    let rack = Rack::start(Port::Shm, LEND_MIB);
    let program = CProgram::compile("keep_busy");
    let options =
        ["--local", "16MiB", "--remote", "96MiB", "--copies", "1", "--faults", "in-thread"];
    let running = rack.run(&options, &program.command(&["64", "ready", "stop", "caught"]));
    wait_for("the program to use its memory", LIMIT, || {
        program.dir().join("ready").exists().then_some(())
    });
    let donor = rack.json(&["grants"])[0]["donor"].as_str().expect("a donor").to_string();
    kill_now(rack.agent_pid(&donor));
    let outcome = running.finish(LIMIT);
    outcome.expect_code(3);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "a page is lost\n");
    let names = |line: &str| line.contains(&donor) && line.contains("region");
    assert!(outcome.stderr.lines().any(names), "{}", outcome.stderr);
}

#[test]
fn programs_outlive_the_monitor() {
    if paged_mode_is_missing("programs_outlive_the_monitor") {
        return;
    }
    let rack = Rack::start(Port::Shm, LEND_MIB);
    let mut busy = Busy::start(&rack);
    let before = rack.grant_ids();
    assert!(!before.is_empty());
    kill_now(rack.monitor_pid());
    // A lease is renewed without the Monitor Node: wait longer than one.
    std::thread::sleep(Duration::from_secs(12));
    assert!(busy.running.is_running(), "the program ended without the Monitor Node");
    let up = rack.venice(&["up"]);
    assert!(up.status.success(), "venice up: {}", String::from_utf8_lossy(&up.stderr));
    assert_eq!(rack.grant_ids(), before, "the restarted Monitor Node knows other grants");
    busy.stop();
    wait_until_free(&rack, LEASE_LIMIT);
}

#[test]
fn killed_recipient_leaves_no_grants() {
    if paged_mode_is_missing("killed_recipient_leaves_no_grants") {
        return;
    }
    let rack = Rack::start(Port::Shm, LEND_MIB);
    let busy = Busy::start(&rack);
    assert!(rack.granted_bytes() >= 64 * MIB);
    let below = busy.running.descendants();
    assert!(!below.is_empty());
    kill_now(busy.running.pid());
    wait_for("the program to end with its supervisor", LIMIT, || {
        below.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
    wait_until_free(&rack, LEASE_LIMIT);
}

#[test]
fn ended_program_releases_memory_at_once() {
    if paged_mode_is_missing("ended_program_releases_memory_at_once") {
        return;
    }
    let rack = Rack::start(Port::Shm, LEND_MIB);
    // Each takes most of the rack: the next one fits only if the former released its memory, and
    // finds zeros only if it was zeroed.
    for _ in 0..3 {
        let program = CProgram::compile("keep_busy");
        File::create(program.dir().join("stop")).expect("a file");
        let options = ["--local", "16MiB", "--remote", "448MiB"];
        let running = rack.run(&options, &program.command(&["64", "ready", "stop"]));
        running.finish(LIMIT).expect_code(0);
        assert_eq!(rack.grant_ids(), Vec::<String>::new());
    }
    wait_until_free(&rack, Duration::from_secs(10));
}

#[test]
fn up_restarts_a_dead_agent() {
    let rack = Rack::start(Port::Shm, LEND_MIB);
    let (old, others) = (rack.agent_pid("node2"), rack.agent_pid("node3"));
    kill_now(old);
    wait_for("the Monitor Node to notice", Duration::from_secs(15), || {
        let nodes = rack.json(&["nodes"]);
        let rows = nodes.as_array().expect("a list").clone();
        rows.iter().any(|row| row["name"] == "node2" && row["state"] == "down").then_some(())
    });
    let up = rack.venice(&["up"]);
    assert!(up.status.success(), "venice up: {}", String::from_utf8_lossy(&up.stderr));
    assert_ne!(rack.agent_pid("node2"), old);
    assert_eq!(rack.agent_pid("node3"), others, "a live agent was started anew");
    wait_for("the agent to be up", Duration::from_secs(15), || {
        let nodes = rack.json(&["nodes"]);
        let rows = nodes.as_array().expect("a list").clone();
        rows.iter().all(|row| row["state"] == "up").then_some(())
    });
}
