//! Donors die, stall and are drained under programs whose far memory is coded 4+2: no wrong byte,
//! no hang, and lost fragments are rebuilt before the next donors die.

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use venice_e2e::programs::{Busy, CProgram, Port, Rack, kill_now};
use venice_e2e::programs::{paged_mode_is_missing, wait_for};

/// Six nodes for the fragments, and two spare ones.
const NODES: usize = 8;
const LEND_MIB: u64 = 128;
/// Three slabs, spread in fragments.
const REMOTE: &str = "192MiB";
const CODED: [&str; 2] = ["--coding", "4+2"];
const SIGBUS_CODE: i32 = 128 + 7;
const LIMIT: Duration = Duration::from_secs(120);

/// Waits until the run has noticed the loss of all of `gone`, and has all fragments again.
fn wait_for_all_fragments(rack: &Rack, busy: &mut Busy, gone: &[&str]) {
    wait_for("all fragments to be there", LIMIT, || {
        busy.expect_running();
        let run = rack.run_row()?;
        let lost = run["lost_donors"].as_array()?;
        let are_lost = gone.iter().all(|gone| lost.iter().any(|name| name == gone));
        (are_lost && run["short_slabs"] == 0).then_some(())
    });
}

/// Kills agents at the same moment, as far as any observer can tell.
fn kill_at_once(rack: &Rack, names: &[&str]) {
    let pids: Vec<u32> = names.iter().map(|name| rack.agent_pid(name)).collect();
    for how in [Signal::STOP, Signal::KILL] {
        pids.iter().for_each(|&pid| signal(pid, how));
    }
}

fn parity_many_donors_die(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::of(port, NODES, LEND_MIB);
    let mut busy = Busy::start_kept(&rack, REMOTE, &CODED, &[]);
    let row = rack.json(&["ps"])[0].clone();
    assert_eq!(row["replicas"], "coded 4+2", "{row}");
    kill_at_once(&rack, &["node2", "node5"]);
    wait_for_all_fragments(&rack, &mut busy, &["node2", "node5"]);
    // Six nodes are left, all in use: there is no node for a further fragment.
    kill_at_once(&rack, &["node1", "node6"]);
    wait_for("the loss to be noticed", LIMIT, || {
        busy.expect_running();
        let lost = rack.run_row()?["lost_donors"].as_array()?.len();
        (lost == 4).then_some(())
    });
    let said = busy.stop();
    for node in ["node1", "node2", "node5", "node6"] {
        assert!(said.contains(&format!("node {node} died; its fragments of ")), "{said}");
    }
    assert!(said.contains("all fragments are there again"), "{said}");
    assert!(said.contains("coded 4+2, 288MiB of donors' memory for 192MiB"), "{said}");
}

#[test]
fn parity_many_donors_die_over_shm() {
    let test = "parity_many_donors_die_over_shm";
    parity_many_donors_die(test, Port::Shm);
}

#[test]
fn parity_many_donors_die_over_udp() {
    let test = "parity_many_donors_die_over_udp";
    parity_many_donors_die(test, Port::Udp);
}

#[test]
fn too_many_deaths_end_the_program() {
    if paged_mode_is_missing("too_many_deaths_end_the_program") {
        return;
    }
    let rack = Rack::of(Port::Shm, NODES, LEND_MIB);
    let busy = Busy::start_kept(&rack, REMOTE, &CODED, &[]);
    // Three nodes are left: no slab has four fragments.
    kill_at_once(&rack, &["node1", "node2", "node3", "node4", "node5"]);
    let outcome = busy.running.finish(LIMIT);
    outcome.expect_code(SIGBUS_CODE);
    assert!(outcome.stdout.is_empty(), "the program claims success");
    let told = |line: &str| line.contains("died with a fragment") && line.contains("region");
    assert!(outcome.stderr.lines().any(told), "{}", outcome.stderr);
    let counted = |line: &str| line.contains("too few fragments are left");
    assert!(outcome.stderr.lines().any(counted), "{}", outcome.stderr);
}

#[test]
fn stalled_donor_is_abandoned() {
    if paged_mode_is_missing("stalled_donor_is_abandoned") {
        return;
    }
    let rack = Rack::of(Port::Udp, NODES, LEND_MIB);
    let mut busy = Busy::start_kept(&rack, REMOTE, &CODED, &[]);
    let stalled = rack.agent_pid("node3");
    signal(stalled, Signal::STOP);
    wait_for_all_fragments(&rack, &mut busy, &["node3"]);
    signal(stalled, Signal::CONT);
    // It is not used for the writes that it missed, or a byte is wrong.
    std::thread::sleep(Duration::from_secs(2));
    let said = busy.stop();
    assert!(said.contains("node node3 stopped answering"), "{said}");
}

fn drain_nodes(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::of(port, NODES, LEND_MIB);
    let mut busy = Busy::start_kept(&rack, REMOTE, &CODED, &[]);
    for name in ["node1", "node4"] {
        let drained = rack.venice(&["drain", name, "--wait-s", "120"]);
        assert!(drained.status.success(), "{}", String::from_utf8_lossy(&drained.stdout));
        busy.expect_running();
        kill_now(rack.agent_pid(name));
    }
    let row = busy.wait_until_moved(&rack);
    assert_eq!((&row["lost_donors"], &row["lost_slabs"]), (&Value::Array(vec![]), &0.into()));
    assert_eq!(row["short_slabs"], 0, "{row}");
    assert_ne!(row["moved"], 0, "{row}");
    let said = busy.stop();
    assert!(said.contains("has its memory back") && !said.contains("died"), "{said}");
}

#[test]
fn nodes_drain_under_a_program_over_shm() {
    drain_nodes("nodes_drain_under_a_program_over_shm", Port::Shm);
}

#[test]
fn nodes_drain_under_a_program_over_udp() {
    drain_nodes("nodes_drain_under_a_program_over_udp", Port::Udp);
}

#[test]
fn forked_children_survive_a_dead_donor() {
    let test = "forked_children_survive_a_dead_donor";
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::of(Port::Shm, NODES, LEND_MIB);
    let program = CProgram::compile("fork_chain");
    let options = ["--local", "16MiB", "--remote", "192MiB", "--coding", "2+1"];
    let running = rack.run(&options, &program.command(&[]));
    std::thread::sleep(Duration::from_millis(500));
    kill_now(rack.agent_pid("node4"));
    running.finish(LIMIT).expect_code(0);
}

#[test]
fn invalid_coding_is_refused() {
    let rack = Rack::of(Port::Shm, 4, 32);
    let refused = |options: &[&str], why: &str| {
        let command = [&["run"], options, &["--", "true"]].concat();
        let outcome = rack.venice(&command);
        let said = String::from_utf8_lossy(&outcome.stderr).into_owned();
        assert_eq!(outcome.status.code(), Some(125), "{options:?}: {said}");
        assert!(said.contains(why) && said.trim_end().lines().count() == 1, "{options:?}: {said}");
    };
    refused(&["--coding", "4+2"], "coding 4+2 needs 6 nodes with room");
    refused(&["--coding", "2+1", "--remote", "1GiB"], "on 3 different nodes: ask for less");
    refused(&["--coding", "3+1"], "2, 4 or 8 data");
    refused(&["--coding", "2+1", "--copies", "2"], "cannot be used with");
    refused(&["--coding", "2+1", "--mode", "window"], "nowhere in one piece");
    refused(&["--coding", "2+1", "--mode", "swap"], "a swap device keeps copies");
}

fn signal(pid: u32, signal: Signal) {
    let target = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(target, signal).expect("an agent of this rack");
}
