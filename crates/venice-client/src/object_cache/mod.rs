//! An object cache in borrowed memory: Put and Get of the composable-rack paper (section 4), to
//! keep what a smaller, nearer cache has no room for.
//!
//! Keys and a record of about 100 bytes an object lie in local memory, values in borrowed memory.
//! That is cut into blocks of 1 MiB, and each block into chunks of one size class
//! ([`classes`]); values above half a block take whole blocks. When there is no room the oldest
//! object leaves (the oldest put, or the one not used for the longest time); where another class
//! holds far older ones, that class gives a block up. A value whose donor is lost is a miss.

mod blocks;
mod classes;
mod entries;
mod shelf;

use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use venice_recipient::Copies;

use self::classes::BLOCK_BYTES;
use self::shelf::{Pinned, Shelf};
use crate::Error;
use crate::store::{LocalMemory, Store};

/// Longest key, bytes.
pub const MAX_KEY_BYTES: usize = 1 << 16;
/// Least memory a cache is made of: every class can have a block.
pub const MIN_CACHE_BYTES: u64 = 16 * BLOCK_BYTES;

/// How long a value waits for others to be read or written.
const ROOM_PATIENCE: Duration = Duration::from_secs(1);

/// Which object leaves when there is no room.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The one that nobody asked for for the longest time.
    #[default]
    LeastRecentlyUsed,
    /// The one that was put first.
    Oldest,
}

/// How a cache behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheOptions {
    /// Which object leaves.
    pub eviction: Eviction,
    /// Objects put longer ago than this are misses.
    pub max_age: Option<Duration>,
}

/// What a cache has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Objects in it.
    pub objects: u64,
    /// Their values' bytes.
    pub value_bytes: u64,
    /// Borrowed bytes, those lost with a donor not among them.
    pub capacity_bytes: u64,
    /// Values stored.
    pub puts: u64,
    /// Values found.
    pub hits: u64,
    /// Values not found.
    pub misses: u64,
    /// Objects that left for others.
    pub evictions: u64,
    /// Objects found too old.
    pub expired: u64,
    /// Objects lost with a donor.
    pub lost: u64,
}

/// The cache. Its methods may be called from any thread.
pub struct ObjectCache {
    store: Box<dyn Store>,
    shelf: Mutex<Shelf>,
    most_value_bytes: u64,
}

impl std::fmt::Debug for ObjectCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ObjectCache").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl ObjectCache {
    /// An empty cache in memory of this process, nothing borrowed: what one in borrowed memory is
    /// measured against.
    ///
    /// # Errors
    /// [`Error::Invalid`] for less than [`MIN_CACHE_BYTES`].
    pub fn in_local_memory(len_bytes: u64, options: &CacheOptions) -> Result<Self, Error> {
        Self::new(Box::new(LocalMemory::of_bytes(len_bytes)), options)
    }

    /// An empty cache on all of `store`.
    pub(crate) fn new(store: Box<dyn Store>, options: &CacheOptions) -> Result<Self, Error> {
        let len_bytes = store.len_bytes();
        let blocks = u32::try_from(len_bytes / BLOCK_BYTES).unwrap_or(u32::MAX);
        if len_bytes < MIN_CACHE_BYTES {
            let said = format!("an object cache takes {MIN_CACHE_BYTES} bytes at least");
            return Err(Error::Invalid(said));
        }
        let most_value_bytes = u64::from(blocks / 4) * BLOCK_BYTES;
        Ok(Self { store, shelf: Mutex::new(Shelf::new(blocks, options)), most_value_bytes })
    }

    /// Stores `value` under `key`, in the place of what was there.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a key of more than [`MAX_KEY_BYTES`] or a value of more than a
    /// quarter of the cache; [`Error::NoRoom`] where all that could leave is in use by others just
    /// now. What was under `key` before is gone then too.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let outcome = self.check(key, value).and_then(|()| self.try_put(key, value));
        if outcome.is_err() {
            self.delete(key);
        }
        outcome
    }

    /// The value under `key`.
    ///
    /// # Errors
    /// What reaching the donor brings but for its loss, which is a miss.
    pub fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, Error> {
        let mut value = Vec::new();
        Ok(self.get_into(key, &mut value)?.then_some(value))
    }

    /// Puts the value under `key` in the place of what `value` holds, whose memory is used again;
    /// tells whether there was one. Without one `value` is empty.
    ///
    /// # Errors
    /// As [`ObjectCache::get`].
    pub fn get_into(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool, Error> {
        let Some(pinned) = self.shelf().find(key, Instant::now()) else {
            self.shelf().stats.misses += 1;
            value.clear();
            return Ok(false);
        };
        // Not cleared before: what is there is written over, and need not be zeroed for that.
        value.resize(pinned.len_bytes as usize, 0);
        let mut done = 0;
        let read = pinned.pieces.iter().try_for_each(|(at, len)| {
            done += len;
            if len == 0 { Ok(()) } else { self.store.read_at(at, &mut value[done - len..done]) }
        });
        let mut shelf = self.shelf();
        shelf.unpin(pinned.index);
        match read {
            Ok(()) => {
                shelf.stats.hits += 1;
                Ok(true)
            }
            Err(error) => {
                shelf.stats.misses += 1;
                value.clear();
                lose(&mut shelf, &error).then_some(false).ok_or(error)
            }
        }
    }

    /// Takes the object away; tells whether there was one.
    pub fn delete(&self, key: &[u8]) -> bool {
        self.shelf().remove(key)
    }

    /// Is there an object under `key`? Asking does not count as use.
    pub fn contains(&self, key: &[u8]) -> bool {
        self.shelf().contains(key, Instant::now())
    }

    /// Takes every object away.
    pub fn clear(&self) {
        self.shelf().clear();
    }

    /// What it has done so far.
    pub fn stats(&self) -> CacheStats {
        let shelf = self.shelf();
        let capacity_bytes = shelf.blocks_alive() as u64 * BLOCK_BYTES;
        CacheStats { objects: shelf.len() as u64, capacity_bytes, ..shelf.stats }
    }

    /// How many copies there are to be of what it holds, and which are missing just now.
    pub fn copies(&self) -> Copies {
        self.store.copies().unwrap_or_default()
    }

    fn check(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let (key_bytes, value_bytes) = (key.len(), value.len());
        if key_bytes > MAX_KEY_BYTES {
            let said = format!("a key of {key_bytes} bytes: it may have {MAX_KEY_BYTES}");
            return Err(Error::Invalid(said));
        }
        let most = self.most_value_bytes;
        if value_bytes as u64 > most {
            let said =
                format!("a value of {value_bytes} bytes: a quarter of the cache is {most} bytes");
            return Err(Error::Invalid(said));
        }
        Ok(())
    }

    /// Tries another place where one turns out to be lost.
    fn try_put(&self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        loop {
            let pinned = self.reserve(key, value.len() as u64)?;
            let written = self.write(&pinned, value);
            let mut shelf = self.shelf();
            match written {
                Ok(()) => {
                    shelf.publish(&pinned);
                    shelf.stats.puts += 1;
                    return Ok(());
                }
                Err(error) => {
                    let was_lost = lose(&mut shelf, &error);
                    shelf.unpin(pinned.index);
                    if !was_lost {
                        return Err(error);
                    }
                }
            }
        }
    }

    /// Room for a value. Where every block has something in it that is being read or written just
    /// now, that is waited for.
    fn reserve(&self, key: &[u8], len_bytes: u64) -> Result<Pinned, Error> {
        let deadline = Instant::now() + ROOM_PATIENCE;
        loop {
            let mut shelf = self.shelf();
            if let Some(pinned) = shelf.reserve(key, len_bytes, Instant::now()) {
                return Ok(pinned);
            }
            if shelf.blocks_alive() == 0 || Instant::now() > deadline {
                return Err(Error::NoRoom(format!(
                    "no room for a value of {len_bytes} bytes: what there is is lost or in use"
                )));
            }
            drop(shelf);
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

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shelf.lock().expect("no thread panics with the books in hand")
    }
}

/// Strikes what was lost with a donor off the books; `false`: the error says nothing of the kind.
fn lose(shelf: &mut Shelf, error: &Error) -> bool {
    let Error::DonorLost { offset, len_bytes, .. } = error else { return false };
    let first = (offset / BLOCK_BYTES) as u32;
    let end = (offset + len_bytes).div_ceil(BLOCK_BYTES) as u32;
    shelf.lose(first..end);
    true
}

#[cfg(test)]
mod tests;
