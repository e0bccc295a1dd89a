//! Regions of paged memory, with pages of every size, compared with arrays of this process.

use std::io::{Read, Write, pipe};
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::common::Rack as Daemons;
use proptest::prelude::*;
use venice_client::{Error, MemoryOptions, PageSize, PagedMemory, PagedRegion, PortKind, Rack};
use venice_memory::paged::huge_pages::check_available;
use venice_wire::SLAB_BYTES;

const PAGE: usize = 4096;
/// Size of one region: all of them together are up to six times the budget.
const MOST_PAGES: usize = 2048;
const REGIONS: usize = 3;

/// The page size of some regions (the others use small ones), and the environment.
#[derive(Clone, Copy, Debug)]
struct Setting {
    port: PortKind,
    large: PageSize,
    /// Pages for each page that the steps name.
    scale: usize,
    remote_slabs: u64,
}

impl Setting {
    fn local_bytes(self) -> u64 {
        (4 << 20) * self.scale as u64
    }
}

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

/// A region, and the expected first word of each of its pages.
struct Checked {
    region: PagedRegion,
    words: Vec<u64>,
}

impl Checked {
    fn map(memory: &PagedMemory, pages: usize, size: PageSize) -> Checked {
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

fn run(memory: &PagedMemory, steps: &[Step], setting: Setting) {
    let scale = setting.scale;
    let map = |pages: usize, is_large: bool| {
        let size = if is_large { setting.large } else { PageSize::Small };
        Checked::map(memory, pages * scale, size)
    };
    let fresh = |at: usize| map(700, at.is_multiple_of(2));
    let mut regions: Vec<Checked> = (0..REGIONS).map(fresh).collect();
    for step in steps {
        match *step {
            Step::Map { region, pages, is_large } => {
                regions[region] = map(pages, is_large);
            }
            Step::Write { region, first, pages, value } => {
                regions[region].write(first * scale, pages * scale, value);
            }
            Step::Read { region, first, pages } => {
                regions[region].check(first * scale, pages * scale);
            }
        }
    }
    for checked in &regions {
        checked.check(0, MOST_PAGES * scale);
    }
}

fn open(rack: &Rack, setting: Setting, test: &str) -> Option<PagedMemory> {
    let mut options = MemoryOptions::default();
    options.port = Some(setting.port);
    match rack.paged_memory(setting.remote_slabs * SLAB_BYTES, setting.local_bytes(), &options) {
        Err(Error::Refused(said)) if said.contains("userfaultfd") => {
            println!("SKIPPED: {test}: no userfaultfd");
            None
        }
        memory => Some(memory.unwrap()),
    }
}

fn regions_keep_values(test: &str, setting: Setting) {
    let daemons = Daemons::start(2, setting.remote_slabs + 1);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    let Some(memory) = open(&rack, setting, test) else { return };
    let config = ProptestConfig { cases: 24, max_shrink_iters: 200, ..ProptestConfig::default() };
    let result = proptest::test_runner::TestRunner::new(config).run(&steps(), |steps| {
        run(&memory, &steps, setting);
        Ok(())
    });
    result.unwrap();
    assert_eq!(memory.mapped_bytes(), 0);
}

/// With pages of 64 KiB.
fn large(port: PortKind) -> Setting {
    Setting { port, large: PageSize::Large, scale: 1, remote_slabs: 3 }
}

#[test]
fn mapped_regions_keep_values() {
    let test = "mapped_regions_keep_values";
    regions_keep_values(test, large(PortKind::Shm));
}

#[test]
fn udp_regions_keep_values() {
    let test = "udp_regions_keep_values";
    regions_keep_values(test, large(PortKind::Udp));
}

#[test]
fn regions_of_huge_pages_hold_what_was_written() {
    let test = "regions_of_huge_pages_hold_what_was_written";
    if let Err(none) = check_available() {
        println!("SKIPPED: {test}: {none}");
        return;
    }
    // Budgets of eight times as much, with room for some.
    let port = PortKind::Shm;
    let setting = Setting { port, large: PageSize::Huge, scale: 8, remote_slabs: 16 };
    regions_keep_values(test, setting);
}

#[test]
fn memory_ends_while_child_holds_descriptors() {
    let test = "memory_ends_while_child_holds_descriptors";
    let daemons = Daemons::start(2, 4);
    let rack = Rack::connect_by(daemons.access()).unwrap();
    for number in 0..10 {
        let setting = large(PortKind::Shm);
        let Some(memory) = open(&rack, setting, test) else { return };
        let mut checked = Checked::map(&memory, MOST_PAGES, setting.large);
        let ended = beside_a_child(|| {
            let (tell, told) = mpsc::channel();
            std::thread::spawn(move || {
                // The pager's threads are still at work when they have to end.
                checked.write(0, 3, 7);
                drop((checked, memory));
                tell.send(()).unwrap();
            });
            told.recv_timeout(Duration::from_secs(20))
        });
        assert_eq!(ended, Ok(()), "memory {number}");
    }
}

/// The child is forked before, and calls `exec` after `work`.
fn beside_a_child<T>(work: impl FnOnce() -> T) -> T {
    let (mut is_there, mut tell_there) = pipe().unwrap();
    let (mut is_over, mut tell_over) = pipe().unwrap();
    let mut command = Command::new("true");
    // SAFETY: the child writes a byte and waits for one, nothing else.
    unsafe {
        command.pre_exec(move || {
            tell_there.write_all(&[1])?;
            is_over.read_exact(&mut [0])
        });
    }
    let child = std::thread::spawn(move || command.status());
    is_there.read_exact(&mut [0]).unwrap();
    let done = work();
    tell_over.write_all(&[1]).unwrap();
    assert!(child.join().unwrap().unwrap().success());
    done
}
