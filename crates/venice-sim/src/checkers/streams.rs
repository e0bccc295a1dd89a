//! Byte streams of QPairs: every byte received once, in order, and the end of the sending seen after
//! all that was sent, and only then.

use std::collections::BTreeMap;

use super::Direction;
use crate::random::mix;

/// All streams of a rack, each over one QPair.
#[derive(Debug, Default)]
pub struct Streams {
    all: BTreeMap<StreamId, Stream>,
}

/// A number with which both directions of a stream begin, as four bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamId(pub u32);

#[derive(Debug, Default)]
struct Stream {
    is_closed: bool,
    directions: [Flow; 2],
}

#[derive(Debug, Default)]
struct Flow {
    sent_bytes: u32,
    received_bytes: u32,
    has_ended: bool,
    was_end_seen: bool,
}

impl StreamId {
    /// Bytes that travel before who accepts knows which stream it is.
    pub const BYTES: usize = 4;

    /// The stream that begins with these bytes.
    pub fn of(first: [u8; Self::BYTES]) -> Self {
        Self(u32::from_le_bytes(first))
    }

    /// Bytes that are to be sent one way.
    pub fn len_bytes(self, to: Direction) -> u32 {
        let drawn = mix((u64::from(self.0) << 1 | to as u64) + 1) as u32;
        // One in four is longer than all buffers together.
        let longest = if drawn.is_multiple_of(4) { 24 << 10 } else { 2 << 10 };
        Self::BYTES as u32 + (drawn >> 2) % longest
    }

    /// The bytes to send one way from a place on, at most so many.
    pub fn bytes(self, to: Direction, from: u32, most_bytes: u32) -> Vec<u8> {
        let end = self.len_bytes(to).min(from + most_bytes);
        (from..end).map(|at| self.byte(to, at)).collect()
    }

    /// The byte at a place.
    fn byte(self, to: Direction, at: u32) -> u8 {
        match self.0.to_le_bytes().get(at as usize) {
            Some(&byte) => byte,
            None => {
                let word = u64::from(self.0) << 33 | u64::from(at / 8) << 1 | to as u64;
                mix(word).to_le_bytes()[at as usize % 8]
            }
        }
    }
}

impl Streams {
    /// A new stream.
    pub fn begin(&mut self) -> StreamId {
        let id = StreamId(self.all.last_key_value().map_or(0, |(id, _)| id.0 + 1));
        self.begin_as(id);
        id
    }

    /// A new stream under a number that was drawn elsewhere.
    ///
    /// # Panics
    /// If there is one of that number.
    pub fn begin_as(&mut self, id: StreamId) {
        let before = self.all.insert(id, Stream::default());
        assert!(before.is_none(), "{id:?} begins twice");
    }

    /// The next bytes to send one way, at most so many; none: all were sent.
    pub fn next_bytes(&self, id: StreamId, to: Direction, most_bytes: u32) -> Vec<u8> {
        id.bytes(to, self.all[&id].directions[to as usize].sent_bytes, most_bytes)
    }

    /// So many of them were taken by the QPair.
    pub fn sent(&mut self, id: StreamId, to: Direction, len_bytes: usize) {
        self.flow(id, to).sent_bytes += len_bytes as u32;
    }

    /// The sender has said that this was all.
    pub fn ended(&mut self, id: StreamId, to: Direction) {
        self.flow(id, to).has_ended = true;
    }

    /// Bytes came out of a QPair.
    ///
    /// # Errors
    /// Says how they are not those that are due.
    pub fn received(&mut self, id: StreamId, to: Direction, bytes: &[u8]) -> Result<(), String> {
        let Some(stream) = self.all.get_mut(&id) else {
            return Err(format!("bytes of {id:?}, which never was"));
        };
        let flow = &mut stream.directions[to as usize];
        let from = flow.received_bytes;
        let until = from + bytes.len() as u32;
        if flow.was_end_seen || until > flow.sent_bytes {
            return Err(format!("{id:?} {to:?}: bytes {from} to {until} came, of {flow:?}"));
        }
        let wrong = (from..).zip(bytes).find(|&(at, &byte)| id.byte(to, at) != byte);
        flow.received_bytes = until;
        match wrong {
            None => Ok(()),
            Some((at, byte)) => Err(format!("{id:?} {to:?}: byte {at} came as {byte:#04x}")),
        }
    }

    /// The end of the sending was seen.
    ///
    /// # Errors
    /// If it was not the end, or is seen again.
    pub fn end_seen(&mut self, id: StreamId, to: Direction) -> Result<(), String> {
        let flow = self.flow(id, to);
        let is_end = flow.has_ended && flow.received_bytes == flow.sent_bytes;
        match is_end && !std::mem::replace(&mut flow.was_end_seen, true) {
            true => Ok(()),
            false => Err(format!("{id:?} {to:?}: its end was seen, at {flow:?}")),
        }
    }

    /// Nothing more of this stream need arrive.
    pub fn close(&mut self, id: StreamId) {
        self.all.get_mut(&id).expect("it has begun").is_closed = true;
    }

    /// Whether all of it has arrived one way, with its end.
    ///
    /// # Errors
    /// Says what has not.
    pub fn check_finished(&self, id: StreamId, to: Direction) -> Result<(), String> {
        let flow = &self.all[&id].directions[to as usize];
        match flow.was_end_seen && flow.received_bytes == id.len_bytes(to) {
            true => Ok(()),
            false => Err(format!("{id:?} {to:?}: {} bytes to go, {flow:?}", id.len_bytes(to))),
        }
    }

    /// Whether everything of the streams that are not closed has arrived, with their ends.
    ///
    /// # Errors
    /// Says what has not.
    pub fn check_settled(&self) -> Result<(), String> {
        let open = self.all.iter().filter(|(_, it)| !it.is_closed);
        open.map(|(&id, _)| id).try_for_each(|id| {
            self.check_finished(id, Direction::There)?;
            self.check_finished(id, Direction::Back)
        })
    }

    fn flow(&mut self, id: StreamId, to: Direction) -> &mut Flow {
        &mut self.all.get_mut(&id).expect("it has begun").directions[to as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Direction = Direction::There;

    /// A stream of which all was sent, and its bytes.
    fn sent() -> (Streams, StreamId, Vec<u8>) {
        let mut streams = Streams::default();
        let id = streams.begin();
        let bytes = streams.next_bytes(id, TO, u32::MAX >> 1);
        assert_eq!(bytes.len(), id.len_bytes(TO) as usize);
        streams.sent(id, TO, bytes.len());
        streams.ended(id, TO);
        (streams, id, bytes)
    }

    #[test]
    fn bytes_come_once_and_in_order_and_then_the_end() {
        let (mut streams, id, bytes) = sent();
        assert_eq!(bytes[..4], id.0.to_le_bytes());
        assert_eq!(streams.received(id, TO, &bytes[..4]), Ok(()));
        assert!(streams.end_seen(id, TO).is_err() && streams.check_finished(id, TO).is_err());
        assert_eq!(streams.received(id, TO, &bytes[4..]), Ok(()));
        assert!(streams.check_finished(id, TO).is_err(), "its end was not seen");
        assert_eq!(streams.end_seen(id, TO), Ok(()));
        assert_eq!(streams.check_finished(id, TO), Ok(()));
        assert!(streams.received(id, TO, &bytes[..1]).is_err(), "after the end");
    }

    #[test]
    fn what_is_altered_or_made_up_is_found() {
        let (mut streams, id, mut bytes) = sent();
        let last = bytes.len() - 1;
        bytes[last] ^= 1;
        assert!(streams.received(id, TO, &bytes).is_err());
        assert!(streams.received(id, TO, &[0]).is_err(), "more than was sent");
        assert!(streams.check_settled().is_err());
        streams.close(id);
        assert_eq!(streams.check_settled(), Ok(()));
    }
}
