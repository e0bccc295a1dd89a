//! The tables in the file, which take the log's entries.

use super::failed::Failed;
use super::file_guard;
use super::image::{Image, StoredRecord};
use super::log::Entry;
use crate::error::StoreError;
use crate::store::{Lease, Revision, StoreChange};
use redb::{
    Database, ReadTransaction, ReadableDatabase, ReadableTable, Table, TableDefinition, TableError,
    WriteTransaction,
};
use std::path::{Path, PathBuf};

const RECORDS: TableDefinition<&str, &[u8]> = TableDefinition::new("records");
/// Revision of the last change of each record.
const CHANGED_AT: TableDefinition<&str, u64> = TableDefinition::new("changed-at");
/// Leases of the records that have one.
const LEASES: TableDefinition<&str, i64> = TableDefinition::new("leases");
const META: TableDefinition<&str, u64> = TableDefinition::new("meta");
const FORMAT_KEY: &str = "format";
const REVISION_KEY: &str = "revision";
/// Key of the number of the log beside the file; 0 or absent: it was closed, and there is no log.
const LOG_KEY: &str = "log";
/// Format of the file. 1 had records alone, 2 no log.
const FORMAT: u64 = 3;

/// The open file.
#[derive(Debug)]
pub(super) struct Tables {
    path: PathBuf,
    database: Database,
    revision: Revision,
}

/// Content of the file when it was opened.
#[derive(Debug, Default)]
pub(super) struct Found {
    pub(super) image: Image,
    /// Number of the log with newer entries.
    pub(super) log: Option<u64>,
}

/// The tables within a transaction.
struct Open<'a> {
    records: Table<'a, &'static str, &'static [u8]>,
    changed_at: Table<'a, &'static str, u64>,
    leases: Table<'a, &'static str, i64>,
    meta: Table<'a, &'static str, u64>,
}

impl Tables {
    /// Opens the file; creates it, and its directory, if absent. It is not changed before
    /// [`Self::begin`].
    pub(super) fn open(path: &Path) -> Result<(Self, Found), StoreError> {
        let failed = Failed(path);
        if let Some(directory) = path.parent() {
            std::fs::create_dir_all(directory).map_err(|error| failed.io(error))?;
        }
        let file = file_guard::open(path, &failed)?;
        let database = Database::builder().create_file(file).map_err(|error| failed.open(error))?;
        let (format, found) = read(&database).map_err(|error| failed.any(error))?;
        if format > FORMAT {
            let (place, found) = (path.display().to_string(), format.to_string());
            return Err(StoreError::Format { place, found, understood: FORMAT });
        }
        let revision = found.image.revision;
        Ok((Self { path: path.to_owned(), database, revision }, found))
    }

    /// Returns the revision up to which the tables are complete.
    pub(super) fn revision(&self) -> Revision {
        self.revision
    }

    /// Records that newer entries are in the log with this number; `entries` of the old log go to
    /// the tables. Upgrades a file of an earlier format.
    pub(super) fn begin(&mut self, log: u64, entries: &[Entry]) -> Result<(), StoreError> {
        let before = self.revision;
        self.write(entries, |tables| {
            let found = tables.meta.insert(FORMAT_KEY, FORMAT)?.map(|format| format.value());
            tables.meta.insert(LOG_KEY, log)?;
            tables.meta.insert(REVISION_KEY, entries.last().map_or(before, |it| it.revision).0)?;
            if found == Some(1) { tables.date_undated(before) } else { Ok(()) }
        })
    }

    /// Applies the entries: durable once this returns.
    ///
    /// # Panics
    /// Panics if an entry is missing between the tables and these.
    pub(super) fn carry(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        self.write(entries, |_| Ok(()))
    }

    /// Applies the entries like [`Self::carry`], and marks the log as unnecessary.
    pub(super) fn close(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        self.write(entries, |tables| tables.meta.insert(LOG_KEY, 0).map(drop))
    }

    fn write(
        &mut self,
        entries: &[Entry],
        more: impl FnOnce(&mut Open<'_>) -> Result<(), redb::StorageError>,
    ) -> Result<(), StoreError> {
        for (expected, entry) in (self.revision.0 + 1..).zip(entries) {
            assert_eq!(entry.revision.0, expected, "entries reach the tables in order");
        }
        let written = self.try_write(entries, more);
        written.map_err(|error| Failed(&self.path).any(error))?;
        self.revision = entries.last().map_or(self.revision, |entry| entry.revision);
        Ok(())
    }

    fn try_write(
        &self,
        entries: &[Entry],
        more: impl FnOnce(&mut Open<'_>) -> Result<(), redb::StorageError>,
    ) -> Result<(), redb::Error> {
        let write = self.database.begin_write()?;
        let mut tables = Open::of(&write)?;
        for entry in entries {
            tables.apply(entry)?;
        }
        more(&mut tables)?;
        drop(tables);
        Ok(write.commit()?)
    }
}

/// Reads the file's format and content.
fn read(database: &Database) -> Result<(u64, Found), redb::Error> {
    let read = database.begin_read()?;
    let meta = match read.open_table(META) {
        Err(TableError::TableDoesNotExist(_)) => return Ok((FORMAT, Found::default())),
        meta => meta?,
    };
    let value = |key| Ok::<_, redb::Error>(meta.get(key)?.map(|value| value.value()));
    let format = value(FORMAT_KEY)?.unwrap_or(FORMAT);
    let (revision, log) = (value(REVISION_KEY)?, value(LOG_KEY)?.filter(|number| *number != 0));
    // The first format had no revision.
    let revision = Revision(revision.unwrap_or(u64::from(format == 1)));
    if format > FORMAT {
        return Ok((format, Found::default()));
    }
    Ok((format, Found { image: image(&read, revision)?, log }))
}

fn image(read: &ReadTransaction, revision: Revision) -> Result<Image, redb::Error> {
    let mut image = Image { revision, ..Image::default() };
    let records = read.open_table(RECORDS)?;
    for entry in records.iter()? {
        let (key, value) = entry?;
        let held =
            StoredRecord { value: value.value().to_vec(), changed_at: revision, lease: None };
        image.records.insert(key.value().to_owned(), held);
    }
    let changed_at = match read.open_table(CHANGED_AT) {
        Err(TableError::TableDoesNotExist(_)) => return Ok(image),
        table => table?,
    };
    for entry in changed_at.iter()? {
        let (key, at) = entry?;
        if let Some(held) = image.records.get_mut(key.value()) {
            held.changed_at = Revision(at.value());
        }
    }
    for entry in read.open_table(LEASES)?.iter()? {
        let (key, lease) = entry?;
        if let Some(held) = image.records.get_mut(key.value()) {
            held.lease = Some(Lease(lease.value()));
        }
    }
    Ok(image)
}

impl<'a> Open<'a> {
    fn of(write: &'a WriteTransaction) -> Result<Self, redb::Error> {
        Ok(Self {
            records: write.open_table(RECORDS)?,
            changed_at: write.open_table(CHANGED_AT)?,
            leases: write.open_table(LEASES)?,
            meta: write.open_table(META)?,
        })
    }

    fn apply(&mut self, entry: &Entry) -> Result<(), redb::StorageError> {
        let revision = entry.revision.0;
        for StoreChange { key, value, lease } in &entry.changes {
            let key = key.as_str();
            match lease {
                Some(lease) => drop(self.leases.insert(key, lease.0)?),
                None => drop(self.leases.remove(key)?),
            }
            match value {
                Some(value) => {
                    self.records.insert(key, value.as_slice())?;
                    self.changed_at.insert(key, revision)?;
                }
                None => {
                    self.records.remove(key)?;
                    self.changed_at.remove(key)?;
                }
            }
        }
        self.meta.insert(REVISION_KEY, revision)?;
        Ok(())
    }

    /// Sets the revision of records of the first format, which lack one, to `at`; any would do.
    fn date_undated(&mut self, at: Revision) -> Result<(), redb::StorageError> {
        for entry in self.records.iter()? {
            let (key, _) = entry?;
            if self.changed_at.get(key.value())?.is_none() {
                self.changed_at.insert(key.value(), at.0)?;
            }
        }
        Ok(())
    }
}
