//! Tests of the store's file and its log: opened, closed, killed and damaged.

use super::*;
use crate::store::Entry as Record;
use redb::{Database, TableDefinition};
use std::path::PathBuf;

const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");

fn put(key: &str, value: &str) -> StoreChange {
    StoreChange::put(key, value)
}

impl Ledger {
    fn apply(&mut self, changes: &[StoreChange]) -> Result<(), StoreError> {
        self.commit(&Transaction::of(changes.to_vec())).map(drop)
    }

    fn records(&self) -> Vec<(String, Vec<u8>)> {
        let entries = self.snapshot().entries;
        entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
    }
}

/// A directory for stores.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("store.redb")
    }

    fn log(&self) -> PathBuf {
        Log::path_of(&self.path())
    }

    fn open(&self) -> Result<Ledger, StoreError> {
        Ledger::open(&self.path())
    }

    /// Copies both files as they are now, as a killed process would leave them.
    fn copy_as_killed(&self, ledger: &Ledger) -> Self {
        let copy = Self::new();
        ledger.carrier.with_idle_tables(|| {
            std::fs::copy(self.log(), copy.log()).unwrap();
            std::fs::copy(self.path(), copy.path()).unwrap();
        });
        copy
    }
}

#[test]
fn records_outlive_process() {
    let place = Place::new();
    let path = place.0.path().join("deep/er/store.redb");
    let mut store = Ledger::open(&path).unwrap();
    store.apply(&[put("b", "2"), put("a", "1"), put("c", "3")]).unwrap();
    store.apply(&[put("a", "one"), StoreChange::remove("c")]).unwrap();
    drop(store);

    let records = Ledger::open(&path).unwrap().records();
    let expected = [("a", "one"), ("b", "2")].map(|(k, v)| (k.to_owned(), v.into()));
    assert_eq!(records, expected);
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600, "the file contains keys");
    assert!(!Log::path_of(&path).exists(), "a closed store has one file");
}

#[test]
fn second_owner_is_refused() {
    let place = Place::new();
    let path = place.path();
    let _first = Ledger::open(&path).unwrap();
    assert!(matches!(Ledger::open(&path), Err(StoreError::Locked { .. })));
}

#[test]
fn garbage_file_is_refused() {
    let place = Place::new();
    let path = place.path();
    std::fs::write(&path, vec![0x5a; 100_000]).unwrap();
    match Ledger::open(&path) {
        Err(StoreError::Corrupt { .. }) => {}
        other => panic!("{other:?}"),
    }
    std::fs::write(&path, b"short").unwrap();
    match Ledger::open(&path) {
        Err(StoreError::Corrupt { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn open_follows_no_link() {
    let directory = tempfile::tempdir().unwrap();
    let (path, others) = (directory.path().join("store"), directory.path().join("others"));
    std::fs::write(&others, b"").unwrap();
    std::os::unix::fs::symlink(&others, &path).unwrap();
    assert!(matches!(Ledger::open(&path), Err(StoreError::Io { .. })));
    assert_eq!(std::fs::metadata(&others).unwrap().len(), 0);
}

/// The database makes its file in three steps; a process may be killed after each of them.
#[test]
fn interrupted_creation_restarts() {
    let place = Place::new();
    let path = place.path();
    drop(Ledger::open(&path).unwrap());
    let whole = std::fs::read(&path).unwrap();
    let empty = vec![0; 1_060_864];
    let mut without_magic = empty.clone();
    without_magic[9..320].copy_from_slice(&whole[9..320]);
    for (step, left) in [Vec::new(), empty, without_magic].into_iter().enumerate() {
        std::fs::write(&path, &left).unwrap();
        let mut store = Ledger::open(&path).unwrap_or_else(|e| panic!("step {step}: {e}"));
        store.apply(&[put("a", "1")]).unwrap();
        drop(store);
        assert_eq!(Ledger::open(&path).unwrap().records().len(), 1, "step {step}");
    }
}

#[test]
fn used_file_is_never_recreated() {
    let place = Place::new();
    let path = place.path();
    drop(Ledger::open(&path).unwrap());
    let mut beheaded = std::fs::read(&path).unwrap();
    beheaded[..9].fill(0);
    let mut nearly_empty = vec![0; 1_060_864];
    *nearly_empty.last_mut().unwrap() = 1;
    for left in [beheaded, nearly_empty, vec![0; 4000]] {
        std::fs::write(&path, &left).unwrap();
        let error = Ledger::open(&path).unwrap_err();
        assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), left, "a refused file is left as it was");
    }
}

#[test]
fn unclosed_store_recovers_all_changes() {
    let place = Place::new();
    let mut store = place.open().unwrap();
    let mut count = 0;
    for round in 0..20 {
        for number in 0..round {
            store.apply(&[put(&format!("key{round}-{number}"), &"v".repeat(300))]).unwrap();
            count += 1;
        }
        // Some entries in the tables, some in the log.
        if round % 3 == 0 {
            store.carrier.carry_now(None).unwrap();
        }
        let left = place.copy_as_killed(&store);
        let recovered = left.open().unwrap();
        assert_eq!(recovered.records().len(), count, "round {round}");
        assert_eq!(recovered.snapshot(), store.snapshot());
        // Killed again, and once more after it was closed.
        assert_eq!(left.copy_as_killed(&recovered).open().unwrap().snapshot(), store.snapshot());
        drop(recovered);
        assert_eq!(left.open().unwrap().snapshot(), store.snapshot());
    }
}

/// More than the log takes, in one entry and in total.
#[test]
fn oversized_entries_go_to_tables() {
    let place = Place::new();
    let mut store = place.open().unwrap();
    let sizes = [300_000, 100_000, 200_000, 10, 150_000, 150_000, 600_000, 20, 260_000];
    for (number, size) in sizes.into_iter().enumerate() {
        store.apply(&[put(&format!("key{number}"), &"v".repeat(size))]).unwrap();
        let left = place.copy_as_killed(&store).open().unwrap();
        assert_eq!(left.snapshot(), store.snapshot(), "after {number}");
    }
    for number in 0..2_000 {
        let value = format!("{number} {}", "v".repeat(400));
        store.apply(&[put(&format!("key{}", number % 10), &value)]).unwrap();
    }
    assert_eq!(place.copy_as_killed(&store).open().unwrap().snapshot(), store.snapshot());
}

/// On a failing disk, an unacknowledged change is absent, and later ones are present.
#[test]
fn failing_log_falls_back_to_tables() {
    let place = Place::new();
    let mut store = place.open().unwrap();
    store.apply(&[put("a", "1")]).unwrap();
    store.log.as_mut().unwrap().fail_writes();
    store.apply(&[put("b", "2")]).unwrap();
    store.apply(&[put("a", "3")]).unwrap();
    let left = place.copy_as_killed(&store).open().unwrap();
    assert_eq!(left.snapshot(), store.snapshot());
    assert_eq!(left.records().len(), 2);
}

fn refused(place: &Place) -> String {
    match place.open() {
        Err(error @ StoreError::Corrupt { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_or_foreign_log_is_refused() {
    let (place, other) = (Place::new(), Place::new());
    let mut store = place.open().unwrap();
    store.apply(&[put("a", "1")]).unwrap();
    let left = place.copy_as_killed(&store);
    std::fs::remove_file(left.log()).unwrap();
    assert!(refused(&left).contains("missing"));
    let others = other.open().unwrap();
    std::fs::copy(other.log(), left.log()).unwrap();
    assert!(refused(&left).contains("another store"));
    drop(others);
    std::fs::write(left.log(), b"VeniceWL").unwrap();
    assert!(refused(&left).contains("cut short"));
    std::fs::copy(place.log(), left.log()).unwrap();
    assert_eq!(left.open().unwrap().records().len(), 1);
}

/// A store that was removed for a new start leaves a log behind.
#[test]
fn new_store_replaces_old_log() {
    let place = Place::new();
    let mut store = place.open().unwrap();
    store.apply(&[put("a", "1")]).unwrap();
    let left = place.copy_as_killed(&store);
    std::fs::remove_file(left.path()).unwrap();
    let mut anew = left.open().unwrap();
    assert_eq!(anew.snapshot(), Snapshot::default());
    anew.apply(&[put("b", "2")]).unwrap();
    assert_eq!(left.copy_as_killed(&anew).open().unwrap().records().len(), 1);
}

/// Tables older than the start of the log, as from a backup.
#[test]
fn older_tables_are_refused() {
    let place = Place::new();
    let mut store = place.open().unwrap();
    store.apply(&[put("a", "1")]).unwrap();
    let old = place.copy_as_killed(&store);
    for number in 0..5000 {
        store.apply(&[put("a", &format!("{number} {}", "x".repeat(200)))]).unwrap();
    }
    let left = place.copy_as_killed(&store);
    std::fs::copy(old.path(), left.path()).unwrap();
    assert!(refused(&left).contains("missing"));
}

/// Any damage results in an error or the right records, never in a panic or other records.
#[test]
fn damaged_file_is_refused_or_correct() {
    let place = Place::new();
    let path = place.path();
    let mut store = Ledger::open(&path).unwrap();
    for number in 0..200 {
        store.apply(&[put(&format!("key{number:03}"), &"v".repeat(100))]).unwrap();
    }
    let expected = store.snapshot();
    drop(store);
    let sound = std::fs::read(&path).unwrap();

    let mut damages = Vec::new();
    for share in 1..10 {
        damages.push(sound[..sound.len() * share / 10].to_vec());
    }
    let used = sound.iter().rposition(|byte| *byte != 0).unwrap();
    for place in (0..used).step_by(used / 40) {
        let mut damaged = sound.clone();
        damaged[place..used.min(place + 64)].fill(0xa5);
        damages.push(damaged);
    }
    for place in 0..320 {
        let mut damaged = sound.clone();
        damaged[place] ^= 0x11;
        damages.push(damaged);
    }
    let damaged_path = place.0.path().join("damaged.redb");
    for (number, damaged) in damages.into_iter().enumerate() {
        // A new file each time: the lock of a refused one may still be held.
        let _ = std::fs::remove_file(&damaged_path);
        let _ = std::fs::remove_file(Log::path_of(&damaged_path));
        std::fs::write(&damaged_path, damaged).unwrap();
        match Ledger::open(&damaged_path).map(|store| store.snapshot()) {
            Ok(records) => assert_eq!(records, expected, "damage {number}"),
            Err(error) => assert!(error.to_string().contains("damaged.redb"), "{error}"),
        }
    }
}

#[test]
fn unknown_format_is_refused() {
    let place = Place::new();
    let path = place.path();
    drop(place.open().unwrap());
    let database = Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(META).unwrap().insert("format", 4).unwrap();
    write.commit().unwrap();
    drop(database);
    assert!(matches!(Ledger::open(&path), Err(StoreError::Format { .. })));
}

#[test]
fn first_format_is_upgraded() {
    let place = Place::new();
    let path = place.path();
    let database = Database::create(&path).unwrap();
    let write = database.begin_write().unwrap();
    write.open_table(RECORDS).unwrap().insert("a", b"1".as_slice()).unwrap();
    write.open_table(META).unwrap().insert("format", 1).unwrap();
    write.commit().unwrap();
    drop(database);
    let store = Ledger::open(&path).unwrap();
    let there = Record { key: "a".into(), value: b"1".to_vec(), changed_at: Revision(1) };
    let all = Snapshot { revision: Revision(1), entries: vec![there] };
    assert_eq!(store.snapshot(), all);
}

#[test]
fn leased_records_end_with_process() {
    let place = Place::new();
    let path = place.path();
    let mut store = Ledger::open(&path).unwrap();
    store.apply(&[put("stays", "1"), StoreChange::put_leased("goes", "1", Lease(7))]).unwrap();
    // Without its lease it stays as well.
    store.apply(&[StoreChange::put_leased("put anew", "1", Lease(7))]).unwrap();
    store.apply(&[put("put anew", "2")]).unwrap();
    drop(store);
    let records = Ledger::open(&path).unwrap().records();
    let keys: Vec<_> = records.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["put anew", "stays"]);
}
