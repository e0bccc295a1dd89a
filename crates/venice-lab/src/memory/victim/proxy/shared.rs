//! State shared by all connections of the proxy.

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

use venice_client::ObjectCache;

use super::index::{KeyIndex, Label, Where};

/// Number of locks that keys are spread over.
const STRIPES: usize = 256;

/// memcached's address, the victim store, and the index over both.
pub(super) struct Shared {
    pub(super) memcached: PathBuf,
    pub(super) victims: Option<ObjectCache>,
    pub(super) counts: Counts,
    /// Bytes of values that may be in memcached.
    near_limit_bytes: u64,
    index: Mutex<KeyIndex>,
    /// Locks of the keys: shared for readers, exclusive to store, move or delete.
    stripes: Vec<RwLock<()>>,
    hasher: RandomState,
}

/// Counts of operations.
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
            index: Mutex::default(),
            stripes: (0..STRIPES).map(|_| RwLock::new(())).collect(),
            hasher: RandomState::new(),
        }
    }

    pub(super) fn index(&self) -> MutexGuard<'_, KeyIndex> {
        self.index.lock().expect(UNPOISONED)
    }

    /// Locks `key` against stores, moves and deletes.
    pub(super) fn hold_to_read(&self, key: &[u8]) -> RwLockReadGuard<'_, ()> {
        self.stripe(key).read().expect(UNPOISONED)
    }

    /// Locks `key` exclusively. The holder of one key must not lock another.
    pub(super) fn hold(&self, key: &[u8]) -> RwLockWriteGuard<'_, ()> {
        self.stripe(key).write().expect(UNPOISONED)
    }

    /// Records `key`, which is locked, as stored in memcached.
    pub(super) fn put_near(&self, key: &[u8], label: Label) {
        let was_victim = self.index().put_near(key, label);
        if let (true, Some(victims)) = (was_victim, &self.victims) {
            victims.delete(key);
        }
    }

    /// Removes `key`, which is locked, from the victim store and the index; memcached is left to
    /// the caller. Returns true if it was in the victim store.
    pub(super) fn strike(&self, key: &[u8]) -> bool {
        let was_victim = self.index().forget(key) == Some(Where::Victim);
        match (was_victim, &self.victims) {
            (true, Some(victims)) => victims.delete(key),
            _ => false,
        }
    }

    pub(super) fn has_too_much_near(&self) -> bool {
        self.index().near_bytes() > self.near_limit_bytes
    }

    /// Returns the counts for `stats`.
    pub(super) fn counts(&self) -> [(&'static str, u64); 7] {
        let (near, victims) = self.index().values();
        let near_bytes = self.index().near_bytes();
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

const UNPOISONED: &str = "a thread panicked while it held the lock";
