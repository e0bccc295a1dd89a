//! What is to be done with the replicas of a slab, packed into one word.
//!
//! The supervisor and processes of the program give replicas up of their own accord: a donor is
//! silent, or has missed a write. Who does must see, in the same step, that another is left, or two
//! at once give up the last two. (What dies is gone without being asked.)

use std::sync::atomic::{AtomicU32, Ordering};

use super::replicas::{MAX_PLACES, ReplicaState};

const BITS: u32 = u32::BITS / MAX_PLACES as u32;
const MASK: u32 = (1 << BITS) - 1;

/// A state for each place of a slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct SlabStates(u32);

impl SlabStates {
    /// That of the replica at a place.
    pub fn at(self, place: usize) -> ReplicaState {
        ReplicaState::of(self.0 >> (place as u32 * BITS) & MASK)
    }

    /// With another one there.
    pub fn with(self, place: usize, state: ReplicaState) -> SlabStates {
        let shift = place as u32 * BITS;
        SlabStates(self.0 & !(MASK << shift) | (state as u32) << shift)
    }

    /// Without the one at `place`; `None`: it is live, and no other one is that `counts`.
    pub fn without(self, place: usize, counts: impl Fn(usize) -> bool) -> Option<SlabStates> {
        let mut others = (0..MAX_PLACES).filter(|&other| other != place);
        let is_live = |place| self.at(place) == ReplicaState::Live;
        let is_spared = !is_live(place) || others.any(|other| is_live(other) && counts(other));
        is_spared.then(|| self.with(place, ReplicaState::Dropped))
    }
}

/// The word, as all processes see it; none at any place at first.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct SlabWord(AtomicU32);

impl SlabWord {
    /// As it is.
    pub fn load(&self) -> SlabStates {
        SlabStates(self.0.load(Ordering::SeqCst))
    }

    /// Changes it as `change` says of what it is at that moment; `false`: that says no.
    pub fn change(&self, mut change: impl FnMut(SlabStates) -> Option<SlabStates>) -> bool {
        let order = Ordering::SeqCst;
        self.0.fetch_update(order, order, |word| Some(change(SlabStates(word))?.0)).is_ok()
    }
}

/// Everybody who changes a slab's word, in every order of their steps: one that loads, one that
/// stores if the word is still what was loaded.
#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Somebody who changes the word.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    enum Doing {
        /// Giving up the replica at a place.
        GiveUp(usize),
        /// Making the one at a place live, which is being built.
        Finish(usize),
    }

    #[derive(Clone, Debug, PartialEq, Eq, Hash)]
    struct World {
        word: SlabStates,
        /// Each with what it has loaded, and whether it is done.
        actors: Vec<(Doing, Option<SlabStates>, bool)>,
    }

    fn next(doing: Doing, states: SlabStates) -> Option<SlabStates> {
        match doing {
            Doing::GiveUp(place) => states.without(place, |_| true),
            Doing::Finish(place) => (states.at(place) == ReplicaState::Building)
                .then(|| states.with(place, ReplicaState::Live)),
        }
    }

    /// One step of an actor. `compares`: as `SlabWord::change` does; otherwise each changes its own
    /// place of what is there, as if it had a word of its own.
    fn step(world: &mut World, index: usize, compares: bool) -> bool {
        let World { word, actors } = world;
        let (doing, loaded, is_done) = &mut actors[index];
        match (*is_done, loaded.take()) {
            (true, _) => return false,
            (_, None) => *loaded = Some(*word),
            (_, Some(seen)) => match next(*doing, seen) {
                None => *is_done = true,
                Some(wanted) if compares && seen == *word => (*word, *is_done) = (wanted, true),
                Some(_) if compares => *loaded = Some(*word),
                Some(wanted) => {
                    let (Doing::GiveUp(place) | Doing::Finish(place)) = *doing;
                    (*word, *is_done) = (word.with(place, wanted.at(place)), true);
                }
            },
        }
        true
    }

    /// Looks at every order; how many states there are, or one in which no replica is live.
    fn explore(compares: bool) -> Result<usize, World> {
        let live = SlabStates(0).with(0, ReplicaState::Live).with(1, ReplicaState::Live);
        let word = live.with(2, ReplicaState::Live).with(3, ReplicaState::Building);
        let doings = (0..MAX_PLACES).map(Doing::GiveUp).chain([Doing::Finish(3)]);
        let actors = doings.map(|doing| (doing, None, false)).collect();
        let (mut seen, mut open) = (HashSet::new(), vec![World { word, actors }]);
        while let Some(world) = open.pop() {
            if !(0..MAX_PLACES).any(|place| world.word.at(place) == ReplicaState::Live) {
                return Err(world);
            }
            if !seen.insert(world.clone()) {
                continue;
            }
            for index in 0..world.actors.len() {
                let mut world = world.clone();
                if step(&mut world, index, compares) {
                    open.push(world);
                }
            }
        }
        Ok(seen.len())
    }

    #[test]
    fn whoever_gives_up_replicas_at_once_leaves_one_that_is_live() {
        let states = explore(true).unwrap_or_else(|wrong| panic!("{wrong:?}"));
        assert!(states > 1000, "only {states} states");
    }

    #[test]
    fn without_one_word_for_all_of_them_the_last_two_go_at_once() {
        assert!(explore(false).is_err(), "the model sees nothing");
    }

    #[test]
    fn what_does_not_count_is_no_reason_to_give_up_another() {
        let live = SlabStates(0).with(0, ReplicaState::Live).with(2, ReplicaState::Live);
        assert_eq!(live.without(0, |other| other != 2), None);
        let left = live.without(2, |_| true).unwrap();
        assert_eq!((left.at(0), left.at(2)), (ReplicaState::Live, ReplicaState::Dropped));
        assert_eq!(left.without(0, |_| true), None, "the last one");
        let built = left.with(3, ReplicaState::Building);
        assert_eq!(built.without(0, |_| true), None, "what is being built has not all");
        assert_eq!(built.without(3, |_| false), Some(left), "and is no loss");
        assert_eq!(left.at(1), ReplicaState::Dropped, "nothing has ever been there");
    }
}
