//! A store whose owner is killed at any instant keeps all acknowledged changes.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use venice_store::{RedbStore, Store as _, StoreChange, Transaction};
use venice_testkit::random::SplitMix64;

const STORE: &str = "VENICE_TEST_KILLED_STORE";
const KILLS: u32 = 300;
/// Time limit of the kills: a slow machine does fewer.
const ENOUGH: Duration = Duration::from_secs(20);
/// Number of kills after which a new store begins, to interrupt creations too.
const KILLS_PER_STORE: u32 = 6;
const RECORDS_PER_BATCH: u32 = 5;

/// Child process: applies numbered batches for ever and reports each.
#[test]
fn owner() {
    let Some(path) = std::env::var_os(STORE) else { return };
    // Standard error, because the test harness writes to standard output.
    let mut told = std::io::stderr();
    told.write_all(b"start\n").unwrap();
    let store = RedbStore::open(Path::new(&path)).unwrap();
    let runtime = runtime();
    let first = batches_in(&store).unwrap();
    for batch in first.. {
        runtime.block_on(store.commit(Transaction::of(changes(batch)))).unwrap();
        told.write_all(format!("{batch}\n").as_bytes()).unwrap();
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().build().unwrap()
}

/// Returns the changes of a batch: every record has the number of the last batch that wrote it; one
/// only grows and shrinks.
fn changes(batch: u32) -> Vec<StoreChange> {
    let mut changes = Vec::new();
    for record in 0..RECORDS_PER_BATCH {
        let value = format!("{batch} {}", "x".repeat(100));
        changes.push(StoreChange::put(format!("r{record}"), value));
    }
    let bulk = (!batch.is_multiple_of(3)).then(|| vec![7; (batch as usize % 40) * 5000]);
    changes.push(StoreChange { key: "bulk".to_owned(), value: bulk, lease: None });
    changes
}

/// Returns the number of batches in the store; an error unless each is complete.
fn batches_in(store: &RedbStore) -> Result<u32, String> {
    let records = runtime().block_on(store.load()).map_err(|error| error.to_string())?.entries;
    let Some(first) = records.iter().find(|entry| entry.key == "r0") else {
        return if records.is_empty() { Ok(0) } else { Err("half a batch".to_owned()) };
    };
    let number = first.value.split(|byte| *byte == b' ').next().unwrap_or_default();
    let number = std::str::from_utf8(number).map_err(|error| error.to_string())?;
    let last: u32 = number.parse().map_err(|_| format!("{number:?} is no number"))?;
    for change in changes(last) {
        let found = records.iter().find(|entry| entry.key == change.key).map(|entry| &entry.value);
        if found != change.value.as_ref() {
            return Err(format!("batch {last} is in it in part"));
        }
    }
    Ok(last + 1)
}

#[test]
fn killed_owner_loses_no_acknowledged_change() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("store.redb");
    let started = Instant::now();
    let mut random = SplitMix64(0);
    let mut acknowledged = 0;
    for kill in 0..KILLS {
        if started.elapsed() > ENOUGH {
            break;
        }
        if kill % KILLS_PER_STORE == 0 {
            let _ = std::fs::remove_file(&path);
            acknowledged = 0;
        }
        // The creation takes a few milliseconds.
        let longest_us = if kill % KILLS_PER_STORE == 0 { 3_000 } else { 12_000 };
        let after = Duration::from_micros(random.below(longest_us));
        acknowledged = acknowledged.max(kill_owner(&path, Kill::After(after)));
        // Usually the next owner opens it, and may be killed during the repair.
        if kill % 2 == 1 {
            let store = RedbStore::open(&path).unwrap_or_else(|e| panic!("kill {kill}: {e}"));
            let found = batches_in(&store).unwrap_or_else(|e| panic!("kill {kill}: {e}"));
            assert!(found >= acknowledged, "kill {kill}: {found} of {acknowledged} batches");
            // Restores both files after the drop, as if this process were killed as well.
            if kill % 4 == 1 {
                let both = [path.clone(), log_of(&path)];
                let copies = both.each_ref().map(|file| std::fs::read(file).unwrap());
                drop(store);
                both.iter()
                    .zip(copies)
                    .for_each(|(file, copy)| std::fs::write(file, copy).unwrap());
            }
        }
    }
    // One owner writes something, however slow the machine is.
    let acknowledged = acknowledged.max(kill_owner(&path, Kill::AtBatch(acknowledged + 10)));
    let found = batches_in(&RedbStore::open(&path).unwrap()).unwrap();
    assert!(found >= acknowledged && acknowledged > 10, "{found} of {acknowledged} batches");
}

/// Returns the path of the log beside a store.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push(".wal");
    log.into()
}

/// Moment of a kill.
enum Kill {
    /// This long after the start.
    After(Duration),
    /// Once the owner has acknowledged this batch.
    AtBatch(u32),
}

/// Starts an owner, kills it, and returns the number of batches it acknowledged.
fn kill_owner(path: &Path, when: Kill) -> u32 {
    let mut child: Child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed_store::owner", "--nocapture"])
        .env(STORE, path)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let start = lines.next().unwrap().unwrap();
    assert_eq!(start, "start");
    let batch = |line: std::io::Result<String>| {
        let line = line.unwrap();
        line.parse::<u32>().unwrap_or_else(|_| panic!("unexpected line of the owner: {line}"))
    };
    let mut acknowledged = 0;
    match when {
        Kill::After(after) => std::thread::sleep(after),
        Kill::AtBatch(last) => {
            while acknowledged <= last {
                acknowledged = batch(lines.next().expect("the owner runs for ever")) + 1;
            }
        }
    }
    child.kill().unwrap();
    child.wait().unwrap();
    lines.map(batch).last().map_or(acknowledged, |last| last + 1)
}
