//! The writing end of an adaptive stream: each segment travels over the channel chosen for it.

use std::collections::VecDeque;

use venice_wire::MAX_PAYLOAD_BYTES;

use super::{
    Ask, ChannelKind, ChoiceEvent, Chooser, ChooserConfig, Pattern,
    landing::{LandingRing, LandingSlot},
    segment::{HEADER_BYTES, Message, PROGRESS_BYTES},
    stream::{StreamConfig, StreamError},
};
use crate::{CloseReason, Completion, FabricError, Initiator, QPairError, QPairId, RdmaCompletion};

/// Choices kept for [`AdaptiveSender::poll_choice`]; the oldest are dropped.
const MAX_CHOICES: usize = 64;

/// The writing end of an adaptive stream, over an [`Initiator`].
///
/// Call [`AdaptiveSender::handle`] whenever its QPair is readable or writable, hand it its own
/// completions, and write.
#[derive(Debug)]
pub struct AdaptiveSender {
    config: StreamConfig,
    chooser: Chooser,
    qpair: QPairId,
    /// Address of the landing region in the initiator's mapped address space.
    window_addr: u64,
    landing: LandingRing,
    /// Segments sent and not yet read, by sequence.
    slots: Box<[Sent]>,
    /// The number of the next segment.
    next: u64,
    /// Segments before this one were read.
    consumed: u64,
    /// Segments that lie in the landing region and were not announced to the receiver.
    notices: VecDeque<u64>,
    /// Free buffers for bulk transfers.
    buffers: Vec<Vec<u8>>,
    has_buffers: bool,
    message: Box<[u8]>,
    choices: VecDeque<ChoiceEvent>,
    token_base: u64,
    end_due: bool,
    has_ended: bool,
    failed: Option<StreamError>,
}

/// One outstanding segment.
#[derive(Clone, Copy, Debug, Default)]
struct Sent {
    choice: Option<ChoiceEvent>,
    began_ns: u64,
    place: Option<LandingSlot>,
    len_bytes: usize,
    /// A write into the landing region is outstanding.
    is_writing: bool,
    has_arrived: bool,
}

impl AdaptiveSender {
    /// Returns a sender over `qpair`, a QPair of messages, whose receiver's landing region is
    /// mapped at `window_addr` of the initiator. Its accesses use the 2³² tokens from `token_base`
    /// on. All its buffers are allocated here.
    pub fn new(
        config: StreamConfig,
        chooser: ChooserConfig,
        qpair: QPairId,
        window_addr: u64,
        token_base: u64,
    ) -> Self {
        let window = config.window();
        let buffer = || Vec::with_capacity(config.segment_bytes as usize);
        // More outstanding at once would only queue behind each other.
        let buffers = if config.landing_bytes > 0 { window.min(16) } else { 0 };
        let inline_bytes = config.inline_bytes as usize;
        Self {
            chooser: Chooser::new(chooser),
            qpair,
            window_addr,
            landing: LandingRing::new(config.landing_bytes),
            slots: vec![Sent::default(); window].into(),
            next: 0,
            consumed: 0,
            notices: VecDeque::with_capacity(window),
            buffers: (0..buffers).map(|_| buffer()).collect(),
            has_buffers: buffers > 0,
            message: vec![0; HEADER_BYTES + inline_bytes.max(PROGRESS_BYTES)].into(),
            choices: VecDeque::with_capacity(MAX_CHOICES),
            token_base,
            end_due: false,
            has_ended: false,
            failed: None,
            config,
        }
    }

    /// Sends the next bytes of the stream, as many as one segment takes; returns how many. `hint`:
    /// latency counts ([`Pattern::Message`], the default) or throughput.
    ///
    /// # Errors
    /// [`StreamError::WouldBlock`]: continue after [`AdaptiveSender::handle`].
    /// [`StreamError::Ended`]; any other error is permanent.
    pub fn write(
        &mut self,
        now_ns: u64,
        initiator: &mut Initiator,
        bytes: &[u8],
        hint: Option<Pattern>,
    ) -> Result<usize, StreamError> {
        self.check()?;
        if self.end_due || self.has_ended {
            return Err(StreamError::Ended);
        }
        if bytes.is_empty() {
            return Ok(0);
        }
        if !self.has_room() {
            return Err(StreamError::WouldBlock);
        }
        let longest = bytes.len().min(self.config.segment_bytes.max(1) as usize);
        let shorter = longest.min(self.config.inline_bytes as usize);
        // With the landing region full, a shorter segment may still go by QPair.
        for len in [longest, shorter] {
            if self.send_segment(now_ns, initiator, &bytes[..len], hint)? {
                return Ok(len);
            }
        }
        Err(StreamError::WouldBlock)
    }

    fn has_room(&self) -> bool {
        self.next - self.consumed < self.slots.len() as u64
    }

    /// Sends one segment by the best channel that takes it. Returns false if none does now.
    fn send_segment(
        &mut self,
        now_ns: u64,
        initiator: &mut Initiator,
        bytes: &[u8],
        hint: Option<Pattern>,
    ) -> Result<bool, StreamError> {
        let place = self.landing.find(bytes.len() as u64);
        let mut possible = [
            place.is_some() && bytes.len() <= MAX_PAYLOAD_BYTES,
            place.is_some() && self.has_buffers,
            bytes.len() <= self.config.inline_bytes as usize,
        ];
        while possible.contains(&true) && !bytes.is_empty() {
            let ask = Ask {
                len_bytes: bytes.len(),
                addr: None,
                hint: hint.or(Some(Pattern::Message)),
                possible,
            };
            let choice = self.chooser.choose(&ask);
            let place = place.filter(|_| choice.channel != ChannelKind::QPair);
            match self.send_by(now_ns, initiator, choice.channel, place, bytes) {
                Ok(()) => {
                    self.note_sent(now_ns, choice, place, bytes.len());
                    return Ok(true);
                }
                Err(error) => {
                    self.chooser.forget(&choice);
                    if error != StreamError::WouldBlock {
                        return Err(self.fail(error));
                    }
                    if choice.reason.is_trial() {
                        return Ok(false);
                    }
                    possible[choice.channel.index()] = false;
                }
            }
        }
        Ok(false)
    }

    fn send_by(
        &mut self,
        now_ns: u64,
        initiator: &mut Initiator,
        channel: ChannelKind,
        place: Option<LandingSlot>,
        bytes: &[u8],
    ) -> Result<(), StreamError> {
        let token = self.token_base.wrapping_add(u64::from(self.next as u32));
        let addr = self.window_addr + place.map_or(0, |place| place.offset);
        match channel {
            ChannelKind::QPair => {
                let len_bytes = bytes.len() as u32;
                let header = Message::Inline { sequence: self.next, len_bytes };
                let len = header.emit(&mut self.message);
                self.message[len..len + bytes.len()].copy_from_slice(bytes);
                let message = &self.message[..len + bytes.len()];
                Ok(initiator.qpairs_mut().send(now_ns, self.qpair, message)?)
            }
            ChannelKind::Crma => initiator.write(now_ns, token, addr, bytes).map_err(not_taken),
            ChannelKind::Rdma => {
                let mut buffer = self.buffers.pop().ok_or(StreamError::WouldBlock)?;
                buffer.clear();
                buffer.extend_from_slice(bytes);
                initiator.rdma_write(now_ns, token, addr, buffer).map_err(|rejected| {
                    self.buffers.push(rejected.buffer);
                    not_taken(rejected.error)
                })
            }
        }
    }

    fn note_sent(
        &mut self,
        now_ns: u64,
        choice: ChoiceEvent,
        place: Option<LandingSlot>,
        len_bytes: usize,
    ) {
        if let Some(place) = &place {
            self.landing.take(place);
        }
        let at = self.index(self.next);
        self.slots[at] = Sent {
            choice: Some(choice),
            began_ns: now_ns,
            place,
            len_bytes,
            is_writing: place.is_some(),
            has_arrived: false,
        };
        self.next += 1;
        if self.choices.len() == MAX_CHOICES {
            self.choices.pop_front();
        }
        self.choices.push_back(choice);
    }

    /// Ends the stream: the reader sees its end once all is read.
    pub fn finish(&mut self) {
        self.end_due |= !self.has_ended;
    }

    /// Takes a completion of the initiator. Returns false if it belongs to another user.
    pub fn handle_completion(&mut self, completion: &Completion<'_>) -> bool {
        self.complete(completion.token, completion.result)
    }

    /// Takes a completion of a bulk transfer; returns it if it belongs to another user.
    pub fn handle_rdma_completion(&mut self, completion: RdmaCompletion) -> Option<RdmaCompletion> {
        if !self.complete(completion.token, completion.result) {
            return Some(completion);
        }
        self.buffers.push(completion.buffer);
        None
    }

    fn complete(&mut self, token: u64, result: Result<(), crate::AccessError>) -> bool {
        let Ok(low) = u32::try_from(token.wrapping_sub(self.token_base)) else { return false };
        let ahead = low.wrapping_sub(self.consumed as u32);
        let sequence = self.consumed + u64::from(ahead);
        if sequence >= self.next {
            return false;
        }
        let at = self.index(sequence);
        if !std::mem::take(&mut self.slots[at].is_writing) {
            return false;
        }
        match result {
            Ok(()) => self.notices.push_back(sequence),
            Err(error) => {
                self.fail(StreamError::Failed(error));
            }
        }
        true
    }

    /// Announces segments in the landing region to the receiver, and reads its progress.
    ///
    /// # Errors
    /// A permanent error of the stream.
    pub fn handle(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<(), StreamError> {
        self.check()?;
        let handled = self
            .read_progress(now_ns, initiator)
            .and_then(|()| self.send_notices(now_ns, initiator))
            .and_then(|()| self.send_end(now_ns, initiator));
        match handled {
            // The receiver may leave as soon as it has everything.
            Err(StreamError::Closed(_)) if self.is_done() => Ok(()),
            Ok(()) | Err(StreamError::WouldBlock) => Ok(()),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn read_progress(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<(), StreamError> {
        loop {
            let len = match initiator.qpairs_mut().recv(self.qpair, &mut self.message) {
                Err(QPairError::WouldBlock) => return Ok(()),
                Ok(0) => return Err(StreamError::Closed(CloseReason::PeerClosed)),
                Ok(len) => len,
                Err(error) => return Err(error.into()),
            };
            let Some(Message::Progress { arrived, bitmap, consumed }) =
                Message::parse(&self.message[..len])
            else {
                return Err(StreamError::Protocol);
            };
            self.note_progress(now_ns, arrived, bitmap, consumed)?;
        }
    }

    fn note_progress(
        &mut self,
        now_ns: u64,
        arrived: u64,
        bitmap: u64,
        consumed: u64,
    ) -> Result<(), StreamError> {
        if arrived > self.next || consumed > arrived || consumed < self.consumed {
            return Err(StreamError::Protocol);
        }
        for sequence in self.consumed..self.next {
            let ahead = sequence.wrapping_sub(arrived + 1);
            let is_there = sequence < arrived
                || (sequence > arrived && ahead < 64 && bitmap & (1 << ahead) != 0);
            let at = self.index(sequence);
            let sent = &mut self.slots[at];
            if is_there && !std::mem::replace(&mut sent.has_arrived, true) {
                if sent.is_writing {
                    return Err(StreamError::Protocol);
                }
                if let Some(choice) = &sent.choice {
                    self.chooser.done(choice, sent.began_ns, now_ns);
                }
            }
        }
        while self.consumed < consumed {
            let at = self.index(self.consumed);
            if let Some(place) = self.slots[at].place.take() {
                self.landing.give_back(&place);
            }
            self.consumed += 1;
        }
        Ok(())
    }

    fn send_notices(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<(), StreamError> {
        while let Some(&sequence) = self.notices.front() {
            let sent = &self.slots[self.index(sequence)];
            let offset = sent.place.map_or(0, |place| place.offset);
            let mut message = [0; HEADER_BYTES];
            let len_bytes = sent.len_bytes as u32;
            Message::Landed { sequence, len_bytes, offset }.emit(&mut message);
            initiator.qpairs_mut().send(now_ns, self.qpair, &message)?;
            self.notices.pop_front();
        }
        Ok(())
    }

    fn send_end(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<(), StreamError> {
        if !self.end_due || !self.has_room() {
            return Ok(());
        }
        let mut message = [0; HEADER_BYTES];
        Message::End { sequence: self.next }.emit(&mut message);
        initiator.qpairs_mut().send(now_ns, self.qpair, &message)?;
        let at = self.index(self.next);
        self.slots[at] = Sent::default();
        self.next += 1;
        (self.end_due, self.has_ended) = (false, true);
        Ok(())
    }

    /// True if the stream was ended and the reader has read all of it.
    pub fn is_done(&self) -> bool {
        self.has_ended && self.consumed == self.next
    }

    /// True if everything written, and the stream's end if any, was announced to the receiver: the
    /// QPair delivers it from here on.
    pub fn is_announced(&self) -> bool {
        let is_writing = |sequence| self.slots[self.index(sequence)].is_writing;
        let is_under_way = (self.consumed..self.next).any(is_writing);
        !is_under_way && self.notices.is_empty() && !self.end_due
    }

    /// Returns the number of segments sent and not known to be read.
    pub fn unread_segments(&self) -> u64 {
        self.next - self.consumed
    }

    /// Returns the oldest choice not yet polled; the latest 64 are kept.
    pub fn poll_choice(&mut self) -> Option<ChoiceEvent> {
        self.choices.pop_front()
    }

    /// Returns the chooser with its estimates of the channels.
    pub fn chooser(&self) -> &Chooser {
        &self.chooser
    }

    fn check(&self) -> Result<(), StreamError> {
        self.failed.map_or(Ok(()), Err)
    }

    fn fail(&mut self, error: StreamError) -> StreamError {
        *self.failed.get_or_insert(error)
    }

    fn index(&self, sequence: u64) -> usize {
        (sequence % self.slots.len() as u64) as usize
    }
}

fn not_taken(error: FabricError) -> StreamError {
    match error {
        FabricError::WouldBlock => StreamError::WouldBlock,
        error => StreamError::NotTaken(error),
    }
}
