//! The log before the tables: each transaction is one write and one wait for the disk.
//!
//! The file has its length from the beginning and is full of zeros, so that nothing but an entry's own bytes
//! has to reach the disk. It has two halves: one is written to while what is in the other goes to the
//! tables. Where the tables are behind shows in the revisions: each entry's is one more than the last.

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
/// The magic number and the log's own.
const HEADER_BYTES: usize = 16;
/// Where the first half begins: a page of its own keeps the header out of every later write.
const HALVES_AT: usize = 4096;
const HALF_BYTES: usize = 256 << 10;
const FILE_BYTES: usize = HALVES_AT + 2 * HALF_BYTES;
/// It holds keys, as the tables do.
const OWNER_ONLY: u32 = 0o600;

/// The log of one store, open for writing.
#[derive(Debug)]
pub(super) struct Log {
    file: File,
    path: PathBuf,
    number: u64,
    half: usize,
    /// How much of that half is in use.
    used_bytes: usize,
    /// The last entry in each half.
    last: [Revision; 2],
}

/// What became of an entry.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Appended {
    /// It outlives a crash of the machine.
    Durable,
    /// There is no room until the tables have what is in the other half.
    NoRoom,
}

impl Log {
    /// The log that goes with the store at `path`.
    pub(super) fn path_of(store: &Path) -> PathBuf {
        let mut path = OsString::from(store);
        path.push(".wal");
        path.into()
    }

    /// An empty log, durable, in place of whatever is at `path`.
    pub(super) fn create(path: &Path, number: u64) -> Result<Self, StoreError> {
        let begun = || {
            let file = options().create(true).truncate(true).open(path)?;
            let mut bytes = vec![0; FILE_BYTES];
            bytes[..8].copy_from_slice(&MAGIC);
            bytes[8..HEADER_BYTES].copy_from_slice(&number.to_le_bytes());
            // Written, not reserved: what is reserved turns into something written only with a change of
            // the file's own records, at each commit.
            file.write_all_at(&bytes, 0)?;
            file.sync_all()?;
            sync_directory_of(path)?;
            Ok(file)
        };
        Ok(Self::empty(begun().map_err(|error: io::Error| Failed(path).any(error))?, path, number))
    }

    /// The log with this number, and what is in it that is newer than `after`, in order. All of that has to
    /// be in the tables before anything is appended.
    pub(super) fn open(
        path: &Path,
        number: u64,
        after: Revision,
    ) -> Result<(Self, Vec<Entry>), StoreError> {
        let failed = Failed(path);
        let file = options().open(path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => failed.corrupt(
                "it is missing, and the store beside it was not closed: what was written last is in it"
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

    /// Which half is written to.
    pub(super) fn half(&self) -> usize {
        self.half
    }

    /// Makes an entry durable where there is room, given what the tables have already.
    ///
    /// # Errors
    /// [`StoreError`] when the file cannot be written. The entry may be found there after a crash unless the
    /// tables have its revision by then.
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
            // As well as it goes: nobody is told that it was made.
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

    /// Removes a log whose entries the tables have, and say that they have.
    pub(super) fn remove(self) -> Result<(), StoreError> {
        std::fs::remove_file(&self.path).map_err(|error| Failed(&self.path).any(error))
    }
}

fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(OWNER_ONLY);
    // As with the store itself: no link that somebody else has put there is followed.
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
        return Err(format!("it is cut short at {} bytes", bytes.len()));
    }
    if bytes[..8] != MAGIC {
        return Err("it does not begin like a store's log".to_owned());
    }
    if bytes[8..HEADER_BYTES] != number.to_le_bytes() {
        return Err("it is the log of another store than the one beside it".to_owned());
    }
    Ok(())
}

/// What the log has that is newer than `after`. One that was never finished was never acknowledged, and
/// nothing came after it; so where a later one is sound, all before it have to be.
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
                // Of an earlier time, or damaged: where the next begins it does not say.
                None => at += ALIGN,
            }
        }
    }
    for (expected, revision) in (after.0 + 1..).zip(found.keys()) {
        if revision.0 != expected {
            return Err(format!("change {expected} is missing in it, though there are later ones"));
        }
    }
    Ok(found.into_values().collect())
}

#[cfg(test)]
mod tests;
