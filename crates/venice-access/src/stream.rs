//! The program's demand on memory: the accesses of its trace that miss the processor's last cache.
//! Their order and kind depend on no time.

use std::sync::Arc;

use crate::cache::{Cache, CacheConfig, Lookup};
use crate::trace::{AccessTrace, Kind};

/// An access to memory, local or remote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miss {
    /// Instructions executed before it, from the start.
    pub at: u64,
    /// Its line.
    pub line: u64,
    /// Its kind.
    pub kind: Kind,
}

/// The accesses of a program to memory, in its order.
#[derive(Clone, Debug)]
pub struct Misses {
    trace: Arc<AccessTrace>,
    cache: Cache,
    /// Accesses of the trace taken so far, and how many are taken in all.
    taken: usize,
    all: usize,
    /// Instructions so far.
    at: u64,
    /// The write-back that follows a fill.
    write_back: Option<u64>,
    hits: u64,
}

impl Misses {
    /// Takes the first `all` accesses of a trace through a cache.
    ///
    /// # Panics
    /// If the cache's size is out of its bounds.
    pub fn new(trace: Arc<AccessTrace>, cache: &CacheConfig, all: usize) -> Self {
        let cache = Cache::new(cache).expect("the configuration was checked");
        let all = all.min(trace.accesses.len());
        Self { trace, cache, taken: 0, all, at: 0, write_back: None, hits: 0 }
    }

    /// Returns the accesses of the trace that hit the cache so far.
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// Returns the instructions that it has passed: at its end those of the whole program.
    pub fn instructions(&self) -> u64 {
        self.at
    }

    /// Returns the accesses of the trace taken so far, and all.
    pub fn progress(&self) -> (usize, usize) {
        (self.taken, self.all)
    }
}

impl Iterator for Misses {
    type Item = Miss;

    fn next(&mut self) -> Option<Miss> {
        if let Some(line) = self.write_back.take() {
            return Some(Miss { at: self.at, line, kind: Kind::WriteBack });
        }
        while self.taken < self.all {
            let access = self.trace.accesses[self.taken];
            self.taken += 1;
            self.at += access.gap;
            let is_write_back = access.kind == Kind::WriteBack;
            match self.cache.access(access.line, is_write_back) {
                Lookup::Hit => self.hits += 1,
                // A whole line from the cache before: nothing is filled.
                Lookup::Miss { write_back } if is_write_back => {
                    if let Some(line) = write_back {
                        return Some(Miss { at: self.at, line, kind: Kind::WriteBack });
                    }
                }
                Lookup::Miss { write_back } => {
                    self.write_back = write_back;
                    return Some(Miss { at: self.at, line: access.line, kind: access.kind });
                }
            }
        }
        // What it executes after its last access counts if all of it was replayed.
        if self.all == self.trace.accesses.len() {
            self.at = self.trace.instructions;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use venice_simkernel::units::Bytes;

    use super::*;
    use crate::trace::Access;

    #[test]
    fn cache_filters_trace() {
        let (load, store, back) = (Kind::Load, Kind::Store, Kind::WriteBack);
        let asked =
            [(5, 1, load), (5, 1, load), (5, 1, back), (5, 2, store), (5, 3, back), (1, 4, load)];
        let accesses: Vec<Access> =
            asked.iter().map(|&(gap, line, kind)| Access { gap, line, kind }).collect();
        let one_line = CacheConfig { bytes: Bytes(64), ways: 1 };
        let trace = AccessTrace {
            origin: String::new(),
            filter: one_line,
            pages: 1,
            instructions: 30,
            accesses,
        };
        let mut misses = Misses::new(Arc::new(trace), &one_line, usize::MAX);
        let found: Vec<_> = misses.by_ref().map(|miss| (miss.at, miss.line, miss.kind)).collect();
        // Line 1 becomes dirty in the cache and leaves for 2; 3 comes dirty, and leaves for 4.
        let wanted = [(5, 1, load), (20, 2, store), (20, 1, back), (26, 4, load), (26, 3, back)];
        assert_eq!(found, wanted);
        assert_eq!((misses.hits(), misses.instructions(), misses.progress()), (2, 30, (6, 6)));
    }
}
