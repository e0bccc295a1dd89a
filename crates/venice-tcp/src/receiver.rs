//! The receiving side: the order of bytes and messages, the window, and acknowledgments.

mod acknowledge;
mod reorder;

use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::queue::Queue;
use crate::segment::{Flags, SackBlocks, Segment};
use crate::sender::Negotiated;
use crate::sequence::{after, before};
use acknowledge::Acknowledgment;
use reorder::Reorder;

/// The receiving side of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Receiver {
    /// Next byte in sequence, and the right edge of the window that was offered.
    next: u32,
    edge: u32,
    /// Bytes in sequence that were not read.
    unread: u32,
    /// The timestamp to be echoed.
    pub(crate) echo: u32,
    pub(crate) is_finished: bool,
    acknowledgment: Acknowledgment,
    messages: Queue<u64>,
    reorder: Option<Box<Reorder>>,
}

/// News for the program.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Received {
    pub(crate) bytes: bool,
    pub(crate) message: bool,
    pub(crate) fin: bool,
}

impl Receiver {
    /// `seq` is the sequence number of the peer's first byte.
    pub(crate) fn new(seq: u32, config: &Config) -> Self {
        Self {
            next: seq,
            edge: seq.wrapping_add(config.receive_buffer),
            unread: 0,
            echo: 0,
            is_finished: false,
            acknowledgment: Acknowledgment::new(seq),
            messages: Queue::default(),
            reorder: None,
        }
    }

    pub(crate) fn next(&self) -> u32 {
        self.next
    }

    pub(crate) fn unread(&self) -> u32 {
        self.unread
    }

    /// Handles payload and FIN of a segment.
    pub(crate) fn handle(
        &mut self,
        now: u64,
        config: &Config,
        segment: &Segment,
        options: Negotiated,
        is_marked: bool,
    ) -> Received {
        let mut received = Received::default();
        let is_fin = segment.flags.has(Flags::FIN);
        if segment.len == 0 && !is_fin {
            // A probe, or an old segment: the peer is to learn where we are. One that is ahead is no
            // such: both ends would answer each other for ever.
            if before(segment.seq, self.acknowledgment.last()) {
                self.acknowledgment.hurry();
            }
            return received;
        }
        if options.ecn {
            self.acknowledgment.note_mark(self.next, segment, is_marked, config);
        }
        if !after(segment.end(), self.next) || !before(segment.seq, self.edge) {
            // A duplicate, or beyond the window.
            self.acknowledgment.hurry_next(config);
            return received;
        }
        let (mut end, mut fin, mut message) =
            (segment.seq.wrapping_add(segment.len), is_fin, segment.message);
        if after(end, self.edge) {
            (end, fin, message) = (self.edge, false, None);
        }
        if after(segment.seq, self.next) {
            let reorder = self.reorder.get_or_insert_default();
            reorder.insert(segment.seq, end, message, fin);
            self.acknowledgment.hurry();
            return received;
        }
        let had_gap = self.reorder.is_some();
        let before_bytes = self.next;
        if after(end, self.next) {
            self.deliver(end, message);
        }
        let mut fin_at = fin.then_some(end);
        self.fill_gap(&mut fin_at);
        received.bytes = self.next != before_bytes;
        received.message = !self.messages.is_empty();
        if fin_at == Some(self.next) {
            self.next = self.next.wrapping_add(1);
            (self.is_finished, received.fin) = (true, true);
            self.acknowledgment.hurry();
        }
        let is_pushed = segment.flags.has(Flags::PSH);
        self.acknowledgment.note_data(now, self.next, options.payload, is_pushed, config);
        if had_gap {
            self.acknowledgment.hurry();
        }
        received
    }

    /// Takes bytes up to `end` in sequence.
    fn deliver(&mut self, end: u32, message: Option<u64>) {
        self.unread += end.wrapping_sub(self.next);
        self.next = end;
        if let Some(message) = message {
            self.messages.push_back(message);
        }
    }

    /// Takes what came out of order and is in sequence now.
    fn fill_gap(&mut self, fin_at: &mut Option<u32>) {
        let Some(mut reorder) = self.reorder.take() else { return };
        let end = reorder.advance(self.next, &mut self.messages);
        self.unread += end.wrapping_sub(self.next);
        self.next = end;
        *fin_at = fin_at.or(reorder.fin);
        if !reorder.is_empty() {
            self.reorder = Some(reorder);
        }
    }

    /// Takes up to `most` bytes out of the buffer. Returns how many; an acknowledgment may be due
    /// then.
    pub(crate) fn read(&mut self, most: u32, config: &Config, payload: u16) -> u32 {
        let bytes = most.min(self.unread);
        self.unread -= bytes;
        if bytes > 0 && !self.is_finished {
            // As Linux does (`__tcp_cleanup_rbuf`): the window has doubled at least.
            let offered = self.edge.wrapping_sub(self.next);
            let possible = self.possible_edge(config, payload).wrapping_sub(self.next);
            if possible > 0 && possible >= 2 * offered {
                self.acknowledgment.hurry();
            }
            if self.unread == 0 {
                self.acknowledgment.all_read();
            }
        }
        bytes
    }

    pub(crate) fn next_message(&mut self) -> Option<u64> {
        self.messages.pop_front()
    }

    pub(crate) fn has_message(&self) -> bool {
        !self.messages.is_empty()
    }

    /// Returns the right edge that may be offered: it never falls, and rises by a full segment or
    /// half the buffer at least (RFC 9293, section 3.8.6.2.2).
    fn possible_edge(&self, config: &Config, payload: u16) -> u32 {
        let room = config.receive_buffer.saturating_sub(self.unread);
        let edge = self.next.wrapping_add(room);
        let step = u32::from(payload).min(config.receive_buffer / 2);
        let rise = edge.wrapping_sub(self.edge);
        if after(edge, self.edge) && rise >= step { edge } else { self.edge }
    }

    /// Offers the window that is possible now. Returns its size in bytes. Without SACK it stays as it was
    /// while there is a gap: a change would hide a duplicate from the peer (Linux,
    /// `tcp_data_queue_ofo`).
    pub(crate) fn offer_window(&mut self, config: &Config, options: Negotiated) -> u32 {
        if options.sack || self.reorder.is_none() {
            self.edge = self.possible_edge(config, options.payload);
        }
        self.edge.wrapping_sub(self.next)
    }

    /// Returns blocks of what came out of order, the most recent first (RFC 2018, section 4).
    pub(crate) fn sack_blocks(&self) -> SackBlocks {
        self.reorder.as_ref().map_or_else(SackBlocks::default, |reorder| reorder.blocks())
    }

    pub(crate) fn acknowledgment(&self) -> &Acknowledgment {
        &self.acknowledgment
    }

    pub(crate) fn acknowledgment_mut(&mut self) -> &mut Acknowledgment {
        &mut self.acknowledgment
    }

    /// Takes the peer's timestamp where the segment covers the last acknowledgment (RFC 7323, section
    /// 4.3).
    pub(crate) fn note_timestamp(&mut self, segment: &Segment) {
        if let Some(timestamps) = segment.timestamps
            && !after(segment.seq, self.acknowledgment.last())
            && !before(timestamps.value, self.echo)
        {
            self.echo = timestamps.value;
        }
    }
}
