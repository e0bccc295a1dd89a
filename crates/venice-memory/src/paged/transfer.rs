//! The types of page transfers between this process and its far slots, for every port.

use super::PAGE;

/// Most outstanding pages of a thread of the pager.
pub const MAX_IN_FLIGHT: usize = 128;

/// A page's bytes.
pub type Words = [u64; PAGE / 8];

/// The result of requesting a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// The page is at this address.
    Ready(usize),
    /// The page is requested; `Far::poll` returns it.
    Pending,
    /// The most requests are outstanding; try again later.
    Full,
    /// Its donors are dead.
    Lost,
}

/// Bytes to be written from an address into a slot.
#[derive(Clone, Copy, Debug)]
pub struct WriteOut {
    /// Address of the bytes, which must not change until the write is done.
    pub source: usize,
    /// The slot that they go to.
    pub slot: u32,
    /// Their offset in the slot, bytes.
    pub skip_bytes: u32,
    /// Their number; they end in the slot.
    pub len_bytes: u32,
    /// Set if no readable donor has them, or too few fragments arrived.
    pub lost: bool,
    /// A bit for each fragment that a readable donor has; one bit with copies.
    pub(super) reached: u32,
    /// Set if the slab is being copied: the slot must be marked.
    pub(super) is_marking: bool,
    /// Set if the last live copy missed them. They are lost then, whichever replica had them in
    /// between.
    pub(super) is_missed: bool,
    /// Set if they are queued for the disk.
    pub(super) is_behind: bool,
}

impl WriteOut {
    /// Creates a write of the whole page at `source`.
    pub fn page(source: usize, slot: u32) -> WriteOut {
        WriteOut::part(source, slot, 0, PAGE as u32)
    }

    /// Creates a write of a part of a slot.
    pub fn part(source: usize, slot: u32, skip_bytes: u32, len_bytes: u32) -> WriteOut {
        assert!(skip_bytes + len_bytes <= PAGE as u32, "write ends in the slot");
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
    /// They must be readable, and not change while they are borrowed.
    pub unsafe fn bytes<'a>(&self) -> &'a [u8] {
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(self.source as *const u8, self.len_bytes as usize) }
    }
}

/// Copies the bytes of an answer into a page's words.
///
/// # Panics
/// If they are more than a page. No port returns an answer of another length than was requested.
pub fn copy_bytes(buffer: &mut Words, data: &[u8]) {
    assert!(data.len() <= PAGE, "answer longer than a page");
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
    // SAFETY: words are bytes, and any bytes are valid.
    unsafe { std::slice::from_raw_parts(page.as_ptr().cast(), PAGE) }
}

/// A page's words as bytes.
pub fn bytes_of_mut(page: &mut Words) -> &mut [u8] {
    // SAFETY: words are bytes, and any bytes make valid words.
    unsafe { std::slice::from_raw_parts_mut(page.as_mut_ptr().cast(), PAGE) }
}
