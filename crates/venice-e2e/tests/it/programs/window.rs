//! `--mode window`: the kernel's memory semantics hold for memory on mapped slabs too.

use std::fs::File;
use std::process::Command;
use std::time::Duration;

use venice_e2e::programs::compare::PROGRAM_LIMIT;
use venice_e2e::programs::{CProgram, Port, Rack, Running, is_alive, kill_now, wait_for};

const OPTIONS: [&str; 7] =
    ["--mode", "window", "--local", "16MiB", "--remote", "768MiB", "--stats"];
const LIMIT: Duration = Duration::from_secs(60);

/// Runs `tests/c/NAME.c` both ways: exit code and output must be the same. Most of its memory lies
/// on slabs.
fn same_in_the_window(name: &str) {
    let program = CProgram::compile(name);
    let plain = Running::spawn(program.command(&[]), false).finish(LIMIT);
    plain.expect_code(0);
    let rack = Rack::shared(Port::Shm);
    let venice = rack.run(&OPTIONS, &program.command(&[])).finish(PROGRAM_LIMIT);
    venice.expect_code(0);
    assert_eq!(
        String::from_utf8_lossy(&plain.stdout),
        String::from_utf8_lossy(&venice.stdout),
        "{}",
        venice.stderr
    );
    assert!(!venice.stderr.contains(" 0B placed"), "{name}: {}", venice.stderr);
}

macro_rules! same_in_the_window {
    ($($test:ident: $name:literal;)*) => {
        $(#[test]
        fn $test() {
            same_in_the_window($name);
        })*
    };
}

same_in_the_window! {
    fork_copies_on_write: "fork_cow";
    nested_forks_keep_their_memory: "fork_chain";
    children_are_spawned_and_executed: "spawn";
    mremap_copies: "mremap";
    madvise_drops: "madvise";
    map_fixed_and_munmap: "map_fixed";
    reservations_and_protection: "prot_none";
    system_calls_reach_the_window: "system_calls";
    memory_by_brk: "brk";
    atomics_and_futexes: "futex";
}

#[test]
fn threads_allocate_and_fork_concurrently() {
    // All of it is local: with memory in the window its forks would be refused.
    let program = CProgram::compile("malloc_threads");
    let rack = Rack::shared(Port::Shm);
    let options = ["--mode", "window", "--local", "256MiB", "--remote", "64MiB"];
    rack.run(&options, &program.command(&[])).finish(PROGRAM_LIMIT).expect_code(0);
}

#[test]
fn threaded_fork_of_shared_memory_fails() {
    let program = CProgram::compile("fork_beside_thread");
    let rack = Rack::shared(Port::Shm);
    let outcome = rack.run(&OPTIONS, &program.command(&[])).finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "fork: Function not implemented\n");
    assert!(outcome.stderr.contains("several threads may not fork"), "{}", outcome.stderr);
}

#[test]
fn dead_donor_loses_nothing() {
    let rack = Rack::start(Port::Shm, 64);
    let program = CProgram::compile("keep_busy");
    let options = ["--mode", "window", "--local", "16MiB", "--remote", "96MiB"];
    let mut running = rack.run(&options, &program.command(&["64", "ready", "stop"]));
    wait_for("the program to use its memory", LIMIT, || {
        assert!(running.is_running(), "it ended before its memory was in use");
        program.dir().join("ready").exists().then_some(())
    });
    for node in ["node1", "node2", "node3", "node4"] {
        kill_now(rack.agent_pid(node));
    }
    std::thread::sleep(Duration::from_millis(500));
    File::create(program.dir().join("stop")).expect("a file");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
}

/// The program, its fork, and that one's child end with their `venice run` before their mapped
/// memory is lent again; a later run removes the killed one's files on the disk.
#[test]
fn killed_run_ends_its_processes() {
    let rack = Rack::start(Port::Shm, 64);
    let program = CProgram::compile("keep_busy");
    let run = |words: &[&str]| {
        let command = program.command(words);
        let mut run = rack.command(&["run", "--port", "shm"]);
        run.args(["--mode", "window", "--local", "16MiB", "--remote", "96MiB", "--"]);
        run.arg(command.get_program()).args(command.get_args()).current_dir(program.dir());
        run.env("TMPDIR", program.dir());
        run
    };
    let mut running = Running::spawn(run(&["64", "ready", "stop", "forked"]), true);
    let below = wait_for("the program and its child", LIMIT, || {
        assert!(running.is_running(), "it ended before its memory was in use");
        let below = running.descendants();
        (below.len() == 2 && program.dir().join("ready").exists()).then_some(below)
    });
    let left = || {
        let names = std::fs::read_dir(program.dir()).expect("a folder").flatten();
        names.filter(|it| it.file_name().to_string_lossy().starts_with("venice-run-")).count()
    };
    assert_eq!(left(), 1);
    kill_now(running.pid());
    wait_for("both to end with their supervisor", LIMIT, || {
        below.iter().all(|pid| !is_alive(*pid)).then_some(())
    });
    assert_eq!(left(), 1, "a killed run cannot clear up");
    drop(running);
    File::create(program.dir().join("stop")).expect("a file");
    Running::spawn(run(&["1", "ready", "stop"]), true).finish(LIMIT).expect_code(0);
    assert_eq!(left(), 0);
}

/// A daemon without memory in the window continues after the run.
#[test]
fn daemon_outlives_its_run() {
    let rack = Rack::start(Port::Shm, 64);
    let program = CProgram::compile("keep_busy");
    let options = ["--mode", "window", "--local", "16MiB", "--remote", "96MiB"];
    let mut running = rack.run(&options, &program.command(&["32", "ready", "stop", "left"]));
    wait_for("the run to end", LIMIT, || (!running.is_running()).then_some(()));
    // Longer than the detection takes.
    std::thread::sleep(Duration::from_millis(500));
    File::create(program.dir().join("stop")).expect("a file");
    let outcome = running.finish(LIMIT);
    outcome.expect_code(0);
    assert_eq!(String::from_utf8_lossy(&outcome.stdout), "every byte right\n");
}

#[test]
fn memory_exhaustion_fails_the_call() {
    let rack = Rack::start(Port::Shm, 64);
    let script = "
import mmap
held = []
try:
    while len(held) < 1000: held.append(mmap.mmap(-1, 8 << 20, flags=mmap.MAP_PRIVATE))
except OSError as error:
    print(error.errno, len(held))
held.clear()
again = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE)
print(again[:8 << 20] == bytes(8 << 20))
";
    let mut python = Command::new("python3");
    python.args(["-c", script]);
    let options = ["--mode", "window", "--local", "64MiB", "--remote", "64MiB"];
    let outcome = rack.run(&options, &python).finish(LIMIT);
    outcome.expect_code(0);
    let said = String::from_utf8_lossy(&outcome.stdout).into_owned();
    let words: Vec<&str> = said.split_whitespace().collect();
    let [errno, held, is_zeroed] = words[..] else { panic!("{said}") };
    assert_eq!((errno, is_zeroed), ("12", "True"), "{said}");
    // 128 MiB less Python's own memory, in pieces of 8 MiB.
    assert!((10..=16).contains(&held.parse::<u32>().unwrap()), "{said}");
}

#[test]
fn unsupported_options_are_usage_errors() {
    let rack = Rack::start_with(Port::Shm, 32, &["--link", "latency=2us"]);
    for (options, word) in [
        (&["--port", "udp"][..], "--port shm"),
        (&["--read-ahead", "off"], "--read-ahead"),
        (&["--copies", "2"], "--copies above 1 requires --mode paged"),
        (&[], "--link"),
    ] {
        let head = ["run", "--mode", "window", "--local", "16MiB"];
        let output = rack.venice(&[&head[..], options, &["--", "true"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(125), "{said}");
        assert!(said.contains(word), "{said}");
    }
}
