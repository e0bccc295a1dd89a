//! A store in one redb file.

use super::{Store, StoreChange, StoreError};
use redb::{
    Database, DatabaseError, ReadableDatabase, ReadableTable, StorageError, TableDefinition,
};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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
        check_length(path, &failed)?;
        let was_repaired = Arc::new(AtomicBool::new(false));
        let repairs = Arc::clone(&was_repaired);
        let database = Database::builder()
            .set_repair_callback(move |_| repairs.store(true, Ordering::Relaxed))
            .create(path)
            .map_err(|error| failed.open(error))?;
        let mut store = Self { path: path.to_owned(), database };
        store.check_format()?;
        // The repair of a file that a killed process left behind checks every checksum. Of a file
        // that was closed well nobody has looked at any; the tables are small, so do it now.
        if !was_repaired.load(Ordering::Relaxed) {
            store = store.check_integrity()?;
        }
        Ok(store)
    }

    /// Checks every checksum. The database calls itself unsound over mere bookkeeping too, and
    /// where data is damaged it goes back to older data: what counts is whether the records stay
    /// the same.
    fn check_integrity(mut self) -> Result<Self, StoreError> {
        let before = self.load()?;
        match self.database.check_integrity() {
            Ok(true) => Ok(self),
            Ok(false) if self.load()? == before => Ok(self),
            Ok(false) => Err(Failed(&self.path).corrupt("its checksums do not match".to_owned())),
            Err(error) => {
                let error = Failed(&self.path).open(error);
                // Its destructor would panic over the damage just found. The lock is kept with it,
                // which nobody minds: this file is not to be opened again before it is mended.
                std::mem::forget(self.database);
                Err(error)
            }
        }
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

/// Turns the database's errors into ours, with the path.
struct Failed<'a>(&'a Path);

impl Failed<'_> {
    fn open(&self, error: DatabaseError) -> StoreError {
        match error {
            DatabaseError::DatabaseAlreadyOpen => StoreError::Locked { path: self.0.to_owned() },
            DatabaseError::Storage(StorageError::Io(error)) if is_garbage(&error) => {
                self.corrupt(error.to_string())
            }
            DatabaseError::UpgradeRequired(version) => {
                self.corrupt(format!("database format {version}"))
            }
            other => self.any(other),
        }
    }

    fn any(&self, error: impl Into<redb::Error>) -> StoreError {
        match error.into() {
            redb::Error::Corrupted(reason) => self.corrupt(reason),
            redb::Error::RepairAborted => self.corrupt("it could not be repaired".to_owned()),
            error @ (redb::Error::TableTypeMismatch { .. }
            | redb::Error::TableIsMultimap(_)
            | redb::Error::TableIsNotMultimap(_)
            | redb::Error::TypeDefinitionChanged { .. }) => self.corrupt(error.to_string()),
            other => self.io(other),
        }
    }

    fn corrupt(&self, reason: String) -> StoreError {
        StoreError::Corrupt { path: self.0.to_owned(), reason }
    }

    fn io(&self, error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
        StoreError::Io { path: self.0.to_owned(), source: Box::new(error) }
    }
}

/// redb takes a header it can read at its word, and panics when the file is shorter than the
/// header says; so ask before it does. The layout is that of redb's file format 3: after the
/// magic number, counts that give the file's length in pages.
fn check_length(path: &Path, failed: &Failed<'_>) -> Result<(), StoreError> {
    const MAGIC: &[u8] = b"redb\x1A\x0A\xA9\x0D\x0A";
    const HEADER_BYTES: usize = 320;
    const PAGE_BYTES: u64 = 4096;
    let mut header = [0; HEADER_BYTES];
    let length = match File::open(path) {
        Ok(mut file) => {
            let length = file.metadata().map_err(|error| failed.io(error))?.len();
            if length == 0 {
                return Ok(());
            }
            if length < HEADER_BYTES as u64 {
                return Err(failed.corrupt(format!("it has {length} bytes")));
            }
            file.read_exact(&mut header).map_err(|error| failed.io(error))?;
            length
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed.io(error)),
    };
    if !header.starts_with(MAGIC) {
        return Err(failed.corrupt("it does not begin like one".to_owned()));
    }
    let count = |index: usize| {
        let at = 12 + 4 * index;
        let bytes = [header[at], header[at + 1], header[at + 2], header[at + 3]];
        u64::from(u32::from_le_bytes(bytes))
    };
    let [page_bytes, header_pages, data_pages, full_regions, trailing_pages] =
        [0, 1, 2, 3, 4].map(count);
    let trailing = if trailing_pages > 0 { header_pages + trailing_pages } else { 0 };
    let pages = full_regions
        .saturating_mul(header_pages + data_pages)
        .saturating_add(trailing)
        .saturating_add(1);
    let is_possible =
        page_bytes == PAGE_BYTES && data_pages > 0 && trailing_pages <= data_pages && pages > 1;
    if !is_possible {
        return Err(failed.corrupt("its header makes no sense".to_owned()));
    }
    if length < pages.saturating_mul(PAGE_BYTES) {
        return Err(failed.corrupt(format!("it is cut short at {length} bytes")));
    }
    Ok(())
}

/// A file that does not begin like a database, or ends too early.
fn is_garbage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
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
