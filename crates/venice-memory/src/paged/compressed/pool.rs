//! The pool of compressed pages: blocks of 256 bytes, an object of several in a chain, found by the
//! fingerprint of the page, the oldest at the end of a list.
//!
//! It moves nothing and allocates nothing: all it uses is one piece of memory, of which only what was
//! used once is resident. Zeros everywhere are an empty pool.

use super::super::sys::{self, SysResult};

/// Bytes of a block.
const BLOCK_BYTES: usize = 256;
/// Bytes of an object in each of its blocks; in the first, of them [`HEAD_BYTES`] say what it is.
const ROOM: usize = BLOCK_BYTES - size_of::<u32>();
const HEAD_BYTES: usize = 32;
/// An object is as long as that at most.
pub const LONGEST: usize = 8 * ROOM - HEAD_BYTES;
/// Blocks for each list of objects whose fingerprints end alike.
const BLOCKS_PER_BUCKET: usize = 2;

/// The number of a block, plus one; 0: none.
type Link = u32;

#[derive(Debug)]
#[repr(C)]
struct Block {
    /// The next of the same object, or of the free ones.
    next: Link,
    bytes: [u8; ROOM],
}

const _: () = assert!(size_of::<Block>() == BLOCK_BYTES);

/// What the first block of an object begins with.
#[derive(Clone, Copy, Debug)]
struct Head {
    fingerprint: u128,
    newer: Link,
    older: Link,
    /// The next of the same bucket.
    beside: Link,
    len_bytes: u32,
}

impl Head {
    fn read(bytes: &[u8; ROOM]) -> Head {
        let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Head {
            fingerprint: u128::from_le_bytes(bytes[..16].try_into().expect("16 bytes")),
            newer: word(16),
            older: word(20),
            beside: word(24),
            len_bytes: word(28),
        }
    }

    fn write(self, bytes: &mut [u8; ROOM]) {
        bytes[..16].copy_from_slice(&self.fingerprint.to_le_bytes());
        let words = [self.newer, self.older, self.beside, self.len_bytes];
        for (to, word) in bytes[16..HEAD_BYTES].chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Where the memory of a pool is.
#[derive(Clone, Copy, Debug)]
pub struct PoolMemory {
    base: usize,
    blocks: usize,
    buckets: usize,
}

impl PoolMemory {
    /// Address space for so many bytes of pool, empty in the child of a fork.
    ///
    /// # Errors
    /// The kernel's.
    pub fn reserve(len_bytes: usize) -> SysResult<PoolMemory> {
        let blocks = (len_bytes / BLOCK_BYTES).clamp(1, Link::MAX as usize - 1);
        let buckets = (blocks / BLOCKS_PER_BUCKET).next_power_of_two();
        let mut memory = PoolMemory { base: 0, blocks, buckets };
        memory.base = sys::map_private(memory.len_bytes())? as usize;
        // SAFETY: advice about fresh memory.
        unsafe { sys::madvise(memory.base, memory.len_bytes(), sys::MADV_WIPEONFORK)? };
        Ok(memory)
    }

    fn len_bytes(&self) -> usize {
        self.blocks * BLOCK_BYTES + self.buckets * size_of::<Link>()
    }

    /// Gives it back.
    ///
    /// # Safety
    /// No pool over it is used any more.
    pub unsafe fn unmap(self) {
        // SAFETY: mapped by `reserve`, and forwarded to the caller.
        unsafe { sys::unmap(self.base as *mut _, self.len_bytes()) };
    }
}

/// The pool.
#[derive(Debug)]
pub struct Pool {
    memory: PoolMemory,
    blocks: &'static mut [Block],
    buckets: &'static mut [Link],
    /// Of the buckets, those in use: a power of two.
    lists: usize,
    /// Bytes it may use, and what that makes in blocks.
    limit_bytes: usize,
    most: usize,
    /// Blocks in use.
    used: usize,
    /// Those from here on were never used.
    fresh: usize,
    free: Link,
    newest: Link,
    oldest: Link,
}

impl Pool {
    /// An empty pool that may use nothing yet.
    ///
    /// # Safety
    /// The memory is all zeros, and no other pool over it is used.
    pub unsafe fn over(memory: PoolMemory) -> Pool {
        let buckets = (memory.base + memory.blocks * BLOCK_BYTES) as *mut Link;
        // SAFETY: mapped, of that length, zeros are valid for both, and nobody else has them.
        let (blocks, buckets) = unsafe {
            (
                std::slice::from_raw_parts_mut(memory.base as *mut Block, memory.blocks),
                std::slice::from_raw_parts_mut(buckets, memory.buckets),
            )
        };
        Pool {
            memory,
            blocks,
            buckets,
            lists: 1,
            limit_bytes: 0,
            most: 0,
            used: 0,
            fresh: 0,
            free: 0,
            newest: 0,
            oldest: 0,
        }
    }

    /// Lets it use so many bytes, its lists among them, of those it was made for. What is too much is
    /// dropped, the oldest first; its memory stays.
    pub fn set_limit(&mut self, len_bytes: usize) {
        self.limit_bytes = len_bytes;
        if self.fresh == 0 {
            self.lists = self.lists_wanted();
        }
        let for_blocks = len_bytes.saturating_sub(self.lists * size_of::<Link>());
        self.most = (for_blocks / BLOCK_BYTES).min(self.blocks.len());
        while self.used > self.most {
            self.drop_oldest();
        }
    }

    /// As many lists as its limit wants.
    fn lists_wanted(&self) -> usize {
        let blocks = (self.limit_bytes / BLOCK_BYTES).min(self.blocks.len());
        (blocks / BLOCKS_PER_BUCKET).next_power_of_two().min(self.buckets.len())
    }

    /// Are its lists about as many as its limit wants? Their number changes only when it is emptied.
    pub fn lists_fit(&self) -> bool {
        let wanted = self.lists_wanted();
        wanted <= 4 * self.lists && self.lists <= 4 * wanted
    }

    /// Bytes of memory that it has made resident, its lists among them.
    pub fn resident_bytes(&self) -> usize {
        let lists = if self.fresh > 0 { self.lists * size_of::<Link>() } else { 0 };
        self.fresh * BLOCK_BYTES + lists
    }

    /// Bytes it may use, and those in use.
    pub fn limit_and_used_bytes(&self) -> (usize, usize) {
        (self.most * BLOCK_BYTES, self.used * BLOCK_BYTES)
    }

    /// Forgets everything and gives the memory back to the kernel.
    pub fn empty(&mut self) {
        if self.fresh == 0 {
            return;
        }
        let memory = self.memory;
        // SAFETY: the pool's own memory, which reads as zeros afterwards: an empty pool.
        let dropped =
            unsafe { sys::madvise(memory.base, memory.len_bytes(), sys::MADV_DONTNEED_LOCKED) };
        assert!(dropped.is_ok(), "the pool is plain memory");
        let limit_bytes = self.limit_bytes;
        // SAFETY: all zeros, and `self` ends here.
        *self = unsafe { Pool::over(memory) };
        self.set_limit(limit_bytes);
    }

    /// Keeps `object` for the page of that fingerprint, as the newest; what is oldest makes room.
    /// `false`: it is too long.
    pub fn insert(&mut self, fingerprint: u128, object: &[u8]) -> bool {
        let blocks = (HEAD_BYTES + object.len()).div_ceil(ROOM);
        if object.len() > LONGEST || blocks > self.most {
            return false;
        }
        if let Some(known) = self.find(fingerprint) {
            self.unlink(known);
            self.link_as_newest(known);
            return true;
        }
        while self.used + blocks > self.most {
            self.drop_oldest();
        }
        let first = self.take_block();
        let len_bytes = object.len() as u32;
        let bucket = self.bucket_of(fingerprint);
        let head =
            Head { fingerprint, newer: 0, older: 0, beside: self.buckets[bucket], len_bytes };
        self.buckets[bucket] = first;
        head.write(&mut self.block(first).bytes);
        let (begin, rest) = object.split_at(object.len().min(ROOM - HEAD_BYTES));
        self.block(first).bytes[HEAD_BYTES..HEAD_BYTES + begin.len()].copy_from_slice(begin);
        let mut last = first;
        for piece in rest.chunks(ROOM) {
            let next = self.take_block();
            self.block(next).bytes[..piece.len()].copy_from_slice(piece);
            self.block(last).next = next;
            last = next;
        }
        self.block(last).next = 0;
        self.link_as_newest(first);
        true
    }

    /// Takes out the object of the page of that fingerprint; its length, if there is one.
    pub fn take(&mut self, fingerprint: u128, object: &mut [u8; LONGEST]) -> Option<usize> {
        let first = self.find(fingerprint)?;
        let len_bytes = self.head(first).len_bytes as usize;
        let (begin, rest) = object[..len_bytes].split_at_mut(len_bytes.min(ROOM - HEAD_BYTES));
        begin.copy_from_slice(&self.block(first).bytes[HEAD_BYTES..HEAD_BYTES + begin.len()]);
        let mut at = first;
        for piece in rest.chunks_mut(ROOM) {
            at = self.block(at).next;
            piece.copy_from_slice(&self.block(at).bytes[..piece.len()]);
        }
        self.remove(first);
        Some(len_bytes)
    }

    fn drop_oldest(&mut self) {
        assert!(self.oldest != 0, "blocks are in use, so there is an object");
        self.remove(self.oldest);
    }

    /// Frees the object that begins with block `first`.
    fn remove(&mut self, first: Link) {
        self.unlink(first);
        let Head { fingerprint, beside, .. } = self.head(first);
        let bucket = self.bucket_of(fingerprint);
        if self.buckets[bucket] == first {
            self.buckets[bucket] = beside;
        } else {
            let mut before = self.buckets[bucket];
            while self.head(before).beside != first {
                before = self.head(before).beside;
            }
            self.change(before, |head| head.beside = beside);
        }
        let mut last = first;
        self.used -= 1;
        while self.block(last).next != 0 {
            last = self.block(last).next;
            self.used -= 1;
        }
        self.block(last).next = self.free;
        self.free = first;
    }

    fn find(&mut self, fingerprint: u128) -> Option<Link> {
        let mut at = self.buckets[self.bucket_of(fingerprint)];
        while at != 0 {
            let head = self.head(at);
            if head.fingerprint == fingerprint {
                return Some(at);
            }
            at = head.beside;
        }
        None
    }

    fn unlink(&mut self, first: Link) {
        let Head { newer, older, .. } = self.head(first);
        match newer {
            0 => self.newest = older,
            _ => self.change(newer, |head| head.older = older),
        }
        match older {
            0 => self.oldest = newer,
            _ => self.change(older, |head| head.newer = newer),
        }
    }

    fn link_as_newest(&mut self, first: Link) {
        let before = self.newest;
        self.change(first, |head| (head.newer, head.older) = (0, before));
        match before {
            0 => self.oldest = first,
            _ => self.change(before, |head| head.newer = first),
        }
        self.newest = first;
    }

    /// A block that nobody uses; there is one, by the limit.
    fn take_block(&mut self) -> Link {
        self.used += 1;
        if self.free != 0 {
            let taken = self.free;
            self.free = self.block(taken).next;
            return taken;
        }
        self.fresh += 1;
        self.fresh as Link
    }

    fn bucket_of(&self, fingerprint: u128) -> usize {
        fingerprint as usize & (self.lists - 1)
    }

    fn head(&mut self, first: Link) -> Head {
        Head::read(&self.block(first).bytes)
    }

    fn change(&mut self, first: Link, change: impl FnOnce(&mut Head)) {
        let mut head = self.head(first);
        change(&mut head);
        head.write(&mut self.block(first).bytes);
    }

    fn block(&mut self, link: Link) -> &mut Block {
        &mut self.blocks[link as usize - 1]
    }
}

#[cfg(test)]
mod tests;
