//! Coded slabs on mapped memory against a model of their contents: donors die and fragments are
//! rebuilt while the program writes. Each read returns the last write, or an error if too few
//! fragments are left.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Mutex;

use proptest::prelude::*;

use super::super::coding::Coding;
use super::super::far::Far;
use super::super::run_block::{Fate, Owner, PortKind, ReplicaAt, SLAB_SLOTS};
use super::super::transfer::WriteOut;
use super::*;

/// One coded slab, and a thread of the program that reads and writes it.
struct Coded {
    coding: Coding,
    memory: Arc<FarMemory>,
    far: Far,
    copier: Copier,
    stop: AtomicBool,
    /// The number last written to each slot.
    written: BTreeMap<u32, u32>,
    /// The replica being built.
    building: Option<(usize, Rebuild, Option<Batches>)>,
}

fn text(slot: u32, number: u32) -> Box<[u8; PAGE]> {
    Box::new(std::array::from_fn(|at| (at as u32 * 31 + at as u32 / 256 + slot + number * 7) as u8))
}

impl Coded {
    fn new(coding: Coding) -> Coded {
        let (_fd, block) = RunBlockMap::create_coded(PortKind::Shm, 1, coding).unwrap();
        let memfds: Mutex<BTreeMap<usize, OwnedFd>> = Mutex::default();
        let source = Box::new(move |replica| {
            let mut memfds = memfds.lock().unwrap();
            let memfd = memfds.entry(replica).or_insert_with(|| {
                let flags = rustix::fs::MemfdFlags::CLOEXEC;
                let memfd = rustix::fs::memfd_create("slab", flags).unwrap();
                rustix::fs::ftruncate(&memfd, venice_wire::SLAB_BYTES).unwrap();
                memfd
            });
            Some(memfd.try_clone().unwrap().into())
        });
        let block = Arc::new(block);
        let memory = Arc::new(FarMemory::new(block.clone(), source).unwrap());
        let far = memory.far().unwrap().writing(&block, Owner::Lane).unwrap();
        let copier = Copier::new(&memory).unwrap();
        let (stop, written) = (AtomicBool::new(false), BTreeMap::new());
        let mut coded = Coded { coding, memory, far, copier, stop, written, building: None };
        for fragment in 0..coding.fragments() {
            let at = coded.new_donor();
            match fragment {
                0 => drop(block.add_slab(at).unwrap()),
                _ => drop(block.add_fragment(0, fragment, at, ReplicaState::Live).unwrap()),
            }
        }
        coded
    }

    fn block(&self) -> Arc<RunBlockMap> {
        self.memory.block().clone()
    }

    fn new_donor(&mut self) -> ReplicaAt {
        let block = self.block();
        let node = block.donors().len();
        let donor = block.add_donor(&format!("node{node}"), node as u32, "").unwrap();
        ReplicaAt { donor, remote_addr: 0, grant: donor as u64, key: 0 }
    }

    /// Writes a page; `false`: it is lost.
    fn write(&mut self, slot: u32, number: u32) -> bool {
        let (block, page) = (self.block(), text(slot, number));
        block.holders()[slot as usize].fetch_or(1, Ordering::SeqCst);
        let mut pages = [WriteOut::page(page.as_ptr() as usize, slot)];
        self.far.write_all(&block, &mut pages);
        match pages[0].lost {
            false => self.written.insert(slot, number),
            true => self.written.remove(&slot),
        };
        !pages[0].lost
    }

    /// Reads a page; `None`: it is lost.
    fn read(&mut self, slot: u32) -> Option<Vec<u8>> {
        let (block, mut buffer) = (self.block(), [0; PAGE / 8]);
        let address = self.far.fetch_at_once(&block, slot, &mut buffer)?;
        // SAFETY: a page that stays there until the next call.
        Some(unsafe { std::slice::from_raw_parts(address as *const u8, PAGE) }.to_vec())
    }

    /// Checks each page against the model.
    fn check(&mut self) {
        let is_alive = self.block().slab_is_alive(0);
        for (slot, number) in self.written.clone() {
            match self.read(slot) {
                Some(page) => assert!(is_alive && page == text(slot, number)[..], "slot {slot}"),
                None => assert!(!is_alive, "slot {slot} is lost"),
            }
        }
    }

    /// Kills the donor of a fragment.
    fn lose(&self, fragment: usize) {
        let block = self.block();
        let donor = block.readable_of(0, fragment).map(|(_, it)| it.donor()).next();
        donor.into_iter().for_each(|donor| block.donors()[donor].lose(Fate::Died));
    }

    /// Fragments without a readable replica.
    fn missing(&self) -> Vec<usize> {
        let there = self.block().fragments_at(0).there;
        (0..self.coding.fragments()).filter(|at| there & 1 << at == 0).collect()
    }

    fn begin_to_build(&mut self, fragment: usize) {
        let (block, at) = (self.block(), self.new_donor());
        let replica = block.add_fragment(0, fragment, at, ReplicaState::Building).unwrap();
        let rebuild = Rebuild::new(0..block.slab_slots(), 3);
        self.building = Some((replica, rebuild, None));
    }

    /// Performs one step of the copier; `false`: there is nothing to do.
    fn build_on(&mut self) -> bool {
        let block = self.block();
        let Some((replica, mut rebuild, noted)) = self.building.take() else { return false };
        let mut slab = BuiltSlab { copier: &mut self.copier, replica, noted, stop: &self.stop };
        match rebuild.step(&mut slab) {
            Step::Going | Step::Waiting => self.building = Some((replica, rebuild, slab.noted)),
            Step::Done => {}
            Step::Failed => drop(block.drop_replica(&block.replicas()[replica])),
        }
        true
    }
}

/// For every coding and every bearable set of lost donors: pages stay readable and writable, the
/// fragments are rebuilt on other donors, and then more donors die.
#[test]
fn survives_any_bearable_loss() {
    for coding in Coding::all() {
        let count = coding.fragments();
        let is_borne = |lost: &u32| lost.count_ones() as usize == coding.parity();
        for lost in (0..1u32 << count).filter(is_borne) {
            let mut coded = Coded::new(coding);
            let last = coded.block().slab_slots() - 1;
            let slots = [0, 1, SLAB_SLOTS, last];
            slots.iter().for_each(|&slot| assert!(coded.write(slot, 1)));
            (0..count).filter(|at| lost & 1 << at != 0).for_each(|at| coded.lose(at));
            coded.check();
            assert!(coded.write(1, 2) && coded.write(2, 2), "{coding} without {lost:b}");
            for fragment in coded.missing() {
                coded.begin_to_build(fragment);
                while coded.build_on() {}
            }
            assert!(coded.missing().is_empty(), "{coding} without {lost:b}");
            (0..coding.parity()).for_each(|at| coded.lose((lost as usize + at * 2) % count));
            coded.check();
            assert_eq!(coded.written.len(), 5);
        }
    }
}

#[test]
fn one_loss_too_many_is_reported() {
    for coding in Coding::all() {
        let mut coded = Coded::new(coding);
        assert!(coded.write(7, 1));
        (0..=coding.parity()).for_each(|fragment| coded.lose(fragment));
        assert_eq!(coded.read(7), None);
        assert!(!coded.write(7, 2) && !coded.block().slot_is_alive(7));
        coded.begin_to_build(0);
        while coded.build_on() {}
        assert_eq!(
            coded.missing().len(),
            coding.parity() + 1,
            "{coding}: too few fragments rebuild none"
        );
    }
}

#[test]
fn reclaimed_fragment_is_copied_then_released() {
    let mut coded = Coded::new(Coding::new(4, 2).unwrap());
    let block = coded.block();
    (0..10).for_each(|slot| assert!(coded.write(slot, 1)));
    for fragment in [1, 5] {
        let leaving = block.readable_of(0, fragment).map(|(_, it)| it.donor()).next().unwrap();
        block.donors()[leaving].set_reclaiming(true);
        assert_eq!(block.begin_release(), [0usize; 0], "no other donor has it");
        coded.begin_to_build(fragment);
        while coded.build_on() {}
        let slabs = block.begin_release();
        assert_eq!(slabs, [0]);
        block.release_spares(&slabs);
        assert!(block.is_donor_empty(leaving) && block.donors()[leaving].give_back());
        assert!(coded.missing().is_empty());
        coded.check();
    }
    (2..4).for_each(|fragment| coded.lose(fragment));
    coded.check();
}

#[derive(Clone, Debug)]
enum Event {
    Write(u32),
    Die(usize),
    Build,
    Steps(usize),
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let slots = prop_oneof![0u32..12, Just(SLAB_SLOTS), Just(2 * SLAB_SLOTS - 1)];
    let event = prop_oneof![
        6 => slots.prop_map(Event::Write),
        1 => (0usize..11).prop_map(Event::Die),
        2 => Just(Event::Build),
        4 => (1usize..20).prop_map(Event::Steps),
    ];
    proptest::collection::vec(event, 1..80)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Random events in any order. If too many donors die, the remaining reads are errors.
    #[test]
    fn reads_match_last_write(
        events in events(),
        coding in proptest::sample::select(Coding::all().collect::<Vec<_>>()),
        spares in 0usize..3,
    ) {
        let mut coded = Coded::new(coding);
        let mut number = 0;
        for event in events {
            match event {
                Event::Write(slot) => {
                    number += 1;
                    let is_alive = coded.block().slab_is_alive(0);
                    assert_eq!(coded.write(slot, number), is_alive);
                }
                // Mostly fewer deaths than the coding bears.
                Event::Die(fragment) if coded.missing().len() + 1 < coding.parity() + spares => {
                    coded.lose(fragment % coding.fragments());
                }
                Event::Die(_) => {}
                Event::Build if coded.building.is_none() => {
                    if let Some(&fragment) = coded.missing().first() {
                        coded.begin_to_build(fragment);
                    }
                }
                Event::Build => {}
                Event::Steps(steps) => {
                    (0..steps).for_each(|_| { coded.build_on(); });
                },
            }
            coded.check();
        }
    }
}
