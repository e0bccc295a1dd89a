//! Checker of writes: each is executed once, whole and in order, before it is answered.
//!
//! This checker sits at the donor's memory and has the recipient's requests.

use std::collections::{BTreeMap, VecDeque};

use super::WriteId;

/// The outstanding writes of one region.
#[derive(Debug, Default)]
pub struct Executions {
    /// Single writes by lane, in the order requested.
    lanes: BTreeMap<u32, VecDeque<Single>>,
    /// Bulk writes, which have no order, with their lane.
    bulk: BTreeMap<WriteId, Bulk>,
}

#[derive(Clone, Copy, Debug)]
struct Single {
    write: WriteId,
    at: u32,
    len: u32,
}

#[derive(Debug)]
struct Bulk {
    lane: u32,
    at: u32,
    len: u32,
    /// Executed pieces: start and length.
    done: BTreeMap<u32, u32>,
}

impl Executions {
    /// Records a single write on a lane.
    pub fn ask(&mut self, lane: u32, write: WriteId, at: u32, len: u32) {
        self.lanes.entry(lane).or_default().push_back(Single { write, at, len });
    }

    /// Records a bulk write on a lane.
    pub fn ask_bulk(&mut self, lane: u32, write: WriteId, at: u32, len: u32) {
        self.bulk.insert(write, Bulk { lane, at, len, done: BTreeMap::new() });
    }

    /// Checks a store of `bytes`; `is` tells if a write has these bytes at that place.
    ///
    /// # Errors
    /// When no outstanding write matches.
    pub fn executed(
        &mut self,
        at: u32,
        bytes: &[u8],
        is: impl Fn(WriteId, u32, &[u8]) -> bool,
    ) -> Result<(), String> {
        let len = bytes.len() as u32;
        for lane in self.lanes.values_mut() {
            let due = lane.front();
            if due.is_some_and(|due| (due.at, due.len) == (at, len) && is(due.write, at, bytes)) {
                lane.pop_front();
                return Ok(());
            }
        }
        for (&write, bulk) in &mut self.bulk {
            if bulk.misses(at, len) && is(write, at, bytes) {
                bulk.done.insert(at, len);
                return Ok(());
            }
        }
        Err(format!("stored {len} bytes at {at}: no outstanding write matches"))
    }

    /// Records the answer to a write.
    ///
    /// # Errors
    /// When it had not been executed.
    pub fn answered(&mut self, write: WriteId) -> Result<(), String> {
        if let Some(bulk) = self.bulk.remove(&write) {
            let done: u32 = bulk.done.values().sum();
            if done != bulk.len {
                let len = bulk.len;
                return Err(format!("bulk write {write:?}: {done} of {len} bytes stored"));
            }
        }
        let is_waiting = |lane: &VecDeque<Single>| lane.iter().any(|single| single.write == write);
        match self.lanes.values().any(is_waiting) {
            true => Err(format!("{write:?} was answered but not executed")),
            false => Ok(()),
        }
    }

    /// Records the refusal of a write.
    ///
    /// # Errors
    /// When it was executed all the same.
    pub fn refused(&mut self, write: WriteId) -> Result<(), String> {
        if self.bulk.remove(&write).is_some() {
            // Some chunks may have been executed before the refused one.
            return Ok(());
        }
        for lane in self.lanes.values_mut() {
            if let Some(n) = lane.iter().position(|single| single.write == write) {
                lane.remove(n);
                return Ok(());
            }
        }
        Err(format!("{write:?} was refused but executed"))
    }

    /// Closes a lane: none of its writes is executed from now on. Returns the writes whose outcome
    /// is open.
    pub fn close_lane(&mut self, lane: u32) {
        self.lanes.remove(&lane);
        self.bulk.retain(|_, bulk| bulk.lane != lane);
    }
}

impl Bulk {
    /// True if this piece is part of the write and has not been executed.
    fn misses(&self, at: u32, len: u32) -> bool {
        let is_inside = at >= self.at && at + len <= self.at + self.len;
        let before = self.done.range(..at + len).next_back();
        is_inside && before.is_none_or(|(start, len)| start + len <= at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn always(_: WriteId, _: u32, _: &[u8]) -> bool {
        true
    }

    #[test]
    fn single_writes_execute_once_in_order() {
        let mut executions = Executions::default();
        executions.ask(1, WriteId(1), 0, 4);
        executions.ask(1, WriteId(2), 8, 4);
        assert!(executions.executed(8, &[0; 4], always).is_err(), "out of order");
        assert!(executions.executed(0, &[0; 4], always).is_ok());
        assert!(executions.executed(0, &[0; 4], always).is_err(), "twice");
        assert!(executions.answered(WriteId(2)).is_err(), "not yet executed");
        assert!(executions.executed(8, &[0; 3], always).is_err(), "not whole");
        assert!(executions.executed(8, &[0; 4], |_, _, _| false).is_err(), "other bytes");
        assert!(executions.executed(8, &[0; 4], always).is_ok());
        assert!(executions.answered(WriteId(2)).is_ok());
    }

    #[test]
    fn bulk_pieces_execute_once() {
        let mut executions = Executions::default();
        executions.ask_bulk(1, WriteId(1), 100, 10);
        assert!(executions.executed(104, &[0; 6], always).is_ok());
        assert!(executions.executed(104, &[0; 6], always).is_err());
        assert!(executions.executed(103, &[0; 2], always).is_err());
        assert!(executions.executed(100, &[0; 4], always).is_ok());
        assert!(executions.answered(WriteId(1)).is_ok());
        executions.ask_bulk(1, WriteId(2), 0, 10);
        assert!(executions.executed(0, &[0; 4], always).is_ok());
        assert!(executions.answered(WriteId(2)).is_err(), "not all of it");
    }

    #[test]
    fn closed_lane_executes_nothing() {
        let mut executions = Executions::default();
        executions.ask(1, WriteId(1), 0, 4);
        executions.ask_bulk(1, WriteId(2), 8, 4);
        executions.close_lane(1);
        assert!(executions.executed(0, &[0; 4], always).is_err());
        assert!(executions.executed(8, &[0; 4], always).is_err());
    }
}
