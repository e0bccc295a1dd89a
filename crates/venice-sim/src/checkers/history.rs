//! Checker of reads: every byte read was written and not yet overwritten.
//!
//! The checker only sees the start and the completion of accesses, so it also serves real ports.
//! For each byte it keeps the writes that may have been the last. A write rules out another on a
//! byte if it surely came later: either that one had completed before this one was requested, or
//! both used the same *lane* and this one was requested later (single accesses of one link are
//! executed in order).

use smallvec::{SmallVec, smallvec};

use venice_simkernel::random::mix;

/// A write to a region; 0 is the zeros a region begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WriteId(pub u32);

/// A read of a region, until it is over.
#[derive(Debug)]
pub struct ReadId {
    at: u32,
    len: u32,
    lane: Option<u32>,
    /// Writes requested later have this number or a higher one.
    first_later: u32,
    /// Writes that may be seen, for each byte up to the position in `ends`.
    may_see: Vec<u32>,
    ends: Vec<u32>,
}

/// Possible contents of a region.
#[derive(Debug)]
pub struct History {
    /// Salt that makes the bytes of this region differ from those of all others.
    salt: u64,
    /// Event counter, which orders requests and completions.
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
    /// Event after which it is not executed any more.
    over: Option<u64>,
}

impl History {
    /// Creates a region of `len_bytes` zeros.
    pub fn new(salt: u64, len_bytes: u32) -> Self {
        let zeros = Write { at: 0, len: len_bytes, lane: None, asked: 0, over: Some(0) };
        Self { salt, clock: 1, writes: vec![zeros], bytes: vec![smallvec![0]; len_bytes as usize] }
    }

    /// Returns the bytes of the region.
    pub fn len_bytes(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Returns the byte that a write stores at an address.
    pub fn value(&self, write: WriteId, at: u32) -> u8 {
        if write.0 == 0 {
            return 0;
        }
        // The value is never zero, so that a lost write differs from no write.
        word(self.salt, write, at / 8)[at as usize % 8].max(1)
    }

    /// Fills `into` with the bytes of a write.
    pub fn fill(&self, write: WriteId, at: u32, into: &mut [u8]) {
        written(self.salt, write, at, into);
    }

    /// Records the request of a write of `len` bytes. Writes of one lane are executed in the order
    /// requested; `None` has no order.
    pub fn ask_write(&mut self, at: u32, len: u32, lane: Option<u32>) -> WriteId {
        let id = self.writes.len() as u32;
        let asked = self.tick();
        self.writes.push(Write { at, len, lane, asked, over: None });
        for candidates in &mut self.bytes[at as usize..(at + len) as usize] {
            candidates.push(id);
        }
        WriteId(id)
    }

    /// Records the success of a write.
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

    /// Records the refusal of a write: it is never executed.
    pub fn write_refused(&mut self, write: WriteId) {
        let Write { at, len, .. } = self.writes[write.0 as usize];
        self.writes[write.0 as usize].over = Some(self.clock);
        for candidates in &mut self.bytes[at as usize..(at + len) as usize] {
            candidates.retain(|candidate| *candidate != write.0);
        }
    }

    /// Records the end of a failed write, which may have been executed, but is not from now on.
    /// Before this call it may still be executed.
    pub fn write_over(&mut self, write: WriteId) {
        let over = self.tick();
        self.writes[write.0 as usize].over.get_or_insert(over);
    }

    /// Records the request of a read of `len` bytes.
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

    /// True if a read requested now on `lane` follows a write that follows `one`.
    fn is_hidden(&self, one: u32, candidates: &[u32], lane: Option<u32>) -> bool {
        candidates.iter().any(|&other| {
            self.writes[other as usize].lane == lane && surely_before(&self.writes, one, other)
        })
    }

    /// Checks the `data` of a read.
    ///
    /// # Errors
    /// With the first impossible byte.
    pub fn read_done(&mut self, read: &ReadId, data: &[u8]) -> Result<(), String> {
        self.tick();
        if data.len() != read.len as usize {
            return Err(format!("a read of {} bytes returned {}", read.len, data.len()));
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

    /// True if a write requested after the read, but before its completion, stored this byte.
    fn later_wrote(&self, read: &ReadId, at: u32, byte: u8) -> bool {
        (read.first_later..self.writes.len() as u32).any(|id| {
            let write = &self.writes[id as usize];
            let is_after_it = read.lane.is_some() && write.lane == read.lane;
            (write.at..write.at + write.len).contains(&at)
                && !is_after_it
                && self.value(WriteId(id), at) == byte
        })
    }

    /// Checks the memory when nothing is outstanding.
    ///
    /// # Errors
    /// With the first impossible byte.
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
                format!("stored by write {id}, since overwritten or never executed")
            }
            None => "written by no write there".to_string(),
        };
        format!("byte {at} is {byte:#04x}, {from}; it may come from writes {may_see:?}")
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }
}

/// Computes the bytes from `at` on of a write to the region with that salt.
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

/// True if one write was surely executed, if at all, before the other.
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
    fn overwritten_byte_must_not_return() {
        let mut history = History::new(1, 64);
        assert!(may_read(&mut history, LANE, WriteId(0)));
        let first = history.ask_write(0, 16, LANE);
        history.write_done(first);
        assert!(may_read(&mut history, LANE, first));
        assert!(!may_read(&mut history, LANE, WriteId(0)));
        assert!(history.check_memory(&[0; 64]).is_err());
    }

    #[test]
    fn outstanding_write_may_be_seen() {
        let mut history = History::new(1, 64);
        let write = history.ask_write(0, 16, LANE);
        assert!(may_read(&mut history, None, WriteId(0)) && may_read(&mut history, None, write));
        assert!(!may_read(&mut history, LANE, WriteId(0)) && may_read(&mut history, LANE, write));
    }

    #[test]
    fn later_write_may_be_seen() {
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
    fn either_concurrent_write_may_be_last() {
        let mut history = History::new(1, 64);
        let one = history.ask_write(0, 16, None);
        let other = history.ask_write(0, 16, None);
        history.write_done(other);
        history.write_done(one);
        assert!(may_read(&mut history, LANE, one) && may_read(&mut history, LANE, other));
        assert!(!may_read(&mut history, LANE, WriteId(0)));
    }

    #[test]
    fn failed_write_may_execute_until_link_ends() {
        let mut history = History::new(1, 64);
        let failed = history.ask_write(0, 16, Some(1));
        let next = history.ask_write(0, 16, Some(2));
        history.write_done(next);
        assert!(may_read(&mut history, Some(2), failed), "it may still be outstanding");
        history.write_over(failed);
        let last = history.ask_write(0, 16, Some(2));
        history.write_done(last);
        assert!(!may_read(&mut history, Some(2), failed));
    }

    #[test]
    fn refused_write_is_not_seen() {
        let mut history = History::new(1, 64);
        let refused = history.ask_write(0, 16, LANE);
        history.write_refused(refused);
        assert!(!may_read(&mut history, LANE, refused) && may_read(&mut history, LANE, WriteId(0)));
    }

    #[test]
    fn bytes_are_checked_separately() {
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
