//! An application at the near end: it begins operations of one pattern over a given channel and
//! reports the completed ones. It has no clock and no port: its driver moves the frames.

use std::collections::VecDeque;

use anyhow::{Result, anyhow, bail};
use venice_fabric::{AccessError, FabricError, Initiator, RdmaRejected};

use super::MEMORY_BYTES;
use super::kinds::{
    AppPattern, COPY_BYTES, COPY_MESSAGE_BYTES, ChannelKind, LINE_BYTES, MANY, PACKET_BYTES,
    PAGE_BYTES, PAGES,
};
use super::lent::{MAILBOX, WINDOW};
use super::talk::{Question, Talker};
use venice_measure::pattern::Random;

/// Token of single accesses.
const ACCESS: u64 = 0;
const FENCE: u64 = 1;
/// The read of a mailbox.
const LOOK: u64 = 2;

/// Operations of one pattern, and their state.
pub(super) struct App {
    pattern: AppPattern,
    pub(super) talker: Talker,
    random: Random,
    /// Buffers of completed bulk transfers.
    spare: Vec<Vec<u8>>,
    /// Outstanding bulk transfers.
    bulks: usize,
    copies_by_lines: VecDeque<LineCopy>,
    copies_by_messages: VecDeque<MessageCopy>,
    /// Packets posted since the last fence, and the packets of each outstanding fence.
    posted: usize,
    fences: VecDeque<usize>,
    /// Bytes of packets that the far end had at the last count.
    arrived_bytes: u64,
    /// The word in the mailbox, and its channel.
    letter: u64,
    correspondence: Option<ChannelKind>,
    /// Outstanding operations, by channel.
    under_way: [usize; 3],
    message: Vec<u8>,
}

/// A copy line by line, until all of its lines are acknowledged.
struct LineCopy {
    next: u64,
    end: u64,
    lines: usize,
}

/// A copy in messages that are not all sent yet.
struct MessageCopy {
    to: u64,
    sent_bytes: usize,
}

impl App {
    /// Creates one with a talker that will be connected.
    pub(super) fn new(pattern: AppPattern, talker: Talker) -> Self {
        Self {
            pattern,
            talker,
            random: Random::new(1),
            spare: Vec::new(),
            bulks: 0,
            copies_by_lines: VecDeque::new(),
            copies_by_messages: VecDeque::new(),
            posted: 0,
            fences: VecDeque::new(),
            arrived_bytes: 0,
            letter: 0,
            correspondence: None,
            under_way: [0; 3],
            message: vec![0xa5; Question::HEADER_BYTES + COPY_MESSAGE_BYTES],
        }
    }

    pub(super) fn under_way(&self) -> usize {
        self.under_way.iter().sum()
    }

    /// Returns a random address for an access of `len` bytes, aligned to its length, behind the
    /// mailbox.
    fn anywhere(&mut self, len: usize) -> u64 {
        let places = (MEMORY_BYTES / len) as u64;
        WINDOW + (1 + self.random.below(places - 1)) * len as u64
    }

    /// Begins one operation; returns false if the channel takes none at present.
    ///
    /// # Errors
    /// When the channel fails.
    pub(super) fn begin(
        &mut self,
        now_ns: u64,
        channel: ChannelKind,
        initiator: &mut Initiator,
    ) -> Result<bool> {
        let begun = match (self.pattern, channel) {
            (AppPattern::Database | AppPattern::Graph, ChannelKind::Crma) => {
                let addr = self.anywhere(LINE_BYTES);
                taken(initiator.read(now_ns, ACCESS, addr, LINE_BYTES as u32))?
            }
            (AppPattern::Database | AppPattern::Graph, ChannelKind::Rdma) => {
                self.bulk(now_ns, initiator, PAGE_BYTES, true)?
            }
            (AppPattern::Database | AppPattern::Graph, ChannelKind::QPair) => {
                let addr = self.anywhere(LINE_BYTES) - WINDOW;
                self.ask(now_ns, initiator, Question::Read { addr, len: LINE_BYTES as u32 })?
            }
            (AppPattern::Copy, ChannelKind::Crma) => {
                let next = self.anywhere(COPY_BYTES);
                let end = next + COPY_BYTES as u64;
                self.copies_by_lines.push_back(LineCopy { next, end, lines: 0 });
                self.go_on_with_lines(now_ns, initiator)?;
                true
            }
            (AppPattern::Copy, ChannelKind::Rdma) => {
                self.bulk(now_ns, initiator, COPY_BYTES, false)?
            }
            (AppPattern::Copy, ChannelKind::QPair) => {
                let to = self.anywhere(COPY_BYTES) - WINDOW;
                self.copies_by_messages.push_back(MessageCopy { to, sent_bytes: 0 });
                self.go_on_with_messages(now_ns, initiator)?;
                true
            }
            (AppPattern::Packets, ChannelKind::Crma) => self.post(now_ns, initiator)?,
            (AppPattern::Packets, ChannelKind::Rdma) => {
                self.bulk(now_ns, initiator, PACKET_BYTES, false)?
            }
            (AppPattern::Packets, ChannelKind::QPair) => {
                Question::Drop.encode(&mut self.message);
                let packet = &self.message[..PACKET_BYTES];
                self.talker.send_bytes(now_ns, initiator.qpairs_mut(), packet)?
            }
            (AppPattern::Word, ChannelKind::Crma | ChannelKind::Rdma) => {
                self.write_letter(now_ns, channel, initiator)?
            }
            (AppPattern::Word, ChannelKind::QPair) => {
                let question = Question::Read { addr: MAILBOX as u64, len: LINE_BYTES as u32 };
                self.ask(now_ns, initiator, question)?
            }
        };
        self.under_way[channel as usize] += usize::from(begun);
        Ok(begun)
    }

    fn bulk(
        &mut self,
        now_ns: u64,
        initiator: &mut Initiator,
        len: usize,
        is_read: bool,
    ) -> Result<bool> {
        if self.bulks >= PAGES {
            return Ok(false);
        }
        let addr = self.anywhere(len);
        self.bulk_at(now_ns, initiator, (ACCESS, addr, len), is_read)
    }

    fn bulk_at(
        &mut self,
        now_ns: u64,
        initiator: &mut Initiator,
        (token, addr, len): (u64, u64, usize),
        is_read: bool,
    ) -> Result<bool> {
        let mut buffer = self.spare.pop().unwrap_or_default();
        buffer.resize(len, 0xa5);
        if token == ACCESS && !is_read {
            buffer[..8].copy_from_slice(&self.letter.to_le_bytes());
        }
        let begun = if is_read {
            initiator.rdma_read(now_ns, token, addr, buffer)
        } else {
            initiator.rdma_write(now_ns, token, addr, buffer)
        };
        let begun = taken(begun.map_err(|RdmaRejected { buffer, error, .. }| {
            self.spare.push(buffer);
            error
        }))?;
        self.bulks += usize::from(begun);
        Ok(begun)
    }

    /// Sends a request to the thread at the donor.
    fn ask(&mut self, now_ns: u64, initiator: &mut Initiator, question: Question) -> Result<bool> {
        let mut message = [0; Question::HEADER_BYTES];
        question.encode(&mut message);
        self.talker.send_bytes(now_ns, initiator.qpairs_mut(), &message)
    }

    fn post(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<bool> {
        let addr = self.anywhere(PACKET_BYTES);
        let posted = taken(initiator.post(now_ns, addr, &[0xa5; PACKET_BYTES]))?;
        self.posted += usize::from(posted);
        if self.posted >= MANY {
            self.fence(now_ns, initiator)?;
        }
        Ok(posted)
    }

    /// Requests an acknowledgement of the posted packets.
    fn fence(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<()> {
        if self.posted > 0 && taken(initiator.fence(now_ns, FENCE))? {
            self.fences.push_back(std::mem::take(&mut self.posted));
        }
        Ok(())
    }

    /// Writes a word into the donor's mailbox; its answer is then polled.
    fn write_letter(
        &mut self,
        now_ns: u64,
        channel: ChannelKind,
        initiator: &mut Initiator,
    ) -> Result<bool> {
        if self.correspondence.is_some() {
            return Ok(false);
        }
        self.letter += 1;
        let to = WINDOW + MAILBOX as u64;
        let begun = if channel == ChannelKind::Rdma {
            self.bulk_at(now_ns, initiator, (ACCESS, to, LINE_BYTES), false)?
        } else {
            let mut letter = [0; LINE_BYTES];
            letter[..8].copy_from_slice(&self.letter.to_le_bytes());
            taken(initiator.write(now_ns, ACCESS, to, &letter))?
        };
        self.correspondence = begun.then_some(channel);
        Ok(begun)
    }

    fn look_for_answer(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<()> {
        let answer = WINDOW + (MAILBOX + LINE_BYTES) as u64;
        let begun = if self.correspondence == Some(ChannelKind::Rdma) {
            self.bulk_at(now_ns, initiator, (LOOK, answer, LINE_BYTES), true)?
        } else {
            taken(initiator.read(now_ns, LOOK, answer, LINE_BYTES as u32))?
        };
        if begun { Ok(()) } else { bail!("an idle channel takes no access") }
    }

    fn go_on_with_lines(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<()> {
        let mut under_way: usize = self.copies_by_lines.iter().map(|copy| copy.lines).sum();
        for copy in &mut self.copies_by_lines {
            while copy.next < copy.end && under_way < MANY {
                if !taken(initiator.write(now_ns, ACCESS, copy.next, &[0xa5; LINE_BYTES]))? {
                    return Ok(());
                }
                copy.next += LINE_BYTES as u64;
                copy.lines += 1;
                under_way += 1;
            }
        }
        Ok(())
    }

    /// Continues the copies; the answer to the last message of a copy covers all of them.
    fn go_on_with_messages(&mut self, now_ns: u64, initiator: &mut Initiator) -> Result<()> {
        while let Some(copy) = self.copies_by_messages.front_mut() {
            let answer = copy.sent_bytes + COPY_MESSAGE_BYTES == COPY_BYTES;
            let addr = copy.to + copy.sent_bytes as u64;
            Question::Write { addr, answer }.encode(&mut self.message);
            if !self.talker.send_bytes(now_ns, initiator.qpairs_mut(), &self.message)? {
                break;
            }
            copy.sent_bytes += COPY_MESSAGE_BYTES;
            if answer {
                self.copies_by_messages.pop_front();
            }
        }
        Ok(())
    }

    /// Continues outstanding operations; returns the completed ones by channel. `arrived_bytes`
    /// counts the bytes of messages at the far end.
    ///
    /// # Errors
    /// When an operation fails.
    pub(super) fn collect(
        &mut self,
        now_ns: u64,
        initiator: &mut Initiator,
        arrived_bytes: u64,
    ) -> Result<[usize; 3]> {
        let mut over = [0; 3];
        while let Some(done) = initiator.poll_completion() {
            done.result.map_err(failed)?;
            let is_answered = done.data.get(..8) == Some(&self.letter.to_le_bytes());
            let token = done.token;
            over[ChannelKind::Crma as usize] +=
                self.accessed(now_ns, initiator, token, is_answered)?;
        }
        while let Some(done) = initiator.poll_rdma_completion() {
            done.result.map_err(failed)?;
            self.bulks -= 1;
            let is_answered = done.buffer[..8] == self.letter.to_le_bytes();
            self.spare.push(done.buffer);
            over[ChannelKind::Rdma as usize] += if self.pattern == AppPattern::Word {
                self.accessed(now_ns, initiator, done.token, is_answered)?
            } else {
                1
            };
        }
        let answers = &mut over[ChannelKind::QPair as usize];
        while self.talker.receive(initiator.qpairs_mut())?.is_some() {
            *answers += 1;
        }
        if self.pattern == AppPattern::Packets {
            *answers += ((arrived_bytes - self.arrived_bytes) / PACKET_BYTES as u64) as usize;
        }
        self.arrived_bytes = arrived_bytes;
        self.go_on_with_lines(now_ns, initiator)?;
        self.go_on_with_messages(now_ns, initiator)?;
        if self.fences.is_empty() {
            self.fence(now_ns, initiator)?;
        }
        for (under_way, over) in self.under_way.iter_mut().zip(over) {
            *under_way = under_way.checked_sub(over).ok_or_else(|| anyhow!("over twice"))?;
        }
        Ok(over)
    }

    /// Handles a completed access; returns how many operations it completes.
    fn accessed(
        &mut self,
        now_ns: u64,
        initiator: &mut Initiator,
        token: u64,
        is_answered: bool,
    ) -> Result<usize> {
        Ok(match self.pattern {
            AppPattern::Packets => self.fences.pop_front().unwrap_or(0),
            AppPattern::Copy => {
                let copy = self.copies_by_lines.front_mut();
                let copy = copy.ok_or_else(|| anyhow!("a line of no copy"))?;
                copy.lines -= 1;
                let is_over = copy.lines == 0 && copy.next == copy.end;
                usize::from(is_over && self.copies_by_lines.pop_front().is_some())
            }
            AppPattern::Word if token == LOOK && is_answered => {
                self.correspondence = None;
                1
            }
            AppPattern::Word => {
                self.look_for_answer(now_ns, initiator)?;
                0
            }
            AppPattern::Database | AppPattern::Graph => 1,
        })
    }
}

fn failed(error: AccessError) -> anyhow::Error {
    anyhow!("an access failed: {error}")
}

/// True if a call was accepted; "later" is not an error.
fn taken(begun: Result<(), FabricError>) -> Result<bool> {
    match begun {
        Ok(()) => Ok(true),
        Err(FabricError::WouldBlock) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
