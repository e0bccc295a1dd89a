//! Donors that let somebody wait: whether they are done without.
//!
//! A link that fell silent says little of a donor: it may be slow, or the machine so busy that
//! nobody gets a word through. Whoever waits complains, opens the link anew and asks again; what
//! becomes of the donor is one judge's to say, so that no two, who found different donors silent,
//! each count on what the other has just given up. And who has the other copies may have died a moment
//! ago, which nobody knows yet: the judge waits until these have answered a question that was asked
//! after the complaint.

use super::{Fate, ReplicaState, RunBlock};

/// What was done with a donor that somebody waits for in vain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Others that answer have all it holds: it is lost, and its copies are built anew.
    DoneWithout,
    /// Nobody else that answers has some of it: that is waited for.
    Awaited {
        /// Slabs.
        slabs: usize,
    },
}

/// Donors that were complained of: when, and of whom it is still to be found out whether others that
/// have what it holds are there. Times are of one clock, in nanoseconds.
#[derive(Debug, Default)]
pub struct SilenceJudge {
    /// By donor: the last complaint.
    complained_ns: Vec<Option<u64>>,
    /// By donor: the first complaint that is not judged yet.
    open_ns: Vec<Option<u64>>,
}

/// A donor's case, and what became of it.
pub type Judged = (usize, Verdict);

impl SilenceJudge {
    /// Takes up what was complained of since the last time, and judges what can be. Who was complained
    /// of counts as silent for `silent_for_ns`. `answered_ns` tells of a donor when it was asked what it
    /// last answered, whatever asks it; the end of time for one that nobody need ask. One thread of a run
    /// alone may do this.
    pub fn judge(
        &mut self,
        block: &RunBlock,
        now_ns: u64,
        silent_for_ns: u64,
        answered_ns: impl Fn(usize) -> u64,
    ) -> Vec<Judged> {
        let donors = block.donors();
        self.complained_ns.resize(donors.len(), None);
        self.open_ns.resize(donors.len(), None);
        for (index, _) in donors.iter().enumerate().filter(|(_, donor)| donor.take_complaint()) {
            self.complained_ns[index] = Some(now_ns);
            self.open_ns[index].get_or_insert(now_ns);
        }
        let mut judged = Vec::new();
        for (donor, entry) in donors.iter().enumerate() {
            let Some(since_ns) = self.open_ns[donor] else { continue };
            let is_silent = |other| self.is_silent(other, now_ns, silent_for_ns);
            let is_unknown = |other| !is_silent(other) && answered_ns(other) <= since_ns;
            if !entry.is_gone() {
                if block.companions(donor).any(is_unknown) {
                    continue;
                }
                judged.push((donor, block.judge_silent(donor, is_silent)));
            }
            self.open_ns[donor] = None;
        }
        judged
    }

    /// Whether a donor was complained of a moment ago.
    pub fn is_silent(&self, donor: usize, now_ns: u64, silent_for_ns: u64) -> bool {
        let complained_ns = self.complained_ns.get(donor).copied().flatten();
        complained_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < silent_for_ns)
    }

    /// Whether somebody is waited for to answer before a donor is judged.
    pub fn is_open(&self) -> bool {
        self.open_ns.iter().any(Option::is_some)
    }
}

impl RunBlock {
    /// The donors, not gone, that have something of slabs which `donor` has something of too.
    fn companions(&self, donor: usize) -> impl Iterator<Item = usize> {
        let held = self.replicas().iter().filter(move |replica| {
            replica.donor() == donor && self.state(replica) == ReplicaState::Live
        });
        let others = held.flat_map(|replica| self.readable(replica.slab()));
        let others = others.map(|(_, other)| other.donor()).filter(move |other| *other != donor);
        others.filter(|other| !self.donors()[*other].is_gone())
    }

    /// Judges a donor that somebody waits for: it is done without where others, none of whom
    /// `is_silent` (by donor) too, have what it holds. One thread of a run alone may do this.
    pub fn judge_silent(&self, donor: usize, is_silent: impl Fn(usize) -> bool) -> Verdict {
        let held = self.replicas().iter().filter(|replica| replica.donor() == donor);
        let answers = |other: usize| other != donor && !is_silent(other);
        let needed = held.filter(|replica| !self.give_up_where(replica, answers)).count();
        if needed == 0 {
            self.donors()[donor].lose(Fate::Silent);
            return Verdict::DoneWithout;
        }
        Verdict::Awaited { slabs: needed }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{PortKind, ReplicaAt, ReplicaState, RunBlockMap};
    use super::*;

    /// A block whose slab `n` has copies at the donors `pairs[n]`.
    fn block(pairs: &[&[usize]]) -> RunBlockMap {
        let (_fd, block) = RunBlockMap::create(PortKind::Udp, pairs.len(), 2).unwrap();
        let donors = 1 + pairs.iter().flat_map(|donors| donors.iter()).max().unwrap();
        for donor in 0..donors {
            block.add_donor(&format!("node{donor}"), donor as u32, "").unwrap();
        }
        let at = |donor| ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 };
        for (slab, donors) in pairs.iter().enumerate() {
            block.add_slab(at(donors[0])).unwrap();
            for &donor in &donors[1..] {
                block.add_replica(slab, at(donor), ReplicaState::Live).unwrap();
            }
        }
        block
    }

    /// Judges a donor that is complained of at 10.
    fn complained_of(block: &RunBlockMap, donor: usize) -> SilenceJudge {
        let mut judge = SilenceJudge::default();
        block.donors()[donor].complain();
        assert_eq!(judge.judge(block, 10, 5, |_| 10), []);
        assert!(judge.is_open());
        judge
    }

    #[test]
    fn nobody_is_done_without_before_the_others_have_answered() {
        let block = block(&[&[0, 1], &[1, 2]]);
        let mut judge = complained_of(&block, 1);
        assert_eq!(judge.judge(&block, 11, 5, |other| if other == 0 { 11 } else { 10 }), []);
        assert_eq!(judge.judge(&block, 12, 5, |_| 11), [(1, Verdict::DoneWithout)]);
        assert!(!judge.is_open());
        assert_eq!(judge.judge(&block, 13, 5, |_| 11), []);
    }

    #[test]
    fn who_is_found_dead_meanwhile_is_not_counted_on() {
        let block = block(&[&[0, 1]]);
        let mut judge = complained_of(&block, 1);
        block.donors()[0].lose(Fate::Died);
        assert_eq!(judge.judge(&block, 11, 5, |_| 10), [(1, Verdict::Awaited { slabs: 1 })]);
        assert_eq!(block.readable(0).map(|(_, it)| it.donor()).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn who_falls_silent_meanwhile_is_not_waited_for() {
        let block = block(&[&[0, 1]]);
        let mut judge = complained_of(&block, 1);
        block.donors()[0].complain();
        let judged = judge.judge(&block, 11, 5, |_| 10);
        assert_eq!(judged, [0, 1].map(|donor| (donor, Verdict::Awaited { slabs: 1 })));
        assert!(judge.is_silent(0, 15, 5) && !judge.is_silent(0, 16, 5));
        assert_eq!(judge.judge(&block, 30, 5, |_| 30), [], "nobody complains");
        block.donors()[1].complain();
        assert_eq!(judge.judge(&block, 31, 5, |_| 32), [(1, Verdict::DoneWithout)]);
    }

    #[test]
    fn a_silent_donor_is_done_without_where_others_have_it_all() {
        let block = block(&[&[0, 1], &[1, 2]]);
        assert_eq!(block.judge_silent(1, |_| false), Verdict::DoneWithout);
        assert_eq!(block.donors()[1].fate(), Some(Fate::Silent));
        assert!((0..2).all(|slab| block.readable(slab).count() == 1));
    }

    #[test]
    fn what_a_silent_donor_alone_has_is_waited_for() {
        let block = block(&[&[0, 1], &[1], &[1, 2]]);
        assert_eq!(block.judge_silent(1, |_| false), Verdict::Awaited { slabs: 1 });
        assert!(!block.donors()[1].is_lost());
        let readers = |slab| block.readable(slab).map(|(_, it)| it.donor()).collect::<Vec<_>>();
        assert_eq!([readers(0), readers(1), readers(2)], [vec![0], vec![1], vec![2]]);
        assert_eq!(block.judge_silent(1, |_| false), Verdict::Awaited { slabs: 1 });
    }

    #[test]
    fn of_two_silent_donors_neither_is_given_up_for_the_other() {
        let block = block(&[&[0, 1], &[1, 2]]);
        let is_silent = |donor| donor < 2;
        assert_eq!(block.judge_silent(0, is_silent), Verdict::Awaited { slabs: 1 });
        assert_eq!(block.judge_silent(1, is_silent), Verdict::Awaited { slabs: 1 });
        assert_eq!(block.readable(0).count(), 2, "either may come back");
        assert_eq!(block.readable(1).count(), 1);
        assert_eq!(block.judge_silent(0, |donor| donor == 0), Verdict::DoneWithout);
    }

    #[test]
    fn whichever_donors_fall_silent_in_any_order_a_copy_is_left() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let block = block(&[&[0, 1], &[1, 2], &[2, 0]]);
            for donor in order {
                block.judge_silent(donor, |_| false);
            }
            assert!((0..3).all(|slab| block.readable(slab).count() > 0), "{order:?}");
        }
    }

    #[test]
    fn the_judge_and_a_process_do_not_give_up_the_last_two() {
        let block = block(&[&[0, 1], &[0, 1]]);
        let replica = |slab, donor| {
            let mut all = block.replicas_of(slab).map(|(_, it)| it);
            all.find(|it| it.donor() == donor).unwrap()
        };
        // The process was first: the judge, who has found the other one silent, keeps that.
        assert!(block.give_up(replica(0, 1)));
        assert_eq!(block.judge_silent(0, |_| false), Verdict::Awaited { slabs: 1 });
        assert!(!block.donors()[0].is_lost());
        // The judge was first: the process, which cannot reach the other one, leaves it to others.
        assert_eq!(block.readable(1).count(), 1, "the judge did without the silent one");
        assert!(!block.give_up(replica(1, 1)));
        assert!((0..2).all(|slab| block.readable(slab).count() == 1));
    }

    #[test]
    fn a_copy_that_is_being_built_is_not_waited_for() {
        let block = block(&[&[0], &[1]]);
        let at = ReplicaAt { donor: 1, remote_addr: 0, grant: 1, key: 1 };
        let built = block.add_replica(0, at, ReplicaState::Building).unwrap();
        assert_eq!(block.judge_silent(1, |_| false), Verdict::Awaited { slabs: 1 });
        assert_eq!(block.state(&block.replicas()[built]), ReplicaState::Dropped);
        assert_eq!(block.judge_silent(0, |_| false), Verdict::Awaited { slabs: 1 });
    }
}
