//! An object cache in borrowed memory: Put and Get of the composable-rack paper (section 4), for
//! objects that do not fit a smaller, nearer cache.
//!
//! Keys and a record of about 100 bytes an object lie in local memory, values in borrowed memory.
//! It is divided into blocks of 1 MiB, and each block into chunks of one size class ([`classes`]);
//! values above half a block take whole blocks. Without room the oldest object is evicted (the
//! oldest put, or the one unused for the longest time); if another class holds far older ones, that
//! class gives up a block. A value whose donor is lost is a miss.

mod blocks;
mod classes;
mod directory;
mod entries;

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use venice_recipient::Copies;

use self::classes::BLOCK_BYTES;
use self::directory::{Directory, Pinned};
use crate::Error;
use crate::store::{LocalMemory, Store};

/// Maximum length of a key in bytes.
pub const MAX_KEY_BYTES: usize = 1 << 16;
/// Minimum memory of a cache in bytes: every class can have a block.
pub const MIN_CACHE_BYTES: u64 = 16 * BLOCK_BYTES;

/// The time a put waits for other values to be read or written.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);

/// The choice of the evicted object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The one not used for the longest time.
    #[default]
    LeastRecentlyUsed,
    /// The one put first.
    Oldest,
}

/// The behaviour of a cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// The choice of the evicted object.
    pub eviction: Eviction,
    /// Maximum age: objects put longer ago are misses.
    pub max_age: Option<Duration>,
}

/// The counters of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Objects in the cache.
    pub objects: u64,
    /// Their values' bytes.
    pub value_bytes: u64,
    /// Borrowed bytes, without those lost with a donor.
    pub capacity_bytes: u64,
    /// Values stored.
    pub puts: u64,
    /// Values found.
    pub hits: u64,
    /// Values not found.
    pub misses: u64,
    /// Objects evicted for others.
    pub evictions: u64,
    /// Objects found too old.
    pub expired: u64,
    /// Objects lost with a donor.
    pub lost: u64,
}

/// An object cache. Its methods may be called from any thread.
pub struct ObjectCache {
    store: Box<dyn Store>,
    directory: Mutex<Directory>,
    most_value_bytes: u64,
}

impl std::fmt::Debug for ObjectCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl ObjectCache {
    /// Creates an empty cache in memory of this process, without borrowing: the baseline for one in
    /// borrowed memory.
    ///
    /// # Errors
    /// [`Error::Invalid`] for less than [`MIN_CACHE_BYTES`].
    pub fn in_local_memory(len_bytes: u64, options: &CacheOptions) -> Result<Self, Error> {
        Self::new(Box::new(LocalMemory::of_bytes(len_bytes)), options)
    }

    /// Creates an empty cache on all of `store`.
    pub(crate) fn new(store: Box<dyn Store>, options: &CacheOptions) -> Result<Self, Error> {
        let len_bytes = store.len_bytes();
        let blocks = u32::try_from(len_bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        if len_bytes < MIN_CACHE_BYTES {
            let said = format!("object cache too small: it takes at least {MIN_CACHE_BYTES} bytes");
            return Err(Error::Invalid(said));
        }
        let most_value_bytes = u64::from(blocks / 4) * BLOCK_BYTES;
        Ok(Self { store, directory: Mutex::new(Directory::new(blocks, options)), most_value_bytes })
    }

    /// Stores `value` under `key`, replacing an older value.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key of more than [`MAX_KEY_BYTES`] or a value of more than a
    /// quarter of the cache; [`Error::NoRoom`] if all evictable objects are in use at the moment.
    /// The older value under `key` is gone then too.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let outcome = self.check(key, value).and_then(|()| self.try_put(key, value));
        if outcome.is_err() {
            self.delete(key);
        }
        outcome
    }

    /// Returns the value under `key`.
    ///
    /// # Errors
    /// An error of reaching the donor, except its loss, which is a miss.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Replaces the contents of `value` with the value under `key`, reusing its allocation; returns
    /// true if there was one. Otherwise `value` is empty.
    ///
    /// # Errors
    /// Like [`ObjectCache::get`].
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let Some(pinned) = self.directory().find(key, Instant::now()) else {
            self.directory().stats.misses += 1;
            value.clear();
            return Ok(false);
        };
        // Not cleared before: old contents are overwritten, and need no zeroing.
        value.resize(pinned.len_bytes as usize, 0);
        let mut done = 0;
        let read = pinned.pieces.iter().try_for_each(|(at, len)| {
            done += len;
            if len == 0 { Ok(()) } else { self.store.read_at(at, &mut value[done - len..done]) }
        });
        let mut directory = self.directory();
        directory.unpin(pinned.index);
        match read {
            Ok(()) => {
                directory.stats.hits += 1;
                Ok(true)
            }
            Err(error) => {
                directory.stats.misses += 1;
                value.clear();
                lose(&mut directory, &error).then_some(false).ok_or(error)
            }
        }
    }

    /// Removes an object; returns true if there was one.
    pub fn delete(&self, key: &[u8]) -> bool {
        self.directory().remove(key)
    }

    /// True if there is an object under `key`. The check does not count as use.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.directory().contains(key, Instant::now())
    }

    /// Removes every object.
    pub fn clear(&self) {
        self.directory().clear();
    }

    /// Returns the counters.
    pub fn stats(&self) -> CacheStats {
        let directory = self.directory();
        let capacity_bytes = directory.blocks_alive() as u64 * BLOCK_BYTES;
        CacheStats { objects: directory.len() as u64, capacity_bytes, ..directory.stats }
    }

    /// Returns the required and the missing copies of its memory.
    pub fn copies(&self) -> Copies {
        self.store.copies().unwrap_or_default()
    }

    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let (key_bytes, value_bytes) = (key.len(), value.len());
        if key_bytes > MAX_KEY_BYTES {
            let said = format!("key too long: {key_bytes} bytes, at most {MAX_KEY_BYTES}");
            return Err(Error::Invalid(said));
        }
        let most = self.most_value_bytes;
        if value_bytes as u64 > most {
            let said = format!(
                "value too long: {value_bytes} bytes, at most a quarter of the cache: {most} bytes"
            );
            return Err(Error::Invalid(said));
        }
        Ok(())
    }

    /// Retries with another place if one turns out to be lost.
    fn try_put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        loop {
            let pinned = self.reserve(key, value.len() as u64)?;
            let written = self.write(&pinned, value);
            let mut directory = self.directory();
            match written {
                Ok(()) => {
                    directory.publish(&pinned);
                    directory.stats.puts += 1;
                    return Ok(());
                }
                Err(error) => {
                    let was_lost = lose(&mut directory, &error);
                    directory.unpin(pinned.index);
                    if !was_lost {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Reserves room for a value. Waits while every block contains an object that is being read or
    /// written.
    fn reserve(&self, key: &[u8], len_bytes: u64) -> Result<Pinned, Error> {
        let deadline = Instant::now() + ROOM_PATIENCE;
        loop {
            let mut directory = self.directory();
            if let Some(pinned) = directory.reserve(key, len_bytes, Instant::now()) {
                return Ok(pinned);
            }
            if directory.blocks_alive() == 0 || Instant::now() > deadline {
                return Err(Error::NoRoom(format!(
                    "no room for a value of {len_bytes} bytes: all blocks are lost or in use"
                )));
            }
            drop(directory);
            std::thread::yield_now();
        }
    }

    fn write(&self, pinned: &Pinned, value: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        pinned.pieces.iter().try_for_each(|(at, len)| {
            done += len;
            if len == 0 { Ok(()) } else { self.store.write_at(at, &value[done - len..done]) }
        })
    }

    fn directory(&self) -> MutexGuard<'_, Directory> {
        self.directory.lock().expect("no thread panics while it holds the lock")
    }
}

/// Removes the objects lost with a donor from the index; returns false if the error is of another
/// kind.
fn lose(directory: &mut Directory, error: &Error) -> bool {
    let Error::DonorLost { offset, len_bytes, .. } = error else { return false };
    let first = (offset / BLOCK_BYTES) as u32;
    let end = (offset + len_bytes).div_ceil(BLOCK_BYTES) as u32;
    directory.lose(first..end);
    true
}

#[cfg(test)]
mod tests;
