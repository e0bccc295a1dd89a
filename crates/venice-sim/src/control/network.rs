//! Loss, delay and cuts of messages.

use std::collections::BTreeMap;

use serde::Serialize;

use super::party::Party;
use super::scenario::Impairment;
use venice_simkernel::random::Stream;

/// Period of retransmission over a cut path.
pub(super) const RESEND_NS: u64 = 100_000_000;

/// The paths between all participants.
#[derive(Debug)]
pub(super) struct Network {
    root: Stream,
    usual: Impairment,
    storms: BTreeMap<usize, Impairment>,
    /// Number of faults that cut a path at present.
    cuts: BTreeMap<(Party, Party), u32>,
    isolated: BTreeMap<Party, u32>,
    ways: BTreeMap<(Party, Party), Stream>,
    /// Separate random numbers for hang-ups: calls and answers fare the same with and without them.
    hangups: Stream,
    pub(super) counts: MessageCounts,
}

/// Counts of messages, calls and answers alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct MessageCounts {
    /// Sent.
    pub sent: u64,
    /// Lost at random.
    pub lost: u64,
    /// Lost over a cut path.
    pub cut: u64,
    /// Ended by a broken connection.
    pub reset: u64,
    /// Delayed.
    pub late: u64,
}

/// Fate of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Passage {
    pub(super) arrives_ns: Option<u64>,
    /// Time at which its sender sees the broken connection.
    pub(super) breaks_ns: Option<u64>,
    /// True if it waits for a cut path.
    pub(super) is_kept: bool,
}

impl Network {
    pub(super) fn new(root: Stream, usual: Impairment) -> Self {
        Self {
            hangups: root.split("hangups", &[]),
            root,
            usual,
            storms: BTreeMap::new(),
            cuts: BTreeMap::new(),
            isolated: BTreeMap::new(),
            ways: BTreeMap::new(),
            counts: MessageCounts::default(),
        }
    }

    /// Sends a message.
    pub(super) fn send(&mut self, now_ns: u64, from: Party, to: Party) -> Passage {
        let bad = self.impairment();
        let takes_ns = self.takes_ns(from, to);
        let counts = &mut self.counts;
        counts.sent += 1;
        let rng = self.ways.get_mut(&(from, to)).expect("the path was just used");
        let is_kept = rng.chance(500_000);
        let mut passage = Passage { arrives_ns: Some(now_ns + takes_ns), breaks_ns: None, is_kept };
        if rng.chance(bad.loss.0) {
            counts.lost += 1;
            passage.arrives_ns = None;
        } else if rng.chance(bad.resets.0) {
            counts.reset += 1;
            passage.breaks_ns = Some(now_ns + 2 * takes_ns);
            passage.arrives_ns = passage.arrives_ns.filter(|_| rng.chance(500_000));
        } else if rng.chance(bad.late.0) {
            counts.late += 1;
            let late_ns = rng.below(bad.late_by.0 + 1);
            passage.arrives_ns = passage.arrives_ns.map(|at_ns| at_ns + late_ns);
        }
        passage
    }

    /// Returns the delay of an undisturbed message.
    pub(super) fn takes_ns(&mut self, from: Party, to: Party) -> u64 {
        let bad = self.impairment();
        let root = &self.root;
        let rng = self.ways.entry((from, to)).or_insert_with(|| {
            let numbers = [from.numbers(), to.numbers()].concat();
            root.split("way", &numbers)
        });
        bad.latency.0 + rng.below(bad.jitter.0 + 1)
    }

    /// Returns the time until the callee learns that its caller hung up; `None`: it never does.
    pub(super) fn hangs_up_within_ns(&mut self) -> Option<u64> {
        let bad = self.impairment();
        let takes_ns = bad.latency.0 + self.hangups.below(bad.jitter.0 + 1);
        let is_lost = self.hangups.chance(bad.loss.0);
        (!is_lost).then_some(takes_ns)
    }

    pub(super) fn is_cut(&self, from: Party, to: Party) -> bool {
        self.cuts.contains_key(&(from, to))
            || self.isolated.contains_key(&from)
            || self.isolated.contains_key(&to)
    }

    pub(super) fn cut(&mut self, from: Party, to: Party, begins: bool) {
        count(&mut self.cuts, (from, to), begins);
    }

    pub(super) fn isolate(&mut self, who: Party, begins: bool) {
        count(&mut self.isolated, who, begins);
    }

    pub(super) fn storm(&mut self, fault: usize, impairment: Option<Impairment>) {
        match impairment {
            Some(impairment) => drop(self.storms.insert(fault, impairment)),
            None => drop(self.storms.remove(&fault)),
        }
    }

    /// Ends all random disturbances.
    pub(super) fn calm(&mut self) {
        let Impairment { latency, jitter, .. } = self.usual;
        self.usual = Impairment { latency, jitter, ..Impairment::default() };
    }

    /// Returns the worst of the usual impairment and every storm's.
    fn impairment(&self) -> Impairment {
        self.storms.values().fold(self.usual, |worst, storm| worst.worst(*storm))
    }
}

fn count<K: Ord>(counts: &mut BTreeMap<K, u32>, key: K, begins: bool) {
    if begins {
        *counts.entry(key).or_default() += 1;
    } else if let Some(count) = counts.get_mut(&key) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&key);
        }
    }
}
