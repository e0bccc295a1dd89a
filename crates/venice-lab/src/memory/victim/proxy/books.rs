//! What the proxy knows of each key: in memcached or in the victim store, and which of those in
//! memcached nobody asked for for the longest time.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// What goes with a value wherever it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) flags: u32,
    pub(super) len_bytes: u64,
    /// When it is no longer to be had.
    pub(super) ends: Option<Instant>,
}

/// Where a value is: in one place, never in both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    /// In memcached; last used at this count.
    Near(u64),
    Victim,
}

/// One that was the coldest when it was looked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Coldest {
    pub(super) key: Arc<[u8]>,
    used: u64,
}

/// The table. A key that is not in it may be in memcached all the same, put there by others.
#[derive(Debug, Default)]
pub(super) struct Books {
    places: HashMap<Arc<[u8]>, (Place, Label)>,
    /// Those near, by when they were last used.
    order: BTreeMap<u64, Arc<[u8]>>,
    near_bytes: u64,
    count: u64,
}

impl Books {
    /// Bytes of the values in memcached.
    pub(super) fn near_bytes(&self) -> u64 {
        self.near_bytes
    }

    /// Values in memcached, and in the victim store.
    pub(super) fn values(&self) -> (usize, usize) {
        let near = self.places.values().filter(|(place, _)| *place != Place::Victim).count();
        (near, self.places.len() - near)
    }

    /// `key` was stored in memcached; whether it was in the victim store before.
    pub(super) fn put_near(&mut self, key: &[u8], label: Label) -> bool {
        let was_victim = self.forget(key) == Some(Where::Victim);
        let key: Arc<[u8]> = key.into();
        self.count += 1;
        self.order.insert(self.count, key.clone());
        self.near_bytes += label.len_bytes;
        self.places.insert(key, (Place::Near(self.count), label));
        was_victim
    }

    /// `key` was stored in the victim store.
    pub(super) fn put_victim(&mut self, key: &[u8], label: Label) {
        self.forget(key);
        self.places.insert(key.into(), (Place::Victim, label));
    }

    /// `key` was found in memcached.
    pub(super) fn used(&mut self, key: &[u8]) {
        let Some((Place::Near(used), _)) = self.places.get_mut(key) else { return };
        self.count += 1;
        let before = std::mem::replace(used, self.count);
        let key = self.order.remove(&before).unwrap_or_else(|| key.into());
        self.order.insert(self.count, key);
    }

    /// What goes with `key`, where it is in the victim store.
    pub(super) fn victim(&self, key: &[u8]) -> Option<Label> {
        self.places.get(key).filter(|(place, _)| *place == Place::Victim).map(|(_, label)| *label)
    }

    /// `key` is nowhere any more; where it was.
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

    /// Takes the one near that was not used for the longest time out of the order: nobody else gets
    /// it. It is near until it has been moved.
    pub(super) fn coldest(&mut self) -> Option<Coldest> {
        self.order.pop_first().map(|(used, key)| Coldest { key, used })
    }

    /// What goes with it, unless it was used, stored again or taken away since.
    pub(super) fn still(&self, coldest: &Coldest) -> Option<Label> {
        let (place, label) = self.places.get(&coldest.key)?;
        (*place == Place::Near(coldest.used)).then_some(*label)
    }

    /// It could not be moved: it has its turn again.
    pub(super) fn keep(&mut self, coldest: Coldest) {
        if self.still(&coldest).is_some() {
            self.order.insert(coldest.used, coldest.key);
        }
    }
}

/// Where a value was.
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
    fn the_one_not_used_for_the_longest_time_leaves_first() {
        let mut books = Books::default();
        for key in [b"a", b"b", b"c"] {
            assert!(!books.put_near(key, label(10)));
        }
        books.used(b"a");
        books.used(b"x");
        assert_eq!((books.near_bytes(), books.values()), (30, (3, 0)));
        let coldest = books.coldest().unwrap();
        assert_eq!((&*coldest.key, books.still(&coldest)), (&b"b"[..], Some(label(10))));
        books.put_victim(b"b", label(10));
        assert_eq!((books.near_bytes(), books.values()), (20, (2, 1)));
        assert_eq!((books.victim(b"b"), books.victim(b"a")), (Some(label(10)), None));
        assert!(books.put_near(b"b", label(4)), "it was in the victim store");
        assert_eq!((books.near_bytes(), books.victim(b"b")), (24, None));
        let order: Vec<_> = std::iter::from_fn(|| books.coldest()).map(|one| one.key).collect();
        assert_eq!(order.iter().map(|key| &**key).collect::<Vec<_>>(), [b"c", b"a", b"b"]);
    }

    #[test]
    fn one_that_is_used_or_stored_while_it_leaves_stays() {
        let mut books = Books::default();
        books.put_near(b"a", label(1));
        let leaving = books.coldest().unwrap();
        books.used(b"a");
        assert_eq!(books.still(&leaving), None);
        books.keep(leaving);
        let leaving = books.coldest().unwrap();
        assert!(books.coldest().is_none(), "it is there once");
        books.put_near(b"a", label(2));
        assert_eq!(books.still(&leaving), None);
        let leaving = books.coldest().unwrap();
        books.keep(leaving);
        let leaving = books.coldest().unwrap();
        assert_eq!(books.forget(b"a"), Some(Where::Near));
        assert_eq!((books.still(&leaving), books.near_bytes()), (None, 0));
        assert_eq!(books.forget(b"a"), None);
    }
}
