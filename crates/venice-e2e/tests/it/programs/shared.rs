//! Shared anonymous memory is paged for all processes of a run together.

use std::process::Command;

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, MIB, Outcome, Port, Rack, paged_mode_is_missing};

/// Bytes of shared memory that `shared.c` and `shared_files.c` write.
const SHARED_BYTES: u64 = 64 * MIB;
const OPTIONS: [&str; 6] = ["--local", "16MiB", "--remote", "256MiB", "--strict", "--stats"];

/// True if shared memory is not paged on this machine.
pub fn look_is_missing(test: &str) -> bool {
    let findings = Rack::shared(Port::Shm).venice(&["doctor", "--json"]);
    let rows: serde_json::Value = serde_json::from_slice(&findings.stdout).expect("JSON");
    let row = rows.as_array().expect("rows").iter().find(|row| row["check"] == "shared memory");
    let is_missing = row.expect("a row")["state"] != "ok";
    if is_missing {
        eprintln!("SKIPPED: {test}: no bpf");
    }
    is_missing
}

/// Runs a C program of the tests in one way; its own checks must hold.
pub fn run_way(program: (&str, &[&str]), port: Port, way: &[&str]) -> Outcome {
    let (name, options) = program;
    let program = CProgram::compile(name);
    let outcome = Rack::shared(port).run(options, &program.command(way)).finish(PROGRAM_LIMIT);
    println!("{name} {way:?} over {port}: {}", outcome.stderr);
    outcome.expect_code(0);
    outcome
}

/// Checks that much of the shared memory of a program went far, of [`SHARED_BYTES`].
pub fn check_paged(test: &str, program: (&str, &[&str]), port: Port, way: &str) {
    if paged_mode_is_missing(test) || look_is_missing(test) {
        return;
    }
    let out = run_way(program, port, &[way]).number_after("pages out ");
    assert!(out > SHARED_BYTES / 4096 / 2, "only {out} pages went far: the test shows nothing");
}

fn is_paged(test: &str, port: Port, way: &str) {
    check_paged(test, ("shared", &OPTIONS), port, way);
}

#[test]
fn children_count_together() {
    is_paged("children_count_together", Port::Shm, "count");
}

#[test]
fn children_count_over_udp() {
    is_paged("children_count_over_udp", Port::Udp, "count");
}

#[test]
fn bare_child_shares_memory() {
    is_paged("bare_child_shares_memory", Port::Shm, "bare");
}

#[test]
fn children_inherit_nothing_shared() {
    is_paged("children_inherit_nothing_shared", Port::Shm, "none");
}

#[test]
fn forks_survive_eviction() {
    is_paged("forks_survive_eviction", Port::Shm, "chain");
}

#[test]
fn moved_mappings_keep_contents() {
    is_paged("moved_mappings_keep_contents", Port::Shm, "moved");
}

#[test]
fn advice_acts_on_shared() {
    is_paged("advice_acts_on_shared", Port::Shm, "advised");
}

#[test]
fn kernel_writes_are_kept() {
    is_paged("kernel_writes_are_kept", Port::Shm, "read");
}

#[test]
fn locks_work_when_far() {
    is_paged("locks_work_when_far", Port::Shm, "locks");
}

#[test]
fn killed_writers_harm_nothing() {
    is_paged("killed_writers_harm_nothing", Port::Shm, "killed");
}

/// A program started by `exec` has nothing of what its process had mapped before.
#[test]
fn exec_frees_shared_memory() {
    if paged_mode_is_missing("exec_frees_shared_memory") {
        return;
    }
    let program = CProgram::compile("shared");
    let mut shell = Command::new("sh");
    shell.args(["-c", "./shared moved && exec ./shared count"]).current_dir(program.dir());
    let outcome = Rack::shared(Port::Shm).run(&OPTIONS, &shell).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    assert!(outcome.stderr.contains("all memory was managed"), "{}", outcome.stderr);
}
