//! Feeds the notes about byte streams to their checker.

use std::collections::BTreeMap;

use venice_sim::checkers::{self, Direction, StreamId};

use super::direction;
use crate::racks::notes::{Role, Source, What};

/// The streams of a rack.
#[derive(Default)]
pub(super) struct Streams {
    /// By stream: its beginner, and the donor.
    begun: BTreeMap<u32, (Source, u16)>,
    /// The accepting ends.
    accepted: BTreeMap<(Source, u32), Accepted>,
}

/// An accepting end: the first bytes identify its stream.
#[derive(Default)]
struct Accepted {
    first: Vec<u8>,
    id: Option<StreamId>,
}

impl Streams {
    /// Evaluates a note; returns how many streams ended with it.
    pub fn hear(
        &mut self,
        checker: &mut checkers::Streams,
        source: Source,
        what: What,
    ) -> Result<u64, String> {
        match what {
            What::StreamBegan { stream, donor } => {
                self.begun.insert(stream, (source, donor));
                checker.begin_as(StreamId(stream));
            }
            What::StreamSent { stream, is_there, len_bytes } => {
                let id = self.known(StreamId(stream))?;
                checker.sent(id, direction(is_there), len_bytes as usize);
            }
            What::StreamEnded { stream, is_there } => {
                checker.ended(self.known(StreamId(stream))?, direction(is_there));
            }
            What::StreamRead { end, is_there: false, data } => {
                checker.received(StreamId(end), Direction::Back, &data.0)?;
            }
            What::StreamRead { end, is_there: true, data } => {
                let accepted = self.accepted.entry((source, end)).or_default();
                if let Some((id, bytes)) = accepted.take(&data.0) {
                    checker.received(id, Direction::There, &bytes)?;
                }
            }
            What::StreamEndSeen { end, is_there: false } => {
                checker.end_seen(self.known(StreamId(end))?, Direction::Back)?;
                return Ok(1);
            }
            What::StreamEndSeen { end, is_there: true } => {
                let accepted = self.accepted.get(&(source, end));
                let id = accepted.and_then(|accepted| accepted.id);
                let id =
                    id.ok_or_else(|| format!("{source:?}: a stream ended before its first bytes"))?;
                checker.end_seen(id, Direction::There)?;
            }
            What::StreamClosed { stream, .. } => checker.close(self.known(StreamId(stream))?),
            what => unreachable!("{what:?} is not about streams"),
        }
        Ok(0)
    }

    /// Handles the death of a process: the rest of its streams need not arrive.
    pub fn bury(&self, checker: &mut checkers::Streams, process: Source) {
        let is_its = |(program, donor): &(Source, u16)| match process.role {
            Role::Donor => *donor == process.node,
            _ => *program == process,
        };
        for (&stream, _) in self.begun.iter().filter(|(_, between)| is_its(between)) {
            checker.close(StreamId(stream));
        }
    }

    fn known(&self, id: StreamId) -> Result<StreamId, String> {
        match self.begun.contains_key(&id.0) {
            true => Ok(id),
            false => Err(format!("{id:?}, which does not exist")),
        }
    }
}

impl Accepted {
    /// Returns the new bytes with those before them, once their stream is known.
    fn take(&mut self, bytes: &[u8]) -> Option<(StreamId, Vec<u8>)> {
        if let Some(id) = self.id {
            return Some((id, bytes.to_vec()));
        }
        self.first.extend_from_slice(bytes);
        self.id = self.first.first_chunk().map(|first| StreamId::of(*first));
        Some((self.id?, std::mem::take(&mut self.first)))
    }
}
