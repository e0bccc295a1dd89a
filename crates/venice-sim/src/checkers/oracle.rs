//! State of all regions, and the checkers' findings. It receives events in the order of time: from
//! the simulator as they happen, from real racks out of their processes' notes.

use super::{
    AtomicId, Change, Checker, Conversations, Counters, Executions, Findings, History, ReadId,
    Streams, WriteId,
};

/// A region of lent memory, from the time it is lent until it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// State of a region.
#[derive(Debug)]
pub struct Region {
    /// Possible contents.
    pub history: History,
    /// Writes that the donor's memory is to execute.
    pub executions: Executions,
    /// Possible values of the words for atomics.
    pub counters: Counters,
    /// Failed writes that may still be executed, with their lanes.
    unsettled: Vec<(u32, WriteId)>,
    /// True once the donor has ended the grant: accesses may be refused.
    pub is_revoked: bool,
    /// Lanes below this one have been closed.
    open_lane: u32,
}

/// State of all checkers; it observes and takes no part.
#[derive(Debug, Default)]
pub struct Oracle {
    regions: Vec<Region>,
    /// The messages of QPairs.
    pub conversations: Conversations,
    /// The byte streams of QPairs.
    pub streams: Streams,
    /// Findings.
    pub findings: Findings,
}

/// An outstanding write.
#[derive(Clone, Copy, Debug)]
pub struct Writing {
    /// Its number.
    pub write: WriteId,
    /// Its link.
    pub lane: u32,
    /// True if it is cut into pieces, which have no order.
    pub is_bulk: bool,
}

impl Oracle {
    /// Adds a region of zeros, with so many words for atomics besides.
    pub fn add_region(&mut self, salt: u64, len_bytes: u32, counters: u32) -> RegionId {
        self.regions.push(Region {
            history: History::new(salt, len_bytes),
            executions: Executions::default(),
            counters: Counters::new(counters),
            unsettled: Vec::new(),
            is_revoked: false,
            open_lane: 0,
        });
        RegionId(self.regions.len() as u32 - 1)
    }

    /// Returns the state of a region.
    pub fn region(&mut self, id: RegionId) -> &mut Region {
        &mut self.regions[id.0 as usize]
    }

    /// Records the request of a read on a lane; `None` has no order.
    pub fn ask_read(&mut self, region: RegionId, at: u32, len: u32, lane: Option<u32>) -> ReadId {
        self.region(region).history.ask_read(at, len, lane)
    }

    /// Records the request of a write; returns it with its bytes.
    pub fn ask_write(
        &mut self,
        region: RegionId,
        at: u32,
        len: u32,
        lane: u32,
        is_bulk: bool,
    ) -> (Writing, Vec<u8>) {
        let Region { history, executions, .. } = self.region(region);
        let write = history.ask_write(at, len, (!is_bulk).then_some(lane));
        let mut bytes = vec![0; len as usize];
        history.fill(write, at, &mut bytes);
        match is_bulk {
            true => executions.ask_bulk(lane, write, at, len),
            false => executions.ask(lane, write, at, len),
        }
        (Writing { write, lane, is_bulk }, bytes)
    }

    /// Removes a write that was not accepted.
    pub fn withdraw(&mut self, region: RegionId, writing: Writing) {
        let Region { history, executions, .. } = self.region(region);
        history.write_refused(writing.write);
        let _ = executions.refused(writing.write);
    }

    /// Records a store into a donor's memory.
    pub fn executed(&mut self, now_ns: u64, region: RegionId, at: u32, bytes: &[u8]) {
        let Region { history, executions, .. } = &mut self.regions[region.0 as usize];
        let is = |write, at: u32, bytes: &[u8]| {
            (at..).zip(bytes).all(|(at, &byte)| history.value(write, at) == byte)
        };
        let result = executions.executed(at, bytes, is);
        self.findings.check(Checker::Executions, now_ns, result);
    }

    /// Records the success of a read with `data`.
    pub fn read_done(&mut self, now_ns: u64, region: RegionId, read: &ReadId, data: &[u8]) {
        let result = self.region(region).history.read_done(read, data);
        let result = result.map_err(|what| format!("{region:?}: {what}"));
        self.findings.check(Checker::History, now_ns, result);
    }

    /// Records the success of a write.
    pub fn write_done(&mut self, now_ns: u64, region: RegionId, writing: Writing) {
        self.lane_works(region, writing.lane);
        let Region { history, executions, .. } = self.region(region);
        history.write_done(writing.write);
        let result = executions.answered(writing.write);
        let result = result.map_err(|what| format!("{region:?}: {what}"));
        self.findings.check(Checker::Executions, now_ns, result);
    }

    /// Records the request of an atomic on one of the region's words.
    pub fn ask_atomic(
        &mut self,
        region: RegionId,
        word: u32,
        lane: u32,
        change: Change,
    ) -> AtomicId {
        self.region(region).counters.ask(word, lane, change)
    }

    /// Records the old value of an atomic; `None`: it was refused.
    pub fn atomic_done(
        &mut self,
        now_ns: u64,
        region: RegionId,
        lane: u32,
        id: AtomicId,
        old: Option<u64>,
    ) {
        self.lane_works(region, lane);
        let counters = &mut self.region(region).counters;
        let result = match old {
            Some(old) => counters.done(id, old),
            None => counters.refused(id),
        };
        let result = result.map_err(|what| format!("{region:?}: {what}"));
        self.findings.check(Checker::Counters, now_ns, result);
    }

    /// Records the failure of an atomic, which may have been executed, or may yet be.
    pub fn atomic_failed(&mut self, now_ns: u64, region: RegionId, id: AtomicId) {
        let result = self.region(region).counters.failed(id);
        let result = result.map_err(|what| format!("{region:?}: {what}"));
        self.findings.check(Checker::Counters, now_ns, result);
    }

    /// Records the failure of a write, which may have been executed, or may yet be.
    pub fn write_failed(&mut self, region: RegionId, writing: Writing) {
        let Region { unsettled, .. } = self.region(region);
        unsettled.push((writing.lane, writing.write));
    }

    /// Records the refusal of a single write: it was not executed.
    pub fn write_refused(&mut self, now_ns: u64, region: RegionId, writing: Writing) {
        if writing.is_bulk {
            return self.write_failed(region, writing);
        }
        let Region { history, executions, .. } = self.region(region);
        history.write_refused(writing.write);
        let result = executions.refused(writing.write);
        let result = result.map_err(|what| format!("{region:?}: {what}"));
        self.findings.check(Checker::Executions, now_ns, result);
    }

    /// Records a success on this lane: no access of an earlier lane is executed from now on.
    pub fn lane_works(&mut self, region: RegionId, lane: u32) {
        let Region { history, executions, unsettled, open_lane, .. } = self.region(region);
        while *open_lane < lane {
            executions.close_lane(*open_lane);
            *open_lane += 1;
        }
        unsettled.retain(|&(of, write)| {
            if of < lane {
                history.write_over(write);
            }
            of >= lane
        });
    }
}
