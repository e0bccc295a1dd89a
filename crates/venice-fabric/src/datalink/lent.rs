//! Bytes that an answer is sent from where they are, in the memory that is granted.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use venice_wire::Checksum;

/// Memory that parts of can be lent. It stays where it is as long as somebody holds it.
pub trait LendingMemory: fmt::Debug + Send + Sync {
    /// Copies the bytes from `offset` on, as they are at this moment.
    ///
    /// # Panics
    /// When the range leaves the memory.
    fn copy_to(&self, offset: usize, into: &mut [u8]);

    /// Feeds the bytes of the range to a checksum, as they are at this moment.
    ///
    /// # Panics
    /// When the range leaves the memory.
    fn feed(&self, range: Range<usize>, checksum: &mut Checksum);

    /// Where the byte at `offset` is: for ports that have the kernel or a device read from there.
    ///
    /// # Panics
    /// When it is outside the memory.
    fn address(&self, offset: usize) -> *const u8;
}

/// Bytes of granted memory that are lent to an answer until it has arrived. Whoever may write to the
/// memory may change them meanwhile; the fabric sees to it that the link's own writes do not.
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

    /// How many bytes.
    pub fn len_bytes(&self) -> usize {
        self.len
    }

    /// Copies them, as they are at this moment.
    ///
    /// # Panics
    /// When `into` is not as long as they are.
    pub fn copy_to(&self, into: &mut [u8]) {
        assert_eq!(into.len(), self.len, "all of them are copied");
        self.memory.copy_to(self.offset, into);
    }

    /// Feeds them to a checksum, as they are at this moment.
    pub fn feed(&self, checksum: &mut Checksum) {
        self.memory.feed(self.offset..self.offset + self.len, checksum);
    }

    /// Where they are, as long as this is held.
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
