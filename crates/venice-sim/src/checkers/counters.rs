//! Checker of atomics: each is executed once, as one step, in the order requested, and every result
//! agrees with this order.
//!
//! The checker only sees requests and results at the recipient. Atomics of one link are executed in
//! the order requested, so their results can be computed. When a link goes down, any number of the
//! unanswered ones may have been executed, but always the first ones.

use std::collections::VecDeque;

/// Effect of an atomic on a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Adds, wrapping around.
    Add(u64),
    /// Stores `new` if the word is `expected`.
    Swap {
        /// Compared value.
        expected: u64,
        /// Stored value.
        new: u64,
    },
}

/// An outstanding atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicId {
    word: u32,
    number: u32,
}

/// The words of one region that atomics use; all begin at 0.
#[derive(Debug, Default)]
pub struct Counters {
    words: Vec<Word>,
}

#[derive(Debug)]
struct Word {
    /// Possible values after all atomics before those in `asked`. Empty: any value.
    may_be: Vec<MayBe>,
    asked: VecDeque<Asked>,
    /// Number of the first one in `asked`.
    first: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct MayBe {
    value: u64,
    /// The link on which one was not executed; no later one of that link was executed either.
    ended_lane: Option<u32>,
}

#[derive(Debug)]
struct Asked {
    lane: u32,
    change: Change,
    outcome: Option<Outcome>,
}

#[derive(Clone, Copy, Debug)]
enum Outcome {
    Done(u64),
    Failed,
    Refused,
}

/// Limit of possible values, beyond which the checker waits for the next result.
const MAX_MAY_BE: usize = 1024;

impl Change {
    /// Applies it to `old`.
    pub fn apply(self, old: u64) -> u64 {
        match self {
            Self::Add(add) => old.wrapping_add(add),
            Self::Swap { expected, new } if old == expected => new,
            Self::Swap { .. } => old,
        }
    }
}

impl Counters {
    /// Creates so many words of 0.
    pub fn new(words: u32) -> Self {
        let may_be = vec![MayBe { value: 0, ended_lane: None }];
        let word = || Word { may_be: may_be.clone(), asked: VecDeque::new(), first: 0 };
        Self { words: (0..words).map(|_| word()).collect() }
    }

    /// Returns a possible value of a word if all requests are executed.
    pub fn expected(&self, word: u32) -> u64 {
        let Word { may_be, asked, .. } = &self.words[word as usize];
        let value = may_be.last().map_or(0, |it| it.value);
        asked.iter().fold(value, |value, asked| asked.change.apply(value))
    }

    /// Records a request on a lane.
    pub fn ask(&mut self, word: u32, lane: u32, change: Change) -> AtomicId {
        let Word { asked, first, .. } = &mut self.words[word as usize];
        asked.push_back(Asked { lane, change, outcome: None });
        AtomicId { word, number: first.wrapping_add(asked.len() as u32 - 1) }
    }

    /// Records its result, the old value.
    ///
    /// # Errors
    /// When the word cannot have had that value, or when it completed before.
    pub fn done(&mut self, id: AtomicId, old: u64) -> Result<(), String> {
        self.settle(id, Outcome::Done(old))
    }

    /// Records its failure: it may have been executed, or may yet be while its link lives.
    ///
    /// # Errors
    /// When it completed before, or when later results become impossible.
    pub fn failed(&mut self, id: AtomicId) -> Result<(), String> {
        self.settle(id, Outcome::Failed)
    }

    /// Records its refusal: it was not executed.
    ///
    /// # Errors
    /// When it completed before, or when later results become impossible.
    pub fn refused(&mut self, id: AtomicId) -> Result<(), String> {
        self.settle(id, Outcome::Refused)
    }

    fn settle(&mut self, id: AtomicId, outcome: Outcome) -> Result<(), String> {
        let word = &mut self.words[id.word as usize];
        let asked = word.asked.get_mut(id.number.wrapping_sub(word.first) as usize);
        match asked {
            Some(asked @ Asked { outcome: None, .. }) => asked.outcome = Some(outcome),
            _ => return Err(format!("atomic {id:?} completed twice")),
        }
        word.advance().map_err(|what| format!("word {}: {what}", id.word))
    }

    /// Checks the memory when nothing is outstanding.
    ///
    /// # Errors
    /// With the first impossible word.
    pub fn check_memory(&self, memory: &[u64]) -> Result<(), String> {
        for (n, (&value, word)) in memory.iter().zip(&self.words).enumerate() {
            let is_known = !word.may_be.is_empty() && word.asked.is_empty();
            if is_known && word.may_be.iter().all(|it| it.value != value) {
                return Err(format!("word {n} is {value:#x}, expected one of {:x?}", word.may_be));
            }
        }
        Ok(())
    }
}

impl Word {
    /// Evaluates the results up to the first missing one.
    fn advance(&mut self) -> Result<(), String> {
        while let Some(Asked { lane, change, outcome: Some(outcome) }) = self.asked.front() {
            let (lane, change, outcome) = (*lane, *change, *outcome);
            self.asked.pop_front();
            self.first = self.first.wrapping_add(1);
            match outcome {
                Outcome::Done(old) => self.keep(lane, change, old)?,
                Outcome::Failed => self.branch(lane, change),
                Outcome::Refused => {}
            }
        }
        Ok(())
    }

    /// Keeps the states in which the word was `old` at its execution.
    fn keep(&mut self, lane: u32, change: Change, old: u64) -> Result<(), String> {
        let may_be = std::mem::take(&mut self.may_be);
        let is_so = |it: &MayBe| it.value == old && it.ended_lane != Some(lane);
        if !may_be.is_empty() && !may_be.iter().any(is_so) {
            return Err(format!("{change:x?} found {old:#x}, expected one of {may_be:x?}"));
        }
        self.may_be.push(MayBe { value: change.apply(old), ended_lane: None });
        Ok(())
    }

    /// Adds the states in which it was executed, unless an earlier one on the same link was not.
    fn branch(&mut self, lane: u32, change: Change) {
        let done = |it: &MayBe| MayBe { value: change.apply(it.value), ended_lane: None };
        let going = self.may_be.iter().filter(|it| it.ended_lane != Some(lane));
        let mut may_be: Vec<_> = going.map(done).collect();
        may_be.extend(self.may_be.iter().map(|it| MayBe { ended_lane: Some(lane), ..*it }));
        may_be.sort_unstable();
        may_be.dedup();
        if may_be.len() > MAX_MAY_BE {
            may_be.clear();
        }
        self.may_be = may_be;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_follow_one_order() {
        let mut counters = Counters::new(2);
        let add = counters.ask(0, 1, Change::Add(5));
        let swap = counters.ask(0, 1, Change::Swap { expected: 5, new: 9 });
        assert_eq!(counters.expected(0), 9);
        assert_eq!(counters.done(swap, 5), Ok(()), "it is checked when the one before is known");
        assert_eq!(counters.done(add, 0), Ok(()));
        assert!(counters.done(add, 0).is_err(), "twice");
        assert_eq!(counters.check_memory(&[9, 0]), Ok(()));
        assert!(
            counters.check_memory(&[14, 0]).is_err() && counters.check_memory(&[9, 1]).is_err()
        );
        let add = counters.ask(0, 1, Change::Add(1));
        assert!(counters.done(add, 5).is_err(), "the swap was carried out before");
    }

    #[test]
    fn failed_atomics_execute_in_order() {
        let due = |after: u64| {
            let mut counters = Counters::new(1);
            let failing = [1, 2, 4].map(|add| counters.ask(0, 1, Change::Add(add)));
            failing.iter().for_each(|&id| counters.failed(id).unwrap());
            let next = counters.ask(0, 2, Change::Add(0));
            counters.done(next, after).is_ok() && counters.check_memory(&[after]).is_ok()
        };
        let possible: Vec<u64> = (0..9).filter(|&after| due(after)).collect();
        assert_eq!(possible, [0, 1, 3, 7]);
    }

    #[test]
    fn refused_atomic_is_not_executed() {
        let mut counters = Counters::new(1);
        let refused = counters.ask(0, 1, Change::Add(1));
        assert_eq!(counters.refused(refused), Ok(()));
        assert!(counters.check_memory(&[1]).is_err());
    }
}
