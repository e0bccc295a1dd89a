//! Calls of an owner on an open QPair: send and receive.

use super::{
    CreditMode, QPairError, QPairId, QPairKind, QPairs,
    pair::{Flow, Phase, QPair},
    receive::Front,
};
use crate::CloseReason;

impl QPairs {
    /// Queues a message. It travels with the next frames; after `Ok` it arrives unless the QPair is
    /// aborted or its link dies.
    ///
    /// # Errors
    /// [`QPairError::WouldBlock`] when this end's queue is full or the other end's; a
    /// [`crate::QPairEvent::Writable`] follows. [`QPairError::Empty`], [`QPairError::TooLong`],
    /// [`QPairError::WrongKind`], [`QPairError::Ended`], [`QPairError::Closed`],
    /// [`QPairError::Unknown`].
    pub fn send(&mut self, now_ns: u64, id: QPairId, message: &[u8]) -> Result<(), QPairError> {
        let credit = self.credit_of(id);
        let pair = self.owned(id, QPairKind::Messages)?;
        let queued = pair.flow_to_write()?.send.offer(message, credit);
        match queued {
            Ok(()) => {
                pair.stats.messages_sent += 1;
                self.schedule(id);
            }
            Err(QPairError::WouldBlock) => self.expect_credit(now_ns, id),
            Err(_) => {}
        }
        queued
    }

    /// Queues as many of `bytes` as there is room for; returns how many.
    ///
    /// # Errors
    /// [`QPairError::WouldBlock`] if none; otherwise like [`QPairs::send`].
    pub fn write(&mut self, _now_ns: u64, id: QPairId, bytes: &[u8]) -> Result<usize, QPairError> {
        let pair = self.owned(id, QPairKind::Stream)?;
        let written = pair.flow_to_write()?.send.write(bytes);
        if written.is_ok() {
            self.schedule(id);
        }
        written
    }

    /// Copies the next message to the front of `into`; returns its length. 0: the other end has
    /// ended its sending, and all was read.
    ///
    /// # Errors
    /// [`QPairError::WouldBlock`] if no whole message is there; a [`crate::QPairEvent::Readable`]
    /// follows. [`QPairError::BufferTooSmall`], [`QPairError::WrongKind`], [`QPairError::Closed`],
    /// [`QPairError::Unknown`].
    pub fn recv(&mut self, id: QPairId, into: &mut [u8]) -> Result<usize, QPairError> {
        self.read_as(QPairKind::Messages, id, into)
    }

    /// Copies the received bytes to the front of `into`, as far as they fit; returns how many. 0:
    /// the other end has ended its sending, and all was read.
    ///
    /// # Errors
    /// Like [`QPairs::recv`].
    pub fn read(&mut self, id: QPairId, into: &mut [u8]) -> Result<usize, QPairError> {
        self.read_as(QPairKind::Stream, id, into)
    }

    fn read_as(
        &mut self,
        kind: QPairKind,
        id: QPairId,
        into: &mut [u8],
    ) -> Result<usize, QPairError> {
        self.owned(id, kind)?;
        let front = self.front(id)?;
        if front == Front::End {
            return Ok(0);
        }
        let pair = self.owned(id, kind)?;
        let len = pair.flow_to_read()?.receive.read_into(into, &front)?;
        pair.stats.messages_received += u64::from(kind == QPairKind::Messages);
        self.give_credit(id);
        Ok(len)
    }

    /// Returns the next message, or the received part of a stream, in place: in two parts because
    /// the buffer is a ring. Both are empty once the other end has ended and all was read. Call
    /// [`QPairs::consume`] afterwards.
    ///
    /// # Errors
    /// Like [`QPairs::recv`].
    pub fn peek(&mut self, id: QPairId) -> Result<(&[u8], &[u8]), QPairError> {
        let front = self.front(id)?;
        let flow = self.table.get(id).and_then(|pair| pair.flow.as_deref());
        Ok(flow.map_or((&[], &[]), |flow| flow.receive.peek(&front)))
    }

    /// Drops the next message; or of a stream, up to `len_bytes` of the received part. For messages
    /// `len_bytes` must be the length that [`QPairs::peek`] returned.
    ///
    /// # Errors
    /// Like [`QPairs::recv`]; [`QPairError::BufferTooSmall`] for part of a message.
    pub fn consume(&mut self, id: QPairId, len_bytes: usize) -> Result<(), QPairError> {
        let front = self.front(id)?;
        let Front::Ready { header_bytes, len_bytes: there } = front else { return Ok(()) };
        let pair = self.table.get_mut(id).ok_or(QPairError::Unknown)?;
        if pair.kind == QPairKind::Messages && len_bytes != there {
            return Err(QPairError::BufferTooSmall { needed_bytes: there });
        }
        pair.stats.messages_received += u64::from(pair.kind == QPairKind::Messages);
        pair.flow_to_read()?.receive.consume(header_bytes + len_bytes.min(there));
        self.give_credit(id);
        Ok(())
    }

    /// Returns the longest message that can be sent, in bytes; 0 before the QPair is connected.
    ///
    /// # Errors
    /// [`QPairError::Unknown`].
    pub fn max_message_bytes(&self, id: QPairId) -> Result<usize, QPairError> {
        let pair = self.table.get(id).ok_or(QPairError::Unknown)?;
        Ok(pair.flow.as_ref().map_or(0, |flow| flow.send.max_message_bytes()))
    }

    /// Checks that the QPair can be used.
    ///
    /// # Errors
    /// [`QPairError::WouldBlock`] while the other side has not answered; [`QPairError::Closed`],
    /// also if it was refused; [`QPairError::Unknown`].
    pub fn check_open(&self, id: QPairId) -> Result<(), QPairError> {
        let pair = self.table.get(id).filter(|pair| !pair.is_released);
        let pair = pair.ok_or(QPairError::Unknown)?;
        match (pair.outcome, pair.phase) {
            (Some(reason), _) => Err(QPairError::Closed(reason)),
            (None, Phase::Open) => Ok(()),
            (None, _) => Err(QPairError::WouldBlock),
        }
    }

    /// Returns the QPair, if its handle was not released.
    fn owned(&mut self, id: QPairId, kind: QPairKind) -> Result<&mut QPair, QPairError> {
        let pair = self.table.get_mut(id).filter(|pair| !pair.is_released);
        let pair = pair.ok_or(QPairError::Unknown)?;
        if pair.flow.is_some() && pair.kind != kind {
            return Err(QPairError::WrongKind);
        }
        Ok(pair)
    }

    /// Returns the readable front; if there is none, an error that tells whether more may come.
    fn front(&mut self, id: QPairId) -> Result<Front, QPairError> {
        let pair = self.table.get_mut(id).filter(|pair| !pair.is_released);
        let pair = pair.ok_or(QPairError::Unknown)?;
        let outcome = pair.outcome;
        let receive = &mut pair.flow_to_read()?.receive;
        match receive.front() {
            Ok(Front::Nothing) => {
                receive.armed = true;
                Err(outcome.map_or(QPairError::WouldBlock, QPairError::Closed))
            }
            Ok(front) => Ok(front),
            Err(_) => {
                self.violate(id);
                Err(QPairError::Closed(CloseReason::Protocol))
            }
        }
    }

    /// Gives credit for the data read, if it is time.
    pub(super) fn give_credit(&mut self, id: QPairId) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| pair.is_flowing()) else { return };
        let mode = pair.mode;
        let Some(flow) = pair.flow.as_deref_mut() else { return };
        if !flow.receive.take_credit_due() {
            return;
        }
        match mode {
            CreditMode::CrmaWrite => self.write_credit(id),
            CreditMode::InBand => {
                flow.in_band.push(flow.send.end_position(), flow.receive.read());
                self.schedule(id);
            }
        }
    }

    /// Queues a credit write into the other end's region; it overwrites one that waits there.
    pub(super) fn write_credit(&mut self, id: QPairId) {
        let Some(pair) = self.table.get_mut(id) else { return };
        let link = pair.link;
        if std::mem::replace(&mut pair.is_put_queued, true) {
            pair.stats.credit_writes_overwritten += 1;
        } else {
            self.queues_mut(link).puts.push_back(id);
            self.wake(link);
        }
    }

    pub(super) fn credit_of(&self, id: QPairId) -> super::credit::Credit {
        if id.slot() < self.table.places() {
            self.region.credit(id.slot())
        } else {
            Default::default()
        }
    }
}

impl QPair {
    fn flow_to_write(&mut self) -> Result<&mut Flow, QPairError> {
        if let Some(reason) = self.outcome {
            return Err(QPairError::Closed(reason));
        }
        if self.peer_is_deaf {
            return Err(QPairError::Closed(CloseReason::PeerClosed));
        }
        match self.flow.as_deref_mut() {
            Some(flow) if flow.send.ended => Err(QPairError::Ended),
            Some(flow) if self.phase == Phase::Open => Ok(flow),
            _ => Err(QPairError::WouldBlock),
        }
    }

    fn flow_to_read(&mut self) -> Result<&mut Flow, QPairError> {
        let nothing = self.outcome.map_or(QPairError::WouldBlock, QPairError::Closed);
        self.flow.as_deref_mut().ok_or(nothing)
    }
}
