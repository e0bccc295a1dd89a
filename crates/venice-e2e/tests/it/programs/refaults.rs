//! Reports of runs that were bound by refaults, and of the mode of a run.

use std::process::Command;

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, Outcome, Port, Rack, Running, paged_mode_is_missing};

/// Runs `tests/c/NAME.c ARGS` with 16 MiB of local memory.
fn run(name: &str, args: &[&str]) -> Outcome {
    let options = ["--local", "16MiB", "--remote", "256MiB", "--stats"];
    let program = CProgram::compile(name);
    let outcome =
        Rack::shared(Port::Shm).run(&options, &program.command(args)).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    println!("{name} {args:?}: {}", outcome.stderr);
    outcome
}

/// Touches 32 MiB at random, a million times.
#[test]
fn random_refaults_name_the_remedy() {
    if paged_mode_is_missing("random_refaults_name_the_remedy") {
        return;
    }
    let outcome = run("random_reads", &["8192", "1000000"]);
    let said = outcome.stderr.lines().find(|line| line.contains("bound by refaults ("));
    let said = said.unwrap_or_else(|| panic!("{}", outcome.stderr));
    assert!(said.ends_with(", or --mode window"), "{said}");
    let needed = outcome.number_after("of the time): use --local ");
    assert!((28..=52).contains(&needed), "{said}");
    let (refaults, staged) = (outcome.number_after("refaults "), outcome.number_before(" staged,"));
    assert!(refaults > staged, "{}", outcome.stderr);
}

#[test]
fn streams_are_no_refaults() {
    if paged_mode_is_missing("streams_are_no_refaults") {
        return;
    }
    let outcome = run("round_and_round", &["16384", "20"]);
    assert!(!outcome.stderr.contains("bound by refaults"), "{}", outcome.stderr);
    let (pages_in, prefetched) =
        (outcome.number_after("pages in "), outcome.number_before(" prefetched;"));
    assert!(0 < prefetched && prefetched <= pages_in, "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("repaired"), "no copy was lost: {}", outcome.stderr);
    assert!(
        outcome.stderr.contains("venice: mode paged: this user may page"),
        "{}",
        outcome.stderr
    );
}

/// Runs a program as a user that may not page.
fn run_without_paging(program: &Command) -> Outcome {
    let rack = Rack::shared(Port::Shm);
    let options = ["run", "--port", "shm", "--local", "16MiB", "--remote", "128MiB", "--stats"];
    let run = rack.command(&options);
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]);
    command.arg(run.get_program()).args(run.get_args()).arg("--").arg(program.get_program());
    command.args(program.get_args()).env("VENICE_RUN_DIR", rack.run_dir());
    command.env("VENICE_HELPER_SOCKET", "none").env_remove("VENICE_MONITOR");
    Running::spawn(command, true).finish(PROGRAM_LIMIT)
}

#[test]
fn window_where_paging_is_refused() {
    if paged_mode_is_missing("window_where_paging_is_refused") {
        return;
    }
    let everybody = "/proc/sys/vm/unprivileged_userfaultfd";
    if std::fs::read_to_string(everybody).is_ok_and(|text| text.trim() == "1") {
        println!("SKIPPED: window_where_paging_is_refused: everybody may page here");
        return;
    }
    let outcome = run_without_paging(&CProgram::compile("zeros").command(&[]));
    outcome.expect_code(0);
    assert!(outcome.stderr.contains("venice: --mode auto is window: "), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains(" 0B placed"), "{}", outcome.stderr);
    let refused = run_without_paging(&CProgram::compile("fork_cow").command(&[]));
    let said =
        "venice: --mode auto is paged: a window would not be possible or safe: fork_cow imports";
    assert!(refused.stderr.contains(said), "{}", refused.stderr);
    assert_ne!(refused.code(), 0, "{}", refused.stderr);
}
