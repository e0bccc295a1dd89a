//! Databases whose data is four times what may be local.

use std::fs;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use venice_e2e::programs::compare::{
    PROGRAM_LIMIT, Program, check_resident, compare, copy, quarter_of, report, run_options,
};
use venice_e2e::programs::values::shuffled;
use venice_e2e::programs::{MIB, wait_for};
use venice_e2e::programs::{Outcome, Port, Rack, Running, memcached, paged_mode_is_missing, redis};

const REDIS_KEYS: u64 = 70_000;
const MEMCACHED_KEYS: u64 = 70_000;

/// Starts a server plainly or under Venice.
type Start<'a> = &'a dyn Fn(&Command) -> Running;

fn plainly(command: &Command) -> Running {
    Running::spawn(copy(command), false)
}

/// Starts the server with a quarter of the plain run's peak local.
fn under_venice(rack: &Rack, plain: &Outcome, drive: impl Fn(Start) -> Outcome) -> (Outcome, u64) {
    let local_bytes = quarter_of(plain.peak_bytes);
    let options = run_options(local_bytes, plain.peak_bytes);
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    (drive(&|command| rack.run(&options, command)), local_bytes)
}

/// Loads redis, saves in the background while writing, and checks the live and the saved data.
fn drive_redis(start: Start, keys: u64) -> Outcome {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = start(&redis::server(dir.path()));
    let mut client = redis::Client::connect(&redis::socket(dir.path()));
    let all: Vec<u64> = (0..keys).collect();
    client.set_all(&all, 1);

    // The file must show the moment of the fork: all of the first writing, none of the second.
    let order = shuffled(keys, 7);
    let rewritten = &order[..keys as usize / 4];
    assert_eq!(client.call(&[b"BGSAVE"]), redis::Reply::Simple("Background saving started".into()));
    let mut written_while_saving = 0;
    for batch in rewritten.chunks(256) {
        client.set_all(batch, 2);
        written_while_saving += u64::from(client.is_saving());
    }
    assert!(written_while_saving > 0, "the save was over before the first write: use more keys");
    wait_for("the background save to end", Duration::from_secs(120), || {
        (!client.is_saving()).then_some(())
    });
    let mut generation = vec![1; keys as usize];
    rewritten.iter().for_each(|key| generation[*key as usize] = 2);
    client.check_all(&order, |key| generation[key as usize]);
    assert_eq!(client.call(&[b"DBSIZE"]), redis::Reply::Number(keys as i64));

    client.shut_down();
    let outcome = server.finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    redis::check_saved_file(dir.path(), &order, |_| 1, PROGRAM_LIMIT);
    outcome
}

#[test]
fn redis_saves_during_writes() {
    if paged_mode_is_missing("redis_saves_during_writes") {
        return;
    }
    let plain = drive_redis(&plainly, REDIS_KEYS);
    let rack = Rack::shared(Port::Shm);
    let (venice, local_bytes) = under_venice(rack, &plain, |start| drive_redis(start, REDIS_KEYS));
    report("redis-server", &plain, &venice, local_bytes);
    check_resident("redis-server", &venice, local_bytes);
}

fn drive_memcached(start: Start) -> Outcome {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let server = start(&memcached::server(dir.path(), 512));
    let mut client = memcached::Client::connect(&memcached::socket(dir.path()));
    let all: Vec<u64> = (0..MEMCACHED_KEYS).collect();
    client.set_all(&all, 1);
    let order = shuffled(MEMCACHED_KEYS, 11);
    let rewritten = &order[..order.len() / 4];
    client.set_all(rewritten, 2);
    let mut generation = vec![1; all.len()];
    rewritten.iter().for_each(|key| generation[*key as usize] = 2);
    client.check_all(&order, |key| generation[key as usize]);
    // Memcached ends by a signal: through `venice run`, if that is in between.
    server.signal(Signal::TERM);
    let outcome = server.finish(PROGRAM_LIMIT);
    outcome.expect_code(0);
    outcome
}

#[test]
fn memcached_exceeds_local_memory() {
    if paged_mode_is_missing("memcached_exceeds_local_memory") {
        return;
    }
    let plain = drive_memcached(&plainly);
    let rack = Rack::shared(Port::Shm);
    let (venice, local_bytes) = under_venice(rack, &plain, drive_memcached);
    report("memcached", &plain, &venice, local_bytes);
    assert!(512 * MIB > local_bytes);
    check_resident("memcached", &venice, local_bytes);
}

#[test]
fn sqlite_database_in_memory() {
    if paged_mode_is_missing("sqlite_database_in_memory") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let script = dir.path().join("script.sql");
    fs::write(&script, include_str!("../../data/in_memory.sql")).expect("a file");
    let mut command = Command::new("sqlite3");
    command.args(["-batch", "-bail", ":memory:"]).arg(format!(".read {}", script.display()));
    compare(Rack::shared(Port::Shm), "sqlite3", &Program::new(command));
}
