//! Model check of the copier against two writers, in every interleaving of their steps.
//!
//! The copier is the real one, one step at a time. The writers repeat the steps of
//! `Far::write_all`. The model must find each mistake planted in either.

use std::collections::HashSet;

use super::*;

const SLOTS: u32 = 2;

/// A planted mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Mistake {
    None,
    /// Writers mark before they write.
    MarksFirst,
    /// Writers do not mark.
    NeverMarks,
    /// The copier never waits.
    NeverWaits,
    /// The copier goes live without looking for marks.
    NeverChecks,
    /// The copier takes marks after it has read.
    TakesMarksLate,
    /// The copier waits for the batches that were under way at its read, not for those at its
    /// write.
    NotesEarly,
}

/// A writer in the middle of a batch of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Writing {
    Idle,
    Begun,
    /// It has looked up its targets.
    Looked(Option<ReplicaState>),
    WroteOld(Option<ReplicaState>),
    WroteBoth(Option<ReplicaState>),
    Marked,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Writer {
    slot: u32,
    /// True if its batches go from slot to slot.
    walks: bool,
    batches_left: u32,
    batches: u8,
    writing: Writing,
}

/// A model of the slab: the contents of each slot in the old and the new replica.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Slab {
    old: Vec<u8>,
    new: Vec<u8>,
    marks: Vec<bool>,
    /// `None`: not entered yet.
    state: Option<ReplicaState>,
    writers: Vec<Writer>,
    noted: Vec<u8>,
    read: Vec<u8>,
    next_value: u8,
    mistake: Mistake,
}

impl SlabAccess for Slab {
    fn is_used(&self, _slot: u32) -> bool {
        true
    }

    fn take_mark(&mut self, slot: u32) -> bool {
        let reads_now = self.mistake == Mistake::TakesMarksLate;
        let mark = &mut self.marks[slot as usize];
        if reads_now && self.state == Some(ReplicaState::Building) {
            return *mark;
        }
        std::mem::take(mark) && self.mistake != Mistake::NeverChecks
    }

    fn snapshot_batches(&mut self) {
        if self.mistake != Mistake::NotesEarly || self.read.is_empty() {
            self.note();
        }
    }

    fn are_batches_over(&self) -> bool {
        let mut both = self.writers.iter().zip(&self.noted);
        let over = both.all(|(writer, seen)| seen % 2 == 0 || writer.batches != *seen);
        over || self.mistake == Mistake::NeverWaits
    }

    fn transition(&mut self, from: ReplicaState, to: ReplicaState) -> bool {
        assert_eq!(self.state, Some(from));
        self.state = Some(to);
        true
    }

    fn read(&mut self, slots: &[u32]) -> bool {
        if self.mistake == Mistake::NotesEarly {
            self.note();
        }
        self.read = slots.iter().map(|&slot| self.old[slot as usize]).collect();
        true
    }

    fn write(&mut self, slots: &[u32]) -> bool {
        for (&slot, &value) in slots.iter().zip(&self.read) {
            self.new[slot as usize] = value;
            if self.mistake == Mistake::TakesMarksLate {
                self.marks[slot as usize] = false;
            }
        }
        true
    }
}

impl Slab {
    fn new(slots: u32, writers: Vec<Writer>, mistake: Mistake) -> Slab {
        let count = slots as usize;
        Slab {
            old: (1..=slots as u8).collect(),
            new: vec![0; count],
            marks: vec![false; count],
            state: None,
            writers,
            noted: Vec::new(),
            read: Vec::new(),
            next_value: slots as u8,
            mistake,
        }
    }

    fn note(&mut self) {
        self.noted = self.writers.iter().map(|writer| writer.batches).collect();
    }

    /// Performs one step of a writer; `false`: it has nothing left to do.
    fn write_on(&mut self, index: usize) -> bool {
        let marks_first = self.mistake == Mistake::MarksFirst;
        let never_marks = self.mistake == Mistake::NeverMarks;
        let Writer { slot, writing, batches_left, .. } = self.writers[index];
        let at = slot as usize;
        let next = match writing {
            Writing::Idle if batches_left == 0 => return false,
            Writing::Idle => {
                let writer = &mut self.writers[index];
                writer.batches = writer.batches.wrapping_add(1);
                writer.batches_left -= 1;
                Writing::Begun
            }
            Writing::Begun => {
                if marks_first && self.state == Some(ReplicaState::Building) {
                    self.marks[at] = true;
                }
                Writing::Looked(self.state)
            }
            Writing::Looked(state) => {
                self.next_value = self.next_value.wrapping_add(1);
                self.old[at] = self.next_value;
                Writing::WroteOld(state)
            }
            Writing::WroteOld(state) => {
                if state.is_some() {
                    self.new[at] = self.old[at];
                }
                Writing::WroteBoth(state)
            }
            Writing::WroteBoth(state) => {
                if state == Some(ReplicaState::Building) && !marks_first && !never_marks {
                    self.marks[at] = true;
                }
                Writing::Marked
            }
            Writing::Marked => {
                let writer = &mut self.writers[index];
                writer.batches = writer.batches.wrapping_add(1);
                if writer.walks {
                    writer.slot = (slot + 1) % self.old.len() as u32;
                }
                Writing::Idle
            }
        };
        self.writers[index].writing = next;
        true
    }

    /// True if each readable slot has the last write.
    fn is_right(&self) -> bool {
        let is_still = |slot: u32| {
            let mut writers = self.writers.iter();
            writers.all(|writer| writer.slot != slot || writer.writing == Writing::Idle)
        };
        self.state != Some(ReplicaState::Live)
            || (0..self.old.len() as u32)
                .all(|slot| !is_still(slot) || self.old[slot as usize] == self.new[slot as usize])
    }
}

/// Explores every interleaving. Returns the number of states, or a wrong state.
fn explore(mistake: Mistake) -> Result<usize, Box<(Slab, Rebuild)>> {
    let writer = |slot, batches_left| Writer {
        slot,
        walks: false,
        batches_left,
        batches: 0,
        writing: Writing::Idle,
    };
    let slab = Slab::new(SLOTS, vec![writer(0, 2), writer(1, 1)], mistake);
    let mut seen = HashSet::new();
    let mut open = vec![(slab, Rebuild::new(0..SLOTS, 1))];
    while let Some((slab, rebuild)) = open.pop() {
        if !slab.is_right() {
            return Err(Box::new((slab, rebuild)));
        }
        if !seen.insert((slab.clone(), rebuild.clone())) {
            continue;
        }
        for index in 0..slab.writers.len() {
            let (mut slab, rebuild) = (slab.clone(), rebuild.clone());
            if slab.write_on(index) {
                open.push((slab, rebuild));
            }
        }
        let (mut slab, mut rebuild) = (slab, rebuild);
        match slab.state {
            None => slab.state = Some(ReplicaState::Building),
            Some(ReplicaState::Live) => continue,
            Some(_) => assert_ne!(rebuild.step(&mut slab), Step::Failed),
        }
        open.push((slab, rebuild));
    }
    Ok(seen.len())
}

#[test]
fn no_interleaving_leaves_stale_replica() {
    let states = explore(Mistake::None).unwrap_or_else(|wrong| panic!("{wrong:#?}"));
    assert!(states > 10_000, "only {states} states");
}

#[test]
fn model_finds_every_planted_mistake() {
    use Mistake::{MarksFirst, NeverChecks, NeverMarks, NeverWaits, NotesEarly, TakesMarksLate};
    for mistake in [MarksFirst, NeverMarks, NeverWaits, NeverChecks, TakesMarksLate, NotesEarly] {
        assert!(explore(mistake).is_err(), "{mistake:?} was not found");
    }
}

/// A program that writes every slot again and again, three of them at each step of the copier.
#[test]
fn constant_writes_do_not_stall_copier() {
    let slots = 64;
    let writing = Writing::Idle;
    let endless = Writer { slot: 0, walks: true, batches_left: u32::MAX, batches: 0, writing };
    let mut slab = Slab::new(slots, vec![endless], Mistake::None);
    slab.state = Some(ReplicaState::Building);
    let mut rebuild = Rebuild::new(0..slots, 4);
    for steps in 0.. {
        (0..20).for_each(|_| assert!(slab.write_on(0)));
        match rebuild.step(&mut slab) {
            Step::Done => break,
            Step::Failed => unreachable!("nothing is lost"),
            _ => assert!(steps < 10_000, "{rebuild:?}"),
        }
    }
    while slab.writers[0].writing != Writing::Idle {
        slab.write_on(0);
    }
    assert_eq!(slab.old, slab.new);
}
