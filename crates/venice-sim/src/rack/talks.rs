//! The QPairs of a node.

use std::collections::BTreeMap;

use venice_fabric::QPairId;

use crate::checkers::{ConversationId, Direction, Oracle, StreamId};

/// The ends at one engine of a node.
#[derive(Debug, Default)]
pub(super) struct Talks {
    pub ends: BTreeMap<QPairId, Option<ConversationId>>,
    pub streams: BTreeMap<QPairId, StreamEnd>,
}

impl Talks {
    /// Drops them: the engine ended.
    pub fn die(&mut self, oracle: &mut Oracle) {
        for id in std::mem::take(&mut self.ends).into_values().flatten() {
            oracle.conversations.close(id);
        }
        for id in std::mem::take(&mut self.streams).into_values().filter_map(|end| end.id) {
            oracle.streams.close(id);
        }
    }

    /// Returns the QPairs of messages whose conversations are known.
    pub fn conversations(&self) -> impl Iterator<Item = (QPairId, ConversationId)> {
        self.ends.iter().filter_map(|(&qpair, id)| Some((qpair, (*id)?)))
    }
}

/// One end of a stream.
#[derive(Debug)]
pub(super) struct StreamEnd {
    /// Known at the accepting end after the first bytes.
    pub id: Option<StreamId>,
    pub first: Vec<u8>,
    /// True if the end has delayed a read.
    pub is_late: bool,
    /// True if it has ended its sending.
    pub has_ended: bool,
    /// True if it has seen the other's end.
    pub was_end_seen: bool,
}

impl StreamEnd {
    /// Creates an end that has done nothing yet.
    pub fn of(id: Option<StreamId>) -> Self {
        Self { id, first: Vec::new(), is_late: false, has_ended: false, was_end_seen: false }
    }

    /// True if this end reads late.
    pub fn is_slow(&self, to: Direction) -> bool {
        self.id.is_some_and(|id| (id.0 + to as u32).is_multiple_of(3))
    }
}
