//! What all connections of the proxy share.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use venice_client::ObjectCache;

use super::books::{Books, Label, Where};

/// Keys are held by so many locks.
const STRIPES: usize = 256;

/// Memcached's address, the victim store, and the books over both.
pub(super) struct Shared {
    pub(super) memcached: PathBuf,
    pub(super) victims: Option<ObjectCache>,
    pub(super) counts: Counts,
    /// Bytes of values that may be in memcached.
    near_limit_bytes: u64,
    books: Mutex<Books>,
    /// Who reads a key holds it against those who store, move or delete it.
    stripes: Vec<RwLock<()>>,
    hasher: RandomState,
}

/// What was done.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) near_hits: AtomicU64,
    pub(super) victim_hits: AtomicU64,
    pub(super) misses: AtomicU64,
    /// Values that went from memcached into the victim store.
    pub(super) moved: AtomicU64,
}

impl Counts {
    pub(super) fn add(count: &AtomicU64) {
        count.fetch_add(1, Ordering::Relaxed);
    }
}

impl Shared {
    pub(super) fn new(
        memcached: PathBuf,
        victims: Option<ObjectCache>,
        near_limit_bytes: u64,
    ) -> Self {
        Self {
            memcached,
            victims,
            counts: Counts::default(),
            near_limit_bytes,
            books: Mutex::default(),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            hasher: RandomState::new(),
        }
    }

    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().expect(UNPOISONED)
    }

    /// Nobody stores, moves or deletes `key` meanwhile.
    pub(super) fn hold_to_read(&self, key: &[u8]) -> RwLockReadGuard<'_, ()> {
        self.stripe(key).read().expect(UNPOISONED)
    }

    /// Nobody else does anything to `key` meanwhile. Who holds one key must not ask for another.
    pub(super) fn hold(&self, key: &[u8]) -> RwLockWriteGuard<'_, ()> {
        self.stripe(key).write().expect(UNPOISONED)
    }

    /// `key`, which is held, was stored in memcached.
    pub(super) fn put_near(&self, key: &[u8], label: Label) {
        let was_victim = self.books().put_near(key, label);
        if let (true, Some(victims)) = (was_victim, &self.victims) {
            victims.delete(key);
        }
    }

    /// `key`, which is held, is nowhere any more, memcached left to the caller; whether it was in the
    /// victim store.
    pub(super) fn strike(&self, key: &[u8]) -> bool {
        let was_victim = self.books().forget(key) == Some(Where::Victim);
        match (was_victim, &self.victims) {
            (true, Some(victims)) => victims.delete(key),
            _ => false,
        }
    }

    pub(super) fn has_too_much_near(&self) -> bool {
        self.books().near_bytes() > self.near_limit_bytes
    }

    /// For `stats`.
    pub(super) fn told(&self) -> [(&'static str, u64); 7] {
        let (near, victims) = self.books().values();
        let near_bytes = self.books().near_bytes();
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("near_hits", of(&self.counts.near_hits)),
            ("victim_hits", of(&self.counts.victim_hits)),
            ("misses", of(&self.counts.misses)),
            ("moved", of(&self.counts.moved)),
            ("near_values", near as u64),
            ("victim_values", victims as u64),
            ("near_bytes", near_bytes),
        ]
    }

    fn stripe(&self, key: &[u8]) -> &RwLock<()> {
        &self.stripes[self.hasher.hash_one(key) as usize % STRIPES]
    }
}

const UNPOISONED: &str = "nobody panics with it in hand";
