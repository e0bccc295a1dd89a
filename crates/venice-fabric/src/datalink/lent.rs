//! Bytes of granted memory from which an answer is sent in place.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use venice_wire::Checksum;

/// Memory of which parts can be lent. It stays in place as long as a reference exists.
pub trait LendingMemory: fmt::Debug + Send + Sync {
    /// Copies the bytes from `offset` on, as they are at this moment.
    ///
    /// # Panics
    /// Panics if the range exceeds the memory.
    fn copy_to(&self, offset: usize, into: &mut [u8]);

    /// Adds the bytes of the range to a checksum, as they are at this moment.
    ///
    /// # Panics
    /// Panics if the range exceeds the memory.
    fn feed(&self, range: Range<usize>, checksum: &mut Checksum);

    /// Returns the address of the byte at `offset`, for ports whose kernel or device reads from
    /// there.
    ///
    /// # Panics
    /// Panics if the offset lies outside the memory.
    fn address(&self, offset: usize) -> *const u8;
}

/// Bytes of granted memory lent to an answer until it has arrived. Other writers of the memory may
/// change them meanwhile; the fabric ensures that the link's own writes do not.
#[derive(Clone)]
pub struct Lent {
    memory: Arc<dyn LendingMemory>,
    offset: usize,
    len: usize,
}

impl Lent {
    /// Lends a range of `memory`, which must lie inside it.
    pub fn new(memory: Arc<dyn LendingMemory>, range: Range<usize>) -> Self {
        Self { memory, offset: range.start, len: range.len() }
    }

    /// Returns the length in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Copies the bytes, as they are at this moment.
    ///
    /// # Panics
    /// Panics if `into` has another length.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len, "all of them are copied");
        self.memory.copy_to(self.offset, into);
    }

    /// Adds the bytes to a checksum, as they are at this moment.
    pub fn feed(&self, checksum: &mut Checksum) {
        self.memory.feed(self.offset..self.offset + self.len, checksum);
    }

    /// Returns the address of the bytes, valid as long as this value lives.
    pub fn address(&self) -> *const u8 {
        self.memory.address(self.offset)
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { memory, offset, len } = self;
        write!(f, "{len} bytes at {offset} of {memory:?}")
    }
}
