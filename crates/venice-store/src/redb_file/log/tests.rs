//! Tests of logs written, cut off, damaged and read again.

use super::*;
use crate::store::StoreChange;

impl Log {
    /// Makes later writes fail, as on a failing disk.
    pub(in crate::redb_file) fn fail_writes(&mut self) {
        self.file = File::open(&self.path).unwrap();
    }
}

fn entry(revision: u64, len_bytes: usize) -> Entry {
    let value = vec![revision as u8; len_bytes];
    Entry { revision: Revision(revision), changes: vec![StoreChange::put("key", value)] }
}

/// Makes a new log; appends the entries while the tables have everything up to the one before.
fn log_of(path: &Path, entries: &[Entry]) -> Log {
    let mut log = Log::create(path, 7).unwrap();
    for entry in entries {
        let in_tables = Revision(entry.revision.0 - 1);
        assert_eq!(log.append(entry, in_tables).unwrap(), Appended::Durable);
    }
    log
}

fn entries_in(path: &Path, after: u64) -> Result<Vec<Entry>, StoreError> {
    Log::open(path, 7, Revision(after)).map(|(_, entries)| entries)
}

/// Returns the offset of the entry with this revision.
fn place_of(bytes: &[u8], revision: u64) -> usize {
    let is_there = |at: &usize| {
        let found = Entry::decode(7, &bytes[*at..], Revision(0));
        found.is_some_and(|(entry, _)| entry.revision == Revision(revision))
    };
    (HALVES_AT..FILE_BYTES).step_by(ALIGN).find(is_there).unwrap()
}

#[test]
fn log_returns_newer_entries_in_order() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    // Through both halves, several times.
    let all: Vec<_> = (1..=300).map(|revision| entry(revision, 10_000)).collect();
    drop(log_of(&path, &all));
    assert_eq!(entries_in(&path, 300).unwrap(), []);
    assert_eq!(entries_in(&path, 290).unwrap(), all[290..]);
    assert!(
        matches!(entries_in(&path, 100), Err(StoreError::Corrupt { .. })),
        "the tables have those"
    );
    assert_eq!(std::fs::metadata(&path).unwrap().len(), FILE_BYTES as u64, "the log never grows");
}

#[test]
fn half_waits_for_tables() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let mut log = Log::create(&path, 7).unwrap();
    let mut revision = 0;
    let tables = Revision(3);
    while log.append(&entry(revision + 1, 10_000), tables).unwrap() == Appended::Durable {
        revision += 1;
    }
    assert!(revision > 40, "both halves are in use");
    let kept = entries_in(&path, tables.0).unwrap();
    assert_eq!(kept.len() as u64, revision - tables.0);
    // With the tables up to date there is room again.
    let next = entry(revision + 1, 10_000);
    assert_eq!(log.append(&next, Revision(revision)).unwrap(), Appended::Durable);
    assert_eq!(entries_in(&path, revision).unwrap(), [next]);
    // There is never room for one larger than a half.
    let large = entry(revision + 2, HALF_BYTES);
    assert_eq!(log.append(&large, Revision(revision + 1)).unwrap(), Appended::NoRoom);
}

/// The last entry is unacknowledged, however much of it reached the disk; the others are whole.
#[test]
fn torn_last_entry_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let all: Vec<_> = (1..=5).map(|revision| entry(revision, 100)).collect();
    drop(log_of(&path, &all));
    let whole = std::fs::read(&path).unwrap();
    let last = place_of(&whole, 5);
    for cut in last..last + 120 {
        let mut torn = whole.clone();
        torn[cut..].fill(0);
        std::fs::write(&path, torn).unwrap();
        assert_eq!(entries_in(&path, 0).unwrap(), all[..4], "cut at {cut}");
    }
}

#[test]
fn damage_before_sound_entry_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let all: Vec<_> = (1..=60).map(|revision| entry(revision, 10_000)).collect();
    drop(log_of(&path, &all));
    let whole = std::fs::read(&path).unwrap();
    for revision in [41, 50, 52, 59] {
        let mut damaged = whole.clone();
        damaged[place_of(&whole, revision) + 30] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        let error = entries_in(&path, 40).unwrap_err();
        assert!(error.to_string().contains(&format!("change {revision} is missing")), "{error}");
        // Entries in the tables are not read.
        assert_eq!(entries_in(&path, revision).unwrap(), all[revision as usize..]);
    }
}
