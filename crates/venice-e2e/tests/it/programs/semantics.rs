//! The kernel's memory semantics hold for far memory too: small C programs, each run plainly first,
//! then with 16 MiB local and several times that in use.

use std::time::Duration;

use rustix::process::Signal;
use venice_e2e::programs::compare::{PROGRAM_LIMIT, same_output};
use venice_e2e::programs::{CProgram, Port, Rack, Running, paged_mode_is_missing};

const OPTIONS: [&str; 4] = ["--local", "16MiB", "--remote", "768MiB"];

/// Runs `tests/c/NAME.c` both ways: exit code and output must be the same.
fn same_under_venice(test: &str, name: &str, options: &[&str]) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile(name);
    same_output(Rack::shared(Port::Shm), options, &program.command(&[]));
}

macro_rules! same_under_venice {
    ($($test:ident: $name:literal;)*) => {
        $(#[test]
        fn $test() {
            same_under_venice(stringify!($test), $name, &OPTIONS);
        })*
    };
}

same_under_venice! {
    fork_copies_on_write: "fork_cow";
    nested_forks_keep_their_memory: "fork_chain";
    forks_during_faults: "fork_threads";
    forks_with_far_file_buffers: "fork_files";
    forks_during_allocations: "fork_malloc";
    forks_during_mappings: "fork_lent";
    children_are_spawned_and_executed: "spawn";
    memory_kept_from_children: "dont_fork";
    dead_owners_are_told: "robust_owner";
    mremap_moves_far_pages: "mremap";
    madvise_drops_far_pages: "madvise";
    hint_errors_match_the_kernel: "hint_errors";
    hints_change_no_page: "hint_storm";
    memory_is_populated: "populate";
    map_fixed_and_munmap_over_far_pages: "map_fixed";
    reservations_and_protection: "prot_none";
    stacks_of_threads: "thread_stacks";
    system_calls_reach_far_memory: "system_calls";
    malloc_from_many_threads: "malloc_threads";
    memory_by_brk: "brk";
    locked_memory_and_advice: "mlock";
    signals_on_a_far_stack: "far_signal_stack";
    atomics_and_futexes_in_far_memory: "futex";
    program_closes_every_descriptor: "close_all";
    threads_end_by_signals: "threads_end";
    program_handles_sigbus: "own_sigbus";
}

/// Far memory is so small that a slot wrongly released by the child would be reused at once.
#[test]
fn bare_fork_system_call() {
    let options = ["--local", "16MiB", "--remote", "96MiB"];
    same_under_venice("bare_fork_system_call", "fork_bare", &options);
}

/// Checks that `venice run` of `exit_ways HOW` ends as the program alone does.
fn ends_the_same(test: &str, how: &str) {
    if paged_mode_is_missing(test) {
        return;
    }
    let program = CProgram::compile("exit_ways");
    let plain = Running::spawn(program.command(&[how]), false).finish(Duration::from_secs(30));
    let rack = Rack::shared(Port::Shm);
    let venice = rack.run(&OPTIONS, &program.command(&[how])).finish(PROGRAM_LIMIT);
    venice.expect_code(plain.code());
    assert_eq!(plain.stdout, venice.stdout, "{how}");
}

#[test]
fn exit_codes_pass_through() {
    for how in ["0", "1", "42", "255"] {
        ends_the_same("exit_codes_pass_through", how);
    }
}

#[test]
fn deaths_by_signal_pass_through() {
    for how in ["abort", "segv", "kill", "fpe"] {
        ends_the_same("deaths_by_signal_pass_through", how);
    }
}

#[test]
fn signals_reach_the_program() {
    if paged_mode_is_missing("signals_reach_the_program") {
        return;
    }
    let program = CProgram::compile("exit_ways");
    let rack = Rack::shared(Port::Shm);
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        let running = rack.run(&OPTIONS, &program.command(&["wait", "ready"]));
        venice_e2e::programs::wait_for("the program", Duration::from_secs(30), || {
            program.dir().join("ready").exists().then_some(())
        });
        running.signal(signal);
        let outcome = running.finish(Duration::from_secs(60));
        std::fs::remove_file(program.dir().join("ready")).expect("made by the program");
        outcome.expect_code(0);
        let got = String::from_utf8_lossy(&outcome.stdout).into_owned();
        assert_eq!(got, format!("signal {}\n", signal.as_raw()));
    }
}
