//! Far memory that is not mapped: each access is a request to a donor and its answer.
//!
//! This layer handles replicas. A read goes to one donor. It goes to the next one if the first is
//! lost, and is hedged if the first is late ([`HEDGE_NS`]: the first answer wins). A write goes to
//! all replicas, and ends when each has it or is lost ([`writes`]). A read of coded memory is a
//! read of as many fragments as restore the page ([`coded`]). Below this layer, [`Donors`] moves
//! requests over a port.
//!
//! A donor whose link stops answering may be dead or slow. Meanwhile reads go to other donors. A
//! request that only this donor can serve is repeated over a new link until the donor answers,
//! until the supervisor drops it
//! ([`RunBlock::resolve_suspicion`](super::run_block::RunBlock::resolve_suspicion)), or until its lease
//! expires.

mod coded;
mod donor_health;
#[cfg(test)]
mod tests;
mod writes;

use std::ops::Range;
use std::time::Duration;

use venice_fabric::Atomic;
use venice_wire::SLAB_BYTES;

use self::coded::Coded;
use self::donor_health::DonorHealth;
use super::PAGE;
use super::run_block::{Fate, MAX_SLAB_REPLICAS, RunBlockMap};
use super::sys;
use super::transfer::{Fetch, MAX_IN_FLIGHT, Words};

/// Delay after which a read is hedged to another replica, nanoseconds. A live donor answers much
/// faster, even on a busy machine, and a stopped one costs the program no more than this.
const HEDGE_NS: u64 = 20_000_000;
/// The token of [`Framed::fetch_at_once`]. The callers' tokens are smaller.
const AT_ONCE: u32 = MAX_IN_FLIGHT as u32;
const TOKENS: usize = MAX_IN_FLIGHT + 1;

/// Requests to donors by one port.
pub trait Donors {
    /// Prepares the link to a replica, anew if it stopped answering; `false`: this process has no
    /// way to the replica.
    fn reach(&mut self, block: &RunBlockMap, replica: usize) -> bool;
    /// True if the link to a reached replica is up, so that an answer can come.
    fn is_up(&mut self, replica: usize) -> bool;
    /// Requests a read. [`Donors::next`] returns the bytes with the token.
    fn read(&mut self, token: u64, address: u64, len_bytes: u32) -> Result<(), Rejected>;
    /// Requests a write. [`Donors::next`] returns the token once the bytes have arrived.
    fn write(&mut self, token: u64, address: u64, bytes: &[u8]) -> Result<(), Rejected>;
    /// Requests an atomic change of eight bytes. [`Donors::next`] returns the earlier value.
    fn atomic(&mut self, token: u64, address: u64, atomic: Atomic) -> Result<(), Rejected>;
    /// Returns the next finished request. A read's bytes are in `buffer`.
    fn next(&mut self, buffer: &mut Words) -> Option<(u64, Result<(), RequestError>)>;
    /// Sends the requests made so far.
    fn flush(&mut self);
    /// Processes received frames and the donors' own notices.
    fn attend(&mut self, block: &RunBlockMap);
    /// Processes received frames like [`Donors::attend`], and waits a short time for one.
    fn turn(&mut self);
    /// The time of the links' clock, nanoseconds.
    fn now_ns(&self) -> u64 {
        sys::monotonic_ns()
    }
    /// Sleeps for `time`.
    fn rest(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// An error of accepting a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rejected {
    /// The donor has the most outstanding requests allowed.
    Full,
    /// The request cannot be served.
    Failed(RequestError),
}

/// An error of a request without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestError {
    /// The donor is lost.
    Gone(Fate),
    /// The link stopped answering: the request may have been served or not, and the donor may be
    /// live or not. It can be repeated over a new link; requests on the old one are void.
    NoAnswer,
}

/// One thread's access to donors that answer requests.
pub struct Framed<D> {
    donors: D,
    reads: [PendingRead; TOKENS],
    /// Reads that wait for an answer.
    waiting: usize,
    /// The next time to check for late reads, nanoseconds.
    look_at_ns: u64,
    buffered: Vec<BufferedPage>,
    health: DonorHealth,
    coded: Option<Coded>,
}

/// An outstanding read.
#[derive(Clone, Copy, Debug, Default)]
struct PendingRead {
    slot: u32,
    skip_bytes: u32,
    len_bytes: u32,
    /// Distinguishes its answers from those to an earlier read with the same token.
    generation: u32,
    is_waiting: bool,
    /// The replicas that the read was sent to.
    tried: [u32; MAX_SLAB_REPLICAS],
    tried_count: usize,
    /// Outstanding answers.
    outstanding: usize,
    /// The time of the last request, nanoseconds.
    sent_ns: u64,
    /// The fragments received, a bit each, if memory is coded.
    put: u32,
}

/// A page received while another one was waited for.
struct BufferedPage {
    token: u32,
    arrived: bool,
    page: Box<Words>,
}

/// The contents of a request's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RequestToken {
    Read { generation: u32, replica: usize, token: u32 },
    Write { index: usize, replica: usize },
}

const WRITE: u64 = 1 << 63;

impl RequestToken {
    fn encode(self) -> u64 {
        match self {
            RequestToken::Read { generation, replica, token } => {
                u64::from(generation) << 24 | (replica as u64) << 8 | u64::from(token)
            }
            RequestToken::Write { index, replica } => WRITE | (index as u64) << 16 | replica as u64,
        }
    }

    fn decode(word: u64) -> RequestToken {
        if word & WRITE != 0 {
            let index = ((word & !WRITE) >> 16) as usize;
            return RequestToken::Write { index, replica: word as usize & 0xffff };
        }
        let (generation, replica) = ((word >> 24) as u32, (word >> 8) as usize & 0xffff);
        RequestToken::Read { generation, replica, token: word as u32 & 0xff }
    }
}

const _: () = assert!(TOKENS <= 256 && super::run_block::MAX_REPLICAS <= 1 << 16);

/// The address of a slot in the address space of the donors' mappings, ordered by replica.
fn address(block: &RunBlockMap, replica: usize, slot: u32, skip_bytes: u32) -> u64 {
    replica as u64 * SLAB_BYTES + block.offset_of(slot) as u64 + u64::from(skip_bytes)
}

impl<D: Donors> Framed<D> {
    /// Creates it without outstanding requests.
    pub fn new(donors: D, block: &RunBlockMap) -> Framed<D> {
        let reads = [PendingRead::default(); TOKENS];
        Framed {
            donors,
            reads,
            waiting: 0,
            look_at_ns: 0,
            buffered: Vec::new(),
            health: DonorHealth::default(),
            coded: block.coding().map(Coded::new),
        }
    }

    /// The port below.
    pub fn donors(&mut self) -> &mut D {
        &mut self.donors
    }

    /// Sends the requests made so far.
    pub fn flush(&mut self) {
        self.donors.flush();
    }

    /// Waits a short time for a frame.
    pub fn turn(&mut self) {
        self.donors.turn();
    }

    /// Sleeps for `time`.
    pub fn rest(&mut self, time: Duration) {
        self.donors.rest(time);
    }

    /// Processes the donors' own notices, for a thread without outstanding requests.
    pub fn attend(&mut self, block: &RunBlockMap) {
        self.donors.attend(block);
    }

    /// Requests `part` of a page. [`Donors::flush`] sends the request.
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, part: Range<u32>, token: u32) -> Fetch {
        let asked = &mut self.reads[token as usize];
        assert!(!asked.is_waiting, "token {token} has an outstanding read");
        let generation = asked.generation.wrapping_add(1);
        *asked = PendingRead {
            slot,
            skip_bytes: part.start,
            len_bytes: part.end - part.start,
            generation,
            is_waiting: true,
            ..PendingRead::default()
        };
        self.waiting += 1;
        let outcome = self.send_read(block, token);
        if outcome != Fetch::Pending {
            self.end(token);
        }
        outcome
    }

    /// Sends the read with this token to a replica not yet tried. If all were tried in vain and
    /// some live, it sends the read to one of them again.
    fn send_read(&mut self, block: &RunBlockMap, token: u32) -> Fetch {
        if self.coded.is_some() {
            return self.request_fragments(block, token, false);
        }
        let outcome = self.send_to_next(block, token);
        let asked = &mut self.reads[token as usize];
        if outcome != Fetch::Lost || asked.tried_count == 0 {
            return outcome;
        }
        asked.tried_count = 0;
        self.send_to_next(block, token)
    }

    /// Sends the read to the next replica, those of fast donors first.
    fn send_to_next(&mut self, block: &RunBlockMap, token: u32) -> Fetch {
        let PendingRead { slot, skip_bytes, len_bytes, generation, .. } =
            self.reads[token as usize];
        let mut is_full = false;
        for slow in [false, true] {
            for (replica, entry) in block.readable(block.slab_of(slot)) {
                let asked = &mut self.reads[token as usize];
                let tried = &asked.tried[..asked.tried_count];
                if tried.contains(&(replica as u32)) || self.health.is_slow(entry.donor()) != slow {
                    continue;
                }
                if asked.tried_count == MAX_SLAB_REPLICAS || !self.donors.reach(block, replica) {
                    continue;
                }
                let word = RequestToken::Read { generation, replica, token }.encode();
                let at = address(block, replica, slot, skip_bytes);
                match self.donors.read(word, at, len_bytes) {
                    Ok(()) => {
                        asked.tried[asked.tried_count] = replica as u32;
                        asked.tried_count += 1;
                        asked.outstanding += 1;
                        asked.sent_ns = self.donors.now_ns();
                        return Fetch::Pending;
                    }
                    Err(Rejected::Full) => is_full = true,
                    Err(Rejected::Failed(fault)) => {
                        is_full |= fault == RequestError::NoAnswer;
                        self.record(block, replica, Err(fault));
                    }
                }
            }
        }
        match is_full {
            true => Fetch::Full,
            false if self.reads[token as usize].outstanding > 0 => Fetch::Pending,
            false => Fetch::Lost,
        }
    }

    fn end(&mut self, token: u32) {
        let asked = &mut self.reads[token as usize];
        asked.is_waiting = false;
        self.waiting -= 1;
    }

    /// Returns the next page received (`true`) or unrecoverable (`false`: no donor has it).
    pub fn poll(&mut self, block: &RunBlockMap, buffer: &mut Words) -> Option<(u32, bool)> {
        if let Some(early) = self.buffered.pop() {
            *buffer = *early.page;
            return Some((early.token, early.arrived));
        }
        if let Some(done) = self.next(block, buffer) {
            return Some(done);
        }
        self.donors.attend(block);
        if let Some(done) = self.next(block, buffer) {
            return Some(done);
        }
        self.hedge_late_reads(block);
        self.buffered.pop().map(|early| (early.token, early.arrived))
    }

    fn next(&mut self, block: &RunBlockMap, buffer: &mut Words) -> Option<(u32, bool)> {
        loop {
            let (word, result) = self.donors.next(buffer)?;
            let RequestToken::Read { generation, replica, token } = RequestToken::decode(word)
            else {
                unreachable!("a write ends before its caller returns");
            };
            self.record(block, replica, result);
            let asked = &mut self.reads[token as usize];
            if !asked.is_waiting || asked.generation != generation {
                continue;
            }
            asked.outstanding -= 1;
            if result.is_ok() && self.is_whole(block, token, replica, buffer) {
                self.end(token);
                return Some((token, true));
            }
            if self.lacks_answers(token) {
                match self.send_read(block, token) {
                    Fetch::Lost => {
                        self.end(token);
                        return Some((token, false));
                    }
                    Fetch::Full => self.look_at_ns = 0,
                    _ => {}
                }
            }
            self.donors.flush();
        }
    }

    /// Updates a donor's health from an answer or an error.
    fn record(&mut self, block: &RunBlockMap, replica: usize, result: Result<(), RequestError>) {
        let donor = block.replicas()[replica].donor();
        match result {
            Ok(()) => self.health.record_answer(donor),
            Err(RequestError::Gone(fate)) => block.donors()[donor].lose(fate),
            Err(RequestError::NoAnswer) => self.handle_no_answer(block, donor),
        }
    }

    /// Raises a suspicion of a donor. A donor that has not answered repeated requests for
    /// [`SILENT_LEASES`](super::run_block::SILENT_LEASES) is lost: the renewals of its leases tell sooner
    /// whether its machine is gone.
    fn handle_no_answer(&mut self, block: &RunBlockMap, donor: usize) {
        let (now_ns, lease_ns) = (self.donors.now_ns(), block.lease().as_nanos() as u64);
        match self.health.record_no_answer(donor, now_ns, lease_ns) {
            true => block.donors()[donor].lose(Fate::Unresponsive),
            false => block.donors()[donor].suspect(),
        }
    }

    fn is_silent(&self, donor: usize) -> bool {
        self.health.is_silent(donor)
    }

    /// Sends late reads, and reads that could not be repeated at once, to other donors.
    fn hedge_late_reads(&mut self, block: &RunBlockMap) {
        if self.waiting == 0 {
            return;
        }
        let now_ns = self.donors.now_ns();
        if now_ns < self.look_at_ns {
            return;
        }
        self.look_at_ns = now_ns + HEDGE_NS / 4;
        for token in 0..TOKENS as u32 {
            let asked = &self.reads[token as usize];
            let is_late = now_ns >= asked.sent_ns + HEDGE_NS;
            if !asked.is_waiting || !is_late && !self.lacks_answers(token) {
                continue;
            }
            let others = |&(replica, _): &(usize, _)| {
                !asked.tried[..asked.tried_count].contains(&(replica as u32))
            };
            let mut readable = block.readable(block.slab_of(asked.slot)).filter(others);
            if asked.outstanding > 0 && readable.next().is_none() {
                continue;
            }
            self.mark_slow(block, token);
            let outcome = match self.coded {
                Some(_) => self.request_fragments(block, token, is_late),
                None => self.send_read(block, token),
            };
            match outcome {
                Fetch::Lost => {
                    self.end(token);
                    let page = Box::new([0; PAGE / 8]);
                    self.buffered.push(BufferedPage { token, arrived: false, page });
                }
                Fetch::Full => self.look_at_ns = 0,
                _ => {}
            }
        }
        self.donors.flush();
    }

    /// Marks the donors as slow that have not answered this read.
    fn mark_slow(&mut self, block: &RunBlockMap, token: u32) {
        let asked = &self.reads[token as usize];
        for &replica in &asked.tried[..asked.tried_count] {
            let entry = &block.replicas()[replica as usize];
            if asked.put & 1 << entry.fragment() == 0 {
                self.health.record_late(entry.donor());
            }
        }
    }

    /// The longest sleep of a thread that waits for pages, in milliseconds, before it must check
    /// for a hedge; -1: unlimited.
    pub fn sleep_ms(&self, block: &RunBlockMap) -> i32 {
        let copies = block.copies.load(std::sync::atomic::Ordering::Relaxed);
        let is_alone = copies < 2 && self.coded.is_none();
        if self.waiting == 0 || is_alone { -1 } else { (HEDGE_NS / 1_000_000) as i32 }
    }

    /// Requests a page and waits for it; `false`: no donor has it.
    pub fn fetch_at_once(&mut self, block: &RunBlockMap, slot: u32, buffer: &mut Words) -> bool {
        loop {
            match self.fetch(block, slot, 0..PAGE as u32, AT_ONCE) {
                Fetch::Full => self.make_room(block, buffer),
                Fetch::Lost => return false,
                _ => break,
            };
        }
        loop {
            match self.next(block, buffer) {
                Some((AT_ONCE, arrived)) => return arrived,
                Some((token, arrived)) => {
                    self.buffered.push(BufferedPage { token, arrived, page: Box::new(*buffer) });
                }
                None => {
                    self.donors.turn();
                    self.hedge_late_reads(block);
                    let gone = self.buffered.iter().position(|early| early.token == AT_ONCE);
                    if let Some(gone) = gone {
                        return self.buffered.swap_remove(gone).arrived;
                    }
                }
            }
        }
    }

    /// Makes room for a request; pages received meanwhile are stored for later.
    fn make_room(&mut self, block: &RunBlockMap, buffer: &mut Words) {
        self.donors.turn();
        while let Some((token, arrived)) = self.next(block, buffer) {
            self.buffered.push(BufferedPage { token, arrived, page: Box::new(*buffer) });
        }
    }
}
