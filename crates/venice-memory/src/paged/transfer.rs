//! Pages between this process and its far slots, whatever the port.

use super::PAGE;

/// Pages a thread of the pager may have under way.
pub const MAX_IN_FLIGHT: usize = 128;

/// A page's bytes.
pub type Words = [u64; PAGE / 8];

/// What came of asking for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// It is at this address.
    Ready(usize),
    /// It will come; `Far::poll` tells.
    Pending,
    /// No more can be under way; ask again later.
    Full,
    /// Its donors are dead.
    Lost,
}

/// Bytes on their way out: from this address into this slot.
#[derive(Clone, Copy, Debug)]
pub struct WriteOut {
    /// Where the bytes are; they do not change until the write is done.
    pub source: usize,
    /// Where they go.
    pub slot: u32,
    /// Where in the slot.
    pub skip_bytes: u32,
    /// How many; they end in the slot.
    pub len_bytes: u32,
    /// Set when no donors that can be read have them, or too few.
    pub lost: bool,
    /// The fragments that donors have which can be read, a bit each; where there are copies, one.
    pub(super) reached: u32,
    /// The slab is being copied: the slot is to be marked.
    pub(super) is_marking: bool,
    /// The last copy that is live did not get it: it is lost, whoever else had it in between.
    pub(super) is_missed: bool,
    /// It is on its way to the disk.
    pub(super) is_behind: bool,
}

impl WriteOut {
    /// The whole page at `source`.
    pub fn page(source: usize, slot: u32) -> WriteOut {
        WriteOut::part(source, slot, 0, PAGE as u32)
    }

    /// Bytes at `source` that are part of a slot.
    pub fn part(source: usize, slot: u32, skip_bytes: u32, len_bytes: u32) -> WriteOut {
        assert!(skip_bytes + len_bytes <= PAGE as u32, "they end in the slot");
        WriteOut {
            source,
            slot,
            skip_bytes,
            len_bytes,
            lost: false,
            reached: 0,
            is_marking: false,
            is_missed: false,
            is_behind: false,
        }
    }

    /// The bytes.
    ///
    /// # Safety
    /// They must be there, and not change while they are borrowed.
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: forwarded to the caller.
        unsafe { std::slice::from_raw_parts(self.source as *const u8, self.len_bytes as usize) }
    }
}

/// Takes over the bytes that an answer brought.
///
/// # Panics
/// If they are more than a page: no port gives out an answer of another length than was asked for.
pub fn copy_bytes(buffer: &mut Words, data: &[u8]) {
    assert!(data.len() <= PAGE, "a page at most was asked for");
    let (words, rest) = data.as_chunks::<8>();
    for (word, bytes) in buffer.iter_mut().zip(words) {
        *word = u64::from_ne_bytes(*bytes);
    }
    if !rest.is_empty() {
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        buffer[words.len()] = u64::from_ne_bytes(last);
    }
}

/// A page's words as bytes.
pub fn bytes_of(page: &Words) -> &[u8] {
    // SAFETY: words are bytes, and any bytes will do.
    unsafe { std::slice::from_raw_parts(page.as_ptr().cast(), PAGE) }
}

/// A page's words as bytes.
pub fn bytes_of_mut(page: &mut Words) -> &mut [u8] {
    // SAFETY: words are bytes, and any bytes make words.
    unsafe { std::slice::from_raw_parts_mut(page.as_mut_ptr().cast(), PAGE) }
}
