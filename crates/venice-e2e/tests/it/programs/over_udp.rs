//! A selection of programs over UDP, which keeps the same promises as shared memory.

use std::process::Command;
use std::time::Duration;

use venice_e2e::programs::compare::{PROGRAM_LIMIT, Program, compare};
use venice_e2e::programs::{CProgram, Port, Rack, Running, paged_mode_is_missing};

#[test]
fn numpy_over_udp() {
    if paged_mode_is_missing("numpy_over_udp") {
        return;
    }
    let mut command = Command::new("/usr/bin/python3");
    let script = include_str!("../../data/array.py").replace("20_000_000", "8_000_000");
    let script = script.replace("4000 * 4000", "2000 * 2000").replace("4000, 4000", "2000, 2000");
    command.args(["-c", &script]);
    compare(Rack::shared(Port::Udp), "python3 numpy over udp", &Program::new(command));
}

#[test]
fn sqlite_over_udp() {
    if paged_mode_is_missing("sqlite_over_udp") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = dir.path().join("script.sql");
    let text = include_str!("../../data/in_memory.sql").replace("150000", "90000");
    std::fs::write(&script, text.replace("75000", "45000")).expect("a file");
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail", ":memory:"]).arg(format!(".read {}", script.display()));
    compare(Rack::shared(Port::Udp), "sqlite3 over udp", &Program::new(command));
}

/// Runs a C program plainly, then over UDP with little memory local.
fn same_over_udp(test: &str, name: &str) {
    if !paged_mode_is_missing(test) {
        same_on(Rack::shared(Port::Udp), name);
    }
}

fn same_on(rack: &Rack, name: &str) {
    let program = CProgram::compile(name);
    let plain = Running::spawn(program.command(&[]), false).finish(Duration::from_secs(60));
    plain.expect_code(0);
    let options = ["--local", "16MiB", "--remote", "512MiB"];
    let venice = rack.run(&options, &program.command(&[])).finish(PROGRAM_LIMIT);
    venice.expect_code(0);
    assert_eq!(
        String::from_utf8_lossy(&plain.stdout),
        String::from_utf8_lossy(&venice.stdout),
        "{}",
        venice.stderr
    );
}

#[test]
fn fork_copies_on_write_over_udp() {
    same_over_udp("fork_copies_on_write_over_udp", "fork_cow");
}

#[test]
fn system_calls_reach_far_memory_over_udp() {
    same_over_udp("system_calls_reach_far_memory_over_udp", "system_calls");
}

#[test]
fn namespaces_are_joined_by_a_wire() {
    if paged_mode_is_missing("namespaces_are_joined_by_a_wire") {
        return;
    }
    let rack = Rack::start_with(Port::Udp, 128, &["--netns"]);
    same_on(&rack, "mremap");
}
