//! Pages between this process and its far slots, whatever the port.

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
