//! Context of a client, and its outstanding accesses.

use venice_fabric::Initiator;

use super::sabotage::Saboteur;
use super::talks::Talks;
use super::tally::Tally;
use crate::checkers::{AtomicId, Oracle, ReadId, RegionId, Writing};

/// The checkers' id of an outstanding access.
#[derive(Debug)]
pub(super) enum What {
    Read { read: ReadId, lane: u32 },
    Write(Writing),
    Atomic { id: AtomicId, lane: u32 },
    Fence(Vec<Posted>),
}

/// A posted write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Posted {
    pub region: RegionId,
    pub writing: Writing,
}

/// Context of a client.
pub(super) struct Desk<'a> {
    pub now_ns: u64,
    /// The node's own clock, in nanoseconds.
    pub local_ns: u64,
    /// Time of the last fault's end.
    pub calm_ns: u64,
    /// Time limit of an access from then on.
    pub patience_ns: u64,
    /// True without faults of links or nodes: no link may go down.
    pub is_harmless: bool,
    pub node: u16,
    pub initiator: &'a mut Initiator,
    pub talks: &'a mut Talks,
    pub oracle: &'a mut Oracle,
    pub tally: &'a mut Tally,
    pub saboteur: &'a mut Saboteur,
}
