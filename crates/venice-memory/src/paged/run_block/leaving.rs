//! Donors that want their memory back: what is there is copied elsewhere, then let go of.

use std::sync::atomic::Ordering;

use super::{Replica, ReplicaState, RunBlock};

impl RunBlock {
    /// The replicas that have this fragment of a slab, can be read and are to stay where they are.
    pub fn staying(&self, slab: usize, fragment: usize) -> impl Iterator<Item = (usize, &Replica)> {
        let all = self.readable_of(slab, fragment);
        all.filter(|(_, replica)| !self.donors[replica.donor()].is_leaving())
    }

    /// Copies that this fragment of a slab needs: one, where it has one on the recipient's own
    /// machine, with which the recipient would be gone too.
    pub fn wanted_copies(&self, slab: usize, fragment: usize) -> usize {
        let is_here = |(_, replica): (_, &Replica)| self.donors[replica.donor()].is_here();
        match self.staying(slab, fragment).any(is_here) {
            true => 1,
            false => self.copies.load(Ordering::Relaxed) as usize,
        }
    }

    /// Slabs that have all their copies without those on donors that want their memory back:
    /// atomic accesses to them wait from here on, until [`RunBlock::let_go`]. The judge's right, as
    /// that of who is done without ([`RunBlock::judge_silent`]): two that each let go of one might
    /// let go of the last two.
    pub fn begin_to_let_go(&self) -> Vec<usize> {
        let (mut slabs, mut left) = (Vec::new(), 0);
        for slab in 0..self.slab_count() {
            let mut has_spare = false;
            for fragment in 0..self.fragment_count() {
                let all = self.readable_of(slab, fragment).count();
                let staying = self.staying(slab, fragment).count();
                left += (all - staying.min(all)) as u64;
                has_spare |= staying < all && all > self.wanted_copies(slab, fragment);
            }
            if has_spare {
                self.slabs[slab].is_turning.store(1, Ordering::SeqCst);
                slabs.push(slab);
            }
        }
        self.to_move.store(self.moved.load(Ordering::Relaxed) + left, Ordering::Relaxed);
        slabs
    }

    /// Lets go of what such slabs can do without. Every batch of writes is over that was under way
    /// when their atomic accesses began to wait.
    pub fn let_go(&self, slabs: &[usize]) {
        for &slab in slabs {
            for (_, replica) in self.readable(slab) {
                let stays = |donor: usize| !self.donors[donor].is_leaving();
                let fragment = replica.fragment();
                let there = self.readable_of(slab, fragment).count();
                let is_spare =
                    !stays(replica.donor()) && there > self.wanted_copies(slab, fragment);
                if is_spare && self.give_up_where(replica, stays) {
                    self.moved.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.end_turns(slabs);
    }

    /// Atomic accesses to these slabs wait no longer.
    pub fn end_turns(&self, slabs: &[usize]) {
        for &slab in slabs {
            self.slabs[slab].is_turning.store(0, Ordering::SeqCst);
        }
    }

    /// Must an atomic access to the slab wait?
    pub fn is_turning(&self, slab: usize) -> bool {
        self.slabs[slab].is_turning.load(Ordering::SeqCst) != 0
    }

    /// Does the donor hold nothing that is read, written or being built?
    pub fn has_nothing_at(&self, donor: usize) -> bool {
        let held = self.replicas().iter().filter(|replica| replica.donor() == donor);
        held.filter(|replica| self.state(replica) != ReplicaState::Dropped).count() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Fate, HERE, PortKind, ReplicaAt, RunBlockMap};
    use super::*;

    fn at(donor: usize) -> ReplicaAt {
        ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 }
    }

    /// One slab at donors 0 .. copies, of four.
    fn block(copies: usize) -> RunBlockMap {
        let (_fd, block) = RunBlockMap::create(PortKind::Udp, 1, copies).unwrap();
        for donor in 0..4 {
            block.add_donor(&format!("node{donor}"), donor, "").unwrap();
        }
        block.add_slab(at(0)).unwrap();
        for donor in 1..copies {
            block.add_replica(0, at(donor), ReplicaState::Live).unwrap();
        }
        block
    }

    fn readers(block: &RunBlockMap) -> Vec<usize> {
        let mut donors: Vec<_> = block.readable(0).map(|(_, it)| it.donor()).collect();
        donors.sort_unstable();
        donors
    }

    /// Lets go of what it can.
    fn let_go(block: &RunBlockMap) {
        let slabs = block.begin_to_let_go();
        assert_eq!(block.is_turning(0), !slabs.is_empty());
        block.let_go(&slabs);
        assert!(!block.is_turning(0));
    }

    fn moved(block: &RunBlockMap) -> (u64, u64) {
        (block.moved.load(Ordering::Relaxed), block.to_move.load(Ordering::Relaxed))
    }

    #[test]
    fn nothing_is_let_go_of_before_it_is_elsewhere() {
        for copies in 1..=3 {
            let block = block(copies);
            block.donors()[0].set_leaving(true);
            let_go(&block);
            assert_eq!((block.readable(0).count(), moved(&block)), (copies, (0, 1)));
            let new = block.add_replica(0, at(3), ReplicaState::Building).unwrap();
            let_go(&block);
            assert!(readers(&block).contains(&0), "the new one has not all");
            let new = &block.replicas()[new];
            assert!(block.pass(new, ReplicaState::Building, ReplicaState::Live));
            assert!(!block.has_nothing_at(0));
            let_go(&block);
            assert!(!readers(&block).contains(&0) && block.has_nothing_at(0));
            assert_eq!((block.staying(0, 0).count(), moved(&block)), (copies, (1, 1)));
        }
    }

    #[test]
    fn what_left_does_not_count_where_another_copy_was_lost() {
        let block = block(2);
        block.donors()[0].set_leaving(true);
        block.add_replica(0, at(2), ReplicaState::Live).unwrap();
        block.donors()[1].lose(Fate::Died);
        let_go(&block);
        assert_eq!(readers(&block), [0, 2], "two copies are what it is to have");
    }

    #[test]
    fn of_two_that_leave_each_goes_in_its_turn() {
        let block = block(2);
        block.donors()[0].set_leaving(true);
        block.donors()[1].set_leaving(true);
        block.add_replica(0, at(2), ReplicaState::Live).unwrap();
        let_go(&block);
        assert_eq!((block.readable(0).count(), block.moved.load(Ordering::Relaxed)), (2, 1));
        block.add_replica(0, at(3), ReplicaState::Live).unwrap();
        let_go(&block);
        assert_eq!((readers(&block), moved(&block)), (vec![2, 3], (2, 2)));
    }

    #[test]
    fn what_is_on_the_recipients_own_machine_needs_no_second_copy() {
        let block = block(2);
        let here = block.add_donor("local", HERE, "").unwrap();
        block.donors()[0].set_leaving(true);
        block.add_replica(0, at(here), ReplicaState::Live).unwrap();
        let_go(&block);
        assert_eq!(readers(&block), [1, here], "who does not want it back keeps it");
        assert_eq!(block.wanted_copies(0, 0), 1);
        block.donors()[1].set_leaving(true);
        let_go(&block);
        assert_eq!((readers(&block), moved(&block)), (vec![here], (2, 2)));
    }

    #[test]
    fn who_looks_while_a_copy_comes_and_another_goes_finds_one() {
        let block = block(2);
        let old = &block.replicas()[1];
        block.donors()[0].lose(Fate::Died);
        let new = block.add_replica(0, at(2), ReplicaState::Building).unwrap();
        let mut looks = 0;
        let found = block.look(0, || {
            looks += 1;
            // The place of the new one was passed when it could not be read yet.
            let passed = block.readable(0).take_while(|(_, replica)| replica.donor() != 1).next();
            if looks == 1 {
                let new = &block.replicas()[new];
                assert!(passed.is_none());
                assert!(block.pass(new, ReplicaState::Building, ReplicaState::Live));
                assert!(block.give_up(old));
            }
            passed.map(|(index, _)| index)
        });
        assert_eq!((found, looks), (Some(new), 2));
        assert!(block.look(0, || None::<()>).is_none(), "nothing changes any more");
    }

    #[test]
    fn the_first_of_an_atomic_access_changes_with_a_turn_only() {
        let block = block(1);
        assert_eq!(block.first_readable(0), Some(0));
        block.donors()[0].set_leaving(true);
        let new = block.add_replica(0, at(1), ReplicaState::Live).unwrap();
        assert_eq!(block.first_readable(0), Some(0));
        let slabs = block.begin_to_let_go();
        assert!(block.is_turning(0) && block.first_readable(0) == Some(0));
        // The new one is lost before its turn.
        block.donors()[1].lose(Fate::Died);
        block.let_go(&slabs);
        assert!(!block.is_turning(0) && block.first_readable(0) == Some(0));
        let newer = block.add_replica(0, at(2), ReplicaState::Live).unwrap();
        assert!(newer > new);
        let_go(&block);
        assert_eq!(block.first_readable(0), Some(newer));
    }

    #[test]
    fn a_grant_that_was_given_back_is_gone_and_no_loss() {
        let block = block(2);
        assert!(block.donors()[0].give_back());
        block.donors()[0].lose(Fate::TookBack);
        let donor = &block.donors()[0];
        assert_eq!((donor.is_gone(), donor.is_lost(), donor.fate()), (true, false, None));
        block.donors()[1].lose(Fate::Died);
        assert!(!block.donors()[1].give_back(), "the first word stands");
    }
}
