//! A set-associative cache with write-back, without the bytes: the filter of recordings and the last
//! cache of the recipient's processor.

use serde::{Deserialize, Serialize};
use venice_simkernel::units::Bytes;

/// Bytes of a line.
pub const LINE_BYTES: u64 = 64;

/// The most bytes of a cache.
const MOST_BYTES: u64 = 1 << 30;

/// The size of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default, rename_all = "kebab-case")]
pub struct CacheConfig {
    /// Bytes in lines of 64: lines / ways is a power of two. 0: no cache.
    pub bytes: Bytes,
    /// Lines that share a set, 1 to 64.
    pub ways: u32,
}

impl Default for CacheConfig {
    /// The second-level cache of a Zynq-7045 (Xilinx UG585, chapter 3): 512 KiB in 8 ways.
    fn default() -> Self {
        Self { bytes: Bytes(512 << 10), ways: 8 }
    }
}

impl CacheConfig {
    /// Returns the number of sets; `None` if the size is out of its bounds.
    pub fn sets(&self) -> Option<u64> {
        let set_bytes = u64::from(self.ways) * LINE_BYTES;
        let fits = (1..=64).contains(&self.ways) && self.bytes.0 <= MOST_BYTES;
        let sets = fits.then(|| self.bytes.0 / set_bytes)?;
        let is_whole = sets * set_bytes == self.bytes.0 && (sets == 0 || sets.is_power_of_two());
        is_whole.then_some(sets)
    }
}

#[derive(Clone, Copy, Debug)]
struct Way {
    line: u64,
    is_dirty: bool,
}

/// The outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The line is there.
    Hit,
    /// The line was not there, and is now.
    Miss {
        /// A dirty line that made room.
        write_back: Option<u64>,
    },
}

/// A cache that evicts the line of a set used least recently.
#[derive(Clone, Debug)]
pub struct Cache {
    /// Lines of each set, the one used last first.
    sets: Vec<Vec<Way>>,
    ways: usize,
}

impl Cache {
    /// Makes an empty cache; `None` if the size is out of its bounds.
    pub fn new(config: &CacheConfig) -> Option<Self> {
        let sets = usize::try_from(config.sets()?).ok()?;
        let ways = config.ways as usize;
        Some(Self { sets: vec![Vec::with_capacity(ways); sets], ways })
    }

    /// Accesses a line by its number; a write makes it dirty. Without a set every access misses, and
    /// nothing stays.
    pub fn access(&mut self, line: u64, is_write: bool) -> Lookup {
        let count = self.sets.len() as u64;
        if count == 0 {
            return Lookup::Miss { write_back: is_write.then_some(line) };
        }
        let set = &mut self.sets[(line % count) as usize];
        if let Some(at) = set.iter().position(|way| way.line == line) {
            set[..=at].rotate_right(1);
            set[0].is_dirty |= is_write;
            return Lookup::Hit;
        }
        let evicted = (set.len() == self.ways).then(|| set.pop()).flatten();
        set.insert(0, Way { line, is_dirty: is_write });
        let write_back = evicted.filter(|way| way.is_dirty).map(|way| way.line);
        Lookup::Miss { write_back }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(lines: u64, ways: u32) -> Cache {
        Cache::new(&CacheConfig { bytes: Bytes(lines * LINE_BYTES), ways }).unwrap()
    }

    #[test]
    fn oldest_line_is_evicted() {
        let mut cache = cache(2, 2);
        assert_eq!(cache.access(1, true), Lookup::Miss { write_back: None });
        assert_eq!(cache.access(2, false), Lookup::Miss { write_back: None });
        assert_eq!(cache.access(1, false), Lookup::Hit);
        assert_eq!(cache.access(3, false), Lookup::Miss { write_back: None }, "2 was clean");
        assert_eq!(cache.access(2, false), Lookup::Miss { write_back: Some(1) }, "1 was dirty");
    }

    #[test]
    fn sets_do_not_share_lines() {
        let mut cache = cache(4, 1);
        (0..4).for_each(|line| {
            cache.access(line, false);
        });
        assert_eq!((0..4).filter(|line| cache.access(*line, false) == Lookup::Hit).count(), 4);
        assert_eq!(cache.access(4, true), Lookup::Miss { write_back: None });
        assert_eq!(cache.access(8, false), Lookup::Miss { write_back: Some(4) });
    }

    #[test]
    fn empty_cache_always_misses() {
        let mut cache = cache(0, 1);
        assert_eq!(cache.access(1, false), Lookup::Miss { write_back: None });
        assert_eq!(cache.access(1, true), Lookup::Miss { write_back: Some(1) });
    }

    #[test]
    fn odd_sizes_are_refused() {
        for (bytes, ways) in [(100, 1), (3 * 64, 1), (64, 0), (64, 2), (65 * 64, 65), (2 << 30, 8)]
        {
            let config = CacheConfig { bytes: Bytes(bytes), ways };
            assert!(Cache::new(&config).is_none(), "{config:?}");
        }
    }
}
