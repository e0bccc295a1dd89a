//! The receiving half of a QPair: data that has arrived and was not yet read.

use super::{
    MAX_MESSAGE_BYTES, QPairError, QPairKind,
    config::{EndConfig, MESSAGE_HEADER_BYTES},
    credit::{Capacity, Credit},
    ring::ByteRing,
};

#[derive(Debug)]
pub(super) struct ReceiveHalf {
    ring: ByteRing,
    kind: QPairKind,
    capacity: Capacity,
    every: Credit,
    received_bytes: u64,
    /// The amount read; of that, the amount in a credit being sent, and the amount credited.
    read: Credit,
    queued: Credit,
    credited: Credit,
    /// True if the other end has ended its sending.
    pub ended: bool,
    /// True if the owner waits for a Readable event.
    pub armed: bool,
    /// The data is no longer read: arriving data is dropped.
    is_deaf: bool,
}

/// A protocol violation of the other end.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Violation;

/// The state of the front of the queue.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Front {
    /// `len_bytes` can be read, behind `header_bytes` that only give the length.
    Ready { header_bytes: usize, len_bytes: usize },
    /// No complete message is available.
    Nothing,
    /// No data is available, and none will come.
    End,
}

impl ReceiveHalf {
    pub(super) fn new(kind: QPairKind, end: &EndConfig) -> Self {
        Self {
            ring: ByteRing::new(end.recv_bytes as usize),
            kind,
            capacity: Capacity { bytes: end.recv_bytes.into(), messages: end.recv_messages.into() },
            every: Credit {
                bytes: end.credit_every_bytes.into(),
                messages: end.credit_every_messages.into(),
            },
            received_bytes: 0,
            read: Credit::default(),
            queued: Credit::default(),
            credited: Credit::default(),
            ended: false,
            armed: true,
            is_deaf: false,
        }
    }

    /// Takes the next bytes of the stream.
    pub(super) fn take(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        let granted_bytes = self.credited.bytes + self.capacity.bytes;
        let received_bytes = self.received_bytes + bytes.len() as u64;
        if self.ended || received_bytes > granted_bytes {
            return Err(Violation);
        }
        self.received_bytes = received_bytes;
        if self.is_deaf {
            self.read.bytes = received_bytes;
            return Ok(());
        }
        assert!(self.ring.room() >= bytes.len(), "credited bytes fit the ring");
        self.ring.push(bytes);
        Ok(())
    }

    /// Returns the state of the front.
    pub(super) fn front(&self) -> Result<Front, Violation> {
        let nothing = if self.ended { Front::End } else { Front::Nothing };
        if self.kind == QPairKind::Stream {
            let len_bytes = self.ring.len();
            let front = Front::Ready { header_bytes: 0, len_bytes };
            return Ok(if len_bytes > 0 { front } else { nothing });
        }
        let Some(len) = self.ring.u32_at(0) else { return self.no_part_left(nothing) };
        let len_bytes = len as usize;
        let longest = MAX_MESSAGE_BYTES.min(self.ring.capacity() - MESSAGE_HEADER_BYTES);
        if len_bytes == 0 || len_bytes > longest {
            return Err(Violation);
        }
        if self.ring.len() < MESSAGE_HEADER_BYTES + len_bytes {
            return self.no_part_left(nothing);
        }
        Ok(Front::Ready { header_bytes: MESSAGE_HEADER_BYTES, len_bytes })
    }

    /// Checks that no part of a message is left at the end: a message may be cut only by the end of
    /// the QPair, not by that of the stream.
    fn no_part_left(&self, nothing: Front) -> Result<Front, Violation> {
        if self.ended && !self.ring.is_empty() { Err(Violation) } else { Ok(nothing) }
    }

    /// Copies the next message, or the available part of the stream, to the front of `into`;
    /// returns the length.
    pub(super) fn read_into(
        &mut self,
        into: &mut [u8],
        front: &Front,
    ) -> Result<usize, QPairError> {
        let Front::Ready { header_bytes, len_bytes } = *front else {
            return Err(QPairError::WouldBlock);
        };
        let len = match self.kind {
            QPairKind::Stream => len_bytes.min(into.len()),
            QPairKind::Messages if into.len() < len_bytes => {
                return Err(QPairError::BufferTooSmall { needed_bytes: len_bytes });
            }
            QPairKind::Messages => len_bytes,
        };
        self.ring.copy_to(header_bytes, &mut into[..len]);
        self.consume(header_bytes + len);
        Ok(len)
    }

    /// Returns the next message, or the available part of the stream, in place.
    pub(super) fn peek(&self, front: &Front) -> (&[u8], &[u8]) {
        let Front::Ready { header_bytes, len_bytes } = *front else { return (&[], &[]) };
        self.ring.slices(header_bytes, len_bytes)
    }

    /// Drops `len_bytes` from the front: for messages, exactly one.
    pub(super) fn consume(&mut self, len_bytes: usize) {
        self.ring.discard(len_bytes);
        self.read.bytes += len_bytes as u64;
        self.read.messages += u64::from(self.kind == QPairKind::Messages);
    }

    /// Stops reading for good.
    pub(super) fn go_deaf(&mut self) {
        self.is_deaf = true;
        self.armed = false;
        self.read.bytes += self.ring.clear() as u64;
    }

    /// True if it is time to give credit: enough was read since the last one, or the rest of a
    /// message waits for it. The caller then gives it.
    pub(super) fn take_credit_due(&mut self) -> bool {
        let unqueued = self.read.since(self.queued);
        let is_enough = unqueued.bytes >= self.every.bytes
            || (self.kind == QPairKind::Messages && unqueued.messages >= self.every.messages);
        let is_due = !self.is_deaf
            && !self.ended
            && (is_enough || (unqueued.bytes > 0 && self.holds_part_of_message()));
        if is_due {
            self.queued = self.read;
        }
        is_due
    }

    fn holds_part_of_message(&self) -> bool {
        self.kind == QPairKind::Messages
            && !self.ring.is_empty()
            && matches!(self.front(), Ok(Front::Nothing))
    }

    /// Returns the present credit, which counts as sent from here on.
    pub(super) fn take_credit(&mut self) -> Credit {
        (self.queued, self.credited) = (self.read, self.read);
        self.credited
    }

    /// Records that a credit of an earlier moment is sent.
    pub(super) fn note_credited(&mut self, credit: Credit) {
        self.credited = self.credited.max(credit);
    }

    /// Returns the total amount read.
    pub(super) fn read(&self) -> Credit {
        self.read
    }

    /// True if there is something to read of which the owner was not notified. Returns true once.
    pub(super) fn take_readable(&mut self) -> bool {
        self.armed && !matches!(self.front(), Ok(Front::Nothing)) && {
            self.armed = false;
            true
        }
    }

    pub(super) fn unread_bytes(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Returns the bytes read and not yet credited to the other end.
    pub(super) fn uncredited_bytes(&self) -> u64 {
        self.read.since(self.credited).bytes
    }

    pub(super) fn capacity(&self) -> Capacity {
        self.capacity
    }
}
