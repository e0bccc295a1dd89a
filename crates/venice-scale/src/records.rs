//! Measurements, from the end of the warm-up on; counts are of the whole run.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use venice_simkernel::units::Picos;

/// Measurements of a rack.
#[derive(Debug)]
pub struct Records {
    warm_up: u64,
    /// From a request to its grants, in nanoseconds.
    pub allocation: Histogram<u64>,
    /// From a release to its end, in nanoseconds.
    pub release: Histogram<u64>,
    /// From a report to its answer, in nanoseconds.
    pub heartbeat: Histogram<u64>,
    /// From a node's death to the event that it is down and its grants are lost, in nanoseconds.
    pub revocation: Histogram<u64>,
    /// From a read to its line, in nanoseconds.
    pub read: Histogram<u64>,
    /// The sum of the times that the same reads take over idle links, in picoseconds.
    pub idle: u128,
    /// The sum of what reads took, in picoseconds.
    pub taken: u128,
    /// Slabs granted, by the links between recipient and donor.
    pub slabs_by_hops: BTreeMap<u32, u64>,
    /// Requests made, granted, given up by the death of their node.
    pub asked: u64,
    /// See `asked`.
    pub granted: u64,
    /// See `asked`.
    pub abandoned: u64,
    /// Requests refused, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Grants lost to recipients that live.
    pub lost: u64,
    /// Reads begun, and ended.
    pub reads: u64,
    /// See `reads`.
    pub reads_done: u64,
    /// Deaths, and those that the Monitor Node has noticed.
    pub deaths: u64,
    /// See `deaths`.
    pub noticed: u64,
    /// Living nodes that the Monitor Node took for dead.
    pub mistaken: u64,
}

fn histogram() -> Histogram<u64> {
    Histogram::new(3).expect("three digits are supported")
}

impl Records {
    pub fn new(warm_up: u64) -> Self {
        Self {
            warm_up,
            allocation: histogram(),
            release: histogram(),
            heartbeat: histogram(),
            revocation: histogram(),
            read: histogram(),
            idle: 0,
            taken: 0,
            slabs_by_hops: BTreeMap::new(),
            asked: 0,
            granted: 0,
            abandoned: 0,
            refused: BTreeMap::new(),
            lost: 0,
            reads: 0,
            reads_done: 0,
            deaths: 0,
            noticed: 0,
            mistaken: 0,
        }
    }

    /// Records a time from `since` to `now`, in picoseconds, unless it began in the warm-up.
    pub fn take(&mut self, which: fn(&mut Self) -> &mut Histogram<u64>, since: u64, now: u64) {
        if since >= self.warm_up {
            let taken = (now - since) / Picos::NANO;
            which(self).record(taken).expect("it grows with its values");
        }
    }

    /// Returns the mean and the greatest distance of granted memory, in links.
    pub fn distance(&self) -> (f64, u32) {
        let all: u64 = self.slabs_by_hops.values().sum();
        let sum: u64 =
            self.slabs_by_hops.iter().map(|(hops, slabs)| u64::from(*hops) * slabs).sum();
        let most = self.slabs_by_hops.keys().next_back().copied().unwrap_or(0);
        (sum as f64 / all.max(1) as f64, most)
    }
}
