//! A bounded set of connections, in which the oldest makes room for the newest.

use std::collections::{BTreeMap, BTreeSet};
use tokio::sync::oneshot;

/// The connections, by origin. A flood of one origin displaces its own connections first.
#[derive(Debug)]
pub(super) struct ShortLived<K> {
    most: usize,
    most_of_origin: usize,
    next: u64,
    /// The oldest first. Dropping the sender displaces the connection.
    open: BTreeMap<u64, (K, oneshot::Sender<()>)>,
    of_origin: BTreeMap<K, BTreeSet<u64>>,
}

/// Completes when its connection is displaced.
pub(super) type Displacement = oneshot::Receiver<()>;

impl<K: Ord + Clone> ShortLived<K> {
    /// Creates a set of at most `most` connections, and `most_of_origin` of one origin.
    pub(super) fn new(most: usize, most_of_origin: usize) -> Self {
        let (open, of_origin) = (BTreeMap::new(), BTreeMap::new());
        Self { most, most_of_origin, next: 0, open, of_origin }
    }

    /// Adds a connection, and displaces the oldest of its origin, or of all, if there are too many.
    pub(super) fn enter(&mut self, origin: K) -> (u64, Displacement) {
        let theirs = self.of_origin.get(&origin);
        let oldest = match theirs {
            Some(theirs) if theirs.len() >= self.most_of_origin => theirs.first().copied(),
            _ if self.open.len() >= self.most => self.open.keys().next().copied(),
            _ => None,
        };
        if let Some(oldest) = oldest {
            self.leave(oldest);
        }
        self.next += 1;
        let (displace, displacement) = oneshot::channel();
        self.open.insert(self.next, (origin.clone(), displace));
        self.of_origin.entry(origin).or_default().insert(self.next);
        (self.next, displacement)
    }

    /// Displaces the oldest connection of an origin. Returns false if it has none.
    pub(super) fn displace_oldest_of(&mut self, origin: &K) -> bool {
        let oldest = self.of_origin.get(origin).and_then(|theirs| theirs.first().copied());
        oldest.is_some_and(|oldest| self.leave(oldest))
    }

    /// Displaces the oldest connection of all. Returns false if there is none.
    pub(super) fn displace_oldest(&mut self) -> bool {
        let oldest = self.open.keys().next().copied();
        oldest.is_some_and(|oldest| self.leave(oldest))
    }

    /// Returns the number of connections.
    pub(super) fn len(&self) -> usize {
        self.open.len()
    }

    /// Removes a connection, displaced before or not. Returns true if it was in the set.
    pub(super) fn leave(&mut self, number: u64) -> bool {
        let Some((origin, _displace)) = self.open.remove(&number) else { return false };
        if let Some(theirs) = self.of_origin.get_mut(&origin) {
            theirs.remove(&number);
            if theirs.is_empty() {
                self.of_origin.remove(&origin);
            }
        }
        true
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.open.is_empty() && self.of_origin.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_connection_makes_room() {
        let mut set = ShortLived::new(4, 2);
        let displaced = |displacement: &mut Displacement| {
            displacement.try_recv() == Err(oneshot::error::TryRecvError::Closed)
        };
        let mut noisy: Vec<_> = (0..3).map(|_| set.enter("noisy")).collect();
        let gone: Vec<bool> =
            noisy.iter_mut().map(|(_, displacement)| displaced(displacement)).collect();
        assert_eq!(gone, [true, false, false], "only the oldest of the origin");
        let (quiet, mut quiet_displacement) = set.enter("quiet");
        let (_, mut other) = set.enter("other");
        assert!(!displaced(&mut quiet_displacement) && !displaced(&mut other));
        let _more = set.enter("more");
        assert!(displaced(&mut noisy[1].1), "the oldest of all");
        assert!(set.leave(quiet) && !set.leave(quiet));
        while set.displace_oldest() {}
        assert!(set.is_empty());
    }
}
