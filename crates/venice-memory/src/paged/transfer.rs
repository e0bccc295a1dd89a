//! Pages between this process and its far slots, whatever the port.

use super::PAGE;

/// Pages a thread of the pager may have under way.
pub const MAX_IN_FLIGHT: usize = 128;

/// What came of asking for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fetch {
    /// It is at this address.
    Ready(usize),
    /// It will come; `UdpFar::poll` tells.
    Pending,
    /// No more can be under way; ask again later.
    Full,
    /// Its donor is dead.
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
    /// Set when they did not arrive: the donor is dead.
    pub lost: bool,
}

impl WriteOut {
    /// The whole page at `source`.
    pub fn page(source: usize, slot: u32) -> WriteOut {
        WriteOut { source, slot, skip_bytes: 0, len_bytes: PAGE as u32, lost: false }
    }

    /// Where they go: bytes from the first slot's first.
    pub fn address(&self) -> u64 {
        u64::from(self.slot) * PAGE as u64 + u64::from(self.skip_bytes)
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

/// A page that came while another one was waited for.
pub struct Early {
    pub token: u32,
    pub arrived: bool,
    pub page: Box<[u64; PAGE / 8]>,
}

/// Takes over the bytes that an answer brought.
///
/// # Panics
/// If they are more than a page: no port gives out an answer of another length than was asked for.
pub fn copy_bytes(buffer: &mut [u64; PAGE / 8], data: &[u8]) {
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
