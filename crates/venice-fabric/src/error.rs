//! What can go wrong, and how a peer can be.

use venice_wire::Refusal;

/// Why a call to the fabric was not taken. Nothing was sent and nothing will complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// Every queue on the way is full: poll completions and transmissions, then ask again.
    #[error("the fabric's queues are full")]
    WouldBlock,
    /// No window covers the whole range.
    #[error("no window covers {len_bytes} bytes at {window_addr:#x}")]
    NotMapped {
        /// First address of the access.
        window_addr: u64,
        /// Bytes of the access.
        len_bytes: u64,
    },
    /// A CRMA access is 1 to 4096 bytes, an RDMA transfer or a window at least one, and none may
    /// run past the end of the address space.
    #[error("{len_bytes} bytes at {window_addr:#x} is not a length the fabric can carry there")]
    BadLength {
        /// First address.
        window_addr: u64,
        /// Bytes asked for.
        len_bytes: u64,
    },
    /// The ranges and the segments of a bulk transfer are not as long.
    #[error("{there} bytes of ranges, but {here} bytes of segments")]
    ListsDiffer {
        /// Bytes of the window space.
        there: u64,
        /// Bytes of memory here.
        here: u64,
    },
    /// An atomic works on eight bytes whose address at the donor is a multiple of eight.
    #[error("an atomic at {window_addr:#x} is not on a multiple of eight bytes")]
    Unaligned {
        /// Its address.
        window_addr: u64,
    },
    /// The new window overlaps one that is there.
    #[error("a window at {window_addr:#x} is already there")]
    Overlap {
        /// Where the window in the way starts.
        window_addr: u64,
    },
    /// There are as many windows as [`crate::InitiatorConfig::max_windows`] allows: take some away,
    /// or map fewer and larger ones.
    #[error("the mapping table is full: {limit} windows")]
    TableFull {
        /// Windows there are.
        limit: u32,
    },
    /// The donor has stopped sharing the grant behind the window, which goes away once the accesses
    /// on their way are over.
    #[error("the donor has stopped sharing what lies behind {window_addr:#x}")]
    Revoked {
        /// First address of the access, or of the new window.
        window_addr: u64,
    },
    /// The donor behind the window is down.
    #[error("the donor is down: {0}")]
    PeerDown(DownReason),
}

/// Why an access that was taken did not succeed. A read has brought no bytes; a write may or may
/// not have been carried out if the donor is down, and has not been if it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The donor refused it.
    #[error("refused by the donor: {}", describe(*.0))]
    Refused(Refusal),
    /// Part of a bulk transfer met no window.
    #[error("no window covers part of the transfer")]
    NotMapped,
    /// The donor stopped sharing the grant before all of a bulk transfer was on its way.
    #[error("the donor has stopped sharing the memory")]
    Revoked,
    /// The donor is down, the answer will not come.
    #[error("the donor is down: {0}")]
    PeerDown(DownReason),
}

/// Why a donor counts as down. A peer that is down stays down; add it anew to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// It never answered the handshake.
    #[error("it never answered")]
    NoAnswer,
    /// It answered once, then stopped.
    #[error("it stopped answering")]
    Silent,
    /// It was restarted: what it had lent is gone.
    #[error("it was restarted")]
    Restarted,
    /// It has dropped the link with accesses outstanding.
    #[error("it dropped the link")]
    LinkLost,
    /// It answered in a way that makes no sense.
    #[error("it broke the protocol")]
    Protocol,
    /// Its port is set up otherwise than this side's: one replays lost frames, the other does not.
    #[error("its port is set up otherwise: one side replays lost frames, the other does not")]
    Incompatible,
    /// The port to it was closed: on one host, it is dead.
    #[error("its end of the port is closed")]
    PortClosed,
    /// This side closed the link.
    #[error("the link was closed here")]
    Closed,
}

/// How a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// The handshake is under way. Accesses are taken and sent once it is over.
    Connecting,
    /// The link is up.
    Up,
    /// The link is down for good, and every access on it has completed with an error.
    Down {
        /// Why.
        reason: DownReason,
    },
}

fn describe(refusal: Refusal) -> &'static str {
    match refusal {
        Refusal::UnknownGrant => "no such grant",
        Refusal::WrongKey => "wrong key",
        Refusal::OutOfRange => "out of the grant's range",
        Refusal::ReadOnly => "the grant is read only",
        Refusal::Unavailable => "its memory cannot be reached",
        Refusal::Malformed => "malformed request",
        Refusal::TableFull => "its mapping table is full",
    }
}
