//! Far memory that is not mapped: every access is a request to a donor and an answer.
//!
//! This is the part that knows of copies. A read goes to one donor; to the next, if that one turns
//! out to be lost, or lets it wait ([`HEDGE_NS`]: the first answer wins). A write goes to all, and
//! is over when each has it or is lost ([`writes`]). A read of coded memory is one of as many
//! fragments as give the page ([`coded`]). Below it, [`Donors`] moves requests by a port.
//!
//! A donor whose link falls silent may be dead, or slow. Others are asked meanwhile; what it must
//! answer itself it is asked again over a new link, until it does, the supervisor finds that it can
//! be done without ([`RunBlock::judge_silent`](super::run_block::RunBlock::judge_silent)), or its
//! lease is over.

mod coded;
mod manners;
#[cfg(test)]
mod tests;
mod writes;

use std::ops::Range;
use std::time::Duration;

use venice_fabric::Atomic;
use venice_wire::SLAB_BYTES;

use self::coded::Coded;
use self::manners::Manners;
use super::PAGE;
use super::run_block::{Fate, MAX_PLACES, RunBlockMap};
use super::sys;
use super::transfer::{Fetch, MAX_IN_FLIGHT, Words};

/// How long a read waits before another copy is asked too: a donor that answers does so in much
/// less, even on a busy machine, and one that is stopped costs the program no more than this.
const HEDGE_NS: u64 = 20_000_000;
/// Token of [`Framed::fetch_at_once`]; those of the callers are smaller.
const AT_ONCE: u32 = MAX_IN_FLIGHT as u32;
const TOKENS: usize = MAX_IN_FLIGHT + 1;

/// Requests to donors by one port.
pub trait Donors {
    /// Readies the way to a replica, anew if its link fell silent; `false`: there is none from here.
    fn reach(&mut self, block: &RunBlockMap, replica: usize) -> bool;
    /// Whether the link to a replica that was reached is up, so that an answer may be hoped for.
    fn is_up(&mut self, replica: usize) -> bool;
    /// Asks for bytes; [`Donors::next`] brings them with the token.
    fn read(&mut self, token: u64, address: u64, len_bytes: u32) -> Result<(), NotTaken>;
    /// Sends bytes; [`Donors::next`] tells with the token when they are there.
    fn write(&mut self, token: u64, address: u64, bytes: &[u8]) -> Result<(), NotTaken>;
    /// Asks for a change of eight bytes; [`Donors::next`] brings what was there before.
    fn atomic(&mut self, token: u64, address: u64, atomic: Atomic) -> Result<(), NotTaken>;
    /// The next request that is over; what a read brought is in `buffer`.
    fn next(&mut self, buffer: &mut Words) -> Option<(u64, Result<(), Fault>)>;
    /// Sends what was asked for.
    fn flush(&mut self);
    /// Moves what came, and heeds what donors say of themselves.
    fn attend(&mut self, block: &RunBlockMap);
    /// As [`Donors::attend`], waiting a little for something to come.
    fn turn(&mut self);
    /// What time it is for the links, in nanoseconds.
    fn now_ns(&self) -> u64 {
        sys::monotonic_ns()
    }
    /// Does nothing for a while.
    fn rest(&mut self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// Why a request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotTaken {
    /// No more can be under way to that donor now.
    Full,
    /// It cannot be carried out.
    Failed(Fault),
}

/// Why a request has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The donor is lost.
    Gone(Fate),
    /// Its link fell silent: it may have been carried out or not, and the donor live or not. On a
    /// new link it can be asked for again, and what is under way on the old one comes to nothing.
    Silent,
}

/// One thread's way to donors that answer requests.
pub struct Framed<D> {
    donors: D,
    asked: [Asked; TOKENS],
    /// Reads that wait for an answer.
    waiting: usize,
    /// When to see again whether one waits too long.
    look_at_ns: u64,
    early: Vec<Early>,
    manners: Manners,
    coded: Option<Coded>,
}

/// A read under way.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    slot: u32,
    skip_bytes: u32,
    len_bytes: u32,
    /// Tells its answers from those to an earlier read with the token.
    generation: u32,
    is_waiting: bool,
    /// The replicas that were asked.
    tried: [u32; MAX_PLACES],
    tried_count: usize,
    /// Answers to come.
    flying: usize,
    /// When it was last asked for.
    asked_ns: u64,
    /// The fragments that came, a bit each, where memory is coded.
    put: u32,
}

/// A page that came while another one was waited for.
struct Early {
    token: u32,
    arrived: bool,
    page: Box<Words>,
}

/// What stands in a request's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Word {
    Read { generation: u32, replica: usize, token: u32 },
    Write { index: usize, replica: usize },
}

const WRITE: u64 = 1 << 63;

impl Word {
    fn encode(self) -> u64 {
        match self {
            Word::Read { generation, replica, token } => {
                u64::from(generation) << 24 | (replica as u64) << 8 | u64::from(token)
            }
            Word::Write { index, replica } => WRITE | (index as u64) << 16 | replica as u64,
        }
    }

    fn decode(word: u64) -> Word {
        if word & WRITE != 0 {
            let index = ((word & !WRITE) >> 16) as usize;
            return Word::Write { index, replica: word as usize & 0xffff };
        }
        let (generation, replica) = ((word >> 24) as u32, (word >> 8) as usize & 0xffff);
        Word::Read { generation, replica, token: word as u32 & 0xff }
    }
}

const _: () = assert!(TOKENS <= 256 && super::run_block::MAX_REPLICAS <= 1 << 16);

/// Where a slot is in the address space that windows are mapped into: replica by replica.
fn address(block: &RunBlockMap, replica: usize, slot: u32, skip_bytes: u32) -> u64 {
    replica as u64 * SLAB_BYTES + block.offset_of(slot) as u64 + u64::from(skip_bytes)
}

impl<D: Donors> Framed<D> {
    /// With nothing under way.
    pub fn new(donors: D, block: &RunBlockMap) -> Framed<D> {
        let asked = [Asked::default(); TOKENS];
        Framed {
            donors,
            asked,
            waiting: 0,
            look_at_ns: 0,
            early: Vec::new(),
            manners: Manners::default(),
            coded: block.coding().map(Coded::new),
        }
    }

    /// The port below.
    pub fn donors(&mut self) -> &mut D {
        &mut self.donors
    }

    /// Sends what was asked for.
    pub fn flush(&mut self) {
        self.donors.flush();
    }

    /// Waits a little for something to come.
    pub fn turn(&mut self) {
        self.donors.turn();
    }

    /// Does nothing for a while.
    pub fn rest(&mut self, time: Duration) {
        self.donors.rest(time);
    }

    /// Hears of what donors say of themselves; for a thread that asks for nothing at present.
    pub fn attend(&mut self, block: &RunBlockMap) {
        self.donors.attend(block);
    }

    /// Asks for `part` of a page; it goes out with [`Donors::flush`].
    pub fn fetch(&mut self, block: &RunBlockMap, slot: u32, part: Range<u32>, token: u32) -> Fetch {
        let asked = &mut self.asked[token as usize];
        assert!(!asked.is_waiting, "a token is for one read at a time");
        let generation = asked.generation.wrapping_add(1);
        *asked = Asked {
            slot,
            skip_bytes: part.start,
            len_bytes: part.end - part.start,
            generation,
            is_waiting: true,
            ..Asked::default()
        };
        self.waiting += 1;
        let outcome = self.ask(block, token);
        if outcome != Fetch::Pending {
            self.end(token);
        }
        outcome
    }

    /// Asks a replica for the read with this token: one that has not been asked, or if none of them
    /// brought it and some live, one of those again.
    fn ask(&mut self, block: &RunBlockMap, token: u32) -> Fetch {
        if self.coded.is_some() {
            return self.ask_fragments(block, token, false);
        }
        let outcome = self.ask_next(block, token);
        let asked = &mut self.asked[token as usize];
        if outcome != Fetch::Lost || asked.tried_count == 0 {
            return outcome;
        }
        asked.tried_count = 0;
        self.ask_next(block, token)
    }

    /// Asks the next replica: first one whose donor answers fast.
    fn ask_next(&mut self, block: &RunBlockMap, token: u32) -> Fetch {
        let Asked { slot, skip_bytes, len_bytes, generation, .. } = self.asked[token as usize];
        let mut is_full = false;
        for slow in [false, true] {
            for (replica, entry) in block.readable(block.slab_of(slot)) {
                let asked = &mut self.asked[token as usize];
                let tried = &asked.tried[..asked.tried_count];
                if tried.contains(&(replica as u32)) || self.manners.is_slow(entry.donor()) != slow
                {
                    continue;
                }
                if asked.tried_count == MAX_PLACES || !self.donors.reach(block, replica) {
                    continue;
                }
                let word = Word::Read { generation, replica, token }.encode();
                let at = address(block, replica, slot, skip_bytes);
                match self.donors.read(word, at, len_bytes) {
                    Ok(()) => {
                        asked.tried[asked.tried_count] = replica as u32;
                        asked.tried_count += 1;
                        asked.flying += 1;
                        asked.asked_ns = self.donors.now_ns();
                        return Fetch::Pending;
                    }
                    Err(NotTaken::Full) => is_full = true,
                    Err(NotTaken::Failed(fault)) => {
                        is_full |= fault == Fault::Silent;
                        self.note(block, replica, Err(fault));
                    }
                }
            }
        }
        match is_full {
            true => Fetch::Full,
            false if self.asked[token as usize].flying > 0 => Fetch::Pending,
            false => Fetch::Lost,
        }
    }

    fn end(&mut self, token: u32) {
        let asked = &mut self.asked[token as usize];
        asked.is_waiting = false;
        self.waiting -= 1;
    }

    /// The next page that came (`true`) or will not come: nobody has it (`false`).
    pub fn poll(&mut self, block: &RunBlockMap, buffer: &mut Words) -> Option<(u32, bool)> {
        if let Some(early) = self.early.pop() {
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
        self.ask_others(block);
        self.early.pop().map(|early| (early.token, early.arrived))
    }

    fn next(&mut self, block: &RunBlockMap, buffer: &mut Words) -> Option<(u32, bool)> {
        loop {
            let (word, result) = self.donors.next(buffer)?;
            let Word::Read { generation, replica, token } = Word::decode(word) else {
                unreachable!("writes are waited for where they are made");
            };
            self.note(block, replica, result);
            let asked = &mut self.asked[token as usize];
            if !asked.is_waiting || asked.generation != generation {
                continue;
            }
            asked.flying -= 1;
            if result.is_ok() && self.is_whole(block, token, replica, buffer) {
                self.end(token);
                return Some((token, true));
            }
            if self.lacks_answers(token) {
                match self.ask(block, token) {
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

    /// What an answer, or that none comes, says of a donor.
    fn note(&mut self, block: &RunBlockMap, replica: usize, result: Result<(), Fault>) {
        let donor = block.replicas()[replica].donor();
        match result {
            Ok(()) => self.manners.answers(donor),
            Err(Fault::Gone(fate)) => block.donors()[donor].lose(fate),
            Err(Fault::Silent) => self.note_silence(block, donor),
        }
    }

    /// Complains of a donor that is waited for; one that has not answered for a whole lease, all
    /// the while it was asked, is lost.
    fn note_silence(&mut self, block: &RunBlockMap, donor: usize) {
        let (now_ns, lease_ns) = (self.donors.now_ns(), block.lease().as_nanos() as u64);
        match self.manners.falls_silent(donor, now_ns, lease_ns) {
            true => block.donors()[donor].lose(Fate::Silent),
            false => block.donors()[donor].complain(),
        }
    }

    fn is_silent(&self, donor: usize) -> bool {
        self.manners.is_silent(donor)
    }

    /// Asks others for what was waited for too long, or could not be asked for again at once.
    fn ask_others(&mut self, block: &RunBlockMap) {
        if self.waiting == 0 {
            return;
        }
        let now_ns = self.donors.now_ns();
        if now_ns < self.look_at_ns {
            return;
        }
        self.look_at_ns = now_ns + HEDGE_NS / 4;
        for token in 0..TOKENS as u32 {
            let asked = &self.asked[token as usize];
            let is_late = now_ns >= asked.asked_ns + HEDGE_NS;
            if !asked.is_waiting || !is_late && !self.lacks_answers(token) {
                continue;
            }
            let others = |&(replica, _): &(usize, _)| {
                !asked.tried[..asked.tried_count].contains(&(replica as u32))
            };
            let mut readable = block.readable(block.slab_of(asked.slot)).filter(others);
            if asked.flying > 0 && readable.next().is_none() {
                continue;
            }
            self.find_slow(block, token);
            let outcome = match self.coded {
                Some(_) => self.ask_fragments(block, token, is_late),
                None => self.ask(block, token),
            };
            match outcome {
                Fetch::Lost => {
                    self.end(token);
                    let page = Box::new([0; PAGE / 8]);
                    self.early.push(Early { token, arrived: false, page });
                }
                Fetch::Full => self.look_at_ns = 0,
                _ => {}
            }
        }
        self.donors.flush();
    }

    /// Those that were asked and have not answered are slow.
    fn find_slow(&mut self, block: &RunBlockMap, token: u32) {
        let asked = &self.asked[token as usize];
        for &replica in &asked.tried[..asked.tried_count] {
            let entry = &block.replicas()[replica as usize];
            if asked.put & 1 << entry.fragment() == 0 {
                self.manners.is_late(entry.donor());
            }
        }
    }

    /// How long a thread that waits for pages may sleep, in milliseconds, before it must look
    /// whether another donor is to be asked; -1: for ever.
    pub fn sleep_ms(&self, block: &RunBlockMap) -> i32 {
        let copies = block.copies.load(std::sync::atomic::Ordering::Relaxed);
        let is_alone = copies < 2 && self.coded.is_none();
        if self.waiting == 0 || is_alone { -1 } else { (HEDGE_NS / 1_000_000) as i32 }
    }

    /// Asks for a page and waits for it; `false`: nobody has it.
    pub fn fetch_at_once(&mut self, block: &RunBlockMap, slot: u32, buffer: &mut Words) -> bool {
        loop {
            match self.fetch(block, slot, 0..PAGE as u32, AT_ONCE) {
                Fetch::Full => self.put_by(block, buffer),
                Fetch::Lost => return false,
                _ => break,
            };
        }
        loop {
            match self.next(block, buffer) {
                Some((AT_ONCE, arrived)) => return arrived,
                Some((token, arrived)) => {
                    self.early.push(Early { token, arrived, page: Box::new(*buffer) });
                }
                None => {
                    self.donors.turn();
                    self.ask_others(block);
                    let gone = self.early.iter().position(|early| early.token == AT_ONCE);
                    if let Some(gone) = gone {
                        return self.early.swap_remove(gone).arrived;
                    }
                }
            }
        }
    }

    /// Makes room, keeping what came for later.
    fn put_by(&mut self, block: &RunBlockMap, buffer: &mut Words) {
        self.donors.turn();
        while let Some((token, arrived)) = self.next(block, buffer) {
            self.early.push(Early { token, arrived, page: Box::new(*buffer) });
        }
    }
}
