//! Every byte read is one that was written and not yet overwritten.
//!
//! The checker knows when accesses to a region were asked for and when they completed, nothing else,
//! and so serves real ports as well. For each byte it keeps the writes that may have been the last.
//! A write ends the chances of another on a byte when it surely came after it: because that one had
//! completed before this one was asked for, or because both went the same *lane* and it was asked for
//! later (single accesses of one link are carried out in order).

use smallvec::{SmallVec, smallvec};

use crate::random::mix;

/// A write to a region; 0 is the zeros a region begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u32);

/// A read of a region, until it is over.
#[derive(Debug)]
pub struct ReadId {
    at: u32,
    len: u32,
    lane: Option<u32>,
    /// Writes asked for later have this number or a higher one.
    first_later: u32,
    /// The writes that may be seen, for each byte up to the same place in `ends`.
    may_see: Vec<u32>,
    ends: Vec<u32>,
}

/// What a region may hold.
#[derive(Debug)]
pub struct History {
    /// Makes the bytes written to this region differ from those of all others.
    salt: u64,
    /// Counts what happened, so that before and after are plain.
    clock: u64,
    writes: Vec<Write>,
    /// For each byte the writes that may have been the last.
    bytes: Vec<Candidates>,
}

type Candidates = SmallVec<[u32; 3]>;

#[derive(Debug)]
struct Write {
    at: u32,
    len: u32,
    lane: Option<u32>,
    asked: u64,
    /// After this it will not be carried out any more, if it was not before.
    over: Option<u64>,
}

impl History {
    /// A region of `len_bytes` zeros.
    pub fn new(salt: u64, len_bytes: u32) -> Self {
        let zeros = Write { at: 0, len: len_bytes, lane: None, asked: 0, over: Some(0) };
        Self { salt, clock: 1, writes: vec![zeros], bytes: vec![smallvec![0]; len_bytes as usize] }
    }

    /// Bytes of the region.
    pub fn len_bytes(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// The byte that a write leaves at an address.
    pub fn value(&self, write: WriteId, at: u32) -> u8 {
        if write.0 == 0 {
            return 0;
        }
        // Never zero, so that what was lost and what was never written differ.
        word(self.salt, write, at / 8)[at as usize % 8].max(1)
    }

    /// The bytes of a write.
    pub fn fill(&self, write: WriteId, at: u32, into: &mut [u8]) {
        written(self.salt, write, at, into);
    }

    /// A write of `len` bytes is asked for. Writes of one lane are carried out in the order asked
    /// for; `None` keeps no order.
    pub fn ask_write(&mut self, at: u32, len: u32, lane: Option<u32>) -> WriteId {
        let id = self.writes.len() as u32;
        let asked = self.tick();
        self.writes.push(Write { at, len, lane, asked, over: None });
        for candidates in &mut self.bytes[at as usize..(at + len) as usize] {
            candidates.push(id);
        }
        WriteId(id)
    }

    /// A write has succeeded.
    pub fn write_done(&mut self, write: WriteId) {
        let over = self.tick();
        self.writes[write.0 as usize].over = Some(over);
        let Self { writes, bytes, .. } = self;
        let Write { at, len, .. } = writes[write.0 as usize];
        for candidates in &mut bytes[at as usize..(at + len) as usize] {
            if candidates.len() > 1 {
                candidates.retain(|earlier| !surely_before(writes, *earlier, write.0));
            }
        }
    }

    /// A write has failed and was surely not carried out, nor will be.
    pub fn write_refused(&mut self, write: WriteId) {
        let Write { at, len, .. } = self.writes[write.0 as usize];
        self.writes[write.0 as usize].over = Some(self.clock);
        for candidates in &mut self.bytes[at as usize..(at + len) as usize] {
            candidates.retain(|candidate| *candidate != write.0);
        }
    }

    /// A write has failed, may have been carried out, but will not be from now on. Until this is
    /// said, it may be at any time.
    pub fn write_over(&mut self, write: WriteId) {
        let over = self.tick();
        self.writes[write.0 as usize].over.get_or_insert(over);
    }

    /// A read of `len` bytes is asked for.
    pub fn ask_read(&mut self, at: u32, len: u32, lane: Option<u32>) -> ReadId {
        self.tick();
        let (mut may_see, mut ends) = (Vec::with_capacity(len as usize), Vec::new());
        for candidates in &self.bytes[at as usize..(at + len) as usize] {
            match (candidates.as_slice(), lane) {
                ([only], _) => may_see.push(*only),
                (several, None) => may_see.extend_from_slice(several),
                (several, Some(_)) => {
                    may_see
                        .extend(several.iter().filter(|&&one| !self.is_hidden(one, several, lane)));
                }
            }
            ends.push(may_see.len() as u32);
        }
        let first_later = self.writes.len() as u32;
        ReadId { at, len, lane, first_later, may_see, ends }
    }

    /// Whether a read that is asked for now on `lane` comes after a write that comes after `one`.
    fn is_hidden(&self, one: u32, candidates: &[u32], lane: Option<u32>) -> bool {
        candidates.iter().any(|&other| {
            self.writes[other as usize].lane == lane && surely_before(&self.writes, one, other)
        })
    }

    /// A read has succeeded with `data`.
    ///
    /// # Errors
    /// Says which byte cannot be.
    pub fn read_done(&mut self, read: &ReadId, data: &[u8]) -> Result<(), String> {
        self.tick();
        if data.len() != read.len as usize {
            return Err(format!("a read of {} bytes brought {}", read.len, data.len()));
        }
        let mut start = 0;
        for (n, (&byte, &end)) in data.iter().zip(&read.ends).enumerate() {
            let (at, may_see) = (read.at + n as u32, &read.may_see[start as usize..end as usize]);
            start = end;
            let was_seen = may_see.iter().any(|&write| self.value(WriteId(write), at) == byte);
            if !was_seen && !self.later_wrote(read, at, byte) {
                return Err(self.explain(at, byte, may_see));
            }
        }
        Ok(())
    }

    /// Whether a write asked for after the read, but before it was over, left this byte.
    fn later_wrote(&self, read: &ReadId, at: u32, byte: u8) -> bool {
        (read.first_later..self.writes.len() as u32).any(|id| {
            let write = &self.writes[id as usize];
            let is_after_it = read.lane.is_some() && write.lane == read.lane;
            (write.at..write.at + write.len).contains(&at)
                && !is_after_it
                && self.value(WriteId(id), at) == byte
        })
    }

    /// Checks what memory holds when nothing is under way.
    ///
    /// # Errors
    /// Says which byte cannot be.
    pub fn check_memory(&self, memory: &[u8]) -> Result<(), String> {
        if memory.len() != self.bytes.len() {
            return Err(format!("a region of {} bytes has {}", self.bytes.len(), memory.len()));
        }
        for ((at, &byte), candidates) in (0..).zip(memory).zip(&self.bytes) {
            if !candidates.iter().any(|&write| self.value(WriteId(write), at) == byte) {
                return Err(self.explain(at, byte, candidates));
            }
        }
        Ok(())
    }

    fn explain(&self, at: u32, byte: u8, may_see: &[u32]) -> String {
        let writes = 0..self.writes.len() as u32;
        let covers = |id: &u32| {
            let write = &self.writes[*id as usize];
            (write.at..write.at + write.len).contains(&at)
        };
        let from = writes.filter(covers).rfind(|&id| self.value(WriteId(id), at) == byte);
        let from = match from {
            Some(id) => {
                format!("which write {id} left there, since overwritten or never carried out")
            }
            None => "which nobody wrote there".to_string(),
        };
        format!("byte {at} is {byte:#04x}, {from}; it may come from writes {may_see:?}")
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// The bytes from `at` on of a write to the region of that salt.
pub fn written(salt: u64, write: WriteId, at: u32, into: &mut [u8]) {
    if write.0 == 0 {
        return into.fill(0);
    }
    let mut kept = (u32::MAX, [0; 8]);
    for (at, byte) in (at..).zip(into) {
        if kept.0 != at / 8 {
            kept = (at / 8, word(salt, write, at / 8));
        }
        *byte = kept.1[at as usize % 8].max(1);
    }
}

fn word(salt: u64, write: WriteId, n: u32) -> [u8; 8] {
    mix(salt ^ (u64::from(write.0) << 32) ^ u64::from(n)).to_le_bytes()
}

/// Whether one write was carried out, if at all, before the other.
fn surely_before(writes: &[Write], one: u32, other: u32) -> bool {
    let (first, second) = (&writes[one as usize], &writes[other as usize]);
    let was_over = first.over.is_some_and(|over| over < second.asked);
    let same_lane = first.lane.is_some() && first.lane == second.lane && one < other;
    one != other && (was_over || same_lane)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANE: Option<u32> = Some(1);

    fn bytes_of(history: &History, write: WriteId, at: u32, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        history.fill(write, at, &mut bytes);
        bytes
    }

    fn may_read(history: &mut History, lane: Option<u32>, write: WriteId) -> bool {
        let read = history.ask_read(0, 16, lane);
        let bytes = bytes_of(history, write, 0, 16);
        history.read_done(&read, &bytes).is_ok()
    }

    #[test]
    fn what_is_overwritten_must_not_come_back() {
        let mut history = History::new(1, 64);
        assert!(may_read(&mut history, LANE, WriteId(0)));
        let first = history.ask_write(0, 16, LANE);
        history.write_done(first);
        assert!(may_read(&mut history, LANE, first));
        assert!(!may_read(&mut history, LANE, WriteId(0)));
        assert!(history.check_memory(&[0; 64]).is_err());
    }

    #[test]
    fn a_write_under_way_may_be_seen_or_not_unless_it_went_the_same_way() {
        let mut history = History::new(1, 64);
        let write = history.ask_write(0, 16, LANE);
        assert!(may_read(&mut history, None, WriteId(0)) && may_read(&mut history, None, write));
        assert!(!may_read(&mut history, LANE, WriteId(0)) && may_read(&mut history, LANE, write));
    }

    #[test]
    fn a_later_write_may_be_seen_unless_it_went_the_same_way() {
        let mut history = History::new(1, 64);
        for (lane, allowed) in [(None, true), (LANE, false)] {
            let read = history.ask_read(0, 16, lane);
            let write = history.ask_write(0, 16, LANE);
            history.write_done(write);
            let bytes = bytes_of(&history, write, 0, 16);
            assert_eq!(history.read_done(&read, &bytes).is_ok(), allowed);
        }
    }

    #[test]
    fn of_two_writes_at_once_either_may_be_the_last() {
        let mut history = History::new(1, 64);
        let one = history.ask_write(0, 16, None);
        let other = history.ask_write(0, 16, None);
        history.write_done(other);
        history.write_done(one);
        assert!(may_read(&mut history, LANE, one) && may_read(&mut history, LANE, other));
        assert!(!may_read(&mut history, LANE, WriteId(0)));
    }

    #[test]
    fn a_failed_write_may_come_true_until_its_link_is_gone() {
        let mut history = History::new(1, 64);
        let failed = history.ask_write(0, 16, Some(1));
        let next = history.ask_write(0, 16, Some(2));
        history.write_done(next);
        assert!(may_read(&mut history, Some(2), failed), "it may still be under way");
        history.write_over(failed);
        let last = history.ask_write(0, 16, Some(2));
        history.write_done(last);
        assert!(!may_read(&mut history, Some(2), failed));
    }

    #[test]
    fn a_refused_write_must_not_be_seen() {
        let mut history = History::new(1, 64);
        let refused = history.ask_write(0, 16, LANE);
        history.write_refused(refused);
        assert!(!may_read(&mut history, LANE, refused) && may_read(&mut history, LANE, WriteId(0)));
    }

    #[test]
    fn a_mixture_of_two_writes_is_no_write_but_bytes_stand_alone() {
        let mut history = History::new(1, 64);
        let one = history.ask_write(0, 16, LANE);
        history.write_done(one);
        let two = history.ask_write(8, 16, LANE);
        history.write_done(two);
        let read = history.ask_read(0, 24, LANE);
        let mut bytes = bytes_of(&history, one, 0, 8);
        bytes.extend(bytes_of(&history, two, 8, 16));
        assert_eq!(history.read_done(&read, &bytes), Ok(()));
        bytes[8] = history.value(one, 8);
        assert!(history.read_done(&read, &bytes).is_err());
    }
}
