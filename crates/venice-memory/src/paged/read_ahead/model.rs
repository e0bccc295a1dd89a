//! Access patterns against a model of a pager: which pages are resident, with LRU eviction, and how
//! many prefetched pages were used.

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
    /// Resident pages: the time of the last use, and true while a prefetched page is untouched.
    resident: BTreeMap<PageNumber, (u64, bool)>,
    by_age: BTreeSet<(u64, PageNumber)>,
    now: u64,
    touches: u64,
    faults: u64,
    prefetched: u64,
    used: u64,
}

impl Model {
    fn touch(&mut self, thread: u32, page: PageNumber) {
        self.touches += 1;
        let is_prefetched = match self.resident.get(&page) {
            Some(&(_, is_prefetched)) => is_prefetched,
            None => {
                self.fault(thread, page);
                false
            }
        };
        self.used += u64::from(is_prefetched);
        self.place(page, false);
    }

    fn fault(&mut self, thread: u32, page: PageNumber) {
        self.faults += 1;
        let plan = self.read_ahead.on_fault(thread, page, Pattern::Normal, 64);
        for page in plan.prefetch.pages().filter(|&page| page < PAGES as usize) {
            if !self.resident.contains_key(&page) {
                self.prefetched += 1;
                self.place(page, true);
            }
        }
    }

    fn place(&mut self, page: PageNumber, is_prefetched: bool) {
        self.now += 1;
        if let Some((age, _)) = self.resident.insert(page, (self.now, is_prefetched)) {
            self.by_age.remove(&(age, page));
        }
        self.by_age.insert((self.now, page));
        if self.resident.len() > ROOM {
            let (_, oldest) = self.by_age.pop_first().expect("there are pages");
            self.resident.remove(&oldest);
        }
    }

    /// The share of touches that did not fault, and the share of prefetched pages that were used.
    fn shares(&self) -> (f64, f64) {
        let spared = 1.0 - self.faults as f64 / self.touches as f64;
        (spared, self.used as f64 / self.prefetched.max(1) as f64)
    }
}

/// Returns the pages of a stream that goes round.
fn walk(start: u64, stride: i64) -> impl FnMut() -> PageNumber {
    let mut at = start as i64;
    move || {
        at += stride;
        at.rem_euclid(PAGES as i64).max(1) as PageNumber
    }
}

#[test]
fn any_stride_is_prefetched() {
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
fn alternating_streams_are_prefetched() {
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
fn trend_is_found_under_noise() {
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
fn random_access_prefetches_little() {
    for seed in 0..4 {
        let (mut random, mut model) = (Random(seed), Model::default());
        for _ in 0..20_000 {
            let thread = random.below(3) as u32;
            model.touch(thread, 1 + random.below(PAGES - 1) as usize);
        }
        assert!(
            model.prefetched * 200 < model.touches,
            "{} of {}",
            model.prefetched,
            model.touches
        );
    }
}

/// A scan and then random touches: the state left by the scan must not mislead.
#[test]
fn finished_scan_stops_prefetch() {
    let (mut random, mut model) = (Random(5), Model::default());
    let mut page = walk(0, 1);
    (0..40_000).for_each(|_| model.touch(1, page()));
    let before = model.prefetched;
    (0..20_000).for_each(|_| model.touch(1, 1 + random.below(PAGES - 1) as usize));
    let came = model.prefetched - before;
    assert!(came < 600, "{came} pages prefetched for 20 000 random touches");
}

/// Pairs of neighbours anywhere, as values that lie across a page's border.
#[test]
fn unprofitable_prefetch_stops() {
    let (mut random, mut model) = (Random(6), Model::default());
    for _ in 0..20_000 {
        let page = 1 + random.below(PAGES - 2) as usize;
        model.touch(1, page);
        model.touch(1, page + 1);
    }
    assert!(model.prefetched < 800, "{} prefetched, {} used", model.prefetched, model.used);
    // A scan then is served all the same.
    let mut page = walk(1000, 1);
    let faults = model.faults;
    (0..6_400).for_each(|_| model.touch(1, page()));
    assert!(model.faults - faults < 400, "{} faults", model.faults - faults);
}

proptest! {
    /// A planned page is settled at most once: used, wasted, or neither.
    #[test]
    fn plans_are_bounded_and_settle_once(
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
                prop_assert!(plan.prefetch.count() < limit.clamp(1, MAX_PREFETCH));
                prop_assert!(plan.prefetch.pages().all(|other| other != page));
                for settled in plan.used.pages().chain(plan.wasted.pages()) {
                    let times = planned.get_mut(&settled).expect("it was planned");
                    *times -= 1;
                    outstanding -= 1;
                    prop_assert!(*times >= 0, "page {} is settled twice", settled);
                }
                for page in plan.prefetch.pages() {
                    *planned.entry(page).or_default() += 1;
                    outstanding += 1;
                }
            }
        }
        prop_assert!(outstanding >= 0);
    }
}
