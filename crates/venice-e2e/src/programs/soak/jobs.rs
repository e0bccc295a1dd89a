//! The soak's programs: each with two replicas of its far memory, or coded 2+1, a part of its
//! memory local, and every result checked.

use std::process::Command;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

use venice_testkit::random::SplitMix64;

use super::{Soak, injuries};
use crate::programs::redis;
use crate::programs::running::{Outcome, Running};
use crate::programs::wait_for;

/// Time after which a program counts as hung.
const LIMIT: Duration = Duration::from_secs(600);
/// Redis's keys, of 1 KiB each.
const KEYS: u64 = 16_000;
/// Requests to Redis between two checks for the end of the soak.
const BATCH: u64 = 500;
/// Batches between two background saves.
const SAVE_AFTER: u64 = 50;

const TWO_COPIES: [&str; 2] = ["--copies", "2"];
/// Coding over three of the four nodes.
const CODED: [&str; 2] = ["--coding", "2+1"];

/// Starts a program of the soak while no donor is being injured.
fn start(soak: &Soak, kept: [&str; 2], local: &str, remote: &str, program: &Command) -> Running {
    let _open = soak.gate.read().unwrap_or_else(PoisonError::into_inner);
    let options = ["--local", local, "--remote", remote, kept[0], kept[1]];
    let mut running = soak.rack.run(&options, program);
    let mut said = soak.said.lock().unwrap_or_else(PoisonError::into_inner);
    said.insert(running.pid().into(), running.listener());
    drop(said);
    wait_for("a program to have borrowed", LIMIT, || {
        let pid = running.pid();
        let is_listed = |run: &serde_json::Value| run["process"]["pid"] == pid;
        let is_there = !running.is_running() || injuries::runs(soak).iter().any(is_listed);
        is_there.then_some(())
    });
    running
}

/// Runs `stress-ng`, which writes patterns by all its methods and verifies them.
pub fn stress(soak: &Soak) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let mut seeds = SplitMix64(soak.plan.seed);
    while !soak.is_over() {
        let mut command = Command::new("stress-ng");
        command.args(["--vm", "1", "--vm-bytes", "40M", "--vm-keep", "--vm-method", "all"]);
        command.args(["--verify", "--oomable", "--timeout", "5", "--seed"]);
        command.arg((seeds.draw() >> 32).to_string()).current_dir(dir.path());
        let outcome = start(soak, TWO_COPIES, "12MiB", "64MiB", &command).finish(LIMIT);
        outcome.expect_code(0);
        assert!(!outcome.stderr.contains("fail:"), "stress-ng: {}", outcome.stderr);
        soak.tally.stress_runs.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs `sqlite3`, which builds a database in memory with an index, changes and reads it; its
/// output must equal that of an all-local run.
pub fn sqlite(soak: &Soak) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = dir.path().join("script.sql");
    let text = include_str!("../../../tests/data/in_memory.sql");
    let text = text.replace("150000", "40000").replace("75000", "20000");
    std::fs::write(&script, text).expect("a file");
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail", ":memory:"]).arg(format!(".read {}", script.display()));
    let right = command.output().expect("there is a sqlite3");
    assert!(right.status.success(), "sqlite3: {}", String::from_utf8_lossy(&right.stderr));
    for kept in [CODED, TWO_COPIES].into_iter().cycle().take_while(|_| !soak.is_over()) {
        let outcome: Outcome = start(soak, kept, "8MiB", "64MiB", &command).finish(LIMIT);
        outcome.expect_code(0);
        assert!(outcome.stdout == right.stdout, "sqlite3 says something else: {}", outcome.stderr);
        soak.tally.sqlite_runs.fetch_add(1, Ordering::Relaxed);
    }
}

/// Runs a Redis under constant reads and writes with background saves; the last saved file must
/// show the state at the start of the save.
pub fn redis(soak: &Soak) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = start(soak, TWO_COPIES, "8MiB", "96MiB", &redis::server(dir.path()));
    let mut client = redis::Client::connect(&redis::socket(dir.path()));
    let mut generations = vec![1; KEYS as usize];
    let mut saved = None;
    let mut dice = SplitMix64(soak.plan.seed ^ 0x5eed);
    client.set_all(&(0..KEYS).collect::<Vec<_>>(), 1);
    for batch in 1.. {
        let first = dice.below(KEYS - BATCH);
        let keys: Vec<u64> = (first..first + BATCH).collect();
        if dice.is_one_in(3) {
            keys.iter().for_each(|key| generations[*key as usize] = batch);
            client.set_all(&keys, batch);
        } else {
            client.check_all(&keys, |key| generations[key as usize]);
            soak.tally.redis_values.fetch_add(BATCH, Ordering::Relaxed);
        }
        if batch % SAVE_AFTER == 0 && !client.is_saving() {
            client.call(&[b"BGSAVE"]);
            saved = Some(generations.clone());
            soak.tally.redis_saves.fetch_add(1, Ordering::Relaxed);
        }
        if soak.is_over() {
            break;
        }
    }
    client.check_all(&(0..KEYS).collect::<Vec<_>>(), |key| generations[key as usize]);
    soak.tally.redis_values.fetch_add(KEYS, Ordering::Relaxed);
    wait_for("the last save", LIMIT, || (!client.is_saving()).then_some(()));
    client.shut_down();
    server.finish(LIMIT).expect_code(0);
    if let Some(saved) = saved {
        let all: Vec<u64> = (0..KEYS).collect();
        redis::check_saved_file(dir.path(), &all, |key| saved[key as usize], LIMIT);
        soak.tally.redis_values.fetch_add(KEYS, Ordering::Relaxed);
    }
}
