//! The reading end of an adaptive stream: it restores the order of the segments.

use super::{
    segment::{HEADER_BYTES, Message, PROGRESS_BYTES},
    stream::{StreamConfig, StreamError},
};
use crate::{CloseReason, QPairError, QPairId, QPairs};

/// The reading end of an adaptive stream.
///
/// Call [`AdaptiveReceiver::handle`] whenever its QPair is readable or writable, and
/// [`AdaptiveReceiver::read`] for the bytes.
#[derive(Debug)]
pub struct AdaptiveReceiver {
    config: StreamConfig,
    qpair: QPairId,
    /// Segments of the window that have arrived, by sequence.
    slots: Box<[Slot]>,
    /// The bytes of inline segments, one buffer for each slot.
    inline: Box<[u8]>,
    message: Box<[u8]>,
    /// Segments before this one were read; `read_bytes` of this one were read.
    consumed: u64,
    read_bytes: usize,
    /// Segments before this one have arrived.
    arrived: u64,
    /// The progress last sent to the writer.
    sent_consumed: u64,
    progress_due: bool,
    has_ended: bool,
    early_segments: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Slot {
    Empty,
    Inline { len_bytes: usize },
    Landed { offset: u64, len_bytes: usize },
    End,
}

impl AdaptiveReceiver {
    /// Returns a receiver for the stream that arrives by `qpair`, a QPair of messages. All its
    /// buffers are allocated here.
    pub fn new(config: StreamConfig, qpair: QPairId) -> Self {
        let inline_bytes = config.inline_bytes as usize;
        Self {
            slots: vec![Slot::Empty; config.window()].into(),
            inline: vec![0; config.window() * inline_bytes].into(),
            message: vec![0; HEADER_BYTES + inline_bytes.max(PROGRESS_BYTES)].into(),
            config,
            qpair,
            consumed: 0,
            read_bytes: 0,
            arrived: 0,
            sent_consumed: 0,
            progress_due: false,
            has_ended: false,
            early_segments: 0,
        }
    }

    /// Reads the messages of the QPair, and sends the stream's progress to the writer.
    ///
    /// # Errors
    /// [`StreamError::Closed`] if the QPair ended before the stream, [`StreamError::QPair`],
    /// [`StreamError::Protocol`].
    pub fn handle(&mut self, now_ns: u64, qpairs: &mut QPairs) -> Result<(), StreamError> {
        loop {
            match qpairs.recv(self.qpair, &mut self.message) {
                Err(QPairError::WouldBlock) => break,
                Ok(len @ 1..) => self.take(len)?,
                Ok(_) | Err(_) if self.is_whole() => break,
                Ok(_) => return Err(StreamError::Closed(CloseReason::PeerClosed)),
                Err(QPairError::BufferTooSmall { .. }) => return Err(StreamError::Protocol),
                Err(error) => return Err(error.into()),
            }
        }
        self.send_progress(now_ns, qpairs)
    }

    /// True if all segments to the last have arrived.
    fn is_whole(&self) -> bool {
        let last = self.arrived.wrapping_sub(1);
        self.has_ended
            || (self.arrived > self.consumed && self.slots[self.index(last)] == Slot::End)
    }

    fn take(&mut self, len: usize) -> Result<(), StreamError> {
        let message = Message::parse(&self.message[..len]).ok_or(StreamError::Protocol)?;
        let (sequence, slot) = match message {
            Message::Inline { sequence, len_bytes } if len_bytes <= self.config.inline_bytes => {
                (sequence, Slot::Inline { len_bytes: len_bytes as usize })
            }
            Message::Landed { sequence, len_bytes, offset } => {
                let end = offset.checked_add(len_bytes.into());
                if end.is_none_or(|end| end > self.config.landing_bytes) {
                    return Err(StreamError::Protocol);
                }
                (sequence, Slot::Landed { offset, len_bytes: len_bytes as usize })
            }
            Message::End { sequence } => (sequence, Slot::End),
            _ => return Err(StreamError::Protocol),
        };
        let at = self.index(sequence);
        let ahead = sequence.wrapping_sub(self.consumed);
        if ahead >= self.slots.len() as u64 || self.slots[at] != Slot::Empty {
            return Err(StreamError::Protocol);
        }
        if let Slot::Inline { len_bytes } = slot {
            let start = at * self.config.inline_bytes as usize;
            self.inline[start..start + len_bytes]
                .copy_from_slice(&self.message[HEADER_BYTES..][..len_bytes]);
        }
        self.early_segments += u64::from(sequence != self.arrived);
        self.slots[at] = slot;
        while self.arrived - self.consumed < self.slots.len() as u64
            && self.slots[self.index(self.arrived)] != Slot::Empty
        {
            self.arrived += 1;
        }
        self.progress_due = true;
        Ok(())
    }

    /// Copies the next bytes of the stream to the front of `into`; returns how many, 0 at its end.
    /// `landing(offset, bytes)` copies from the landing region.
    ///
    /// # Errors
    /// [`StreamError::WouldBlock`] if the next segment has not arrived.
    pub fn read(
        &mut self,
        into: &mut [u8],
        mut landing: impl FnMut(u64, &mut [u8]),
    ) -> Result<usize, StreamError> {
        let mut filled = 0;
        while filled < into.len() && !self.has_ended {
            let at = self.index(self.consumed);
            let rest = &mut into[filled..];
            let (len_bytes, copied) = match self.slots[at] {
                Slot::Empty => break,
                Slot::End => {
                    self.has_ended = true;
                    self.next_segment(at);
                    break;
                }
                Slot::Inline { len_bytes } => {
                    let len = rest.len().min(len_bytes - self.read_bytes);
                    let start = at * self.config.inline_bytes as usize + self.read_bytes;
                    rest[..len].copy_from_slice(&self.inline[start..start + len]);
                    (len_bytes, len)
                }
                Slot::Landed { offset, len_bytes } => {
                    let len = rest.len().min(len_bytes - self.read_bytes);
                    landing(offset + self.read_bytes as u64, &mut rest[..len]);
                    (len_bytes, len)
                }
            };
            self.read_bytes += copied;
            filled += copied;
            if self.read_bytes == len_bytes {
                self.next_segment(at);
            }
        }
        if filled == 0 && !self.has_ended && !into.is_empty() {
            return Err(StreamError::WouldBlock);
        }
        Ok(filled)
    }

    fn next_segment(&mut self, at: usize) {
        self.slots[at] = Slot::Empty;
        self.consumed += 1;
        self.read_bytes = 0;
        let unsent = self.consumed - self.sent_consumed;
        self.progress_due |= unsent >= (self.slots.len() as u64).div_ceil(4) || self.is_drained();
    }

    /// True if everything that has arrived was read: the writer may be waiting for progress.
    fn is_drained(&self) -> bool {
        self.arrived == self.consumed
    }

    /// Sends the progress to the writer if it has changed. If the QPair has no room now, the next
    /// call sends the progress as it is then.
    fn send_progress(&mut self, now_ns: u64, qpairs: &mut QPairs) -> Result<(), StreamError> {
        if !self.progress_due {
            return Ok(());
        }
        let bitmap = (0..self.slots.len() as u64 - 1)
            .filter(|ahead| self.arrived + 1 + ahead < self.consumed + self.slots.len() as u64)
            .filter(|ahead| self.slots[self.index(self.arrived + 1 + ahead)] != Slot::Empty)
            .fold(0, |bitmap, ahead| bitmap | 1 << ahead);
        let (arrived, consumed) = (self.arrived, self.consumed);
        let mut message = [0; PROGRESS_BYTES];
        Message::Progress { arrived, bitmap, consumed }.emit(&mut message);
        match qpairs.send(now_ns, self.qpair, &message) {
            Ok(()) => {
                self.progress_due = false;
                self.sent_consumed = consumed;
                Ok(())
            }
            Err(QPairError::WouldBlock) => Ok(()),
            // A writer that has sent everything need not listen any more, though some of it is
            // still in flight. If no more of it will arrive, the next receive reports it.
            Err(QPairError::Closed(_)) => {
                self.progress_due = false;
                Ok(())
            }
            Err(error) => Err(error.into()),
        }
    }

    /// True if [`AdaptiveReceiver::handle`] has progress to send to the writer: call it after
    /// reading.
    pub fn has_progress(&self) -> bool {
        self.progress_due
    }

    /// Returns the number of segments that have overtaken another.
    pub fn early_segments(&self) -> u64 {
        self.early_segments
    }

    fn index(&self, sequence: u64) -> usize {
        (sequence % self.slots.len() as u64) as usize
    }
}
