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

/// A page on its way out: from this address to this slot.
#[derive(Clone, Copy, Debug)]
pub struct WriteOut {
    /// Where its bytes are; they do not change until the write is done.
    pub source: usize,
    /// Where they go.
    pub slot: u32,
    /// Set when they did not arrive: the donor is dead.
    pub lost: bool,
}

/// A page that came while another one was waited for.
pub struct Early {
    pub token: u32,
    pub arrived: bool,
    pub page: Box<[u64; PAGE / 8]>,
}

/// Takes over the page that an answer brought.
///
/// # Panics
/// If it is not a page: no port gives out an answer of another length than was asked for.
pub fn copy_bytes(buffer: &mut [u64; PAGE / 8], data: &[u8]) {
    assert_eq!(data.len(), PAGE, "a page was asked for");
    for (word, bytes) in buffer.iter_mut().zip(data.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("8 bytes"));
    }
}
