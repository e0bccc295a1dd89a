//! Every write is carried out once, whole and in order, and before it is answered.
//!
//! This checker stands at the donor's memory and knows what the recipient has asked for.

use std::collections::{BTreeMap, VecDeque};

use super::WriteId;

/// The writes to one region that are to be carried out.
#[derive(Debug, Default)]
pub struct Executions {
    /// Single writes by lane, in the order asked for.
    lanes: BTreeMap<u32, VecDeque<Single>>,
    /// Bulk writes, which keep no order; with the lane they belong to.
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
    /// Pieces carried out: start and length.
    done: BTreeMap<u32, u32>,
}

impl Executions {
    /// A single write is asked for on a lane.
    pub fn ask(&mut self, lane: u32, write: WriteId, at: u32, len: u32) {
        self.lanes.entry(lane).or_default().push_back(Single { write, at, len });
    }

    /// A bulk write is asked for on a lane.
    pub fn ask_bulk(&mut self, lane: u32, write: WriteId, at: u32, len: u32) {
        self.bulk.insert(write, Bulk { lane, at, len, done: BTreeMap::new() });
    }

    /// The memory is asked to store `bytes`; `is` says whether a write has these bytes there.
    ///
    /// # Errors
    /// Says what is wrong if no write is due that looks like this.
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
        Err(format!("stored {len} bytes at {at}: no write with these bytes is due there now"))
    }

    /// A write was answered.
    ///
    /// # Errors
    /// If it had not been carried out.
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
            true => Err(format!("{write:?} was answered but not carried out")),
            false => Ok(()),
        }
    }

    /// A write was refused.
    ///
    /// # Errors
    /// If it was carried out all the same.
    pub fn refused(&mut self, write: WriteId) -> Result<(), String> {
        if self.bulk.remove(&write).is_some() {
            // Some chunks may have been carried out before the one that was refused.
            return Ok(());
        }
        for lane in self.lanes.values_mut() {
            if let Some(n) = lane.iter().position(|single| single.write == write) {
                lane.remove(n);
                return Ok(());
            }
        }
        Err(format!("{write:?} was refused but carried out"))
    }

    /// Nothing of this lane will be carried out from now on; returns the writes that were not
    /// known to be over.
    pub fn close_lane(&mut self, lane: u32) {
        self.lanes.remove(&lane);
        self.bulk.retain(|_, bulk| bulk.lane != lane);
    }
}

impl Bulk {
    /// Whether this piece is part of the write and has not been carried out.
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
    fn writes_of_a_lane_are_carried_out_once_and_in_order() {
        let mut executions = Executions::default();
        executions.ask(1, WriteId(1), 0, 4);
        executions.ask(1, WriteId(2), 8, 4);
        assert!(executions.executed(8, &[0; 4], always).is_err(), "out of order");
        assert!(executions.executed(0, &[0; 4], always).is_ok());
        assert!(executions.executed(0, &[0; 4], always).is_err(), "twice");
        assert!(executions.answered(WriteId(2)).is_err(), "not yet carried out");
        assert!(executions.executed(8, &[0; 3], always).is_err(), "not whole");
        assert!(executions.executed(8, &[0; 4], |_, _, _| false).is_err(), "other bytes");
        assert!(executions.executed(8, &[0; 4], always).is_ok());
        assert!(executions.answered(WriteId(2)).is_ok());
    }

    #[test]
    fn pieces_of_a_bulk_write_come_in_any_order_and_once() {
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
    fn nothing_of_a_closed_lane_is_carried_out() {
        let mut executions = Executions::default();
        executions.ask(1, WriteId(1), 0, 4);
        executions.ask_bulk(1, WriteId(2), 8, 4);
        executions.close_lane(1);
        assert!(executions.executed(0, &[0; 4], always).is_err());
        assert!(executions.executed(8, &[0; 4], always).is_err());
    }
}
