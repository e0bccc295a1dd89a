//! The receiving half.

use venice_fabric::QPairError;

use super::super::QPairSocketError;
use super::record::{Record, broken};
use crate::ring::algorithm::{Reader, Record as Place};
use crate::ring::memory::SharedRing;
use crate::spin_policy::SpinPolicy;

/// Looks for the next record of a message under way before a call gives up for now: its sender is
/// copying.
const LOOKS: u32 = 4000;

#[derive(Debug)]
pub(super) struct ReceiveHalf {
    reader: Reader<SharedRing>,
    /// Message of which some records have arrived in earlier calls: its length, and those bytes.
    partial: Option<(usize, Vec<u8>)>,
    /// Bytes of a stream's front record that were read.
    offset: usize,
    /// Records taken so far.
    taken: u64,
    /// Value of `taken` when a poller last found a record that it did not take.
    seen: Option<u64>,
    /// True once the other side has ended its sending.
    has_ended: bool,
    is_broken: bool,
    pub(super) spin: SpinPolicy,
}

impl ReceiveHalf {
    pub(super) fn new(reader: Reader<SharedRing>) -> Self {
        Self {
            reader,
            partial: None,
            offset: 0,
            taken: 0,
            seen: None,
            has_ended: false,
            is_broken: false,
            spin: SpinPolicy::default(),
        }
    }

    /// Returns the front record, with what it is.
    fn front(&mut self) -> Result<Option<(Place, Record)>, QPairSocketError> {
        if self.is_broken {
            return Err(broken());
        }
        let Ok(place) = self.reader.peek() else { return Err(self.violated()) };
        let Some(place) = place else { return Ok(None) };
        match Record::of(self.reader.memory().tag(place.line)) {
            Some(record) => Ok(Some((place, record))),
            None => Err(self.violated()),
        }
    }

    fn violated(&mut self) -> QPairSocketError {
        self.is_broken = true;
        broken()
    }

    fn consume(&mut self, place: Place, ring: &impl Fn()) {
        self.taken += 1;
        if self.reader.consume(place) {
            ring();
        }
    }

    /// Takes a record of the greeting, if there is one.
    pub(super) fn take_greeting(
        &mut self,
        ring: impl Fn(),
    ) -> Result<Option<Record>, QPairSocketError> {
        let Some((place, record)) = self.front()? else { return Ok(None) };
        match record {
            Record::Hello(_) | Record::Accept | Record::Refuse => {
                self.consume(place, &ring);
                Ok(Some(record))
            }
            Record::First(_) | Record::More | Record::Bytes | Record::End => Err(self.violated()),
        }
    }

    /// Copies the next message to the front of `into`; returns its length, 0 at the end.
    pub(super) fn take_message(
        &mut self,
        into: &mut [u8],
        ring: impl Fn(),
    ) -> Result<usize, QPairSocketError> {
        if self.partial.is_some() {
            return self.complete(into, &ring);
        }
        let Some((place, total)) = self.begin(&ring)? else { return Ok(0) };
        if into.len() < total {
            return Err(QPairError::BufferTooSmall { needed_bytes: total }.into());
        }
        self.reader.memory().copy(place.line, 0, &mut into[..place.len_bytes]);
        self.consume(place, &ring);
        let mut filled = place.len_bytes;
        while filled < total {
            let Some((place, len)) = self.next_piece(total - filled)? else {
                // Later calls may bring another buffer.
                self.partial = Some((total, into[..filled].to_vec()));
                return Err(QPairSocketError::WouldBlock);
            };
            self.reader.memory().copy(place.line, 0, &mut into[filled..filled + len]);
            self.consume(place, &ring);
            filled += len;
        }
        Ok(total)
    }

    /// Returns the first record of the next message and the message's length; `None` at the end.
    fn begin(&mut self, ring: &impl Fn()) -> Result<Option<(Place, usize)>, QPairSocketError> {
        if self.has_ended {
            return Ok(None);
        }
        let Some((place, record)) = self.front()? else {
            return Err(QPairSocketError::WouldBlock);
        };
        match record {
            Record::First(total) if (1..=total).contains(&place.len_bytes) => {
                Ok(Some((place, total)))
            }
            Record::End => {
                self.has_ended = true;
                self.consume(place, ring);
                Ok(None)
            }
            _ => Err(self.violated()),
        }
    }

    /// Takes the next message in memory that grows with what has arrived, whatever length its
    /// sender names; `None` at the end.
    pub(super) fn take_vec(
        &mut self,
        ring: impl Fn(),
    ) -> Result<Option<Vec<u8>>, QPairSocketError> {
        if self.partial.is_none() {
            let Some((place, total)) = self.begin(&ring)? else { return Ok(None) };
            let mut bytes = vec![0; place.len_bytes];
            self.reader.memory().copy(place.line, 0, &mut bytes);
            self.consume(place, &ring);
            self.partial = Some((total, bytes));
        }
        self.gather(&ring)?;
        Ok(self.partial.take().map(|(_, bytes)| bytes))
    }

    /// Takes further records of a message that an earlier call has begun.
    fn complete(&mut self, into: &mut [u8], ring: &impl Fn()) -> Result<usize, QPairSocketError> {
        self.gather(ring)?;
        let (total, bytes) = self.partial.take().expect("the caller has checked");
        if into.len() < total {
            self.partial = Some((total, bytes));
            return Err(QPairError::BufferTooSmall { needed_bytes: total }.into());
        }
        into[..total].copy_from_slice(&bytes);
        Ok(total)
    }

    /// Adds records to the message that an earlier call has begun, until it is whole.
    fn gather(&mut self, ring: &impl Fn()) -> Result<(), QPairSocketError> {
        let (total, mut bytes) = self.partial.take().expect("the caller has checked");
        while bytes.len() < total {
            let piece = match self.next_piece(total - bytes.len()) {
                Ok(Some(piece)) => piece,
                nothing => {
                    self.partial = Some((total, bytes));
                    return Err(nothing.err().unwrap_or(QPairSocketError::WouldBlock));
                }
            };
            let (place, len) = piece;
            let filled = bytes.len();
            bytes.resize(filled + len, 0);
            self.reader.memory().copy(place.line, 0, &mut bytes[filled..]);
            self.consume(place, ring);
        }
        self.partial = Some((total, bytes));
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn partial_bytes(&self) -> usize {
        self.partial.as_ref().map_or(0, |(_, bytes)| bytes.capacity())
    }

    /// Waits briefly for the next record of a message of which `left` bytes are missing.
    fn next_piece(&mut self, left: usize) -> Result<Option<(Place, usize)>, QPairSocketError> {
        for _ in 0..LOOKS {
            match self.front()? {
                Some((place, Record::More)) if (1..=left).contains(&place.len_bytes) => {
                    return Ok(Some((place, place.len_bytes)));
                }
                Some(_) => return Err(self.violated()),
                None => std::hint::spin_loop(),
            }
        }
        Ok(None)
    }

    /// Copies the next bytes of a stream, as far as they fit; returns how many, 0 at the end.
    pub(super) fn take_bytes(
        &mut self,
        into: &mut [u8],
        ring: impl Fn(),
    ) -> Result<usize, QPairSocketError> {
        let mut filled = 0;
        while filled < into.len() && !self.has_ended {
            let Some((place, record)) = self.front()? else { break };
            match record {
                Record::Bytes if place.len_bytes > self.offset => {}
                Record::End => {
                    self.has_ended = true;
                    self.consume(place, &ring);
                    break;
                }
                _ => return Err(self.violated()),
            }
            let len = (place.len_bytes - self.offset).min(into.len() - filled);
            self.reader.memory().copy(place.line, self.offset, &mut into[filled..filled + len]);
            (filled, self.offset) = (filled + len, self.offset + len);
            if self.offset == place.len_bytes {
                self.offset = 0;
                self.consume(place, &ring);
            }
        }
        if filled == 0 && !self.has_ended { Err(QPairSocketError::WouldBlock) } else { Ok(filled) }
    }

    /// True if a record is there, or an invalid one.
    pub(super) fn has_record(&self) -> bool {
        self.reader.peek() != Ok(None)
    }

    /// Requests a bell for the next record; returns true if the caller may sleep. A record that it
    /// left there before does not keep it awake.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        if self.reader.prepare_sleep() == Ok(true) || self.has_ended {
            return true;
        }
        self.seen.replace(self.taken) == Some(self.taken)
    }

    /// Stops reading for good: the other side need not wait for room.
    pub(super) fn go_deaf(&mut self) {
        self.reader.memory().set_deaf();
    }
}
