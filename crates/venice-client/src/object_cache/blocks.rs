//! The borrowed memory as blocks: free, cut into chunks of a class, holding a piece of a large
//! value, or lost with a donor.

use super::classes::{BLOCK_BYTES, Classes};
use super::entries::{NONE, Place};

#[derive(Debug)]
enum Block {
    Free,
    /// For each chunk the record whose value it holds.
    Chunks {
        class: usize,
        holders: Box<[u32]>,
        used: u32,
    },
    Whole {
        holder: u32,
    },
    Lost,
}

/// All blocks of one cache.
#[derive(Debug)]
pub struct Blocks {
    classes: Classes,
    blocks: Vec<Block>,
    free_blocks: Vec<u32>,
    /// For each class its free chunks.
    free_chunks: Vec<Vec<(u32, u32)>>,
    /// Number of blocks cut into chunks that are all free.
    empty: usize,
}

/// The pieces of a value: address and length of each.
#[derive(Debug)]
pub struct Pieces {
    first: (u64, usize),
    more: Vec<(u64, usize)>,
}

impl Pieces {
    /// Returns all pieces, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, usize)> + '_ {
        std::iter::once(self.first).chain(self.more.iter().copied())
    }
}

impl Blocks {
    /// Returns `count` free blocks.
    pub fn new(count: u32) -> Blocks {
        let classes = Classes::new();
        let free_chunks = vec![Vec::new(); classes.count()];
        let blocks = (0..count).map(|_| Block::Free).collect();
        Blocks { classes, blocks, free_blocks: (0..count).rev().collect(), free_chunks, empty: 0 }
    }

    /// Returns the size classes.
    pub fn classes(&self) -> &Classes {
        &self.classes
    }

    /// Returns the number of blocks that are not lost.
    pub fn alive(&self) -> usize {
        self.blocks.iter().filter(|block| !matches!(block, Block::Lost)).count()
    }

    /// Takes a free chunk of `class`; cuts up a free block for it if necessary.
    pub fn take_chunk(&mut self, class: usize) -> Option<Place> {
        if self.free_chunks[class].is_empty() {
            let block = self.free_blocks.pop()?;
            self.cut(block, class);
        }
        let (block, chunk) = self.free_chunks[class].pop()?;
        Some(Place::Chunk { block, chunk })
    }

    /// Takes `count` free blocks, or none.
    pub fn take_blocks(&mut self, count: usize) -> Option<Place> {
        let keep = self.free_blocks.len().checked_sub(count)?;
        Some(Place::Blocks(self.free_blocks.split_off(keep).into()))
    }

    /// Assigns `place` to the value of record `holder`.
    pub fn occupy(&mut self, place: &Place, holder: u32) {
        match place {
            Place::Chunk { block, chunk } => {
                let Block::Chunks { holders, used, .. } = &mut self.blocks[*block as usize] else {
                    panic!("a chunk lies in a block cut into chunks")
                };
                holders[*chunk as usize] = holder;
                self.empty -= usize::from(*used == 0);
                *used += 1;
            }
            Place::Blocks(blocks) => {
                for block in blocks {
                    self.blocks[*block as usize] = Block::Whole { holder };
                }
            }
        }
    }

    /// Frees `place`, except its lost parts.
    pub fn vacate(&mut self, place: &Place) {
        match place {
            Place::Chunk { block, chunk } => {
                let state = &mut self.blocks[*block as usize];
                if let Block::Chunks { class, holders, used } = state {
                    holders[*chunk as usize] = NONE;
                    *used -= 1;
                    self.empty += usize::from(*used == 0);
                    self.free_chunks[*class].push((*block, *chunk));
                }
            }
            Place::Blocks(blocks) => {
                for block in blocks {
                    if !matches!(self.blocks[*block as usize], Block::Lost) {
                        self.blocks[*block as usize] = Block::Free;
                        self.free_blocks.push(*block);
                    }
                }
            }
        }
    }

    /// Returns the records whose values lie in `block`.
    pub fn holders(&self, block: u32) -> Vec<u32> {
        match &self.blocks[block as usize] {
            Block::Chunks { holders, .. } => {
                holders.iter().copied().filter(|holder| *holder != NONE).collect()
            }
            Block::Whole { holder } => vec![*holder],
            Block::Free | Block::Lost => Vec::new(),
        }
    }

    /// Turns the cut blocks without used chunks into free ones; returns true if there were any.
    pub fn reclaim_empty(&mut self) -> bool {
        if self.empty == 0 {
            return false;
        }
        for (index, block) in self.blocks.iter_mut().enumerate() {
            if matches!(block, Block::Chunks { used: 0, .. }) {
                *block = Block::Free;
                self.free_blocks.push(index as u32);
            }
        }
        let blocks = &self.blocks;
        for free in &mut self.free_chunks {
            free.retain(|(block, _)| matches!(blocks[*block as usize], Block::Chunks { .. }));
        }
        self.empty = 0;
        true
    }

    /// Marks a block as lost with its donor: it is never used again. The caller must collect the
    /// affected records before.
    pub fn lose(&mut self, block: u32) {
        match &self.blocks[block as usize] {
            Block::Free => self.free_blocks.retain(|of| *of != block),
            Block::Chunks { class, used, .. } => {
                self.empty -= usize::from(*used == 0);
                self.free_chunks[*class].retain(|(of, _)| *of != block);
            }
            Block::Whole { .. } | Block::Lost => {}
        }
        self.blocks[block as usize] = Block::Lost;
    }

    /// Returns the pieces of a value of `len_bytes`.
    pub fn pieces(&self, place: &Place, len_bytes: u64) -> Pieces {
        match place {
            Place::Chunk { block, chunk } => {
                let within = match self.blocks[*block as usize] {
                    Block::Chunks { class, .. } => {
                        u64::from(*chunk) * self.classes.chunk_bytes(class)
                    }
                    _ => 0,
                };
                let first = (u64::from(*block) * BLOCK_BYTES + within, len_bytes as usize);
                Pieces { first, more: Vec::new() }
            }
            Place::Blocks(blocks) => {
                let mut left = len_bytes;
                let mut pieces = blocks.iter().map(|block| {
                    let here = left.min(BLOCK_BYTES);
                    left -= here;
                    (u64::from(*block) * BLOCK_BYTES, here as usize)
                });
                let first = pieces.next().expect("a value takes a block at least");
                Pieces { first, more: pieces.collect() }
            }
        }
    }

    fn cut(&mut self, block: u32, class: usize) {
        let chunks = self.classes.chunks_a_block(class);
        let holders = vec![NONE; chunks].into();
        self.blocks[block as usize] = Block::Chunks { class, holders, used: 0 };
        self.empty += 1;
        self.free_chunks[class].extend((0..chunks as u32).rev().map(|chunk| (block, chunk)));
    }
}
