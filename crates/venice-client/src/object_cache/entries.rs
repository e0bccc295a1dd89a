//! The objects' records in local memory, and their order of eviction.

use std::sync::Arc;
use std::time::Instant;

/// No record.
pub const NONE: u32 = u32::MAX;

/// The place of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In chunk `chunk` of block `block`.
    Chunk {
        /// Index of the block.
        block: u32,
        /// Index of the chunk in it.
        chunk: u32,
    },
    /// These blocks, one after the other.
    Blocks(Box<[u32]>),
}

/// One object.
#[derive(Debug)]
pub struct Entry {
    /// Its key.
    pub key: Arc<[u8]>,
    /// The place of its value.
    pub place: Place,
    /// The value's length in bytes.
    pub len_bytes: u64,
    /// The time of its put.
    pub stored: Instant,
    /// The list it is in: its class, or the one after the last for whole blocks.
    pub list: usize,
    /// A count at its put or, under LRU eviction, at its last get.
    pub tick: u64,
    /// Outstanding reads and writes of its value; it is not evicted meanwhile.
    pub pins: u32,
    /// True if it is out of the index and is removed with the last pin.
    pub is_doomed: bool,
    newer: u32,
    older: u32,
}

/// An array of records with a free list, and a list for each class from newest to oldest.
#[derive(Debug)]
pub struct Entries {
    entries: Vec<Option<Entry>>,
    free: Vec<u32>,
    lists: Vec<List>,
}

#[derive(Clone, Copy, Debug)]
struct List {
    newest: u32,
    oldest: u32,
}

impl Entries {
    /// Returns an empty array with `lists` empty lists.
    pub fn new(lists: usize) -> Entries {
        let empty = List { newest: NONE, oldest: NONE };
        Entries { entries: Vec::new(), free: Vec::new(), lists: vec![empty; lists] }
    }

    /// Adds a record that is in no list yet, pinned once.
    pub fn add(
        &mut self,
        key: Arc<[u8]>,
        place: Place,
        len_bytes: u64,
        list: usize,
        stored: Instant,
    ) -> u32 {
        let entry = Entry {
            key,
            place,
            len_bytes,
            stored,
            list,
            tick: 0,
            pins: 1,
            is_doomed: true,
            newer: NONE,
            older: NONE,
        };
        if let Some(index) = self.free.pop() {
            self.entries[index as usize] = Some(entry);
            return index;
        }
        let index = u32::try_from(self.entries.len()).ok().filter(|index| *index != NONE);
        let index = index.expect("fewer than 2^32 objects fit into any loan");
        self.entries.push(Some(entry));
        index
    }

    /// Removes a record that is in no list.
    pub fn remove(&mut self, index: u32) -> Entry {
        let entry = self.entries[index as usize].take().expect("it is there");
        self.free.push(index);
        entry
    }

    /// Returns the record.
    pub fn get(&self, index: u32) -> &Entry {
        self.entries[index as usize].as_ref().expect("it is there")
    }

    /// Returns the record for modification.
    pub fn get_mut(&mut self, index: u32) -> &mut Entry {
        self.entries[index as usize].as_mut().expect("it is there")
    }

    /// Puts a record at the newest end of its list.
    pub fn link(&mut self, index: u32, tick: u64) {
        let list = self.get(index).list;
        let before = self.lists[list].newest;
        let entry = self.get_mut(index);
        (entry.tick, entry.older, entry.newer) = (tick, before, NONE);
        match before {
            NONE => self.lists[list].oldest = index,
            before => self.get_mut(before).newer = index,
        }
        self.lists[list].newest = index;
    }

    /// Removes a record from its list.
    pub fn unlink(&mut self, index: u32) {
        let Entry { list, newer, older, .. } = *self.get(index);
        match newer {
            NONE => self.lists[list].newest = older,
            newer => self.get_mut(newer).older = older,
        }
        match older {
            NONE => self.lists[list].oldest = newer,
            older => self.get_mut(older).newer = newer,
        }
    }

    /// Returns the oldest record of `list` that may be evicted.
    pub fn oldest(&self, list: usize) -> Option<u32> {
        let mut index = self.lists[list].oldest;
        while index != NONE {
            let entry = self.get(index);
            if entry.pins == 0 {
                return Some(index);
            }
            index = entry.newer;
        }
        None
    }

    /// Returns the oldest record of each list that may be evicted, the oldest of all first.
    pub fn oldest_of_each(&self) -> Vec<u32> {
        let mut oldest: Vec<u32> =
            (0..self.lists.len()).filter_map(|list| self.oldest(list)).collect();
        oldest.sort_unstable_by_key(|index| self.get(*index).tick);
        oldest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries_of(keys: &[u8]) -> Entries {
        let mut entries = Entries::new(2);
        for (tick, key) in keys.iter().enumerate() {
            let place = Place::Chunk { block: 0, chunk: tick as u32 };
            let index = entries.add(Arc::from([*key]), place, 1, tick % 2, Instant::now());
            entries.get_mut(index).pins = 0;
            entries.link(index, tick as u64);
        }
        entries
    }

    #[test]
    fn oldest_unpinned_record_is_evicted_first() {
        let mut entries = entries_of(b"abcdef");
        assert_eq!((entries.oldest(0), entries.oldest(1)), (Some(0), Some(1)));
        entries.get_mut(0).pins = 1;
        assert_eq!((entries.oldest(0), entries.oldest_of_each()), (Some(2), vec![1, 2]));
        entries.unlink(1);
        entries.link(1, 99);
        assert_eq!((entries.oldest(1), entries.oldest_of_each()), (Some(3), vec![2, 3]));
    }

    #[test]
    fn list_stays_linked_after_removals() {
        for gone in [0, 2, 4] {
            let mut entries = entries_of(b"abcdef");
            entries.unlink(gone);
            assert_eq!(&*entries.remove(gone).key, &[b"abcdef"[gone as usize]]);
            let mut order = Vec::new();
            while let Some(index) = entries.oldest(0) {
                entries.unlink(index);
                order.push(index);
            }
            let rest: Vec<u32> = [0, 2, 4].into_iter().filter(|index| *index != gone).collect();
            assert_eq!(order, rest);
        }
    }
}
