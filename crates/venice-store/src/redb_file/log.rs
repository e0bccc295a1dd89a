//! Write-ahead log of the tables: each transaction is one write and one wait for the disk.
//!
//! The file has its full length from the beginning and is full of zeros, which means that only an
//! entry's own bytes must reach the disk. It has two halves: one is written to while the entries of
//! the other go to the tables. The revisions show the progress of the tables: each entry's is one
//! more than the last.

mod entry;

use super::failed::Failed;
use crate::error::StoreError;
use crate::store::Revision;
use entry::ALIGN;
pub(super) use entry::Entry;
use rustix::fs::OFlags;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

const MAGIC: [u8; 8] = *b"VeniceWL";
/// Length of the magic number and the log's own number.
const HEADER_BYTES: usize = 16;
/// Start of the first half: a page of its own keeps the header out of every later write.
const HALVES_AT: usize = 4096;
const HALF_BYTES: usize = 256 << 10;
const FILE_BYTES: usize = HALVES_AT + 2 * HALF_BYTES;
/// Mode of the file: it contains keys, as the tables do.
const OWNER_ONLY: u32 = 0o600;

/// The log of one store, open for writing.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
    number: u64,
    half: usize,
    /// Bytes of that half in use.
    used_bytes: usize,
    /// Revision of the last entry in each half.
    last: [Revision; 2],
}

/// Result of an append.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Appended {
    /// The entry outlives a crash of the machine.
    Durable,
    /// There is no room until the tables have the entries of the other half.
    NoRoom,
}

impl Log {
    /// Returns the path of the log of the store at `path`.
    pub(super) fn path_of(store: &Path) -> PathBuf {
        let mut path = OsString::from(store);
        path.push(".wal");
        path.into()
    }

    /// Creates an empty log, durable, in place of any file at `path`.
    pub(super) fn create(path: &Path, number: u64) -> Result<Self, StoreError> {
        let begun = || {
            let file = options().create(true).truncate(true).open(path)?;
            let mut bytes = vec![0; FILE_BYTES];
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[8..HEADER_BYTES].copy_from_slice(&number.to_le_bytes());
            // Written, not reserved: the first write to reserved space changes the file's metadata,
            // at each commit.
            file.write_all_at(&bytes, 0)?;
            file.sync_all()?;
            sync_directory_of(path)?;
            Ok(file)
        };
        Ok(Self::empty(begun().map_err(|error: io::Error| Failed(path).any(error))?, path, number))
    }

    /// Opens the log with this number; returns its entries newer than `after`, in order. All of
    /// them must be in the tables before anything is appended.
    pub(super) fn open(
        path: &Path,
        number: u64,
        after: Revision,
    ) -> Result<(Self, Vec<Entry>), StoreError> {
        let failed = Failed(path);
        let file = options().open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => failed.corrupt(
                "the log is missing, but the store was not closed: the latest changes are in the log"
                    .to_owned(),
            ),
            _ => failed.any(error),
        })?;
        let bytes = read(&file).map_err(|error| failed.any(error))?;
        check(&bytes, number).map_err(|reason| failed.corrupt(reason))?;
        let entries = entries(&bytes, number, after).map_err(|reason| failed.corrupt(reason))?;
        Ok((Self::empty(file, path, number), entries))
    }

    fn empty(file: File, path: &Path, number: u64) -> Self {
        let last = [Revision::default(); 2];
        Self { file, path: path.to_owned(), number, half: 0, used_bytes: 0, last }
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the half that is written to.
    pub(super) fn half(&self) -> usize {
        self.half
    }

    /// Makes an entry durable if there is room, given the revision of the tables.
    ///
    /// # Errors
    /// [`StoreError`] if the file cannot be written. The entry may be found after a crash, unless
    /// the tables have its revision by then.
    pub(super) fn append(
        &mut self,
        entry: &Entry,
        in_tables: Revision,
    ) -> Result<Appended, StoreError> {
        let bytes = entry.encode(self.number);
        if !self.make_room(bytes.len(), in_tables) {
            return Ok(Appended::NoRoom);
        }
        let at = (HALVES_AT + self.half * HALF_BYTES + self.used_bytes) as u64;
        let written = self.file.write_all_at(&bytes, at).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // Best effort: the entry is not acknowledged.
            let _ = self.file.write_all_at(&[0; ALIGN], at);
            return Err(Failed(&self.path).any(error));
        }
        self.used_bytes += bytes.len();
        self.last[self.half] = entry.revision;
        Ok(Appended::Durable)
    }

    fn make_room(&mut self, len_bytes: usize, in_tables: Revision) -> bool {
        if self.used_bytes + len_bytes <= HALF_BYTES {
            return true;
        }
        let other = 1 - self.half;
        if len_bytes > HALF_BYTES || self.last[other] > in_tables {
            return false;
        }
        (self.half, self.used_bytes) = (other, 0);
        true
    }

    /// Removes a log whose entries are marked as complete in the tables.
    pub(super) fn remove(self) -> Result<(), StoreError> {
        std::fs::remove_file(&self.path).map_err(|error| Failed(&self.path).any(error))
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(OWNER_ONLY);
    // As for the store itself: links are not followed.
    options.custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

fn sync_directory_of(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => File::open(directory)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let len = file.metadata()?.len().min(FILE_BYTES as u64);
    let mut bytes = vec![0; len as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn check(bytes: &[u8], number: u64) -> Result<(), String> {
    if bytes.len() < FILE_BYTES {
        return Err(format!("the log is cut short at {} bytes", bytes.len()));
    }
    if bytes[..8] != MAGIC {
        return Err("wrong magic number of the log".to_owned());
    }
    if bytes[8..HEADER_BYTES] != number.to_le_bytes() {
        return Err("the log belongs to another store".to_owned());
    }
    Ok(())
}

/// Returns the entries newer than `after`. An unfinished entry was never acknowledged, and nothing
/// came after it; if a later one is sound, all before it must be.
fn entries(bytes: &[u8], number: u64, after: Revision) -> Result<Vec<Entry>, String> {
    let mut found = BTreeMap::new();
    for half in bytes[HALVES_AT..].chunks_exact(HALF_BYTES) {
        let mut at = 0;
        while at < half.len() {
            match Entry::decode(number, &half[at..], after) {
                Some((entry, len_bytes)) => {
                    found.insert(entry.revision, entry);
                    at += len_bytes;
                }
                // An old or damaged entry: its length is unknown.
                None => at += ALIGN,
            }
        }
    }
    for (expected, revision) in (after.0 + 1..).zip(found.keys()) {
        if revision.0 != expected {
            return Err(format!("change {expected} is missing in the log before later ones"));
        }
    }
    Ok(found.into_values().collect())
}

#[cfg(test)]
mod tests;
