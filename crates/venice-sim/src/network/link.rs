//! One direction of one link: delay, loss and alteration of frames.

use smallvec::SmallVec;

use crate::scenario::Impairment;
use venice_fabric::{EmulatedLink, LinkModel};
use venice_simkernel::random::Stream;

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    rng: Stream,
    wire: EmulatedLink,
    /// Bytes that may queue for the wire.
    queue_bytes: u32,
    /// Number of faults that cut it at present.
    cuts: u32,
    /// Number of cuts so far: frames in flight at a cut are lost.
    cut_epoch: u32,
    /// Earlier frames, some of which are repeated.
    history: Vec<Vec<u8>>,
}

/// Counts of the frames on all links of a rack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct LinkCounts {
    /// Frames given to links.
    pub sent: u64,
    /// Bytes given to links.
    pub sent_bytes: u64,
    /// Frames delivered, with duplicates and stale ones.
    pub delivered: u64,
    /// Lost at random.
    pub lost: u64,
    /// Lost to a cut link.
    pub cut: u64,
    /// Lost to a full queue.
    pub overflowed: u64,
    /// Duplicated.
    pub duplicated: u64,
    /// With a flipped bit.
    pub corrupted: u64,
    /// Delayed.
    pub delayed: u64,
    /// Stale repeats of old frames.
    pub stale: u64,
}

/// A frame that arrives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Arrival time.
    pub at_ns: u64,
    /// Altered bytes; `None`: unaltered.
    pub altered: Option<Vec<u8>>,
    /// Remark on its alteration or delay.
    pub remark: Option<&'static str>,
}

/// Fate of a frame given to a link.
#[derive(Debug, Default)]
pub struct Passage {
    /// The arriving frames, none to three.
    pub arrivals: SmallVec<[Arrival; 2]>,
    /// Reason for the loss of the frame itself.
    pub lost: Option<&'static str>,
}

/// Number of old frames that a link keeps.
const HISTORY: usize = 32;

impl Link {
    /// Creates a link with the behaviour of `model` and a queue of `queue_bytes`; it draws from
    /// `rng`.
    pub fn new(model: LinkModel, queue_bytes: u32, rng: Stream) -> Self {
        let wire = EmulatedLink::new(model);
        Self { rng, wire, queue_bytes, cuts: 0, cut_epoch: 0, history: Vec::new() }
    }

    /// Sends a frame over the link.
    pub fn send(
        &mut self,
        now_ns: u64,
        impairment: &Impairment,
        bytes: &[u8],
        counts: &mut LinkCounts,
    ) -> Passage {
        let mut passage = Passage::default();
        counts.sent += 1;
        counts.sent_bytes += bytes.len() as u64;
        if self.cuts > 0 {
            counts.cut += 1;
            passage.lost = Some("lost: the link is cut");
            return passage;
        }
        let waits_ns = self.wire.free_at_ns().saturating_sub(now_ns);
        if waits_ns > self.wire.model().serialisation_ns(self.queue_bytes as usize) {
            counts.overflowed += 1;
            passage.lost = Some("lost: the queue for the wire is full");
            return passage;
        }
        let due_ns = self.wire.depart(now_ns, bytes.len());
        self.send_old(due_ns, impairment, bytes, &mut passage, counts);
        if self.rng.chance(impairment.loss.0) {
            counts.lost += 1;
            passage.lost = Some("lost");
        } else {
            let arrival = self.arrive(due_ns, impairment, bytes, counts);
            passage.arrivals.push(arrival);
        }
        if self.rng.chance(impairment.duplicate.0) {
            counts.duplicated += 1;
            let mut copy = self.arrive(due_ns, impairment, bytes, counts);
            copy.remark = copy.remark.or(Some("a copy"));
            passage.arrivals.push(copy);
        }
        passage
    }

    fn arrive(
        &mut self,
        due_ns: u64,
        impairment: &Impairment,
        bytes: &[u8],
        counts: &mut LinkCounts,
    ) -> Arrival {
        let mut arrival = Arrival { at_ns: due_ns, altered: None, remark: None };
        if impairment.jitter.0 > 0 && self.rng.chance(impairment.reorder.0) {
            counts.delayed += 1;
            arrival.at_ns += self.rng.between(1, impairment.jitter.0);
            arrival.remark = Some("delayed");
        }
        if !bytes.is_empty() && self.rng.chance(impairment.corrupt.0) {
            counts.corrupted += 1;
            let mut altered = bytes.to_vec();
            let at = self.rng.below(altered.len() as u64) as usize;
            altered[at] ^= 1 << self.rng.below(8);
            arrival.altered = Some(altered);
            arrival.remark = Some("corrupted");
        }
        arrival
    }

    fn send_old(
        &mut self,
        due_ns: u64,
        impairment: &Impairment,
        bytes: &[u8],
        passage: &mut Passage,
        counts: &mut LinkCounts,
    ) {
        if impairment.stale.0 == 0 {
            return;
        }
        if !self.history.is_empty() && self.rng.chance(impairment.stale.0) {
            counts.stale += 1;
            let old = self.rng.pick(&self.history).clone();
            let remark = Some("an old frame");
            passage.arrivals.push(Arrival { at_ns: due_ns, altered: Some(old), remark });
        }
        if self.history.len() < HISTORY {
            self.history.push(bytes.to_vec());
        } else {
            let at = self.rng.below(HISTORY as u64) as usize;
            self.history[at] = bytes.to_vec();
        }
    }

    /// Cuts the link: nothing passes, and frames in flight are lost.
    pub fn cut(&mut self) {
        self.cuts += 1;
        self.cut_epoch += 1;
    }

    /// Undoes one cut.
    pub fn heal(&mut self) {
        self.cuts = self.cuts.checked_sub(1).expect("each cut is healed once");
    }

    /// Returns a number that changes with each cut: a frame sent under another never arrives.
    pub fn cut_epoch(&self) -> u32 {
        self.cut_epoch
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use venice_simkernel::units::{Nanos, Share};

    fn clean(model: LinkModel) -> Link {
        Link::new(model, 10_000, Stream::new(1))
    }

    fn arrivals_ns(link: &mut Link, lens: &[usize]) -> Vec<u64> {
        let mut counts = LinkCounts::default();
        let none = Impairment::default();
        let send = |&len| link.send(0, &none, &vec![0; len], &mut counts).arrivals;
        lens.iter().flat_map(send).map(|arrival| arrival.at_ns).collect()
    }

    #[test]
    fn frames_queue_and_take_the_latency() {
        // 625 bytes at 5 Gb/s are 1 µs.
        let lens = [625, 625, 1250];
        assert_eq!(arrivals_ns(&mut clean(LinkModel::PAPER), &lens), [2400, 3400, 5400]);
    }

    #[test]
    fn wire_queue_is_bounded() {
        let arrived = arrivals_ns(&mut clean(LinkModel::PAPER), &[4000; 100]).len();
        assert!((3..=4).contains(&arrived), "{arrived}");
    }

    #[test]
    fn link_is_cut_until_every_heal() {
        let mut link = clean(LinkModel::PAPER);
        link.cut();
        link.cut();
        link.heal();
        assert_eq!(arrivals_ns(&mut link, &[1]), [0u64; 0]);
        link.heal();
        assert_eq!(arrivals_ns(&mut link, &[1]).len(), 1);
        assert_eq!(link.cut_epoch(), 2);
    }

    #[test]
    fn impairments_match_their_rates() {
        let tenth = Share(100_000);
        let impairment = Impairment {
            loss: tenth,
            duplicate: tenth,
            corrupt: tenth,
            reorder: tenth,
            jitter: Nanos(1000),
            stale: tenth,
        };
        let mut link = clean(LinkModel::default());
        let mut counts = LinkCounts::default();
        for n in 0..10_000u64 {
            link.send(n, &impairment, &n.to_le_bytes(), &mut counts);
        }
        let LinkCounts { lost, duplicated, corrupted, delayed, stale, .. } = counts;
        for (name, count) in [
            ("lost", lost),
            ("twice", duplicated),
            ("corrupt", corrupted),
            ("late", delayed),
            ("stale", stale),
        ] {
            assert!((850..1150).contains(&count), "{name}: {count} of about 1000");
        }
    }
}
