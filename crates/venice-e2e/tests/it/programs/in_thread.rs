//! In-thread faults (`venice run --faults in-thread`): programs give the same results, fork, start
//! threads and handle signals, SIGBUS among them.

use std::time::Duration;

use venice_e2e::programs::compare::same_output;
use venice_e2e::programs::{CProgram, Port, Rack, paged_mode_is_missing};

const OPTIONS: [&str; 7] =
    ["--local", "16MiB", "--remote", "768MiB", "--stats", "--faults", "in-thread"];
const LIMIT: Duration = Duration::from_secs(60);

/// Returns the faults that `--stats` counts as served in the thread.
#[track_caller]
fn served_in_thread(stats: &str) -> u64 {
    let said = stats.lines().find_map(|line| line.strip_prefix("venice: in-thread faults: "));
    let number = said.and_then(|said| said.split(' ').next()).and_then(|n| n.parse().ok());
    number.unwrap_or_else(|| panic!("no such line in {stats}"))
}

/// Runs `tests/c/NAME.c` both ways; the run must have in-thread faults.
fn same_in_thread(test: &str, name: &str) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile(name);
    let venice = same_output(Rack::shared(Port::Shm), &OPTIONS, &program.command(&[]));
    println!("{}", venice.stderr);
    assert!(served_in_thread(&venice.stderr) > 100, "{}", venice.stderr);
}

macro_rules! same_in_thread {
    ($($test:ident: $name:literal;)*) => {
        $(#[test]
        fn $test() {
            same_in_thread(stringify!($test), $name);
        })*
    };
}

same_in_thread! {
    nested_forks_keep_their_memory: "fork_chain";
    forks_during_faults: "fork_threads";
    bare_fork_system_call: "fork_bare";
    mremap_moves_far_pages: "mremap";
    madvise_drops_far_pages: "madvise";
    hints_change_no_page: "hint_storm";
    map_fixed_and_munmap_over_far_pages: "map_fixed";
    signals_on_a_far_stack: "far_signal_stack";
    program_handles_sigbus: "own_sigbus";
    memory_is_populated: "populate";
}

/// Unsupported options are refused before anything is borrowed.
#[test]
fn unsupported_modes_are_refused() {
    if paged_mode_is_missing("unsupported_modes_are_refused") {
        return;
    }
    let program = CProgram::compile("keep_busy");
    for (port, options, says) in [
        (Port::Udp, &["--faults", "in-thread"][..], "--port shm"),
        (Port::Shm, &["--faults", "in-thread", "--mode", "window"], "--mode paged"),
        (Port::Shm, &["--faults", "in-thread", "--mode", "swap"], "--mode paged"),
    ] {
        let outcome = Rack::shared(port).run(options, &program.command(&[])).finish(LIMIT);
        outcome.expect_code(125);
        assert!(outcome.stderr.contains(says), "{options:?}: {}", outcome.stderr);
    }
}
