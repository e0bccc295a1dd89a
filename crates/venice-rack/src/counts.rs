//! Counts by key.

use std::borrow::Borrow;
use std::collections::BTreeMap;

/// Counts things by key. A key whose count is zero is forgotten.
#[derive(Debug, Clone)]
pub struct Counts<K>(BTreeMap<K, usize>);

impl<K> Default for Counts<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord> Counts<K> {
    /// Returns the count of a key.
    pub fn of<Q: Ord + ?Sized>(&self, key: &Q) -> usize
    where
        K: Borrow<Q>,
    {
        self.0.get(key).copied().unwrap_or(0)
    }

    /// Counts one more.
    pub fn add(&mut self, key: K) {
        *self.0.entry(key).or_default() += 1;
    }

    /// Counts one less.
    ///
    /// # Panics
    /// Panics if the count is zero.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q)
    where
        K: Borrow<Q>,
    {
        let count = self.0.get_mut(key).expect("what is removed was added");
        *count -= 1;
        if *count == 0 {
            self.0.remove(key);
        }
    }

    /// True if all counts are zero.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_counts_are_forgotten() {
        let mut counts = Counts::default();
        counts.add("ada");
        counts.add("ada");
        counts.remove("ada");
        assert_eq!((counts.of("ada"), counts.of("bob")), (1, 0));
        counts.remove("ada");
        assert!(counts.is_empty());
    }
}
