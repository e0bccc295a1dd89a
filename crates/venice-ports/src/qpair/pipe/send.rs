//! The sending half.

use venice_fabric::{CloseReason, QPairError};

use super::super::QPairSocketError;
use super::record::{MAX_MESSAGE_BYTES, Record, broken, piece_of};
use crate::ring::RING_FRAME_BYTES;
use crate::ring::algorithm::Writer;
use crate::ring::memory::SharedRing;
use crate::spin_policy::SpinPolicy;

/// Records between two announcements of a long message: a sleeping reader wakes early.
const RECORDS_PER_ANNOUNCEMENT: usize = 16;

#[derive(Debug)]
pub(super) struct SendHalf {
    writer: Writer<SharedRing>,
    /// Rest of the last message, which a call accepted without room for all of it; sent from
    /// `rest_at` on.
    rest: Vec<u8>,
    rest_at: usize,
    /// True once the program has ended its sending.
    pub(super) has_ended: bool,
    /// True once the end was written into the ring.
    is_end_sent: bool,
    /// True if a call of the program found no room. Room that the keeper or another thread finds
    /// and fills must leave it: the caller is still to be woken.
    wants_room: bool,
    /// True while a call sends a message: no other call may write into the ring.
    is_turn_taken: bool,
    /// True if a call that may not wait was refused the turn.
    pub(super) wants_turn: bool,
    /// Threads that wait for the turn.
    pub(super) turn_waiters: u32,
    pub(super) spin: SpinPolicy,
}

impl SendHalf {
    pub(super) fn new(writer: Writer<SharedRing>) -> Self {
        Self {
            writer,
            rest: Vec::new(),
            rest_at: 0,
            has_ended: false,
            is_end_sent: false,
            wants_room: false,
            is_turn_taken: false,
            wants_turn: false,
            turn_waiters: 0,
            spin: SpinPolicy::default(),
        }
    }

    /// Checks that a program may send.
    pub(super) fn check(&self, message: &[u8]) -> Result<(), QPairSocketError> {
        if self.has_ended {
            return Err(QPairError::Ended.into());
        }
        if self.writer.memory().is_deaf() {
            return Err(QPairError::Closed(CloseReason::PeerClosed).into());
        }
        if message.is_empty() {
            return Err(QPairError::Empty.into());
        }
        let (len_bytes, max_bytes) = (message.len(), MAX_MESSAGE_BYTES);
        if len_bytes > max_bytes {
            return Err(QPairError::TooLong { len_bytes, max_bytes }.into());
        }
        Ok(())
    }

    /// Takes the turn; returns false if another call has it.
    pub(super) fn take_turn(&mut self) -> bool {
        !std::mem::replace(&mut self.is_turn_taken, true)
    }

    /// Ends the turn, and sends the end if the program has ended its sending meanwhile; returns
    /// true if pollers wait for the turn.
    pub(super) fn end_turn(&mut self, ring: impl Fn()) -> bool {
        self.is_turn_taken = false;
        if self.has_ended {
            // Errors are those of the connection, and later calls have them.
            let _ = self.flush(ring);
        }
        self.wants_turn
    }

    /// True if a poller may sleep: no call was refused a turn that is free now. That is reported
    /// once.
    pub(super) fn may_await_turn(&mut self) -> bool {
        let wanted_turn = self.wants_turn;
        self.wants_turn &= self.is_turn_taken;
        self.wants_turn == wanted_turn
    }

    /// Writes one record if there is room; returns whether it did.
    pub(super) fn push(&mut self, record: Record, bytes: &[u8]) -> Result<bool, QPairSocketError> {
        let Some(line) = self.writer.reserve().map_err(|_| broken())? else {
            self.wants_room = true;
            return Ok(false);
        };
        let memory = self.writer.memory();
        memory.set_tag(line, record.tag());
        memory.fill(line, bytes);
        self.writer.publish(bytes.len());
        Ok(true)
    }

    /// Writes the next records of a message from `at` on, which moves along. `ring` is called when
    /// the reader must be woken.
    pub(super) fn push_message(
        &mut self,
        message: &[u8],
        at: &mut usize,
        ring: impl Fn(),
    ) -> Result<(), QPairSocketError> {
        let mut unannounced = 0;
        while *at < message.len() {
            let piece = piece_of(message.len() - *at);
            let record = if *at == 0 { Record::First(message.len()) } else { Record::More };
            if !self.push(record, &message[*at..*at + piece])? {
                break;
            }
            *at += piece;
            unannounced += 1;
            if unannounced == RECORDS_PER_ANNOUNCEMENT {
                unannounced = 0;
                self.announce(&ring);
            }
        }
        self.announce(&ring);
        Ok(())
    }

    /// Writes the front of a stream's `bytes`; returns how much.
    pub(super) fn push_bytes(
        &mut self,
        bytes: &[u8],
        ring: impl Fn(),
    ) -> Result<usize, QPairSocketError> {
        let mut at = 0;
        while at < bytes.len() {
            let piece = (bytes.len() - at).min(RING_FRAME_BYTES);
            if !self.push(Record::Bytes, &bytes[at..at + piece])? {
                break;
            }
            at += piece;
        }
        self.announce(&ring);
        Ok(at)
    }

    pub(super) fn announce(&mut self, ring: impl Fn()) {
        if self.writer.announce() {
            ring();
        }
    }

    /// Keeps the rest of an accepted message, to be sent by later calls.
    pub(super) fn keep_rest(&mut self, message: &[u8], at: usize) {
        self.rest.clear();
        self.rest.extend_from_slice(&message[at..]);
        self.rest_at = 0;
    }

    /// Sends what earlier calls have left over; returns true if nothing is left. The end of the
    /// sending waits for the message that has the turn.
    pub(super) fn flush(&mut self, ring: impl Fn()) -> Result<bool, QPairSocketError> {
        while self.rest_at < self.rest.len() {
            let piece = piece_of(self.rest.len() - self.rest_at);
            let rest = std::mem::take(&mut self.rest);
            let pushed = self.push(Record::More, &rest[self.rest_at..self.rest_at + piece]);
            self.rest = rest;
            if !pushed? {
                self.announce(&ring);
                return Ok(false);
            }
            self.rest_at += piece;
        }
        if !self.rest.is_empty() {
            (self.rest, self.rest_at) = (Vec::new(), 0);
        }
        if self.has_ended && !self.is_end_sent && !self.is_turn_taken {
            self.is_end_sent = self.push(Record::End, &[])?;
        }
        self.announce(&ring);
        Ok(!self.has_ended || self.is_end_sent)
    }

    /// True if something accepted is still to be written.
    pub(super) fn has_rest(&self) -> bool {
        !self.rest.is_empty() || (self.has_ended && !self.is_end_sent)
    }

    /// Requests a bell for room if a call found none; returns true if the caller may sleep.
    /// Room is reported once, until a further call finds none.
    pub(super) fn prepare_sleep(&mut self) -> bool {
        let wanted_room = self.wants_room;
        self.wants_room = wanted_room && self.writer.prepare_sleep() == Ok(true);
        self.wants_room == wanted_room
    }

    pub(super) fn is_peer_deaf(&self) -> bool {
        self.writer.memory().is_deaf()
    }
}
