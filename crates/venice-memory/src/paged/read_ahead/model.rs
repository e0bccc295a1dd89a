//! Whole access patterns against a model of a pager: which pages are there, least recently used
//! ones leaving, and what became of each page that was brought in ahead.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

/// A small generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

const PAGES: u64 = 1 << 18;
const ROOM: usize = 1 << 12;

#[derive(Default)]
struct Model {
    read_ahead: ReadAhead,
    /// Pages that are there: when they were last used, and whether they came ahead and were not
    /// touched yet.
    here: BTreeMap<PageNumber, (u64, bool)>,
    by_age: BTreeSet<(u64, PageNumber)>,
    now: u64,
    touches: u64,
    faults: u64,
    ahead: u64,
    used: u64,
}

impl Model {
    fn touch(&mut self, thread: u32, page: PageNumber) {
        self.touches += 1;
        let came_ahead = match self.here.get(&page) {
            Some(&(_, came_ahead)) => came_ahead,
            None => {
                self.fault(thread, page);
                false
            }
        };
        self.used += u64::from(came_ahead);
        self.place(page, false);
    }

    fn fault(&mut self, thread: u32, page: PageNumber) {
        self.faults += 1;
        let plan = self.read_ahead.on_fault(thread, page, Pattern::Normal, 64);
        for ahead in plan.ahead.pages().filter(|&page| page < PAGES as usize) {
            if !self.here.contains_key(&ahead) {
                self.ahead += 1;
                self.place(ahead, true);
            }
        }
    }

    fn place(&mut self, page: PageNumber, came_ahead: bool) {
        self.now += 1;
        if let Some((age, _)) = self.here.insert(page, (self.now, came_ahead)) {
            self.by_age.remove(&(age, page));
        }
        self.by_age.insert((self.now, page));
        if self.here.len() > ROOM {
            let (_, oldest) = self.by_age.pop_first().expect("there are pages");
            self.here.remove(&oldest);
        }
    }

    /// Touches that did not fault, of all; and pages that were used, of those that came ahead.
    fn shares(&self) -> (f64, f64) {
        let spared = 1.0 - self.faults as f64 / self.touches as f64;
        (spared, self.used as f64 / self.ahead.max(1) as f64)
    }
}

/// The pages of a stream that goes round.
fn walk(start: u64, stride: i64) -> impl FnMut() -> PageNumber {
    let mut at = start as i64;
    move || {
        at += stride;
        at.rem_euclid(PAGES as i64).max(1) as PageNumber
    }
}

#[test]
fn streams_of_any_step_fault_seldom() {
    for seed in 0..16 {
        let mut random = Random(seed);
        let bits = random.below(9);
        let magnitude = 1 + random.below(1 << bits) as i64;
        let stride = if random.below(2) == 0 { magnitude } else { -magnitude };
        let (mut model, mut page) = (Model::default(), walk(random.below(PAGES), stride));
        (0..4_000).for_each(|_| model.touch(1, page()));
        let (spared, used) = model.shares();
        assert!(spared > 0.9 && used > 0.9, "stride {stride}: {spared:.3} {used:.3}");
    }
}

#[test]
fn streams_of_one_thread_that_take_turns_do_not_disturb_each_other() {
    for seed in 0..16 {
        let mut random = Random(seed);
        let count = 2 + random.below(3);
        let mut streams: Vec<_> = (0..count)
            .map(|stream| {
                let stride = 1 + random.below(12) as i64;
                walk(stream * PAGES / 4 + random.below(5000), stride)
            })
            .collect();
        let mut model = Model::default();
        for _ in 0..1_500 {
            streams.iter_mut().for_each(|page| model.touch(1, page()));
        }
        let (spared, used) = model.shares();
        assert!(spared > 0.85 && used > 0.9, "seed {seed}: {spared:.3} {used:.3}");
    }
}

#[test]
fn a_trend_is_found_under_noise_and_threads_do_not_mix() {
    for seed in 0..16 {
        let mut random = Random(seed);
        let stride = 2 + random.below(30) as i64;
        let (mut model, mut page) = (Model::default(), walk(random.below(PAGES), stride));
        let mut steps = 0u64;
        for _ in 0..5_000 {
            match random.below(10) {
                // Another thread, anywhere.
                0..3 => model.touch(2, 1 + random.below(PAGES - 1) as usize),
                // The same one, anywhere.
                3 => model.touch(1, 1 + random.below(PAGES - 1) as usize),
                _ => {
                    steps += 1;
                    model.touch(1, page());
                }
            }
        }
        let spared = (model.touches - model.faults) as f64 / steps as f64;
        let (_, used) = model.shares();
        assert!(spared > 0.85 && used > 0.85, "seed {seed}: {spared:.3} {used:.3}");
    }
}

#[test]
fn random_access_brings_in_next_to_nothing() {
    for seed in 0..4 {
        let (mut random, mut model) = (Random(seed), Model::default());
        for _ in 0..20_000 {
            let thread = random.below(3) as u32;
            model.touch(thread, 1 + random.below(PAGES - 1) as usize);
        }
        assert!(model.ahead * 200 < model.touches, "{} of {}", model.ahead, model.touches);
    }
}

/// A scan and then random touches: what the scan left behind must not mislead.
#[test]
fn a_scan_that_is_over_is_forgotten() {
    let (mut random, mut model) = (Random(5), Model::default());
    let mut page = walk(0, 1);
    (0..40_000).for_each(|_| model.touch(1, page()));
    let before = model.ahead;
    (0..20_000).for_each(|_| model.touch(1, 1 + random.below(PAGES - 1) as usize));
    let came = model.ahead - before;
    assert!(came < 600, "{came} pages came for 20 000 random touches");
}

/// Pairs of neighbours anywhere, as values that lie across a page's border.
#[test]
fn it_stops_where_it_does_not_pay() {
    let (mut random, mut model) = (Random(6), Model::default());
    for _ in 0..20_000 {
        let page = 1 + random.below(PAGES - 2) as usize;
        model.touch(1, page);
        model.touch(1, page + 1);
    }
    assert!(model.ahead < 800, "{} came, {} were used", model.ahead, model.used);
    // A scan then is served all the same.
    let mut page = walk(1000, 1);
    let faults = model.faults;
    (0..6_400).for_each(|_| model.touch(1, page()));
    assert!(model.faults - faults < 400, "{} faults", model.faults - faults);
}

proptest! {
    /// A page that is planned is settled once at most: passed, given up, or neither.
    #[test]
    fn plans_are_bounded_and_settled_once(
        faults in prop::collection::vec((0u32..20, 1usize..4000, 1isize..9, any::<bool>()), 1..200),
        limit in 0usize..200,
    ) {
        let mut read_ahead = ReadAhead::default();
        let mut again = ReadAhead::default();
        let mut planned: BTreeMap<PageNumber, isize> = BTreeMap::new();
        let mut outstanding = 0;
        for (thread, page, stride, is_run) in faults {
            for step in 0..if is_run { 6 } else { 1 } {
                let page = page.strict_add_signed(step * stride);
                let plan = read_ahead.on_fault(thread, page, Pattern::Normal, limit);
                prop_assert_eq!(plan, again.on_fault(thread, page, Pattern::Normal, limit));
                prop_assert!(plan.ahead.count() < limit.clamp(1, MAX_WINDOW));
                prop_assert!(plan.ahead.pages().all(|ahead| ahead != page));
                for settled in plan.passed.pages().chain(plan.given_up.pages()) {
                    let times = planned.get_mut(&settled).expect("it was planned");
                    *times -= 1;
                    outstanding -= 1;
                    prop_assert!(*times >= 0, "page {} is settled twice", settled);
                }
                for ahead in plan.ahead.pages() {
                    *planned.entry(ahead).or_default() += 1;
                    outstanding += 1;
                }
            }
        }
        prop_assert!(outstanding >= 0);
    }
}
