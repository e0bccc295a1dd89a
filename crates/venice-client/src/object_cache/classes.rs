//! Size classes: the chunk for a value of a given length.

/// Bytes of a block, which is cut into chunks of one class, or holds a piece of a large value. A
/// block lies within one slab, so it is lost or kept whole.
pub const BLOCK_BYTES: u64 = 1 << 20;

/// Bytes of the smallest chunk.
const SMALLEST_BYTES: u64 = 64;
/// Values longer than this take whole blocks.
const LARGEST_CHUNK_BYTES: u64 = BLOCK_BYTES / 2;

/// The storage for a value of a given length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fit {
    /// A chunk of this class.
    Chunk(usize),
    /// This many whole blocks.
    Blocks(usize),
}

/// The classes' chunk lengths, ascending; each is a quarter longer than the one before, so at most
/// a fifth of a chunk is unused.
#[derive(Debug)]
pub struct Classes {
    chunk_bytes: Vec<u64>,
}

impl Classes {
    /// Returns all classes.
    pub fn new() -> Classes {
        let mut chunk_bytes = Vec::new();
        let mut next = SMALLEST_BYTES;
        while next < LARGEST_CHUNK_BYTES {
            chunk_bytes.push(next);
            next = (next + next / 4).next_multiple_of(8);
        }
        chunk_bytes.push(LARGEST_CHUNK_BYTES);
        Classes { chunk_bytes }
    }

    /// Returns the number of classes.
    pub fn count(&self) -> usize {
        self.chunk_bytes.len()
    }

    /// Returns the bytes of a chunk of `class`.
    pub fn chunk_bytes(&self, class: usize) -> u64 {
        self.chunk_bytes[class]
    }

    /// Returns the chunks of `class` in a block.
    pub fn chunks_a_block(&self, class: usize) -> usize {
        (BLOCK_BYTES / self.chunk_bytes[class]) as usize
    }

    /// Returns the storage for a value of `len_bytes`.
    pub fn fit(&self, len_bytes: u64) -> Fit {
        match self.chunk_bytes.partition_point(|&chunk| chunk < len_bytes) {
            class if class < self.chunk_bytes.len() => Fit::Chunk(class),
            _ => Fit::Blocks(len_bytes.div_ceil(BLOCK_BYTES) as usize),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn value_fits_smallest_chunk() {
        let classes = Classes::new();
        assert!(classes.count() < 64);
        for len in [0, 1, 64, 65, 80, 81, 4096, 100_000, LARGEST_CHUNK_BYTES] {
            let Fit::Chunk(class) = classes.fit(len) else { panic!("{len} takes a chunk") };
            assert!(classes.chunk_bytes(class) >= len);
            assert!(class == 0 || classes.chunk_bytes(class - 1) < len);
            assert!(classes.chunks_a_block(class) >= 2);
        }
        assert_eq!(classes.fit(LARGEST_CHUNK_BYTES + 1), Fit::Blocks(1));
        assert_eq!(classes.fit(BLOCK_BYTES), Fit::Blocks(1));
        assert_eq!(classes.fit(BLOCK_BYTES + 1), Fit::Blocks(2));
    }
}
