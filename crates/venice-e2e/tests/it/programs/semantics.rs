//! What the kernel promises about memory holds for far memory too: small C programs, each run
//! plainly first, then with 16 MiB local and several times that in use.

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
    fork_copies_on_write_on_both_sides: "fork_cow";
    forks_of_forks_keep_their_own: "fork_chain";
    forks_while_threads_fault_on_every_processor: "fork_threads";
    forks_of_far_streams: "fork_files";
    forks_while_threads_allocate: "fork_malloc";
    forks_that_wait_while_others_map: "fork_lent";
    children_are_spawned_and_executed: "spawn";
    mremap_moves_far_pages: "mremap";
    madvise_drops_far_pages: "madvise";
    hints_answer_as_the_kernels: "hint_errors";
    hints_change_no_page: "hint_storm";
    memory_is_populated_before_it_is_used: "populate";
    map_fixed_and_munmap_over_far_pages: "map_fixed";
    reservations_and_protection: "prot_none";
    stacks_of_threads: "thread_stacks";
    system_calls_reach_far_memory: "system_calls";
    malloc_from_many_threads: "malloc_threads";
    memory_by_brk: "brk";
    locked_memory_and_advice: "mlock";
    signals_on_a_far_stack: "far_signal_stack";
    atomics_and_futexes_in_far_memory: "futex";
    programs_that_close_every_descriptor: "close_all";
    threads_and_signals_end_as_they_should: "threads_end";
    programs_with_a_handler_of_sigbus: "own_sigbus";
}

/// With so little far memory that what the child gave up wrongly would be taken at once.
#[test]
fn children_of_a_bare_system_call() {
    let options = ["--local", "16MiB", "--remote", "96MiB"];
    same_under_venice("children_of_a_bare_system_call", "fork_bare", &options);
}

/// `venice run` of `exit_ways HOW` ends as the program alone does.
fn ends_alike(test: &str, how: &str) {
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
        ends_alike("exit_codes_pass_through", how);
    }
}

#[test]
fn deaths_by_signal_pass_through() {
    for how in ["abort", "segv", "kill", "fpe"] {
        ends_alike("deaths_by_signal_pass_through", how);
    }
}

#[test]
fn signals_sent_to_venice_reach_the_program() {
    if paged_mode_is_missing("signals_sent_to_venice_reach_the_program") {
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
