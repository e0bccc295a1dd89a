//! A store in one redb file.

use super::failed::Failed;
use super::{Store, StoreChange, StoreError, file_guard};
use redb::{Database, ReadableDatabase, ReadableTable, TableDefinition};
use std::path::{Path, PathBuf};

const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const FORMAT_KEY: &str = "format";
const FORMAT: u64 = 1;

/// A [`Store`] in one file.
#[derive(Debug)]
pub struct RedbStore {
    path: PathBuf,
    database: Database,
}

impl RedbStore {
    /// Opens the store at `path`; makes it, and the directory it lies in, where there is none.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Corrupt`], [`StoreError::Format`], [`StoreError::Io`].
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let failed = Failed(path);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(|error| failed.io(error))?;
        }
        let file = file_guard::open(path, &failed)?;
        let database = Database::builder().create_file(file).map_err(|error| failed.open(error))?;
        let store = Self { path: path.to_owned(), database };
        store.check_format()?;
        Ok(store)
    }

    /// Makes the tables in a new file, and refuses a file of another format.
    fn check_format(&self) -> Result<(), StoreError> {
        let failed = Failed(&self.path);
        let write = self.database.begin_write().map_err(|error| failed.any(error))?;
        write.open_table(RECORDS).map_err(|error| failed.any(error))?;
        let found = {
            let mut meta = write.open_table(META).map_err(|error| failed.any(error))?;
            let found = meta.get(FORMAT_KEY).map_err(|error| failed.any(error))?;
            let found = found.map(|value| value.value());
            if found.is_none() {
                meta.insert(FORMAT_KEY, FORMAT).map_err(|error| failed.any(error))?;
            }
            found.unwrap_or(FORMAT)
        };
        write.commit().map_err(|error| failed.any(error))?;
        if found != FORMAT {
            return Err(StoreError::Format { path: self.path.clone(), found, understood: FORMAT });
        }
        Ok(())
    }
}

impl Store for RedbStore {
    fn load(&self) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let failed = Failed(&self.path);
        let read = self.database.begin_read().map_err(|error| failed.any(error))?;
        let records = read.open_table(RECORDS).map_err(|error| failed.any(error))?;
        let entries = records.iter().map_err(|error| failed.any(error))?;
        entries
            .map(|entry| {
                let (key, value) = entry.map_err(|error| failed.any(error))?;
                Ok((key.value().to_owned(), value.value().to_vec()))
            })
            .collect()
    }

    fn apply(&mut self, changes: &[StoreChange]) -> Result<(), StoreError> {
        let failed = Failed(&self.path);
        let write = self.database.begin_write().map_err(|error| failed.any(error))?;
        {
            let mut records = write.open_table(RECORDS).map_err(|error| failed.any(error))?;
            for change in changes {
                match &change.value {
                    Some(value) => records.insert(change.key.as_str(), value.as_slice()),
                    None => records.remove(change.key.as_str()),
                }
                .map_err(|error| failed.any(error))?;
            }
        }
        write.commit().map_err(|error| failed.any(error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(key: &str, value: &str) -> StoreChange {
        StoreChange { key: key.to_owned(), value: Some(value.as_bytes().to_vec()) }
    }

    #[test]
    fn records_outlive_the_process() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/store.redb");
        let mut store = RedbStore::open(&path).unwrap();
        store.apply(&[put("b", "2"), put("a", "1"), put("c", "3")]).unwrap();
        store.apply(&[put("a", "one"), StoreChange { key: "c".into(), value: None }]).unwrap();
        drop(store);

        let records = RedbStore::open(&path).unwrap().load().unwrap();
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
        let _first = RedbStore::open(&path).unwrap();
        assert!(matches!(RedbStore::open(&path), Err(StoreError::Locked { .. })));
    }

    #[test]
    fn garbage_is_called_garbage() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        std::fs::write(&path, vec![0x5a; 100_000]).unwrap();
        match RedbStore::open(&path) {
            Err(StoreError::Corrupt { .. }) => {}
            other => panic!("{other:?}"),
        }
        std::fs::write(&path, b"short").unwrap();
        match RedbStore::open(&path) {
            Err(StoreError::Corrupt { .. }) => {}
            other => panic!("{other:?}"),
        }
    }

    /// The database makes its file in three steps; a process may be killed after each of them.
    #[test]
    fn a_creation_cut_off_is_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        drop(RedbStore::open(&path).unwrap());
        let whole = std::fs::read(&path).unwrap();
        let empty = vec![0; 1_060_864];
        let mut without_magic = empty.clone();
        without_magic[9..320].copy_from_slice(&whole[9..320]);
        for (step, left) in [Vec::new(), empty, without_magic].into_iter().enumerate() {
            std::fs::write(&path, &left).unwrap();
            let mut store = RedbStore::open(&path).unwrap_or_else(|e| panic!("step {step}: {e}"));
            store.apply(&[put("a", "1")]).unwrap();
            drop(store);
            assert_eq!(RedbStore::open(&path).unwrap().load().unwrap().len(), 1, "step {step}");
        }
    }

    #[test]
    fn a_file_with_anything_in_it_is_never_begun_anew() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        drop(RedbStore::open(&path).unwrap());
        let mut beheaded = std::fs::read(&path).unwrap();
        beheaded[..9].fill(0);
        let mut nearly_empty = vec![0; 1_060_864];
        *nearly_empty.last_mut().unwrap() = 1;
        for left in [beheaded, nearly_empty, vec![0; 4000]] {
            std::fs::write(&path, &left).unwrap();
            let error = RedbStore::open(&path).unwrap_err();
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
        let mut store = RedbStore::open(&path).unwrap();
        let mut count = 0;
        for round in 0..20 {
            for number in 0..round {
                store.apply(&[put(&format!("key{round}-{number}"), &"v".repeat(300))]).unwrap();
                count += 1;
            }
            std::fs::copy(&path, &copy).unwrap();
            let recovered = RedbStore::open(&copy).unwrap();
            assert_eq!(recovered.load().unwrap().len(), count, "round {round}");
            assert_eq!(recovered.load().unwrap(), store.load().unwrap());
            drop(recovered);
            // And once more, now that it was repaired and closed.
            assert_eq!(RedbStore::open(&copy).unwrap().load().unwrap().len(), count);
        }
    }

    /// Whatever the damage: an error or the records as they were, never a panic, never others.
    #[test]
    fn a_damaged_file_is_refused_or_read_right() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let mut store = RedbStore::open(&path).unwrap();
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
            match RedbStore::open(&damaged_path).and_then(|store| store.load()) {
                Ok(records) => assert_eq!(records, expected, "damage {number}"),
                Err(error) => assert!(error.to_string().contains("damaged.redb"), "{error}"),
            }
        }
    }

    #[test]
    fn another_format_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("store.redb");
        let store = RedbStore::open(&path).unwrap();
        let write = store.database.begin_write().unwrap();
        write.open_table(META).unwrap().insert(FORMAT_KEY, FORMAT + 1).unwrap();
        write.commit().unwrap();
        drop(store);
        assert!(matches!(RedbStore::open(&path), Err(StoreError::Format { .. })));
    }
}
