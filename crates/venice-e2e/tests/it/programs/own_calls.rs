//! What a program does to itself by its own system calls (locks, limits, filters, descriptors, many
//! mappings) ends as it would without Venice. Where the pager itself fails, `venice run` prints why.

use std::process::Command;
use std::time::Duration;

use venice_e2e::programs::compare::{PROGRAM_LIMIT, copy, same_output};
use venice_e2e::programs::{CProgram, Port, Rack, Running, paged_mode_is_missing};

const OPTIONS: [&str; 4] = ["--local", "16MiB", "--remote", "768MiB"];
const IN_THREAD: [&str; 6] = ["--local", "16MiB", "--remote", "768MiB", "--faults", "in-thread"];
const SIGKILL_CODE: i32 = 128 + 9;

/// Runs `tests/c/NAME.c` both ways: exit code and output must be the same.
fn same_under_venice(test: &str, name: &str, options: &[&str]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile(name);
    same_output(Rack::shared(Port::Shm), options, &program.command(&[]));
}

#[test]
fn locked_memory_keeps_its_bytes() {
    same_under_venice("locked_memory_keeps_its_bytes", "locks", &OPTIONS);
}

#[test]
fn locks_with_faults_in_thread() {
    same_under_venice("locks_with_faults_in_thread", "locks", &IN_THREAD);
}

#[test]
fn bare_calls_keep_pager_descriptors() {
    same_under_venice("bare_calls_keep_pager_descriptors", "bare_descriptors", &OPTIONS);
}

#[test]
fn memory_limits_spare_the_pager() {
    same_under_venice("memory_limits_spare_the_pager", "memory_limits", &OPTIONS);
}

#[test]
fn filters_spare_the_pager() {
    same_under_venice("filters_spare_the_pager", "filters", &OPTIONS);
}

/// Calls that the shim replaces fail as the kernel's do.
#[test]
fn bad_pointers_fail() {
    same_under_venice("bad_pointers_fail", "bad_pointers", &OPTIONS);
}

#[test]
fn mappings_up_to_the_limit() {
    same_under_venice("mappings_up_to_the_limit", "many_mappings", &OPTIONS);
}

/// A limit that the shell set before the program.
#[test]
fn inherited_limit_spares_the_pager() {
    if paged_mode_is_missing("inherited_limit_spares_the_pager") {
        return;
    }
    let mut shell = Command::new("sh");
    shell.args([
        "-c",
        "ulimit -v 600000; ulimit -v; sh -c 'ulimit -v; ls / >/dev/null && echo ran'",
    ]);
    let plain = Running::spawn(copy(&shell), false).finish(Duration::from_secs(30));
    let venice = Rack::shared(Port::Shm).run(&OPTIONS, &shell).finish(PROGRAM_LIMIT);
    venice.expect_code(plain.code());
    assert_eq!(String::from_utf8_lossy(&venice.stdout), "600000\n600000\nran\n");
}

/// Breaks an invariant of the evictor, in a thread without thread-local storage.
fn broken_invariant_is_printed(test: &str, arguments: &[&str]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile("break_pager");
    let rack = Rack::shared(Port::Shm);
    let outcome = rack.run(&OPTIONS, &program.command(arguments)).finish(PROGRAM_LIMIT);
    outcome.expect_code(SIGKILL_CODE);
    let names = |line: &str| {
        let parts = ["venice: internal error", "frames", "staging area", ".rs:", "SIGKILL"];
        parts.iter().all(|part| line.contains(part))
    };
    assert!(outcome.stderr.lines().any(names), "{}", outcome.stderr);
}

#[test]
fn broken_invariant_names_its_values() {
    broken_invariant_is_printed("broken_invariant_names_its_values", &[]);
}

/// The message does not depend on the program's standard error.
#[test]
fn daemons_broken_invariant_is_printed() {
    broken_invariant_is_printed("daemons_broken_invariant_is_printed", &["daemon"]);
}
