//! The file itself, used from one thread at a time.

use super::failed::Failed;
use super::file_guard;
use crate::error::StoreError;
use crate::store::{
    Condition, Entry, Lease, Outcome, Revision, Snapshot, Standing, StoreChange, Transaction,
};
use crate::watch::Batch;
use redb::{Database, ReadableDatabase, ReadableTable, Table, TableDefinition, WriteTransaction};
use std::path::{Path, PathBuf};

const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");
/// At which revision each record was changed last.
const CHANGED_AT: TableDefinition<&str, u64> = TableDefinition::new("changed-at");
/// The leases of records that have one.
const LEASES: TableDefinition<&str, i64> = TableDefinition::new("leases");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const FORMAT_KEY: &str = "format";
const REVISION_KEY: &str = "revision";
/// 1 had records alone.
const FORMAT: u64 = 2;

/// The file, open.
#[derive(Debug)]
pub(super) struct RedbDatabase {
    path: PathBuf,
    database: Database,
}

/// The tables within a transaction.
struct Tables<'a> {
    records: Table<'a, &'static str, &'static [u8]>,
    changed_at: Table<'a, &'static str, u64>,
    leases: Table<'a, &'static str, i64>,
    meta: Table<'a, &'static str, u64>,
}

impl RedbDatabase {
    /// Opens the file; makes it, and the directory it lies in, where there is none. Records with a
    /// lease are gone: whoever kept it alive had the file open.
    pub(super) fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = Failed(path);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(|error| failed.io(error))?;
        }
        let file = file_guard::open(path, &failed)?;
        let database = Database::builder().create_file(file).map_err(|error| failed.open(error))?;
        let opened = Self { path: path.to_owned(), database };
        opened.begin()?;
        Ok(opened)
    }

    /// Makes the tables in a new file, brings an older one up to date, and refuses what it does not
    /// know.
    fn begin(&self) -> Result<(), StoreError> {
        let found = self.write(|tables| {
            let found = tables.meta.get(FORMAT_KEY)?.map_or(FORMAT, |value| value.value());
            if found > FORMAT {
                return Ok(found);
            }
            tables.meta.insert(FORMAT_KEY, FORMAT)?;
            if found == 1 {
                for entry in tables.records.iter()? {
                    tables.changed_at.insert(entry?.0.value(), 1)?;
                }
                tables.meta.insert(REVISION_KEY, 1)?;
            }
            tables.drop_leased(|_| true)?;
            Ok(FORMAT)
        })?;
        if found != FORMAT {
            let (place, found) = (self.path.display().to_string(), found.to_string());
            return Err(StoreError::Format { place, found, understood: FORMAT });
        }
        Ok(())
    }

    pub(super) fn load(&self) -> Result<Snapshot, StoreError> {
        let failed = Failed(&self.path);
        self.read().map_err(|error| failed.any(error))
    }

    fn read(&self) -> Result<Snapshot, redb::Error> {
        let read = self.database.begin_read()?;
        let (records, changed_at) = (read.open_table(RECORDS)?, read.open_table(CHANGED_AT)?);
        let meta = read.open_table(META)?;
        let revision = meta.get(REVISION_KEY)?.map_or(0, |value| value.value());
        let entry =
            |entry: Result<(redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, &[u8]>), _>| {
                let (key, value) = entry?;
                let at = changed_at.get(key.value())?.map_or(revision, |value| value.value());
                let (key, value) = (key.value().to_owned(), value.value().to_vec());
                Ok(Entry { key, value, changed_at: Revision(at) })
            };
        let entries = records.iter()?.map(entry).collect::<Result<_, redb::Error>>()?;
        Ok(Snapshot { revision: Revision(revision), entries })
    }

    /// What became of it, and what it changed.
    pub(super) fn commit(
        &self,
        transaction: &Transaction,
    ) -> Result<(Outcome, Vec<StoreChange>), StoreError> {
        transaction.check_length()?;
        self.write(|tables| {
            if tables.all_hold(&transaction.conditions)? {
                let Batch { revision, changes } = tables.apply(transaction.last_changes())?;
                return Ok((Outcome::Committed(revision), changes));
            }
            let conditions = transaction.conditions.iter();
            let found = conditions.filter_map(|of| tables.entry(&of.key).transpose());
            Ok((Outcome::Conflict(found.collect::<Result<_, _>>()?), Vec::new()))
        })
    }

    /// Removes the records whose leases are over.
    pub(super) fn drop_leased(&self, is_over: impl Fn(Lease) -> bool) -> Result<Batch, StoreError> {
        self.write(|tables| tables.drop_leased(is_over))
    }

    /// A transaction of the file's: durable once this returns.
    fn write<T>(
        &self,
        work: impl FnOnce(&mut Tables<'_>) -> Result<T, redb::Error>,
    ) -> Result<T, StoreError> {
        let failed = Failed(&self.path);
        let write = self.database.begin_write().map_err(|error| failed.any(error))?;
        let result = Tables::open(&write).and_then(|mut tables| work(&mut tables));
        let result = result.map_err(|error| failed.any(error))?;
        write.commit().map_err(|error| failed.any(error))?;
        Ok(result)
    }
}

impl<'a> Tables<'a> {
    fn open(write: &'a WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            records: write.open_table(RECORDS)?,
            changed_at: write.open_table(CHANGED_AT)?,
            leases: write.open_table(LEASES)?,
            meta: write.open_table(META)?,
        })
    }

    fn entry(&self, key: &str) -> Result<Option<Entry>, redb::Error> {
        let Some(value) = self.records.get(key)? else { return Ok(None) };
        let at = self.changed_at.get(key)?.map_or(0, |value| value.value());
        let (key, value) = (key.to_owned(), value.value().to_vec());
        Ok(Some(Entry { key, value, changed_at: Revision(at) }))
    }

    fn all_hold(&self, conditions: &[Condition]) -> Result<bool, redb::Error> {
        for condition in conditions {
            let changed_at = self.entry(&condition.key)?.map(|entry| entry.changed_at);
            let holds = match condition.is {
                Standing::Absent => changed_at.is_none(),
                Standing::AsAt(at) => changed_at == Some(at),
                Standing::EndsWith(Lease(wanted)) => {
                    let lease = self.leases.get(condition.key.as_str())?;
                    changed_at.is_some() && lease.map(|lease| lease.value()) == Some(wanted)
                }
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Makes the changes: those of them that change something, and the revision with them.
    fn apply(&mut self, changes: Vec<&StoreChange>) -> Result<Batch, redb::Error> {
        let before = self.meta.get(REVISION_KEY)?.map_or(0, |value| value.value());
        let mut made = Vec::new();
        for change in changes {
            if self.apply_one(change, before + 1)? {
                made.push(StoreChange { lease: None, ..change.clone() });
            }
        }
        let revision = before + u64::from(!made.is_empty());
        self.meta.insert(REVISION_KEY, revision)?;
        Ok(Batch { revision: Revision(revision), changes: made })
    }

    /// Removes the records whose leases are over.
    fn drop_leased(&mut self, is_over: impl Fn(Lease) -> bool) -> Result<Batch, redb::Error> {
        let mut changes = Vec::new();
        for entry in self.leases.iter()? {
            let (key, lease) = entry?;
            if is_over(Lease(lease.value())) {
                changes.push(StoreChange::remove(key.value()));
            }
        }
        self.apply(changes.iter().collect())
    }

    /// Does it change anything?
    fn apply_one(&mut self, change: &StoreChange, revision: u64) -> Result<bool, redb::Error> {
        let key = change.key.as_str();
        match change.lease {
            Some(lease) => drop(self.leases.insert(key, lease.0)?),
            None => drop(self.leases.remove(key)?),
        }
        let Some(value) = &change.value else {
            self.changed_at.remove(key)?;
            return Ok(self.records.remove(key)?.is_some());
        };
        self.records.insert(key, value.as_slice())?;
        self.changed_at.insert(key, revision)?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> StoreChange {
        StoreChange::put(key, value)
    }

    impl RedbDatabase {
        fn apply(&self, changes: &[StoreChange]) -> Result<(), StoreError> {
            self.commit(&Transaction::of(changes.to_vec())).map(drop)
        }

        fn records(&self) -> Vec<(String, Vec<u8>)> {
            let entries = self.load().unwrap().entries;
            entries.into_iter().map(|entry| (entry.key, entry.value)).collect()
        }
    }

    #[test]
    fn records_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/store.redb");
        let store = RedbDatabase::open(&path).unwrap();
        store.apply(&[put("b", "2"), put("a", "1"), put("c", "3")]).unwrap();
        store.apply(&[put("a", "one"), StoreChange::remove("c")]).unwrap();
        drop(store);

        let records = RedbDatabase::open(&path).unwrap().records();
        let expected = [("a", "one"), ("b", "2")].map(|(k, v)| (k.to_owned(), v.into()));
        assert_eq!(records, expected);
        use std::os::unix::fs::PermissionsExt;
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "it holds keys");
    }

    #[test]
    fn a_second_owner_is_told_who_holds_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let _first = RedbDatabase::open(&path).unwrap();
        assert!(matches!(RedbDatabase::open(&path), Err(StoreError::Locked { .. })));
    }

    #[test]
    fn garbage_is_called_garbage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        std::fs::write(&path, vec![0x5a; 100_000]).unwrap();
        match RedbDatabase::open(&path) {
            Err(StoreError::Corrupt { .. }) => {}
            other => panic!("{other:?}"),
        }
        std::fs::write(&path, b"short").unwrap();
        match RedbDatabase::open(&path) {
            Err(StoreError::Corrupt { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_link_to_something_else_is_no_store() {
        let directory = tempfile::tempdir().unwrap();
        let (path, others) = (directory.path().join("store"), directory.path().join("others"));
        std::fs::write(&others, b"").unwrap();
        std::os::unix::fs::symlink(&others, &path).unwrap();
        assert!(matches!(RedbDatabase::open(&path), Err(StoreError::Io { .. })));
        assert_eq!(std::fs::metadata(&others).unwrap().len(), 0);
    }

    /// The database makes its file in three steps; a process may be killed after each of them.
    #[test]
    fn a_creation_cut_off_is_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        drop(RedbDatabase::open(&path).unwrap());
        let whole = std::fs::read(&path).unwrap();
        let empty = vec![0; 1_060_864];
        let mut without_magic = empty.clone();
        without_magic[9..320].copy_from_slice(&whole[9..320]);
        for (step, left) in [Vec::new(), empty, without_magic].into_iter().enumerate() {
            std::fs::write(&path, &left).unwrap();
            let store = RedbDatabase::open(&path).unwrap_or_else(|e| panic!("step {step}: {e}"));
            store.apply(&[put("a", "1")]).unwrap();
            drop(store);
            assert_eq!(RedbDatabase::open(&path).unwrap().records().len(), 1, "step {step}");
        }
    }

    #[test]
    fn a_file_with_anything_in_it_is_never_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        drop(RedbDatabase::open(&path).unwrap());
        let mut beheaded = std::fs::read(&path).unwrap();
        beheaded[..9].fill(0);
        let mut nearly_empty = vec![0; 1_060_864];
        *nearly_empty.last_mut().unwrap() = 1;
        for left in [beheaded, nearly_empty, vec![0; 4000]] {
            std::fs::write(&path, &left).unwrap();
            let error = RedbDatabase::open(&path).unwrap_err();
            assert!(matches!(error, StoreError::Corrupt { .. }), "{error}");
            assert_eq!(std::fs::read(&path).unwrap(), left, "a refused file is left as it was");
        }
    }

    /// What a killed process leaves behind: the file as it is at that moment.
    #[test]
    fn a_store_never_closed_has_all_that_was_applied() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let copy = directory.path().join("copy.redb");
        let store = RedbDatabase::open(&path).unwrap();
        let mut count = 0;
        for round in 0..20 {
            for number in 0..round {
                store.apply(&[put(&format!("key{round}-{number}"), &"v".repeat(300))]).unwrap();
                count += 1;
            }
            std::fs::copy(&path, &copy).unwrap();
            let recovered = RedbDatabase::open(&copy).unwrap();
            assert_eq!(recovered.records().len(), count, "round {round}");
            assert_eq!(recovered.load().unwrap(), store.load().unwrap());
            drop(recovered);
            // And once more, now that it was repaired and closed.
            assert_eq!(RedbDatabase::open(&copy).unwrap().records().len(), count);
        }
    }

    /// Whatever the damage: an error or the records as they were, never a panic, never others.
    #[test]
    fn a_damaged_file_is_refused_or_read_right() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let store = RedbDatabase::open(&path).unwrap();
        for number in 0..200 {
            store.apply(&[put(&format!("key{number:03}"), &"v".repeat(100))]).unwrap();
        }
        let expected = store.load().unwrap();
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
        let damaged_path = directory.path().join("damaged.redb");
        for (number, damaged) in damages.into_iter().enumerate() {
            // A new file each time: of one that was refused the lock may be kept.
            let _ = std::fs::remove_file(&damaged_path);
            std::fs::write(&damaged_path, damaged).unwrap();
            match RedbDatabase::open(&damaged_path).and_then(|store| store.load()) {
                Ok(records) => assert_eq!(records, expected, "damage {number}"),
                Err(error) => assert!(error.to_string().contains("damaged.redb"), "{error}"),
            }
        }
    }

    #[test]
    fn another_format_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let store = RedbDatabase::open(&path).unwrap();
        let write = store.database.begin_write().unwrap();
        write.open_table(META).unwrap().insert(FORMAT_KEY, FORMAT + 1).unwrap();
        write.commit().unwrap();
        drop(store);
        assert!(matches!(RedbDatabase::open(&path), Err(StoreError::Format { .. })));
    }

    #[test]
    fn a_file_of_the_first_format_is_brought_up_to_date() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let database = Database::create(&path).unwrap();
        let write = database.begin_write().unwrap();
        write.open_table(RECORDS).unwrap().insert("a", b"1".as_slice()).unwrap();
        write.open_table(META).unwrap().insert(FORMAT_KEY, 1).unwrap();
        write.commit().unwrap();
        drop(database);
        let store = RedbDatabase::open(&path).unwrap();
        let there = Entry { key: "a".into(), value: b"1".to_vec(), changed_at: Revision(1) };
        let all = Snapshot { revision: Revision(1), entries: vec![there] };
        assert_eq!(store.load().unwrap(), all);
    }

    #[test]
    fn records_with_a_lease_end_with_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let store = RedbDatabase::open(&path).unwrap();
        store.apply(&[put("stays", "1"), StoreChange::put_leased("goes", "1", Lease(7))]).unwrap();
        // Without its lease it stays as well.
        store.apply(&[StoreChange::put_leased("put anew", "1", Lease(7))]).unwrap();
        store.apply(&[put("put anew", "2")]).unwrap();
        drop(store);
        let records = RedbDatabase::open(&path).unwrap().records();
        let keys: Vec<_> = records.iter().map(|(key, _)| key.as_str()).collect();
        assert_eq!(keys, ["put anew", "stays"]);
    }
}
