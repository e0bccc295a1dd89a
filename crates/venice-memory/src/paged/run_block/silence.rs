//! Donors that let somebody wait: whether they are done without.
//!
//! A link that fell silent says little of a donor: it may be slow, or the machine so busy that
//! nobody gets a word through. Whoever waits complains, opens the link anew and asks again; what
//! becomes of the donor is one judge's to say, so that no two, who found different donors silent,
//! each count on what the other has just given up.

use super::{Fate, RunBlock};

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

impl RunBlock {
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
