//! Checker of QPair byte streams: every byte is received once, in order, and the end of the sending
//! is seen after all that was sent, and only then.

use std::collections::BTreeMap;

use super::Direction;
use venice_simkernel::random::mix;

/// All streams of a rack, each over one QPair.
#[derive(Debug, Default)]
pub struct Streams {
    all: BTreeMap<StreamId, Stream>,
}

/// The number with which both directions of a stream begin, as four bytes.
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
    /// Bytes before which the accepting end cannot tell the stream.
    pub const BYTES: usize = 4;

    /// Returns the stream that begins with these bytes.
    pub fn of(first: [u8; Self::BYTES]) -> Self {
        Self(u32::from_le_bytes(first))
    }

    /// Returns the number of bytes to send in a direction.
    pub fn len_bytes(self, to: Direction) -> u32 {
        let drawn = mix((u64::from(self.0) << 1 | to as u64) + 1) as u32;
        // One in four is longer than all buffers together.
        let longest = if drawn.is_multiple_of(4) { 24 << 10 } else { 2 << 10 };
        Self::BYTES as u32 + (drawn >> 2) % longest
    }

    /// Returns the bytes to send in a direction from a position on, at most so many.
    pub fn bytes(self, to: Direction, from: u32, most_bytes: u32) -> Vec<u8> {
        let end = self.len_bytes(to).min(from + most_bytes);
        (from..end).map(|at| self.byte(to, at)).collect()
    }

    /// Returns the byte at a position.
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
    /// Begins a stream; returns its number.
    pub fn begin(&mut self) -> StreamId {
        let id = StreamId(self.all.last_key_value().map_or(0, |(id, _)| id.0 + 1));
        self.begin_as(id);
        id
    }

    /// Begins a stream under a given number.
    ///
    /// # Panics
    /// If the number is already in use.
    pub fn begin_as(&mut self, id: StreamId) {
        let before = self.all.insert(id, Stream::default());
        assert!(before.is_none(), "{id:?} begins twice");
    }

    /// Returns the next bytes to send in a direction, at most so many; none: all were sent.
    pub fn next_bytes(&self, id: StreamId, to: Direction, most_bytes: u32) -> Vec<u8> {
        id.bytes(to, self.all[&id].directions[to as usize].sent_bytes, most_bytes)
    }

    /// Records how many of them the QPair accepted.
    pub fn sent(&mut self, id: StreamId, to: Direction, len_bytes: usize) {
        self.flow(id, to).sent_bytes += len_bytes as u32;
    }

    /// Records the end of the sending.
    pub fn ended(&mut self, id: StreamId, to: Direction) {
        self.flow(id, to).has_ended = true;
    }

    /// Checks bytes from a QPair.
    ///
    /// # Errors
    /// With the difference from the expected bytes.
    pub fn received(&mut self, id: StreamId, to: Direction, bytes: &[u8]) -> Result<(), String> {
        let Some(stream) = self.all.get_mut(&id) else {
            return Err(format!("bytes of {id:?}, which does not exist"));
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

    /// Records that the end of the sending was seen.
    ///
    /// # Errors
    /// When it was not the end, or is seen again.
    pub fn end_seen(&mut self, id: StreamId, to: Direction) -> Result<(), String> {
        let flow = self.flow(id, to);
        let is_end = flow.has_ended && flow.received_bytes == flow.sent_bytes;
        match is_end && !std::mem::replace(&mut flow.was_end_seen, true) {
            true => Ok(()),
            false => Err(format!("{id:?} {to:?}: its end was seen, at {flow:?}")),
        }
    }

    /// Ends a stream; its remaining bytes need not arrive.
    pub fn close(&mut self, id: StreamId) {
        self.all.get_mut(&id).expect("the stream has begun").is_closed = true;
    }

    /// Checks that all bytes of a direction have arrived, with the end.
    ///
    /// # Errors
    /// With the missing ones.
    pub fn check_finished(&self, id: StreamId, to: Direction) -> Result<(), String> {
        let flow = &self.all[&id].directions[to as usize];
        match flow.was_end_seen && flow.received_bytes == id.len_bytes(to) {
            true => Ok(()),
            false => Err(format!("{id:?} {to:?}: {} bytes to go, {flow:?}", id.len_bytes(to))),
        }
    }

    /// Checks that everything of the open streams has arrived, with their ends.
    ///
    /// # Errors
    /// With the missing ones.
    pub fn check_settled(&self) -> Result<(), String> {
        let open = self.all.iter().filter(|(_, it)| !it.is_closed);
        open.map(|(&id, _)| id).try_for_each(|id| {
            self.check_finished(id, Direction::There)?;
            self.check_finished(id, Direction::Back)
        })
    }

    fn flow(&mut self, id: StreamId, to: Direction) -> &mut Flow {
        &mut self.all.get_mut(&id).expect("the stream has begun").directions[to as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TO: Direction = Direction::There;

    /// Returns a stream of which all was sent, and its bytes.
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
    fn bytes_come_once_in_order() {
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
    fn altered_or_invented_bytes_are_found() {
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
