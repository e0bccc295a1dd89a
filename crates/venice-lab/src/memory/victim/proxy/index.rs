//! The proxy's index: the place of each key's value, in memcached or in the victim store, and the
//! least recently used key of memcached.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Properties of a value in either place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) flags: u32,
    pub(super) len_bytes: u64,
    /// Time of its expiry, if it expires.
    pub(super) ends: Option<Instant>,
}

/// Place of a value: exactly one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In memcached; the count of its last use.
    Near(u64),
    Victim,
}

/// The coldest key at the time of the search.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Coldest {
    pub(super) key: Arc<[u8]>,
    used: u64,
}

/// The index. A key that is absent may still be in memcached, stored by others.
#[derive(Debug, Default)]
pub(super) struct KeyIndex {
    places: HashMap<Arc<[u8]>, (Place, Label)>,
    /// Keys in memcached, by their last use.
    order: BTreeMap<u64, Arc<[u8]>>,
    near_bytes: u64,
    count: u64,
}

impl KeyIndex {
    /// Returns the bytes of the values in memcached.
    pub(super) fn near_bytes(&self) -> u64 {
        self.near_bytes
    }

    /// Returns the number of values in memcached, and in the victim store.
    pub(super) fn values(&self) -> (usize, usize) {
        let near = self.places.values().filter(|(place, _)| *place != Place::Victim).count();
        (near, self.places.len() - near)
    }

    /// Records `key` as stored in memcached; returns true if it was in the victim store before.
    pub(super) fn put_near(&mut self, key: &[u8], label: Label) -> bool {
        let was_victim = self.forget(key) == Some(Where::Victim);
        let key: Arc<[u8]> = key.into();
        self.count += 1;
        self.order.insert(self.count, key.clone());
        self.near_bytes += label.len_bytes;
        self.places.insert(key, (Place::Near(self.count), label));
        was_victim
    }

    /// Records `key` as stored in the victim store.
    pub(super) fn put_victim(&mut self, key: &[u8], label: Label) {
        self.forget(key);
        self.places.insert(key.into(), (Place::Victim, label));
    }

    /// Records a hit of `key` in memcached.
    pub(super) fn used(&mut self, key: &[u8]) {
        let Some((Place::Near(used), _)) = self.places.get_mut(key) else { return };
        self.count += 1;
        let before = std::mem::replace(used, self.count);
        let key = self.order.remove(&before).unwrap_or_else(|| key.into());
        self.order.insert(self.count, key);
    }

    /// Returns the label of `key`, if it is in the victim store.
    pub(super) fn victim(&self, key: &[u8]) -> Option<Label> {
        self.places.get(key).filter(|(place, _)| *place == Place::Victim).map(|(_, label)| *label)
    }

    /// Removes `key`; returns its former place.
    pub(super) fn forget(&mut self, key: &[u8]) -> Option<Where> {
        let (place, label) = self.places.remove(key)?;
        match place {
            Place::Near(used) => {
                self.order.remove(&used);
                self.near_bytes -= label.len_bytes;
                Some(Where::Near)
            }
            Place::Victim => Some(Where::Victim),
        }
    }

    /// Takes the least recently used key of memcached out of the order, so that no other thread
    /// gets it. It counts as near until it has been moved.
    pub(super) fn coldest(&mut self) -> Option<Coldest> {
        self.order.pop_first().map(|(used, key)| Coldest { key, used })
    }

    /// Returns its label, unless it was used, stored again or removed since.
    pub(super) fn still(&self, coldest: &Coldest) -> Option<Label> {
        let (place, label) = self.places.get(&coldest.key)?;
        (*place == Place::Near(coldest.used)).then_some(*label)
    }

    /// Puts it back into the order: it could not be moved.
    pub(super) fn keep(&mut self, coldest: Coldest) {
        if self.still(&coldest).is_some() {
            self.order.insert(coldest.used, coldest.key);
        }
    }
}

/// Former place of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    Near,
    Victim,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label(len_bytes: u64) -> Label {
        Label { flags: 5, len_bytes, ends: None }
    }

    #[test]
    fn least_recently_used_leaves_first() {
        let mut index = KeyIndex::default();
        for key in [b"a", b"b", b"c"] {
            assert!(!index.put_near(key, label(10)));
        }
        index.used(b"a");
        index.used(b"x");
        assert_eq!((index.near_bytes(), index.values()), (30, (3, 0)));
        let coldest = index.coldest().unwrap();
        assert_eq!((&*coldest.key, index.still(&coldest)), (&b"b"[..], Some(label(10))));
        index.put_victim(b"b", label(10));
        assert_eq!((index.near_bytes(), index.values()), (20, (2, 1)));
        assert_eq!((index.victim(b"b"), index.victim(b"a")), (Some(label(10)), None));
        assert!(index.put_near(b"b", label(4)), "it was in the victim store");
        assert_eq!((index.near_bytes(), index.victim(b"b")), (24, None));
        let order: Vec<_> = std::iter::from_fn(|| index.coldest()).map(|one| one.key).collect();
        assert_eq!(order.iter().map(|key| &**key).collect::<Vec<_>>(), [b"c", b"a", b"b"]);
    }

    #[test]
    fn used_or_rewritten_value_stays() {
        let mut index = KeyIndex::default();
        index.put_near(b"a", label(1));
        let leaving = index.coldest().unwrap();
        index.used(b"a");
        assert_eq!(index.still(&leaving), None);
        index.keep(leaving);
        let leaving = index.coldest().unwrap();
        assert!(index.coldest().is_none(), "it is there once");
        index.put_near(b"a", label(2));
        assert_eq!(index.still(&leaving), None);
        let leaving = index.coldest().unwrap();
        index.keep(leaving);
        let leaving = index.coldest().unwrap();
        assert_eq!(index.forget(b"a"), Some(Where::Near));
        assert_eq!((index.still(&leaving), index.near_bytes()), (None, 0));
        assert_eq!(index.forget(b"a"), None);
    }
}
