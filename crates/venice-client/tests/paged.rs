//! Regions of paged memory, by pages of both sizes, against arrays of this process's own.

#[path = "../../venice-recipient/tests/common/mod.rs"]
mod common;

use common::Rack as Daemons;
use proptest::prelude::*;
use venice_client::{Error, MemoryOptions, PageSize, PagedMemory, PagedRegion, PortKind, Rack};
use venice_wire::SLAB_BYTES;

const PAGE: usize = 4096;
const LOCAL_BYTES: u64 = 4 << 20;
/// Of one region: all of them together are up to six times the budget.
const MOST_PAGES: usize = 2048;
const REGIONS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Replaces a region by a fresh one.
    Map { region: usize, pages: usize, is_large: bool },
    /// Writes the first words of pages in a row.
    Write { region: usize, first: usize, pages: usize, value: u64 },
    /// Reads them.
    Read { region: usize, first: usize, pages: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let run = || (0..REGIONS, 0..MOST_PAGES, 1..100usize);
    let map = (0..REGIONS, 1..=MOST_PAGES, any::<bool>());
    let step = prop_oneof![
        1 => map.prop_map(|(region, pages, is_large)| Step::Map { region, pages, is_large }),
        8 => (run(), 1..u64::MAX)
            .prop_map(|((region, first, pages), value)| Step::Write { region, first, pages, value }),
        12 => run().prop_map(|(region, first, pages)| Step::Read { region, first, pages }),
    ];
    prop::collection::vec(step, 1..150)
}

/// A region, and what the first word of each of its pages is to be.
struct Checked {
    region: PagedRegion,
    words: Vec<u64>,
}

impl Checked {
    fn map(memory: &PagedMemory, pages: usize, is_large: bool) -> Checked {
        let size = if is_large { PageSize::Large } else { PageSize::Small };
        let region = memory.map_by((pages * PAGE) as u64, size).unwrap();
        Checked { region, words: vec![0; pages] }
    }

    fn write(&mut self, first: usize, pages: usize, value: u64) {
        let end = self.words.len().min(first + pages);
        for page in first.min(end)..end {
            let word = value.wrapping_mul(page as u64 + 1);
            let at = page * PAGE;
            self.region.bytes_mut()[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            self.words[page] = word;
        }
    }

    fn check(&self, first: usize, pages: usize) {
        let end = self.words.len().min(first + pages);
        for page in first.min(end)..end {
            let at = page * PAGE;
            let found = &self.region.bytes()[at..at + 8];
            assert_eq!(found, &self.words[page].to_ne_bytes()[..], "page {page}");
        }
    }
}

fn run(memory: &PagedMemory, steps: &[Step]) {
    let fresh = |at: usize| Checked::map(memory, 700, at.is_multiple_of(2));
    let mut regions: Vec<Checked> = (0..REGIONS).map(fresh).collect();
    for step in steps {
        match *step {
            Step::Map { region, pages, is_large } => {
                regions[region] = Checked::map(memory, pages, is_large);
            }
            Step::Write { region, first, pages, value } => {
                regions[region].write(first, pages, value);
            }
            Step::Read { region, first, pages } => regions[region].check(first, pages),
        }
    }
    for checked in &regions {
        checked.check(0, MOST_PAGES);
    }
}

fn regions_hold_what_was_written(test: &str, port: PortKind) {
    let daemons = Daemons::start(2, 4);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let mut options = MemoryOptions::default();
    options.port = Some(port);
    let memory = match rack.paged_memory(3 * SLAB_BYTES, LOCAL_BYTES, &options) {
        Err(Error::Refused(said)) if said.contains("userfaultfd") => {
            println!("SKIPPED: {test}: no userfaultfd");
            return;
        }
        memory => memory.unwrap(),
    };
    let config = ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() };
    let result = proptest::test_runner::TestRunner::new(config).run(&steps(), |steps| {
        run(&memory, &steps);
        Ok(())
    });
    result.unwrap();
    assert_eq!(memory.mapped_bytes(), 0);
}

#[test]
fn regions_over_mapped_memory_hold_what_was_written() {
    let test = "regions_over_mapped_memory_hold_what_was_written";
    regions_hold_what_was_written(test, PortKind::Shm);
}

#[test]
fn regions_by_datagrams_hold_what_was_written() {
    regions_hold_what_was_written("regions_by_datagrams_hold_what_was_written", PortKind::Udp);
}
