//! Ranges of the region that this recipient has reserved, divided among its buffers.

use std::collections::BTreeMap;

/// Alignment of allocations in bytes: OpenCL's longest vector, and a cache line.
const ALIGN: u64 = 128;
/// Least length of a reservation in bytes.
const CHUNK_BYTES: u64 = 16 << 20;
/// Free bytes beyond which chunks that are all free are given back.
const KEEP_BYTES: u64 = 256 << 20;

/// A reserved range.
#[derive(Debug)]
struct Chunk {
    bytes: u64,
    /// Free ranges: first byte and length.
    free: BTreeMap<u64, u64>,
}

/// The reserved ranges.
#[derive(Debug, Default)]
pub struct Arena {
    chunks: BTreeMap<u64, Chunk>,
    /// Lengths of allocations.
    used: BTreeMap<u64, u64>,
    free_bytes: u64,
}

impl Arena {
    /// Allocates `bytes`; `None`: a reservation of [`Arena::wanted`] bytes has to come first.
    pub fn allocate(&mut self, bytes: u64) -> Option<u64> {
        let bytes = rounded(bytes);
        for chunk in self.chunks.values_mut() {
            let fit = chunk.free.iter().find(|(_, len)| **len >= bytes);
            let Some((&at, &len)) = fit else { continue };
            chunk.free.remove(&at);
            if len > bytes {
                chunk.free.insert(at + bytes, len - bytes);
            }
            self.used.insert(at, bytes);
            self.free_bytes -= bytes;
            return Some(at);
        }
        None
    }

    /// Returns the length of the reservation that an allocation needs.
    pub fn wanted(bytes: u64) -> u64 {
        rounded(bytes).max(CHUNK_BYTES)
    }

    /// Adds a reservation.
    pub fn add(&mut self, offset: u64, bytes: u64) {
        self.free_bytes += bytes;
        self.chunks.insert(offset, Chunk { bytes, free: BTreeMap::from([(offset, bytes)]) });
    }

    /// Frees an allocation. Returns a reservation to give back, if too much is free.
    ///
    /// # Panics
    /// If there is no such allocation.
    pub fn free(&mut self, offset: u64) -> Option<u64> {
        let mut bytes = self.used.remove(&offset).expect("an allocation is freed once");
        self.free_bytes += bytes;
        let last = self.chunks.range_mut(..=offset).next_back();
        let (&start, chunk) = last.expect("each allocation lies in a chunk");
        let mut at = offset;
        if let Some((&before, &len)) = chunk.free.range(..offset).next_back()
            && before + len == offset
        {
            chunk.free.remove(&before);
            (at, bytes) = (before, bytes + len);
        }
        if let Some(len) = chunk.free.remove(&(at + bytes)) {
            bytes += len;
        }
        chunk.free.insert(at, bytes);
        if bytes < chunk.bytes || self.free_bytes <= KEEP_BYTES {
            return None;
        }
        self.free_bytes -= bytes;
        self.chunks.remove(&start);
        Some(start)
    }
}

fn rounded(bytes: u64) -> u64 {
    bytes.max(1).checked_next_multiple_of(ALIGN).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_ranges_merge() {
        let mut arena = Arena::default();
        assert_eq!(arena.allocate(1), None);
        arena.add(0, 1024);
        let all: Vec<_> = (0..8).map(|_| arena.allocate(100).unwrap()).collect();
        assert_eq!(arena.allocate(1), None);
        for at in [1, 3, 2, 0, 7, 5, 6, 4] {
            assert_eq!(arena.free(all[at]), None);
        }
        assert_eq!(arena.allocate(1024), Some(0));
    }

    #[test]
    fn much_free_memory_is_returned() {
        let mut arena = Arena::default();
        for at in 0..3 {
            arena.add(at * KEEP_BYTES, KEEP_BYTES);
        }
        let all: Vec<_> = (0..3).map(|_| arena.allocate(KEEP_BYTES).unwrap()).collect();
        assert_eq!(arena.free(all[0]), None);
        assert_eq!(arena.free(all[1]), Some(all[1]));
        assert_eq!(arena.allocate(1), Some(all[0]));
    }
}
