//! The states of a slab's replicas, packed into one word.
//!
//! The supervisor and the processes of the program drop replicas independently: a donor is
//! suspected, or a replica has missed a write. A thread that drops one must see in the same atomic
//! step that another one is left. Otherwise two threads might drop the last two at once. (A death
//! drops a replica without this check.)

use std::sync::atomic::{AtomicU32, Ordering};

use super::replicas::{MAX_SLAB_REPLICAS, ReplicaState};

const BITS: u32 = u32::BITS / MAX_SLAB_REPLICAS as u32;
const MASK: u32 = (1 << BITS) - 1;

/// The states of all positions of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlabStates(u32);

impl SlabStates {
    /// The state of the replica at a position.
    pub fn at(self, position: usize) -> ReplicaState {
        ReplicaState::of(self.0 >> (position as u32 * BITS) & MASK)
    }

    /// The states with another state at a position.
    pub fn with(self, position: usize, state: ReplicaState) -> SlabStates {
        let shift = position as u32 * BITS;
        SlabStates(self.0 & !(MASK << shift) | (state as u32) << shift)
    }

    /// The states with the replica at `position` dropped. `None`: it is live, and the other live ones
    /// have fewer than `needed` distinct fragments. `fragment_at` returns the fragment at a
    /// position, if it counts.
    pub fn without(
        self,
        position: usize,
        needed: usize,
        fragment_at: impl Fn(usize) -> Option<usize>,
    ) -> Option<SlabStates> {
        let is_live = |position| self.at(position) == ReplicaState::Live;
        let others = (0..MAX_SLAB_REPLICAS).filter(|&other| other != position && is_live(other));
        let is_spared = !is_live(position) || {
            let there = others.filter_map(fragment_at).fold(0u32, |there, one| there | 1 << one);
            there.count_ones() as usize >= needed
        };
        is_spared.then(|| self.with(position, ReplicaState::Dropped))
    }
}

/// The atomic word that all processes share. It starts with no replica at any position.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct SlabWord(AtomicU32);

impl SlabWord {
    /// Loads the states.
    pub fn load(&self) -> SlabStates {
        SlabStates(self.0.load(Ordering::SeqCst))
    }

    /// Changes the states atomically by `change`; `false` if `change` returned `None`.
    pub fn change(&self, mut change: impl FnMut(SlabStates) -> Option<SlabStates>) -> bool {
        let order = Ordering::SeqCst;
        self.0.fetch_update(order, order, |word| Some(change(SlabStates(word))?.0)).is_ok()
    }
}

/// Model check: every interleaving of all threads that change a slab's word. Each takes two kinds
/// of steps: it loads the word, and it stores it if the word is unchanged since.
#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A change of the word.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Doing {
        /// Drops the replica at a position.
        GiveUp(usize),
        /// Makes the replica at a position live, which is being built.
        Finish(usize),
    }

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        word: SlabStates,
        /// Each with the word it has loaded, and whether it is done.
        actors: Vec<(Doing, Option<SlabStates>, bool)>,
    }

    /// Positions in use.
    const POSITIONS: usize = 4;

    /// Redundancy of the slab: copies, or one fragment at each position of which two are needed.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Keeps {
        Copies,
        Fragments,
    }

    impl Keeps {
        fn needed(self) -> usize {
            if self == Keeps::Copies { 1 } else { 2 }
        }

        fn fragment_at(self, position: usize) -> Option<usize> {
            Some(if self == Keeps::Copies { 0 } else { position })
        }
    }

    fn next(keeps: Keeps, doing: Doing, states: SlabStates) -> Option<SlabStates> {
        match doing {
            Doing::GiveUp(position) => {
                states.without(position, keeps.needed(), |other| keeps.fragment_at(other))
            }
            Doing::Finish(position) => (states.at(position) == ReplicaState::Building)
                .then(|| states.with(position, ReplicaState::Live)),
        }
    }

    /// Performs one step of an actor. With `compares` it works like `SlabWord::change`. Without,
    /// each actor changes its own position as if it had a word of its own.
    fn step(keeps: Keeps, world: &mut World, index: usize, compares: bool) -> bool {
        let World { word, actors } = world;
        let (doing, loaded, is_done) = &mut actors[index];
        match (*is_done, loaded.take()) {
            (true, _) => return false,
            (_, None) => *loaded = Some(*word),
            (_, Some(seen)) => match next(keeps, *doing, seen) {
                None => *is_done = true,
                Some(wanted) if compares && seen == *word => (*word, *is_done) = (wanted, true),
                Some(_) if compares => *loaded = Some(*word),
                Some(wanted) => {
                    let (Doing::GiveUp(position) | Doing::Finish(position)) = *doing;
                    (*word, *is_done) = (word.with(position, wanted.at(position)), true);
                }
            },
        }
        true
    }

    /// Explores every interleaving. Returns the number of states, or a state with too few live
    /// replicas.
    fn explore(keeps: Keeps, compares: bool) -> Result<usize, World> {
        let live = SlabStates(0).with(0, ReplicaState::Live).with(1, ReplicaState::Live);
        let word = live.with(2, ReplicaState::Live).with(3, ReplicaState::Building);
        let doings = (0..POSITIONS).map(Doing::GiveUp).chain([Doing::Finish(3)]);
        let actors = doings.map(|doing| (doing, None, false)).collect();
        let (mut seen, mut open) = (HashSet::new(), vec![World { word, actors }]);
        while let Some(world) = open.pop() {
            let is_live = |position: &usize| world.word.at(*position) == ReplicaState::Live;
            if (0..POSITIONS).filter(is_live).count() < keeps.needed() {
                return Err(world);
            }
            if !seen.insert(world.clone()) {
                continue;
            }
            for index in 0..world.actors.len() {
                let mut world = world.clone();
                if step(keeps, &mut world, index, compares) {
                    open.push(world);
                }
            }
        }
        Ok(seen.len())
    }

    #[test]
    fn concurrent_drops_keep_enough_replicas() {
        for keeps in [Keeps::Copies, Keeps::Fragments] {
            let states = explore(keeps, true).unwrap_or_else(|wrong| panic!("{wrong:?}"));
            assert!(states > 1000, "only {states} states");
        }
    }

    #[test]
    fn separate_words_lose_last_two() {
        for keeps in [Keeps::Copies, Keeps::Fragments] {
            assert!(explore(keeps, false).is_err(), "the model misses the race");
        }
    }

    #[test]
    fn uncounted_replica_blocks_drop() {
        let live = SlabStates(0).with(0, ReplicaState::Live).with(2, ReplicaState::Live);
        let all = |_| Some(0);
        assert_eq!(live.without(0, 1, |other| (other != 2).then_some(0)), None);
        let left = live.without(2, 1, all).unwrap();
        assert_eq!((left.at(0), left.at(2)), (ReplicaState::Live, ReplicaState::Dropped));
        assert_eq!(left.without(0, 1, all), None, "the last one");
        let built = left.with(3, ReplicaState::Building);
        assert_eq!(built.without(0, 1, all), None, "a replica being built is incomplete");
        assert_eq!(built.without(3, 1, |_| None), Some(left), "dropping it loses nothing");
        assert_eq!(left.at(1), ReplicaState::Dropped, "the position was never used");
    }

    #[test]
    fn duplicate_fragments_count_once() {
        let live = (0..4).fold(SlabStates(0), |states, at| states.with(at, ReplicaState::Live));
        let fragment_at = |position: usize| Some([0, 0, 1, 2][position]);
        let left = live.without(3, 2, fragment_at).unwrap();
        assert_eq!(left.without(2, 2, fragment_at), None, "of fragment 0 there are two");
        assert!(left.without(0, 2, fragment_at).is_some());
    }
}
