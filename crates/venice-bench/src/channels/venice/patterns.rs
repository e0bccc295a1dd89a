//! What applications do with another node's resources (Venice paper, Figure 17), each pattern on
//! each channel, over one emulated link.
//!
//! | pattern | CRMA | RDMA | QPair |
//! |---|---|---|---|
//! | a data base's look-ups: dependent random reads of 64 B | a read of 64 B | a page, as a swap device moves it | ask a thread at the donor |
//! | a graph's look-ups: independent random reads of 64 B | 64 reads under way | 32 pages under way | 64 questions under way |
//! | a copy of 1 MiB, as to an accelerator | 64 lines of 64 B under way | two descriptors under way | messages of 64 KiB to a thread that stores them |
//! | packets of 256 B, as to a network card | posted writes into a ring | a descriptor each | messages |
//! | a word with a thread: 64 B there, 64 B back | write a mailbox, read it until the answer is in | the same by descriptors | a message each way |
//!
//! RDMA moves whole pages in the look-ups because that is how programs reach it (paper, 5.2.1);
//! lines of 64 B stand for the loads and stores that CRMA answers there.

use anyhow::{Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use venice_fabric::adaptive::{Ask, Chooser, ChooserConfig, Pattern};
use venice_fabric::{EndConfig, FabricError, LinkModel, QPairConfig};
use venice_ports::monotonic_ns;

use super::MEMORY_BYTES;
use super::frames::{Driver, pump_until};
use super::lent::{MAILBOX, WINDOW};
use super::rings::RingBed;
use super::talk::{Question, Role, Talker};
use crate::channels::measure::{Effort, Ends, on_cpu};
use crate::channels::raw::Waiting;
use crate::pattern::Random;

/// One line: what a processor loads and stores.
const LINE_BYTES: usize = 64;
const PAGE_BYTES: usize = 4096;
const COPY_BYTES: usize = 1 << 20;
const COPY_MESSAGE_BYTES: usize = 64 << 10;
const PACKET_BYTES: usize = 256;
/// Lines, questions or packets under way at a time.
const MANY: usize = 64;
/// Pages under way at a time.
const PAGES: usize = 32;

/// A channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ChannelKind {
    /// Single accesses.
    Crma,
    /// Bulk transfers.
    Rdma,
    /// Messages.
    #[serde(rename = "qpair")]
    QPair,
}

impl ChannelKind {
    /// All of them.
    pub const ALL: [ChannelKind; 3] = [ChannelKind::Crma, ChannelKind::Rdma, ChannelKind::QPair];

    /// As people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ChannelKind::Crma => "CRMA",
            ChannelKind::Rdma => "RDMA",
            ChannelKind::QPair => "QPair",
        }
    }
}

/// What an application does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AppPattern {
    /// Dependent random reads of 64 B.
    Database,
    /// Independent random reads of 64 B.
    Graph,
    /// Copies of 1 MiB to the donor.
    Copy,
    /// Packets of 256 B to the donor.
    Packets,
    /// 64 B to a thread at the donor, and its answer.
    Word,
}

impl AppPattern {
    /// All of them.
    pub const ALL: [AppPattern; 5] = [
        AppPattern::Database,
        AppPattern::Graph,
        AppPattern::Copy,
        AppPattern::Packets,
        AppPattern::Word,
    ];

    /// As people write it.
    #[must_use]
    pub fn title(self) -> &'static str {
        match self {
            AppPattern::Database => "look-ups, dependent",
            AppPattern::Graph => "look-ups, independent",
            AppPattern::Copy => "copies of 1 MiB",
            AppPattern::Packets => "packets of 256 B",
            AppPattern::Word => "a word and its answer",
        }
    }

    /// What an application tells the adaptive library of it.
    fn hint(self) -> Pattern {
        match self {
            AppPattern::Database | AppPattern::Graph => Pattern::Random,
            AppPattern::Copy => Pattern::Sequential,
            AppPattern::Packets | AppPattern::Word => Pattern::Message,
        }
    }

    /// Bytes that one operation is about.
    #[must_use]
    pub fn size_bytes(self) -> usize {
        match self {
            AppPattern::Database | AppPattern::Graph | AppPattern::Word => LINE_BYTES,
            AppPattern::Copy => COPY_BYTES,
            AppPattern::Packets => PACKET_BYTES,
        }
    }
}

/// Operations a second.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(in crate::channels) fn operations_per_s(
    effort: &Effort,
    ends: Ends,
    model: LinkModel,
    pattern: AppPattern,
    channel: ChannelKind,
) -> Result<f64> {
    on_cpu(ends.near_cpu, || {
        let mut near = Near::lay(ends, model)?;
        let rate = effort.bandwidth(|| near.turn(pattern, channel))?;
        near.settle()?;
        Ok(rate)
    })
}

/// Which channel the adaptive library takes, and what it makes of it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Adaptive {
    /// The channel it took most often once it had measured them.
    pub channel: ChannelKind,
    /// Operations a second, its trials of other channels included.
    pub operations_per_s: f64,
}

/// Lets the adaptive library choose a channel for each turn.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(in crate::channels) fn adaptive(
    effort: &Effort,
    ends: Ends,
    model: LinkModel,
    pattern: AppPattern,
) -> Result<Adaptive> {
    on_cpu(ends.near_cpu, || {
        let mut near = Near::lay(ends, model)?;
        let mut chooser = Chooser::new(ChooserConfig::default());
        let ask = Ask {
            len_bytes: pattern.size_bytes(),
            addr: None,
            hint: Some(pattern.hint()),
            possible: [true; 3],
        };
        let (mut taken, mut last) = ([0u64; 3], None);
        let operations_per_s = effort.bandwidth(|| {
            let choice = chooser.choose(&ask);
            if last.is_some_and(|last| last != choice.channel) {
                near.settle()?;
            }
            last = Some(choice.channel);
            taken[choice.channel.index()] += 1;
            let begun_ns = monotonic_ns();
            let count = near.turn(pattern, ChannelKind::ALL[choice.channel.index()])?;
            let each_ns = (monotonic_ns() - begun_ns) / count.max(1);
            chooser.done(&choice, begun_ns, begun_ns + each_ns);
            Ok(count)
        })?;
        near.settle()?;
        let most = (0..3).max_by_key(|at| taken[*at]).unwrap_or(0);
        Ok(Adaptive { channel: ChannelKind::ALL[most], operations_per_s })
    })
}

impl Near {
    /// Some operations of a pattern by a channel; how many are over.
    fn turn(&mut self, pattern: AppPattern, channel: ChannelKind) -> Result<u64> {
        let near = self;
        match (pattern, channel) {
            (AppPattern::Database, ChannelKind::Crma) => near.accesses(Access::ReadLine, 1),
            (AppPattern::Database, ChannelKind::Rdma) => near.accesses(Access::ReadPage, 1),
            (AppPattern::Database, ChannelKind::QPair) => near.questions(1),
            (AppPattern::Graph, ChannelKind::Crma) => near.accesses(Access::ReadLine, MANY),
            (AppPattern::Graph, ChannelKind::Rdma) => near.accesses(Access::ReadPage, PAGES),
            (AppPattern::Graph, ChannelKind::QPair) => near.questions(MANY),
            (AppPattern::Copy, ChannelKind::Crma) => near.copy_by_lines(),
            (AppPattern::Copy, ChannelKind::Rdma) => near.accesses(Access::WriteCopy, 2),
            (AppPattern::Copy, ChannelKind::QPair) => near.copy_by_messages(),
            (AppPattern::Packets, ChannelKind::Crma) => near.posted_packets(),
            (AppPattern::Packets, ChannelKind::Rdma) => near.accesses(Access::WritePacket, PAGES),
            (AppPattern::Packets, ChannelKind::QPair) => near.packets(),
            (AppPattern::Word, ChannelKind::Crma) => near.mailbox(Access::WriteLine),
            (AppPattern::Word, ChannelKind::Rdma) => near.mailbox(Access::WritePacket),
            (AppPattern::Word, ChannelKind::QPair) => near.questions(1),
        }
    }
}

/// What is accessed at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Access {
    /// CRMA, at random.
    ReadLine,
    /// CRMA.
    WriteLine,
    /// RDMA, at random.
    ReadPage,
    /// RDMA.
    WriteCopy,
    /// RDMA.
    WritePacket,
}

/// The near end: a bed, one QPair, and what is under way.
struct Near {
    bed: RingBed,
    talker: Talker,
    random: Random,
    under_way: usize,
    /// Questions to the thread at the donor that are not answered.
    asked: usize,
    spare: Vec<Vec<u8>>,
    turn: u64,
}

impl Near {
    fn lay(ends: Ends, model: LinkModel) -> Result<Self> {
        let end = EndConfig { send_bytes: 1 << 20, recv_bytes: 1 << 20, ..EndConfig::default() };
        let far = Talker::new(Role::Serve, end, COPY_MESSAGE_BYTES + Question::HEADER_BYTES);
        let mut talker = Talker::new(Role::Idle, end, COPY_MESSAGE_BYTES + Question::HEADER_BYTES);
        let mut bed = RingBed::lay(ends, Some(model), far, Waiting::Spin)?;
        bed.connect(&mut talker, QPairConfig { end, ..QPairConfig::messages() })?;
        let random = Random::new(1);
        Ok(Self { bed, talker, random, under_way: 0, asked: 0, spare: Vec::new(), turn: 0 })
    }

    /// A place for an access of `len` bytes, as aligned as it is long, behind the mailbox.
    fn anywhere(&mut self, len: usize) -> u64 {
        let places = (MEMORY_BYTES / len) as u64;
        WINDOW + (1 + self.random.below(places - 1)) * len as u64
    }

    /// Whether the access was taken.
    fn start(&mut self, access: Access, addr: u64) -> Result<bool> {
        let now_ns = monotonic_ns();
        let initiator = self.bed.driver().initiator();
        let begun = match access {
            Access::ReadLine => initiator.read(now_ns, 0, addr, LINE_BYTES as u32),
            Access::WriteLine => initiator.write(now_ns, 0, addr, &[0xa5; LINE_BYTES]),
            Access::ReadPage | Access::WriteCopy | Access::WritePacket => {
                let mut buffer = self.spare.pop().unwrap_or_default();
                let (len, is_read) = match access {
                    Access::ReadPage => (PAGE_BYTES, true),
                    Access::WriteCopy => (COPY_BYTES, false),
                    _ => (PACKET_BYTES, false),
                };
                buffer.resize(len, 0xa5);
                let begun = if is_read {
                    initiator.rdma_read(now_ns, 0, addr, buffer)
                } else {
                    initiator.rdma_write(now_ns, 0, addr, buffer)
                };
                begun.map_err(|rejected| {
                    self.spare.push(rejected.buffer);
                    rejected.error
                })
            }
        };
        match begun {
            Ok(()) => {
                self.under_way += 1;
                Ok(true)
            }
            Err(FabricError::WouldBlock) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    fn finish_some(&mut self) -> Result<usize> {
        let Self { bed, spare, .. } = self;
        let over = pump_until(bed.driver(), Waiting::Spin, |driver, _| {
            let mut over = 0;
            while let Some(done) = driver.initiator().poll_completion() {
                done.result.map_err(|error| anyhow!("an access failed: {error}"))?;
                over += 1;
            }
            while let Some(done) = driver.initiator().poll_rdma_completion() {
                done.result.map_err(|error| anyhow!("a bulk transfer failed: {error}"))?;
                spare.push(done.buffer);
                over += 1;
            }
            Ok((over > 0).then_some(over))
        })?;
        self.under_way -= over;
        Ok(over)
    }

    fn settle(&mut self) -> Result<()> {
        while self.under_way > 0 {
            self.finish_some()?;
        }
        while self.asked > 0 {
            self.asked -= self.answers()?;
        }
        Ok(())
    }

    /// Keeps `limit` accesses under way; those that are over.
    fn accesses(&mut self, access: Access, limit: usize) -> Result<u64> {
        while self.under_way < limit {
            let addr = match access {
                Access::ReadLine | Access::WriteLine => self.anywhere(LINE_BYTES),
                Access::ReadPage => self.anywhere(PAGE_BYTES),
                Access::WriteCopy => self.anywhere(COPY_BYTES),
                Access::WritePacket => self.anywhere(PACKET_BYTES),
            };
            if !self.start(access, addr)? {
                break;
            }
        }
        Ok(self.finish_some()? as u64)
    }

    /// Asks the thread at the donor for lines, `limit` questions under way; those answered.
    fn questions(&mut self, limit: usize) -> Result<u64> {
        let mut message = [0; Question::HEADER_BYTES];
        while self.asked < limit {
            let addr = self.anywhere(LINE_BYTES) - WINDOW;
            let question = Question::Read { addr, len: LINE_BYTES as u32 };
            question.encode(&mut message);
            let qpairs = self.bed.driver().initiator().qpairs_mut();
            if !self.talker.send_bytes(monotonic_ns(), qpairs, &message)? {
                break;
            }
            self.asked += 1;
        }
        let answered = self.answers()?;
        self.asked -= answered;
        Ok(answered as u64)
    }

    fn answers(&mut self) -> Result<usize> {
        let Self { bed, talker, .. } = self;
        pump_until(bed.driver(), Waiting::Spin, |driver, _| {
            let mut answered = 0;
            while talker.receive(driver.initiator().qpairs_mut())?.is_some() {
                answered += 1;
            }
            Ok((answered > 0).then_some(answered))
        })
    }

    fn copy_by_lines(&mut self) -> Result<u64> {
        let to = self.anywhere(COPY_BYTES);
        let mut addr = to;
        while addr < to + COPY_BYTES as u64 || self.under_way > 0 {
            while addr < to + COPY_BYTES as u64
                && self.under_way < MANY
                && self.start(Access::WriteLine, addr)?
            {
                addr += LINE_BYTES as u64;
            }
            self.finish_some()?;
        }
        Ok(1)
    }

    /// The last message is answered, and so all of them.
    fn copy_by_messages(&mut self) -> Result<u64> {
        let to = self.anywhere(COPY_BYTES) - WINDOW;
        let mut message = vec![0xa5; Question::HEADER_BYTES + COPY_MESSAGE_BYTES];
        for part in 0..COPY_BYTES / COPY_MESSAGE_BYTES {
            let at = part * COPY_MESSAGE_BYTES;
            let is_last = at + COPY_MESSAGE_BYTES == COPY_BYTES;
            let addr = to + at as u64;
            Question::Write { addr, answer: is_last }.encode(&mut message);
            let Self { bed, talker, .. } = self;
            pump_until(bed.driver(), Waiting::Spin, |driver, now_ns| {
                let sent = talker.send_bytes(now_ns, driver.initiator().qpairs_mut(), &message)?;
                Ok(sent.then_some(()))
            })?;
        }
        match self.answers()? {
            1 => Ok(1),
            other => bail!("{other} answers to one copy"),
        }
    }

    /// A burst of posted writes, and the fence that says that they are there.
    fn posted_packets(&mut self) -> Result<u64> {
        let packet = [0xa5; PACKET_BYTES];
        for _ in 0..MANY {
            let addr = self.anywhere(PACKET_BYTES);
            pump_until(self.bed.driver(), Waiting::Spin, |driver, now_ns| {
                match driver.initiator().post(now_ns, addr, &packet) {
                    Ok(()) => Ok(Some(())),
                    Err(FabricError::WouldBlock) => Ok(None),
                    Err(error) => Err(error.into()),
                }
            })?;
        }
        // Two bursts under way: the fence of one is awaited while the next is posted.
        pump_until(self.bed.driver(), Waiting::Spin, |driver, now_ns| {
            match driver.initiator().fence(now_ns, 0) {
                Ok(()) => Ok(Some(())),
                Err(FabricError::WouldBlock) => Ok(None),
                Err(error) => Err(error.into()),
            }
        })?;
        self.under_way += 1;
        while self.under_way > 1 {
            self.finish_some()?;
        }
        Ok(MANY as u64)
    }

    /// Messages that arrive.
    fn packets(&mut self) -> Result<u64> {
        let before = self.bed.arrived_bytes();
        let mut message = [0xa5; PACKET_BYTES];
        Question::Drop.encode(&mut message);
        let driver = self.bed.driver();
        for _ in 0..MANY {
            let qpairs = driver.initiator().qpairs_mut();
            if !self.talker.send_bytes(monotonic_ns(), qpairs, &message)? {
                break;
            }
        }
        Driver::pump(driver, monotonic_ns())?;
        Ok((self.bed.arrived_bytes() - before) / PACKET_BYTES as u64)
    }

    /// Writes to the donor's mailbox and reads it until its thread has answered.
    fn mailbox(&mut self, write: Access) -> Result<u64> {
        self.turn += 1;
        let mut letter = [0; PACKET_BYTES];
        letter[..8].copy_from_slice(&self.turn.to_le_bytes());
        let (to, answer) = (WINDOW + MAILBOX as u64, WINDOW + MAILBOX as u64 + LINE_BYTES as u64);
        let is_bulk = write == Access::WritePacket;
        let initiator = self.bed.driver().initiator();
        let now_ns = monotonic_ns();
        if is_bulk {
            let letter = letter[..LINE_BYTES].to_vec();
            initiator.rdma_write(now_ns, 0, to, letter).map_err(|rejected| rejected.error)?;
        } else {
            initiator.write(now_ns, 0, to, &letter[..LINE_BYTES])?;
        }
        self.under_way += 1;
        self.settle()?;
        loop {
            let now_ns = monotonic_ns();
            let initiator = self.bed.driver().initiator();
            if is_bulk {
                let line = vec![0; LINE_BYTES];
                initiator.rdma_read(now_ns, 1, answer, line).map_err(|rejected| rejected.error)?;
            } else {
                initiator.read(now_ns, 1, answer, LINE_BYTES as u32)?;
            }
            let turn = self.turn;
            let is_answered = pump_until(self.bed.driver(), Waiting::Spin, |driver, _| {
                let initiator = driver.initiator();
                if let Some(done) = initiator.poll_completion() {
                    done.result.map_err(|error| anyhow!("an access failed: {error}"))?;
                    return Ok(Some(done.data[..8] == turn.to_le_bytes()));
                }
                let Some(done) = initiator.poll_rdma_completion() else { return Ok(None) };
                done.result.map_err(|error| anyhow!("a bulk transfer failed: {error}"))?;
                Ok(Some(done.buffer[..8] == turn.to_le_bytes()))
            })?;
            if is_answered {
                return Ok(1);
            }
        }
    }
}
