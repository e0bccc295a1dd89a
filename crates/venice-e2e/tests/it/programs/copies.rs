//! Donors die, stall and return under programs whose far memory has two replicas: no wrong byte, no
//! hang, and lost replicas are rebuilt before the next donor dies.

use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use venice_e2e::programs::paged_mode_is_missing;
use venice_e2e::programs::{Busy, CProgram, Port, Rack, kill_now, wait_for};

const LEND_MIB: u64 = 128;
const SIGBUS_CODE: i32 = 128 + 7;
const LIMIT: Duration = Duration::from_secs(120);
/// Twice the lease.
const LONGER_THAN_A_LEASE: Duration = Duration::from_secs(20);

fn donors_die_in_sequence(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, LEND_MIB);
    let mut busy = Busy::start(&rack, "80MiB", 2);
    kill_now(rack.agent_pid("node2"));
    busy.wait_for_replicas(&rack, "node2");
    kill_now(rack.agent_pid("node3"));
    busy.wait_for_replicas(&rack, "node3");
    let said = busy.stop();
    for node in ["node2", "node3"] {
        assert!(said.contains(&format!("node {node} died")), "{said}");
    }
    assert!(said.contains("all copies are there again"), "{said}");
}

#[test]
fn donors_die_in_sequence_over_shm() {
    donors_die_in_sequence("donors_die_in_sequence_over_shm", Port::Shm);
}

#[test]
fn donors_die_in_sequence_over_udp() {
    donors_die_in_sequence("donors_die_in_sequence_over_udp", Port::Udp);
}

fn simultaneous_deaths(test: &str, port: Port) {
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(port, LEND_MIB);
    // Enough memory that one node's loss matters; of any three nodes, two share a slab.
    let busy = Busy::start(&rack, "200MiB", 2);
    let pids = ["node1", "node2", "node3"].map(|name| rack.agent_pid(name));
    for pid in pids {
        signal(pid, Signal::STOP);
    }
    for pid in pids {
        signal(pid, Signal::KILL);
    }
    let outcome = busy.running.finish(LIMIT);
    outcome.expect_code(SIGBUS_CODE);
    assert!(outcome.stdout.is_empty(), "the program claims success");
    let told = |line: &str| line.contains("died with a copy") && line.contains("region");
    assert!(outcome.stderr.lines().any(told), "{}", outcome.stderr);
}

#[test]
fn simultaneous_deaths_end_the_program_over_shm() {
    let test = "simultaneous_deaths_end_the_program_over_shm";
    simultaneous_deaths(test, Port::Shm);
}

#[test]
fn simultaneous_deaths_end_the_program_over_udp() {
    let test = "simultaneous_deaths_end_the_program_over_udp";
    simultaneous_deaths(test, Port::Udp);
}

/// Checks that `venice ps` and `venice status` name the obstacle of each node when replicas cannot
/// be rebuilt.
#[test]
fn obstacles_to_repair_are_shown() {
    if paged_mode_is_missing("obstacles_to_repair_are_shown") {
        return;
    }
    let rack = Rack::of(Port::Shm, 3, LEND_MIB);
    let mut busy = Busy::start_with(&rack, "80MiB", 2, &["--donor", "node1", "--donor", "node2"]);
    kill_now(rack.agent_pid("node2"));
    let why = "no other node has room for one (node1 has one already; node3 is not among the \
               donors named; node2 is down); retrying";
    let row = wait_for("it to be told", LIMIT, || {
        busy.expect_running();
        rack.run_row_of_ps()
            .filter(|row| row["missing"].as_str().is_some_and(|it| it.contains(why)))
    });
    assert_ne!(row["short_slabs"], 0);
    for command in ["ps", "status"] {
        wait_for("people to be told", LIMIT, || {
            let output = rack.venice(&[command]);
            let said = String::from_utf8_lossy(&output.stdout);
            (said.contains("lack one: ") && said.contains(why)).then_some(())
        });
    }
    let up = rack.venice(&["up"]);
    assert!(up.status.success(), "venice up: {}", String::from_utf8_lossy(&up.stderr));
    busy.wait_for_replicas(&rack, "node2");
    let row = rack.run_row_of_ps().expect("it runs");
    assert!(row["missing"].is_null() && row["short_slabs"] == 0, "{row}");
    busy.stop();
}

fn stalled_donor_is_abandoned_over(port: Port) {
    let rack = Rack::start(port, LEND_MIB);
    let mut busy = Busy::start(&rack, "80MiB", 2);
    let stalled = rack.agent_pid("node2");
    signal(stalled, Signal::STOP);
    busy.expect_running_for(LONGER_THAN_A_LEASE);
    signal(stalled, Signal::CONT);
    busy.wait_for_replicas(&rack, "node2");
    // It is not used for the writes that it missed, or a byte is wrong.
    thread::sleep(Duration::from_secs(2));
    let said = busy.stop();
    assert!(said.contains("node node2 stopped answering"), "{said}");
}

/// Both ports run at a time, as most of the time is waiting.
#[test]
fn stalled_donor_is_abandoned_over_shm_and_udp() {
    if paged_mode_is_missing("stalled_donor_is_abandoned_over_shm_and_udp") {
        return;
    }
    thread::scope(|scope| {
        scope.spawn(|| stalled_donor_is_abandoned_over(Port::Shm));
        scope.spawn(|| stalled_donor_is_abandoned_over(Port::Udp));
    });
}

/// Data of stalled donors alone is not lost: the program waits, and continues. All stall, since the
/// program may use nothing of a single one.
#[test]
fn only_replicas_of_stalled_donors_are_awaited() {
    if paged_mode_is_missing("only_replicas_of_stalled_donors_are_awaited") {
        return;
    }
    let rack = Rack::start(Port::Udp, LEND_MIB);
    let mut busy = Busy::start(&rack, "80MiB", 1);
    let stalled = ["node1", "node2", "node3", "node4"].map(|name| rack.agent_pid(name));
    stalled.into_iter().for_each(|agent| signal(agent, Signal::STOP));
    wait_for("the run to say whom it waits for", LONGER_THAN_A_LEASE, || {
        busy.expect_running();
        let said = busy.running.stderr_so_far();
        let is_told =
            |line: &str| line.contains(" does not answer; ") && line.contains("are waited for");
        said.lines().any(is_told).then_some(())
    });
    // The donors count the time for which they stalled to no lease.
    busy.expect_running_for(LONGER_THAN_A_LEASE);
    stalled.into_iter().for_each(|agent| signal(agent, Signal::CONT));
    busy.expect_running_for(Duration::from_secs(1));
    let said = busy.stop();
    assert!(!said.contains("lost") && !said.contains("stopped answering"), "{said}");
}

/// A donor that was off the network for longer than a lease returns with old data, which no
/// recipient reads.
#[test]
fn donor_is_fenced_after_a_partition() {
    if paged_mode_is_missing("donor_is_fenced_after_a_partition") {
        return;
    }
    let rack = Rack::start_with(Port::Udp, LEND_MIB, &["--netns"]);
    let mut busy = Busy::start(&rack, "80MiB", 2);
    let donor = rack.agent_pid("node2");
    set_wire(donor, "down");
    busy.expect_running_for(LONGER_THAN_A_LEASE);
    set_wire(donor, "up");
    busy.wait_for_replicas(&rack, "node2");
    // It lends again, and none of the former grants.
    let lends_again = || {
        let rows = rack.json(&["nodes"]);
        let node2 = rows.as_array()?.iter().find(|row| row["name"] == "node2")?;
        let is_free = node2["state"] == "up" && node2["free_bytes"] == node2["lent_bytes"];
        is_free.then_some(())
    };
    wait_for("the donor to be back with all it lends", LIMIT, lends_again);
    busy.expect_running();
    let said = busy.stop();
    assert!(said.contains("node node2 stopped answering"), "{said}");
}

/// Sets the interface of an agent's network namespace up or down.
fn set_wire(agent: u32, to: &str) {
    let network = format!("--net=/proc/{agent}/ns/net");
    let mut command = Command::new("nsenter");
    command.args([&network, "ip", "link", "set", "dev", "eth0", to]);
    let status = command.status().expect("nsenter is installed");
    assert!(status.success(), "the wire cannot be set {to}: {status}");
}

#[test]
fn forked_children_survive_dead_donors() {
    let test = "forked_children_survive_dead_donors";
    if paged_mode_is_missing(test) {
        return;
    }
    let rack = Rack::start(Port::Shm, LEND_MIB);
    let program = CProgram::compile("fork_chain");
    let options = ["--local", "16MiB", "--remote", "160MiB", "--copies", "2"];
    let running = rack.run(&options, &program.command(&[]));
    thread::sleep(Duration::from_millis(500));
    kill_now(rack.agent_pid("node4"));
    running.finish(LIMIT).expect_code(0);
}

fn signal(pid: u32, signal: Signal) {
    let target = Pid::from_raw(pid as i32).expect("a process id");
    kill_process(target, signal).expect("an agent of this rack");
}
