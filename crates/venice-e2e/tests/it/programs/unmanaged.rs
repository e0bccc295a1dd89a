//! Memory that Venice does not manage is reported with its cause, and little of it is left.

use std::process::Command;
use std::time::Duration;

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, MIB, Outcome, Port, Rack, paged_mode_is_missing, wait_for};

/// Bytes that `unmanaged.c` takes.
const TAKEN_BYTES: u64 = 48 * MIB;
const OPTIONS: [&str; 4] = ["--local", "16MiB", "--remote", "128MiB"];

fn run(options: &[&str], command: &Command) -> Outcome {
    let options = [&OPTIONS[..], options].concat();
    let outcome = Rack::shared(Port::Shm).run(&options, command).finish(PROGRAM_LIMIT);
    println!("{options:?}: {}", outcome.stderr);
    outcome
}

/// Checks that the memory which `unmanaged.c` takes in this way is reported as `what`, and that
/// `--strict` fails for it.
fn is_reported(test: &str, way: &str, flags: &[&str], what: &str) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile_with("unmanaged", flags);
    let outcome = run(&[], &program.command(&[way]));
    outcome.expect_code(0);
    let line = outcome.stderr.lines().find(|line| line.contains(what));
    let line = line.unwrap_or_else(|| panic!("no {what:?}: {}", outcome.stderr));
    assert!(line.contains("not managed") && line.contains("unmanaged, process"), "{line}");
    let strict = run(&["--strict"], &program.command(&[way]));
    strict.expect_code(125);
    assert_eq!(strict.stdout, outcome.stdout);
    assert!(strict.stderr.contains("venice: --strict: the program ended well"));
}

#[test]
fn shared_memory_is_reported() {
    is_reported("shared_memory_is_reported", "shared", &[], "shared memory");
}

#[test]
fn raw_mappings_are_reported() {
    is_reported("raw_mappings_are_reported", "raw", &[], "past the C library");
}

#[test]
fn locked_memory_is_reported() {
    is_reported("locked_memory_is_reported", "locked", &[], "locked by mlock");
}

#[test]
fn advised_memory_is_reported() {
    is_reported("advised_memory_is_reported", "wiped", &[], "MADV_WIPEONFORK");
}

#[test]
fn stacks_are_reported() {
    is_reported("stacks_are_reported", "stack", &[], "stacks");
}

#[test]
fn static_data_is_reported() {
    is_reported("static_data_is_reported", "static", &[], "static data");
}

/// Runs a shell that starts a static program, which loads no shim.
#[test]
fn static_child_is_reported() {
    if paged_mode_is_missing("static_child_is_reported") {
        return;
    }
    let program = CProgram::compile_with("unmanaged", &["-static"]);
    let mut shell = Command::new("sh");
    shell.args(["-c", "./unmanaged managed; true"]).current_dir(program.dir());
    let outcome = run(&[], &shell);
    outcome.expect_code(0);
    assert!(outcome.stderr.contains("a static program"), "{}", outcome.stderr);
    run(&["--strict"], &shell).expect_code(125);
}

/// A sanitizer maps its heap and its shadow memory by system calls.
#[test]
fn sanitized_program_is_reported() {
    if paged_mode_is_missing("sanitized_program_is_reported") {
        return;
    }
    let program = CProgram::compile_with("unmanaged", &["-fsanitize=address"]);
    let mut command = program.command(&["malloc"]);
    // The runtime must be loaded first, and the shim is.
    command.env("ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0");
    let outcome = run(&[], &command);
    outcome.expect_code(0);
    assert!(outcome.stderr.contains("past the C library"), "{}", outcome.stderr);
}

#[test]
fn managed_memory_passes_strict() {
    if paged_mode_is_missing("managed_memory_passes_strict") {
        return;
    }
    let program = CProgram::compile("unmanaged");
    for way in ["managed", "dontfork", "zeroed", "number"] {
        let outcome = run(&["--strict", "--stats"], &program.command(&[way]));
        outcome.expect_code(0);
        assert!(outcome.stderr.contains("all memory was managed"), "{way}: {}", outcome.stderr);
        assert!(outcome.peak_bytes < TAKEN_BYTES, "{way}: {} resident", outcome.peak_bytes);
    }
}

#[test]
fn early_reservations_are_managed() {
    if paged_mode_is_missing("early_reservations_are_managed") {
        return;
    }
    let program = CProgram::compile("reserved_early");
    let outcome = run(&["--strict", "--stats"], &program.command(&[]));
    outcome.expect_code(0);
    assert!(outcome.peak_bytes < TAKEN_BYTES, "{} resident", outcome.peak_bytes);
}

/// The program's own failure is worth more than that of `--strict`.
#[test]
fn strict_keeps_programs_failure() {
    if paged_mode_is_missing("strict_keeps_programs_failure") {
        return;
    }
    let program = CProgram::compile("unmanaged");
    let mut shell = Command::new("sh");
    shell.args(["-c", "./unmanaged raw; exit 7"]).current_dir(program.dir());
    run(&["--strict"], &shell).expect_code(7);
}

#[test]
fn strict_needs_shim() {
    let program = Command::new("true");
    let outcome = run(&["--mode", "swap", "--strict"], &program);
    outcome.expect_code(125);
    assert!(outcome.stderr.contains("--strict requires --mode paged"), "{}", outcome.stderr);
}

#[test]
fn ps_shows_unmanaged_memory() {
    if paged_mode_is_missing("ps_shows_unmanaged_memory") {
        return;
    }
    let rack = Rack::of(Port::Shm, 2, 256);
    let program = CProgram::compile("unmanaged");
    let running = rack.run(&OPTIONS, &program.command(&["shared", "go"]));
    let part = wait_for("a row with unmanaged memory", Duration::from_secs(30), || {
        rack.run_row_of_ps()?["unmanaged"].as_array()?.first().cloned()
    });
    assert_eq!(
        (part["cause"].as_str(), part["name"].as_str()),
        (Some("shared-memory"), Some("unmanaged"))
    );
    let table = String::from_utf8(rack.venice(&["ps"]).stdout).unwrap();
    assert!(table.contains("UNMANAGED") && table.contains("shared memory (unmanaged"), "{table}");
    std::fs::write(program.dir().join("go"), "").unwrap();
    running.finish(PROGRAM_LIMIT).expect_code(0);
}

/// Every way of the C library to start a program, with an environment that lacks the shim.
#[test]
fn shim_survives_any_environment() {
    if paged_mode_is_missing("shim_survives_any_environment") {
        return;
    }
    let program = CProgram::compile("exec_environment");
    for mode in [&[][..], &["--mode", "window"]] {
        let outcome = run(mode, &program.command(&[]));
        outcome.expect_code(0);
        let said = String::from_utf8_lossy(&outcome.stdout);
        assert_eq!(said.lines().count(), 11, "{said}");
        assert!(said.lines().all(|line| line.contains("shim")), "{said}");
        for line in ["execve other: A=1, shim, util", "system: A=9, shim", "spawn many: A=, shim"] {
            assert!(said.lines().any(|said| said == line), "{line:?}: {said}");
        }
    }
}
