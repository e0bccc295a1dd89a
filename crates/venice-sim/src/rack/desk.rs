//! What a client works with, and what it has under way.

use venice_fabric::Initiator;

use super::sabotage::Saboteur;
use super::talks::Talks;
use super::tally::Tally;
use crate::checkers::{AtomicId, Oracle, ReadId, RegionId, Writing};

/// What the checkers call an access under way.
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

/// What a client works with.
pub(super) struct Desk<'a> {
    pub now_ns: u64,
    /// The node's own clock.
    pub local_ns: u64,
    /// When the last fault is over.
    pub calm_ns: u64,
    /// The longest an access may take from then on.
    pub patience_ns: u64,
    /// Nothing is wrong with the links or the nodes: no link may go down.
    pub is_harmless: bool,
    pub node: u16,
    pub initiator: &'a mut Initiator,
    pub talks: &'a mut Talks,
    pub oracle: &'a mut Oracle,
    pub tally: &'a mut Tally,
    pub saboteur: &'a mut Saboteur,
}
