//! Reclaiming donors: their replicas are copied to other donors and then released.

use std::sync::atomic::Ordering;

use super::{Replica, ReplicaState, RunBlock};

impl RunBlock {
    /// The readable replicas with this fragment of a slab whose donors do not reclaim them.
    pub fn staying(&self, slab: usize, fragment: usize) -> impl Iterator<Item = (usize, &Replica)> {
        let all = self.readable_of(slab, fragment);
        all.filter(|(_, replica)| !self.donors[replica.donor()].is_reclaiming())
    }

    /// Copies that this fragment of a slab needs: only one if it has one on the recipient's own
    /// machine, since that is lost only with the recipient.
    pub fn wanted_copies(&self, slab: usize, fragment: usize) -> usize {
        let is_here = |(_, replica): (_, &Replica)| self.donors[replica.donor()].is_here();
        match self.staying(slab, fragment).any(is_here) {
            true => 1,
            false => self.copies.load(Ordering::Relaxed) as usize,
        }
    }

    /// Begins to release replicas of reclaiming donors, and returns the slabs that have all their
    /// copies without these. Atomic accesses to the slabs wait from here until
    /// [`RunBlock::release_spares`]. Only the thread that calls [`RunBlock::resolve_suspicion`] may call it: two
    /// threads that each release one replica might release the last two.
    pub fn begin_release(&self) -> Vec<usize> {
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
                self.slabs[slab].is_releasing.store(1, Ordering::SeqCst);
                slabs.push(slab);
            }
        }
        self.to_move.store(self.moved.load(Ordering::Relaxed) + left, Ordering::Relaxed);
        slabs
    }

    /// Releases the spare replicas of these slabs. All batches of writes that were under way when
    /// their atomic accesses began to wait must be over.
    pub fn release_spares(&self, slabs: &[usize]) {
        for &slab in slabs {
            for (_, replica) in self.readable(slab) {
                let stays = |donor: usize| !self.donors[donor].is_reclaiming();
                let fragment = replica.fragment();
                let there = self.readable_of(slab, fragment).count();
                let is_spare =
                    !stays(replica.donor()) && there > self.wanted_copies(slab, fragment);
                if is_spare && self.drop_replica_if(replica, stays) {
                    self.moved.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        self.end_release(slabs);
    }

    /// Ends the wait of atomic accesses to these slabs.
    pub fn end_release(&self, slabs: &[usize]) {
        for &slab in slabs {
            self.slabs[slab].is_releasing.store(0, Ordering::SeqCst);
        }
    }

    /// True if an atomic access to the slab must wait.
    pub fn is_releasing(&self, slab: usize) -> bool {
        self.slabs[slab].is_releasing.load(Ordering::SeqCst) != 0
    }

    /// True if no replica at the donor is read, written or being built.
    pub fn is_donor_empty(&self, donor: usize) -> bool {
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

    /// Releases all spare replicas.
    fn release(block: &RunBlockMap) {
        let slabs = block.begin_release();
        assert_eq!(block.is_releasing(0), !slabs.is_empty());
        block.release_spares(&slabs);
        assert!(!block.is_releasing(0));
    }

    fn moved(block: &RunBlockMap) -> (u64, u64) {
        (block.moved.load(Ordering::Relaxed), block.to_move.load(Ordering::Relaxed))
    }

    #[test]
    fn releases_only_after_copy_completes() {
        for copies in 1..=3 {
            let block = block(copies);
            block.donors()[0].set_reclaiming(true);
            release(&block);
            assert_eq!((block.readable(0).count(), moved(&block)), (copies, (0, 1)));
            let new = block.add_replica(0, at(3), ReplicaState::Building).unwrap();
            release(&block);
            assert!(readers(&block).contains(&0), "the new one is incomplete");
            let new = &block.replicas()[new];
            assert!(block.transition(new, ReplicaState::Building, ReplicaState::Live));
            assert!(!block.is_donor_empty(0));
            release(&block);
            assert!(!readers(&block).contains(&0) && block.is_donor_empty(0));
            assert_eq!((block.staying(0, 0).count(), moved(&block)), (copies, (1, 1)));
        }
    }

    #[test]
    fn keeps_reclaimed_copy_after_other_loss() {
        let block = block(2);
        block.donors()[0].set_reclaiming(true);
        block.add_replica(0, at(2), ReplicaState::Live).unwrap();
        block.donors()[1].lose(Fate::Died);
        release(&block);
        assert_eq!(readers(&block), [0, 2], "the run keeps two copies");
    }

    #[test]
    fn two_reclaiming_donors_release_in_turn() {
        let block = block(2);
        block.donors()[0].set_reclaiming(true);
        block.donors()[1].set_reclaiming(true);
        block.add_replica(0, at(2), ReplicaState::Live).unwrap();
        release(&block);
        assert_eq!((block.readable(0).count(), block.moved.load(Ordering::Relaxed)), (2, 1));
        block.add_replica(0, at(3), ReplicaState::Live).unwrap();
        release(&block);
        assert_eq!((readers(&block), moved(&block)), (vec![2, 3], (2, 2)));
    }

    #[test]
    fn local_replica_needs_no_second_copy() {
        let block = block(2);
        let here = block.add_donor("local", HERE, "").unwrap();
        block.donors()[0].set_reclaiming(true);
        block.add_replica(0, at(here), ReplicaState::Live).unwrap();
        release(&block);
        assert_eq!(readers(&block), [1, here], "a donor that does not reclaim keeps it");
        assert_eq!(block.wanted_copies(0, 0), 1);
        block.donors()[1].set_reclaiming(true);
        release(&block);
        assert_eq!((readers(&block), moved(&block)), (vec![here], (2, 2)));
    }

    #[test]
    fn lookup_retries_across_concurrent_move() {
        let block = block(2);
        let old = &block.replicas()[1];
        block.donors()[0].lose(Fate::Died);
        let new = block.add_replica(0, at(2), ReplicaState::Building).unwrap();
        let mut looks = 0;
        let found = block.retry_on_change(0, || {
            looks += 1;
            // The lookup passed the slot of the new replica before it was readable.
            let passed = block.readable(0).take_while(|(_, replica)| replica.donor() != 1).next();
            if looks == 1 {
                let new = &block.replicas()[new];
                assert!(passed.is_none());
                assert!(block.transition(new, ReplicaState::Building, ReplicaState::Live));
                assert!(block.drop_replica(old));
            }
            passed.map(|(index, _)| index)
        });
        assert_eq!((found, looks), (Some(new), 2));
        assert!(block.retry_on_change(0, || None::<()>).is_none(), "no state changes any more");
    }

    #[test]
    fn first_readable_changes_only_on_release() {
        let block = block(1);
        assert_eq!(block.first_readable(0), Some(0));
        block.donors()[0].set_reclaiming(true);
        let new = block.add_replica(0, at(1), ReplicaState::Live).unwrap();
        assert_eq!(block.first_readable(0), Some(0));
        let slabs = block.begin_release();
        assert!(block.is_releasing(0) && block.first_readable(0) == Some(0));
        // The new one is lost before the release.
        block.donors()[1].lose(Fate::Died);
        block.release_spares(&slabs);
        assert!(!block.is_releasing(0) && block.first_readable(0) == Some(0));
        let newer = block.add_replica(0, at(2), ReplicaState::Live).unwrap();
        assert!(newer > new);
        release(&block);
        assert_eq!(block.first_readable(0), Some(newer));
    }

    #[test]
    fn given_back_grant_is_no_loss() {
        let block = block(2);
        assert!(block.donors()[0].give_back());
        block.donors()[0].lose(Fate::Revoked);
        let donor = &block.donors()[0];
        assert_eq!((donor.is_gone(), donor.is_lost(), donor.fate()), (true, false, None));
        block.donors()[1].lose(Fate::Died);
        assert!(!block.donors()[1].give_back(), "the first cause stands");
    }
}
