//! Errors of the fabric, and the states of a peer.

use venice_wire::Refusal;

/// The reason a call to the fabric was not accepted. Nothing was sent and nothing will complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FabricError {
    /// A queue on the path is full: poll completions and transmissions, then try again.
    #[error("the fabric's queues are full")]
    WouldBlock,
    /// No mapping covers the whole range.
    #[error("no mapping covers {len_bytes} bytes at {window_addr:#x}")]
    NotMapped {
        /// First address of the access.
        window_addr: u64,
        /// Bytes of the access.
        len_bytes: u64,
    },
    /// The length is invalid: a CRMA access is 1 to 4096 bytes, an RDMA transfer or a mapping at
    /// least one, and none may run past the end of the address space.
    #[error("invalid length: {len_bytes} bytes at {window_addr:#x}")]
    BadLength {
        /// First address.
        window_addr: u64,
        /// Bytes requested.
        len_bytes: u64,
    },
    /// The ranges and the segments of a bulk transfer differ in total length.
    #[error("lengths differ: {there} bytes of ranges, {here} bytes of segments")]
    ListsDiffer {
        /// Bytes of the mapped ranges.
        there: u64,
        /// Bytes of the local segments.
        here: u64,
    },
    /// An atomic works on eight bytes whose address at the donor is a multiple of eight.
    #[error("unaligned atomic at {window_addr:#x}: the address must be a multiple of 8")]
    Unaligned {
        /// Address of the atomic.
        window_addr: u64,
    },
    /// The new mapping overlaps an existing one.
    #[error("overlaps the mapping at {window_addr:#x}")]
    Overlap {
        /// First address of the existing mapping.
        window_addr: u64,
    },
    /// There are as many mappings as [`crate::InitiatorConfig::max_windows`] allows: remove some,
    /// or map fewer and larger ones.
    #[error("the mapping table is full: {limit} mappings")]
    TableFull {
        /// Existing mappings.
        limit: u32,
    },
    /// The donor has revoked the grant behind the mapping, which is removed once its outstanding
    /// accesses have completed.
    #[error("the donor has revoked the grant behind {window_addr:#x}")]
    Revoked {
        /// First address of the access, or of the new mapping.
        window_addr: u64,
    },
    /// The donor behind the mapping is down.
    #[error("the donor is down: {0}")]
    PeerDown(DownReason),
}

/// The reason an accepted access did not succeed. A read has brought no bytes. A write may or may
/// not have been carried out if the donor is down, and has not been if it was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The donor refused the access.
    #[error("refused by the donor: {}", describe(*.0))]
    Refused(Refusal),
    /// Part of a bulk transfer is not mapped.
    #[error("part of the transfer is not mapped")]
    NotMapped,
    /// The donor revoked the grant before all of a bulk transfer was sent.
    #[error("the donor has revoked the memory")]
    Revoked,
    /// The donor is down; no answer will come.
    #[error("the donor is down: {0}")]
    PeerDown(DownReason),
}

/// The reason a donor counts as down. A peer that is down stays down; add it anew to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DownReason {
    /// The donor never answered the handshake.
    #[error("it never answered")]
    NoAnswer,
    /// The donor has refused the handshake for a while: all its links are in use.
    #[error("all its links are in use")]
    NoLinkFree,
    /// The donor answered once, then stopped.
    #[error("it stopped answering")]
    Silent,
    /// The donor was restarted: the memory it had lent is gone.
    #[error("it was restarted")]
    Restarted,
    /// The donor has dropped the link with accesses outstanding.
    #[error("it dropped the link")]
    LinkLost,
    /// The donor sent an invalid answer.
    #[error("protocol error")]
    Protocol,
    /// The two ports have different settings: one replays lost frames, the other does not.
    #[error("incompatible port: one side replays lost frames, the other does not")]
    Incompatible,
    /// The port to the donor was closed: on one host, the donor is dead.
    #[error("its end of the port is closed")]
    PortClosed,
    /// This side closed the link.
    #[error("the link was closed here")]
    Closed,
}

/// The state of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// The handshake is in progress. Accesses are accepted, and sent once it is over.
    Connecting,
    /// The link is up.
    Up,
    /// The link is down for good, and every access on it has completed with an error.
    Down {
        /// The reason.
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
