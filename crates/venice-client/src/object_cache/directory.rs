//! The directory of a cache: the place of each object, and the choice of evictions. No I/O: readers
//! and writers of values pin them meanwhile.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::blocks::{Blocks, Pieces};
use super::classes::Fit;
use super::entries::{Entries, Entry, NONE, Place};
use super::{CacheOptions, CacheStats, Eviction};

/// The divisor of the age of the oldest object of all: if the oldest of a class is younger than
/// that share, a block of the other class is taken instead.
const YOUNGER: u64 = 2;

/// A value that is being read or written.
#[derive(Debug)]
pub struct Pinned {
    /// Its record.
    pub index: u32,
    /// Its pieces.
    pub pieces: Pieces,
    /// Its length in bytes.
    pub len_bytes: u64,
}

/// The directory.
#[derive(Debug)]
pub struct Directory {
    blocks: Blocks,
    entries: Entries,
    index: HashMap<Arc<[u8]>, u32>,
    eviction: Eviction,
    max_age: Option<Duration>,
    tick: u64,
    /// The counters.
    pub stats: CacheStats,
}

impl Directory {
    /// Returns an empty directory over `blocks` blocks.
    pub fn new(blocks: u32, options: &CacheOptions) -> Directory {
        let blocks = Blocks::new(blocks);
        let lists = blocks.classes().count() + 1;
        Directory {
            blocks,
            entries: Entries::new(lists),
            index: HashMap::new(),
            eviction: options.eviction,
            max_age: options.max_age,
            tick: 0,
            stats: CacheStats::default(),
        }
    }

    /// Reserves room for a value, pinned; evicts others if necessary. `None`: all evictable objects
    /// are being read or written, or lost.
    pub fn reserve(&mut self, key: &[u8], len_bytes: u64, now: Instant) -> Option<Pinned> {
        let fit = self.blocks.classes().fit(len_bytes);
        let (place, list) = match fit {
            Fit::Chunk(class) => (self.chunk(class)?, class),
            Fit::Blocks(count) => (self.whole_blocks(count)?, self.blocks.classes().count()),
        };
        let pieces = self.blocks.pieces(&place, len_bytes);
        let index = self.entries.add(Arc::from(key), place, len_bytes, list, now);
        let place = self.entries.get(index).place.clone();
        self.blocks.occupy(&place, index);
        Some(Pinned { index, pieces, len_bytes })
    }

    /// Publishes a reserved value after it was written: its key leads to it from here on.
    pub fn publish(&mut self, pinned: &Pinned) {
        let key = self.entries.get(pinned.index).key.clone();
        self.remove(&key);
        self.entries.get_mut(pinned.index).is_doomed = false;
        self.tick += 1;
        self.entries.link(pinned.index, self.tick);
        self.index.insert(key, pinned.index);
        self.stats.value_bytes += pinned.len_bytes;
        self.unpin(pinned.index);
    }

    /// Returns the value of `key`, pinned.
    pub fn find(&mut self, key: &[u8], now: Instant) -> Option<Pinned> {
        let index = *self.index.get(key)?;
        let entry = self.entries.get(index);
        if self.max_age.is_some_and(|most| now.duration_since(entry.stored) > most) {
            self.stats.expired += 1;
            self.retire(index);
            return None;
        }
        if self.eviction == Eviction::LeastRecentlyUsed {
            self.tick += 1;
            self.entries.unlink(index);
            self.entries.link(index, self.tick);
        }
        let entry = self.entries.get_mut(index);
        entry.pins += 1;
        let len_bytes = entry.len_bytes;
        Some(Pinned { index, pieces: self.blocks.pieces(&entry.place, len_bytes), len_bytes })
    }

    /// True if `key` is present. The check does not count as use.
    pub fn contains(&self, key: &[u8], now: Instant) -> bool {
        let stored = self.index.get(key).map(|index| self.entries.get(*index).stored);
        let is_fresh =
            |stored| self.max_age.is_none_or(|most: Duration| now.duration_since(stored) <= most);
        stored.is_some_and(is_fresh)
    }

    /// Removes `key`; returns true if it was present.
    pub fn remove(&mut self, key: &[u8]) -> bool {
        let found = self.index.get(key).copied();
        if let Some(index) = found {
            self.retire(index);
        }
        found.is_some()
    }

    /// Removes all objects.
    pub fn clear(&mut self) {
        let all: Vec<u32> = self.index.values().copied().collect();
        for index in all {
            self.retire(index);
        }
    }

    /// Ends a pin.
    pub fn unpin(&mut self, index: u32) {
        let entry = self.entries.get_mut(index);
        entry.pins -= 1;
        if entry.pins == 0 && entry.is_doomed {
            self.free(index);
        }
    }

    /// Marks the blocks of the range as lost, with every value that has a part in them.
    pub fn lose(&mut self, blocks: std::ops::Range<u32>) {
        for block in blocks {
            for holder in self.blocks.holders(block) {
                let entry = self.entries.get(holder);
                if !entry.is_doomed {
                    self.stats.lost += 1;
                    self.retire(holder);
                }
            }
            self.blocks.lose(block);
        }
    }

    /// Returns the number of objects in the index.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Returns the number of blocks that are not lost.
    pub fn blocks_alive(&self) -> usize {
        self.blocks.alive()
    }

    fn chunk(&mut self, class: usize) -> Option<Place> {
        loop {
            if let Some(place) = self.blocks.take_chunk(class) {
                return Some(place);
            }
            if self.blocks.reclaim_empty() {
                continue;
            }
            let own = self.entries.oldest(class);
            let others = self.entries.oldest_of_each();
            match own {
                Some(own) if !self.is_much_younger(own, others[0]) => self.evict(own),
                _ if self.empty_a_block(&others) => {}
                Some(own) => self.evict(own),
                None => return None,
            }
        }
    }

    fn whole_blocks(&mut self, count: usize) -> Option<Place> {
        loop {
            if let Some(place) = self.blocks.take_blocks(count) {
                return Some(place);
            }
            if self.blocks.reclaim_empty() {
                continue;
            }
            let others = self.entries.oldest_of_each();
            if !self.empty_a_block(&others) {
                return None;
            }
        }
    }

    fn is_much_younger(&self, own: u32, oldest: u32) -> bool {
        let age = |index| self.tick - self.entries.get(index).tick;
        age(own).saturating_mul(YOUNGER) < age(oldest)
    }

    /// Frees the block of the first of `candidates` whose block can be freed.
    fn empty_a_block(&mut self, candidates: &[u32]) -> bool {
        candidates.iter().any(|index| self.empty_block_of(*index))
    }

    /// Evicts all objects that share a block with `index`, if none of them is pinned; the block is
    /// free then. Returns false if nothing was done.
    fn empty_block_of(&mut self, index: u32) -> bool {
        let block = match &self.entries.get(index).place {
            Place::Chunk { block, .. } => *block,
            Place::Blocks(_) => {
                self.evict(index);
                return true;
            }
        };
        let holders = self.blocks.holders(block);
        if holders.iter().any(|holder| self.entries.get(*holder).pins > 0) {
            return false;
        }
        for holder in holders {
            self.evict(holder);
        }
        self.blocks.reclaim_empty()
    }

    fn evict(&mut self, index: u32) {
        self.stats.evictions += 1;
        self.retire(index);
    }

    /// Removes a record from index and list; it is freed with its last pin.
    fn retire(&mut self, index: u32) {
        self.entries.unlink(index);
        let entry = self.entries.get_mut(index);
        entry.is_doomed = true;
        let (is_pinned, len_bytes, key) = (entry.pins > 0, entry.len_bytes, entry.key.clone());
        self.stats.value_bytes -= len_bytes;
        self.index.remove(&key);
        if !is_pinned {
            self.free(index);
        }
    }

    fn free(&mut self, index: u32) {
        assert!(index != NONE, "a record");
        let Entry { place, .. } = self.entries.remove(index);
        self.blocks.vacate(&place);
    }
}
