//! The sending half of a QPair: queued data, and the credit of the other end.

use super::{
    MAX_MESSAGE_BYTES, QPairError, QPairKind,
    config::{EndConfig, MESSAGE_HEADER_BYTES},
    credit::{Capacity, Credit},
    ring::ByteRing,
};

/// Bytes on their way to the other end. Messages lie in the ring as they travel: each behind its
/// length, 4 bytes, little-endian.
#[derive(Debug)]
pub(super) struct SendHalf {
    ring: ByteRing,
    kind: QPairKind,
    batching: bool,
    /// The other end's capacity; zero until it is known.
    peer: Capacity,
    sent_bytes: u64,
    queued_messages: u64,
    /// Without batching: bytes left of the message being sent.
    begun_left: usize,
    /// True if this end has ended its sending.
    pub ended: bool,
    /// Room that a call has requested in vain.
    wanted_bytes: Option<usize>,
}

impl SendHalf {
    pub(super) fn new(kind: QPairKind, end: &EndConfig) -> Self {
        Self {
            ring: ByteRing::new(end.send_bytes as usize),
            kind,
            batching: end.batching,
            peer: Capacity::default(),
            sent_bytes: 0,
            queued_messages: 0,
            begun_left: 0,
            ended: false,
            wanted_bytes: None,
        }
    }

    pub(super) fn open(&mut self, peer: Capacity) {
        self.peer = peer;
    }

    /// Returns the longest message both ends have room for; 0 until the other end is known.
    pub(super) fn max_message_bytes(&self) -> usize {
        let both = self.ring.capacity().min(self.peer.bytes as usize);
        both.saturating_sub(MESSAGE_HEADER_BYTES).min(MAX_MESSAGE_BYTES)
    }

    /// Queues a message. `credit`: the amount the other end has read.
    pub(super) fn offer(&mut self, message: &[u8], credit: Credit) -> Result<(), QPairError> {
        let (len_bytes, max_bytes) = (message.len(), self.max_message_bytes());
        if len_bytes == 0 {
            return Err(QPairError::Empty);
        }
        if len_bytes > max_bytes {
            return Err(QPairError::TooLong { len_bytes, max_bytes });
        }
        let needed_bytes = MESSAGE_HEADER_BYTES + len_bytes;
        if self.ring.room() < needed_bytes || self.message_credit(credit) == 0 {
            self.wanted_bytes = Some(needed_bytes);
            return Err(QPairError::WouldBlock);
        }
        self.ring.push_u32(len_bytes as u32);
        self.ring.push(message);
        self.queued_messages += 1;
        Ok(())
    }

    /// Queues as many of `bytes` as fit.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<usize, QPairError> {
        let len = bytes.len().min(self.ring.room());
        if len == 0 && !bytes.is_empty() {
            self.wanted_bytes = Some(1);
            return Err(QPairError::WouldBlock);
        }
        self.ring.push(&bytes[..len]);
        Ok(len)
    }

    /// True if the data refused before would be taken now. Returns true once.
    pub(super) fn take_writable(&mut self, credit: Credit) -> bool {
        let has_message_credit = self.kind == QPairKind::Stream || self.message_credit(credit) > 0;
        let is_writable = has_message_credit
            && self.wanted_bytes.is_some_and(|wanted_bytes| self.ring.room() >= wanted_bytes);
        if is_writable {
            self.wanted_bytes = None;
        }
        is_writable
    }

    /// True if the owner waits for room, in any state.
    pub(super) fn take_wanted(&mut self) -> bool {
        self.wanted_bytes.take().is_some()
    }

    fn message_credit(&self, credit: Credit) -> u64 {
        let unread = self.queued_messages.saturating_sub(credit.messages);
        self.peer.messages.saturating_sub(unread)
    }

    /// Returns the bytes that the other end's credit allows to be sent now.
    pub(super) fn byte_credit(&self, credit: Credit) -> u64 {
        self.peer.bytes.saturating_sub(self.outstanding_bytes(credit))
    }

    /// Returns the bytes sent that are not known to be read.
    pub(super) fn outstanding_bytes(&self, credit: Credit) -> u64 {
        self.sent_bytes.saturating_sub(credit.bytes)
    }

    /// Returns the queued bytes.
    pub(super) fn queued_bytes(&self) -> u64 {
        self.ring.len() as u64
    }

    /// Returns the bytes that could be sent now.
    pub(super) fn sendable_bytes(&self, credit: Credit) -> usize {
        self.ring.len().min(usize::try_from(self.byte_credit(credit)).unwrap_or(usize::MAX))
    }

    /// True if credit alone blocks the sending.
    pub(super) fn is_starved(&self, credit: Credit) -> bool {
        let bytes_wait = !self.ring.is_empty() && self.byte_credit(credit) == 0;
        let message_waits = self.kind == QPairKind::Messages
            && self.wanted_bytes.is_some()
            && self.message_credit(credit) == 0;
        bytes_wait || message_waits
    }

    /// Returns the length of the next segment, at most `most` bytes; 0 if none can be sent.
    /// [`SendHalf::take_segment`] then takes as many.
    pub(super) fn next_segment_bytes(&mut self, most: usize, credit: Credit) -> usize {
        let mut len = self.sendable_bytes(credit).min(most);
        if !self.batching && self.kind == QPairKind::Messages && len > 0 {
            if self.begun_left == 0 {
                let message = self.ring.u32_at(0).expect("messages are queued whole");
                self.begun_left = MESSAGE_HEADER_BYTES + message as usize;
            }
            len = len.min(self.begun_left);
            self.begun_left -= len;
        }
        len
    }

    /// Moves the next bytes to `into`, as many as [`SendHalf::next_segment_bytes`] returned.
    pub(super) fn take_segment(&mut self, into: &mut [u8]) {
        self.ring.copy_to(0, into);
        self.ring.discard(into.len());
        self.sent_bytes += into.len() as u64;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    /// Returns the position of the next queued byte in the stream.
    pub(super) fn end_position(&self) -> u64 {
        self.sent_bytes + self.ring.len() as u64
    }

    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Ends the sending, and drops queued data, which will not be read.
    pub(super) fn drop_queue(&mut self) {
        self.ring.clear();
        self.ended = true;
    }
}
