//! Suspicion: the decision whether to drop a donor that stopped answering.
//!
//! A link that stopped answering says little about the donor. The donor may be slow, or the machine
//! too busy to send. The waiting thread raises a suspicion, opens the link again and repeats its
//! request. One thread alone, the supervisor's, decides about the donor: two threads that suspect
//! different donors might each rely on the replicas the other one has just dropped. The holder of
//! the other replicas may itself have died a moment ago. The decision therefore waits until every
//! other holder has answered a liveness probe sent after the suspicion was raised.

use super::{Fate, ReplicaState, RunBlock};

/// Leases for which a donor is waited for that stands still and alone has some contents. It extends
/// the leases of its grants by the time for which it stood still.
pub const SILENT_LEASES: u32 = 6;

/// The decision about a suspected donor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SuspicionOutcome {
    /// It is dropped: other donors that answer have all its contents, and its copies are rebuilt.
    Dropped,
    /// It is waited for: no other donor that answers has some of its contents.
    Awaited {
        /// Slabs that only this donor has.
        slabs: usize,
    },
}

/// Decides about suspected donors: records when each was suspected, and which suspicions still wait
/// for probes of the other holders. All times are nanoseconds of one clock.
#[derive(Debug, Default)]
pub struct SuspicionResolver {
    /// The time of the last suspicion, by donor.
    suspected_ns: Vec<Option<u64>>,
    /// The time of the first undecided suspicion, by donor.
    open_ns: Vec<Option<u64>>,
}

/// A donor and the decision about it.
pub type Resolved = (usize, SuspicionOutcome);

impl SuspicionResolver {
    /// Collects the suspicions raised since the last call and decides those it can. A donor counts
    /// as suspected for `silent_for_ns` after its last suspicion. `answered_ns` returns the send
    /// time of the last probe that a donor answered, whichever thread sent it; `u64::MAX` for a
    /// donor that needs no probe. Only one thread of a run may call it.
    pub fn resolve(
        &mut self,
        block: &RunBlock,
        now_ns: u64,
        silent_for_ns: u64,
        answered_ns: impl Fn(usize) -> u64,
    ) -> Vec<Resolved> {
        let donors = block.donors();
        self.suspected_ns.resize(donors.len(), None);
        self.open_ns.resize(donors.len(), None);
        for (index, _) in donors.iter().enumerate().filter(|(_, donor)| donor.take_suspicion()) {
            self.suspected_ns[index] = Some(now_ns);
            self.open_ns[index].get_or_insert(now_ns);
        }
        let mut resolved = Vec::new();
        for (donor, entry) in donors.iter().enumerate() {
            let Some(since_ns) = self.open_ns[donor] else { continue };
            let is_silent = |other| self.is_suspected(other, now_ns, silent_for_ns);
            let is_unknown = |other| !is_silent(other) && answered_ns(other) <= since_ns;
            if !entry.is_gone() {
                if block.other_holders(donor).any(is_unknown) {
                    continue;
                }
                resolved.push((donor, block.resolve_suspicion(donor, is_silent)));
            }
            self.open_ns[donor] = None;
        }
        resolved
    }

    /// True if a donor was suspected less than `silent_for_ns` ago.
    pub fn is_suspected(&self, donor: usize, now_ns: u64, silent_for_ns: u64) -> bool {
        let suspected_ns = self.suspected_ns.get(donor).copied().flatten();
        suspected_ns.is_some_and(|at_ns| now_ns.saturating_sub(at_ns) < silent_for_ns)
    }

    /// True if a decision waits for a probe's answer.
    pub fn is_open(&self) -> bool {
        self.open_ns.iter().any(Option::is_some)
    }
}

impl RunBlock {
    /// The donors, not gone, that also have a part of a slab of `donor`.
    fn other_holders(&self, donor: usize) -> impl Iterator<Item = usize> {
        let held = self.replicas().iter().filter(move |replica| {
            replica.donor() == donor && self.state(replica) == ReplicaState::Live
        });
        let others = held.flat_map(|replica| self.readable(replica.slab()));
        let others = others.map(|(_, other)| other.donor()).filter(move |other| *other != donor);
        others.filter(|other| !self.donors()[*other].is_gone())
    }

    /// Decides about a suspected donor: drops it if other donors, none of them suspected
    /// (`is_silent`, by donor), have all its contents. Only one thread of a run may call it.
    pub fn resolve_suspicion(
        &self,
        donor: usize,
        is_silent: impl Fn(usize) -> bool,
    ) -> SuspicionOutcome {
        let held = self.replicas().iter().filter(|replica| replica.donor() == donor);
        let answers = |other: usize| other != donor && !is_silent(other);
        let needed = held.filter(|replica| !self.drop_replica_if(replica, answers)).count();
        if needed == 0 {
            self.donors()[donor].lose(Fate::Unresponsive);
            return SuspicionOutcome::Dropped;
        }
        SuspicionOutcome::Awaited { slabs: needed }
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

    /// Raises a suspicion of a donor at time 10.
    fn suspected(block: &RunBlockMap, donor: usize) -> SuspicionResolver {
        let mut resolver = SuspicionResolver::default();
        block.donors()[donor].suspect();
        assert_eq!(resolver.resolve(block, 10, 5, |_| 10), []);
        assert!(resolver.is_open());
        resolver
    }

    #[test]
    fn drop_waits_for_probe_answers() {
        let block = block(&[&[0, 1], &[1, 2]]);
        let mut resolver = suspected(&block, 1);
        assert_eq!(resolver.resolve(&block, 11, 5, |other| if other == 0 { 11 } else { 10 }), []);
        assert_eq!(resolver.resolve(&block, 12, 5, |_| 11), [(1, SuspicionOutcome::Dropped)]);
        assert!(!resolver.is_open());
        assert_eq!(resolver.resolve(&block, 13, 5, |_| 11), []);
    }

    #[test]
    fn dead_holder_is_not_counted() {
        let block = block(&[&[0, 1]]);
        let mut resolver = suspected(&block, 1);
        block.donors()[0].lose(Fate::Died);
        assert_eq!(
            resolver.resolve(&block, 11, 5, |_| 10),
            [(1, SuspicionOutcome::Awaited { slabs: 1 })]
        );
        assert_eq!(block.readable(0).map(|(_, it)| it.donor()).collect::<Vec<_>>(), [1]);
    }

    #[test]
    fn suspected_holder_is_not_awaited() {
        let block = block(&[&[0, 1]]);
        let mut resolver = suspected(&block, 1);
        block.donors()[0].suspect();
        let resolved = resolver.resolve(&block, 11, 5, |_| 10);
        assert_eq!(resolved, [0, 1].map(|donor| (donor, SuspicionOutcome::Awaited { slabs: 1 })));
        assert!(resolver.is_suspected(0, 15, 5) && !resolver.is_suspected(0, 16, 5));
        assert_eq!(resolver.resolve(&block, 30, 5, |_| 30), [], "no suspicion is raised");
        block.donors()[1].suspect();
        assert_eq!(resolver.resolve(&block, 31, 5, |_| 32), [(1, SuspicionOutcome::Dropped)]);
    }

    #[test]
    fn suspected_donor_with_replicas_is_dropped() {
        let block = block(&[&[0, 1], &[1, 2]]);
        assert_eq!(block.resolve_suspicion(1, |_| false), SuspicionOutcome::Dropped);
        assert_eq!(block.donors()[1].fate(), Some(Fate::Unresponsive));
        assert!((0..2).all(|slab| block.readable(slab).count() == 1));
    }

    #[test]
    fn sole_holder_is_awaited() {
        let block = block(&[&[0, 1], &[1], &[1, 2]]);
        assert_eq!(block.resolve_suspicion(1, |_| false), SuspicionOutcome::Awaited { slabs: 1 });
        assert!(!block.donors()[1].is_lost());
        let readers = |slab| block.readable(slab).map(|(_, it)| it.donor()).collect::<Vec<_>>();
        assert_eq!([readers(0), readers(1), readers(2)], [vec![0], vec![1], vec![2]]);
        assert_eq!(block.resolve_suspicion(1, |_| false), SuspicionOutcome::Awaited { slabs: 1 });
    }

    #[test]
    fn two_suspected_donors_both_kept() {
        let block = block(&[&[0, 1], &[1, 2]]);
        let is_silent = |donor| donor < 2;
        assert_eq!(block.resolve_suspicion(0, is_silent), SuspicionOutcome::Awaited { slabs: 1 });
        assert_eq!(block.resolve_suspicion(1, is_silent), SuspicionOutcome::Awaited { slabs: 1 });
        assert_eq!(block.readable(0).count(), 2, "either donor may come back");
        assert_eq!(block.readable(1).count(), 1);
        assert_eq!(block.resolve_suspicion(0, |donor| donor == 0), SuspicionOutcome::Dropped);
    }

    #[test]
    fn any_suspicion_order_leaves_one_copy() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let block = block(&[&[0, 1], &[1, 2], &[2, 0]]);
            for donor in order {
                block.resolve_suspicion(donor, |_| false);
            }
            assert!((0..3).all(|slab| block.readable(slab).count() > 0), "{order:?}");
        }
    }

    #[test]
    fn concurrent_drops_keep_last_replica() {
        let block = block(&[&[0, 1], &[0, 1]]);
        let replica = |slab, donor| {
            let mut all = block.replicas_of(slab).map(|(_, it)| it);
            all.find(|it| it.donor() == donor).unwrap()
        };
        // The process was first: the supervisor has dropped the other replica and keeps this one.
        assert!(block.drop_replica(replica(0, 1)));
        assert_eq!(block.resolve_suspicion(0, |_| false), SuspicionOutcome::Awaited { slabs: 1 });
        assert!(!block.donors()[0].is_lost());
        // The supervisor was first: the process cannot reach the other replica and does not drop
        // it.
        assert_eq!(block.readable(1).count(), 1, "the suspected donor is dropped");
        assert!(!block.drop_replica(replica(1, 1)));
        assert!((0..2).all(|slab| block.readable(slab).count() == 1));
    }

    #[test]
    fn building_copy_is_not_awaited() {
        let block = block(&[&[0], &[1]]);
        let at = ReplicaAt { donor: 1, remote_addr: 0, grant: 1, key: 1 };
        let built = block.add_replica(0, at, ReplicaState::Building).unwrap();
        assert_eq!(block.resolve_suspicion(1, |_| false), SuspicionOutcome::Awaited { slabs: 1 });
        assert_eq!(block.state(&block.replicas()[built]), ReplicaState::Dropped);
        assert_eq!(block.resolve_suspicion(0, |_| false), SuspicionOutcome::Awaited { slabs: 1 });
    }
}
