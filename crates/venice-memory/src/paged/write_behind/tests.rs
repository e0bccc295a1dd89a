//! Random sequences of writes, deaths and turns of the drain: what is read is what was written, as
//! long as anybody has it.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use super::super::far::Far;
use super::super::rebuild::Copier;
use super::super::run_block::{
    BEHIND_FRAMES, Fate, Owner, PortKind, ReplicaAt, ReplicaState, RunBlockMap, SLAB_SLOTS,
};
use super::super::slab_window::SlabSource;
use super::super::transfer::{Fetch, Words, WriteOut};
use super::*;
use crate::paged::direct::FarMemory;

/// Slabs, and how many pages of each are used.
const SLABS: usize = 2;
const USED: u32 = 24;

/// Two slabs, each at a donor of its own, and on disk; a third donor that has nothing yet.
struct Run {
    memory: Arc<FarMemory>,
    file: Arc<OwnedFd>,
    drain: Drain,
    far: Far,
    /// What each slot was written last.
    written: Vec<u64>,
    rounds: u64,
}

fn memfd(len_bytes: u64) -> OwnedFd {
    let fd = memfd_create("slab", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, len_bytes).unwrap();
    fd
}

fn with_disk(mut far: Far, file: &OwnedFd) -> Far {
    far.set_disk(Some(file.as_raw_fd()));
    far
}

impl Run {
    fn new() -> Run {
        let (_fd, block) = RunBlockMap::create_behind(PortKind::Shm, SLABS, 1).unwrap();
        for donor in 0..=SLABS {
            block.add_donor(&format!("node{donor}"), donor as u32, "").unwrap();
        }
        for donor in 0..SLABS {
            block.add_slab(at(donor)).unwrap();
        }
        block.add_disk("disk").unwrap();
        let memfds: Vec<_> = (0..16).map(|_| memfd(venice_wire::SLAB_BYTES)).collect();
        let source: SlabSource = Box::new(move |replica| {
            memfds.get(replica).map(|fd: &OwnedFd| fd.try_clone().unwrap().into())
        });
        let memory = Arc::new(FarMemory::new(Arc::new(block), source).unwrap());
        let file = Arc::new(memfd(0));
        let drain = Drain::new(memory.block().clone(), file.clone()).unwrap();
        let far = memory.far().unwrap().writing(memory.block(), Owner::Process(0)).unwrap();
        let far = with_disk(far, &file);
        let slots = SLABS * SLAB_SLOTS as usize;
        Run { memory, file, drain, far, written: vec![0; slots], rounds: 0 }
    }

    fn block(&self) -> &Arc<RunBlockMap> {
        self.memory.block()
    }

    /// `true`: it is where it can be read.
    fn write(&mut self, slot: u32) -> bool {
        let block = self.memory.block().clone();
        self.rounds += 1;
        let page: Words = std::array::from_fn(|at| self.rounds << 32 | at as u64);
        block.holders()[slot as usize].store(1, std::sync::atomic::Ordering::SeqCst);
        let mut out = [WriteOut::page(page.as_ptr() as usize, slot)];
        self.far.write_all(&block, &mut out);
        if !out[0].lost {
            self.written[slot as usize] = self.rounds;
        }
        !out[0].lost
    }

    /// The round that wrote what is read; `None`: nobody has it.
    fn read(&mut self, slot: u32) -> Option<u64> {
        let block = self.memory.block().clone();
        let Fetch::Ready(address) = self.far.fetch(&block, slot, 0) else { return None };
        // SAFETY: a page of a mapped slab or of the way's own, which nobody writes now.
        let page = unsafe { &*(address as *const Words) };
        assert!(page.iter().enumerate().all(|(at, word)| *word == page[0] + at as u64), "torn");
        Some(page[0] >> 32)
    }

    fn check(&mut self) {
        for slot in slots() {
            if self.written[slot as usize] > 0 {
                let (read, written) = (self.read(slot), self.written[slot as usize]);
                assert_eq!(read, Some(written), "slot {slot}");
            }
        }
    }

    /// Builds a copy of a slab at the donor that has none.
    fn build(&mut self, slab: usize) {
        let block = self.memory.block().clone();
        let replica = block.add_replica(slab, at(SLABS), ReplicaState::Building).unwrap();
        let mut copier = Copier::new(&self.memory).unwrap().with_disk(Some(self.file.as_raw_fd()));
        copier.build(replica, &std::sync::atomic::AtomicBool::new(false)).unwrap();
    }
}

fn at(donor: usize) -> ReplicaAt {
    ReplicaAt { donor, remote_addr: 0, grant: donor as u64, key: 0 }
}

fn slots() -> impl Iterator<Item = u32> {
    (0..SLABS as u32).flat_map(|slab| (0..USED).map(move |slot| slab * SLAB_SLOTS + slot))
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Write(u32),
    Drain,
    Die(usize),
    Build(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let slot = (0..SLABS as u32, 0..USED).prop_map(|(slab, slot)| slab * SLAB_SLOTS + slot);
    prop_oneof![
        20 => slot.prop_map(Op::Write),
        4 => Just(Op::Drain),
        1 => (0..SLABS).prop_map(Op::Die),
        1 => (0..SLABS).prop_map(Op::Build),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn whoever_dies_whenever_nothing_that_was_written_is_lost(ops in prop::collection::vec(op(), 1..200)) {
        let mut run = Run::new();
        let mut built = [false; SLABS];
        for op in ops {
            match op {
                Op::Write(slot) => assert!(run.write(slot)),
                Op::Drain => assert_eq!(run.drain.turn().1, None),
                Op::Die(donor) => run.block().donors()[donor].lose(Fate::Died),
                Op::Build(slab) if !std::mem::replace(&mut built[slab], true) => run.build(slab),
                Op::Build(_) => {}
            }
            run.check();
        }
        while run.drain.turn().0 > 0 {}
        prop_assert_eq!(run.block().behind_pages(), 0);
        (0..=SLABS).for_each(|donor| run.block().donors()[donor].lose(Fate::Died));
        run.check();
    }
}

#[test]
fn a_disk_that_fails_is_given_up_where_donors_have_it_and_kept_where_none_has() {
    let mut run = Run::new();
    assert!(slots().all(|slot| run.write(slot)));
    assert_eq!(run.drain.turn(), (SLABS * USED as usize, None));
    run.block().donors()[0].lose(Fate::Died);
    fcntl_add_seals(&run.file, SealFlags::WRITE).unwrap();
    assert!(slots().all(|slot| run.write(slot)));
    for _ in 0..2 {
        let (freed, trouble) = run.drain.turn();
        let trouble = trouble.unwrap();
        assert_eq!((trouble.errno, trouble.kept), (rustix::io::Errno::PERM, USED as usize));
        assert_eq!(trouble.given_up, usize::from(freed > 0));
        run.check();
    }
    assert!(run.block().on_disk(0).is_some() && run.block().on_disk(1).is_none());
    // What is elsewhere again need not wait.
    run.build(0);
    let (freed, trouble) = run.drain.turn();
    assert_eq!((freed, trouble.map(|trouble| trouble.given_up)), (USED as usize, Some(1)));
    run.check();
    run.block().donors()[1].lose(Fate::Died);
    assert_eq!((run.read(SLAB_SLOTS), run.write(SLAB_SLOTS)), (None, false));
}

#[test]
fn room_for_what_is_to_be_written_is_claimed_before_and_not_to_be_had_while_the_disk_is_slow() {
    let mut run = Run::new();
    let block = run.block().clone();
    for at in 0..BEHIND_FRAMES as u32 {
        assert!(run.write(at % USED));
    }
    assert!(!run.far.reserve(&block, 1) && block.behind_pages() == BEHIND_FRAMES as u64);
    assert_eq!(run.drain.turn(), (BEHIND_FRAMES, None));
    assert!(run.far.reserve(&block, 512) && run.far.reserve(&block, 512));
    let mut other = run.memory.far().unwrap().writing(&block, Owner::Process(1)).unwrap();
    other = with_disk(other, &run.file);
    assert!(other.reserve(&block, 1024));
    run.far.release(&block);
    run.check();
}

#[test]
fn what_nobody_needs_any_more_does_not_go_to_the_disk() {
    let mut run = Run::new();
    let block = run.block().clone();
    assert!(run.write(1) && run.write(2));
    block.holders()[1].store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(run.drain.turn(), (2, None));
    assert_eq!(block.counters.behind_out.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// Who cannot reach a donor that lives reads from the disk, and just then that is given up.
#[test]
fn what_the_disk_no_longer_gets_is_not_read_from_it() {
    let mut run = Run::new();
    let block = run.block().clone();
    assert!(run.write(3));
    assert_eq!(run.drain.turn(), (1, None));
    let mut page: Words = [0; PAGE / 8];
    let given_up = |_: &mut Words| {
        assert!(run.write(3), "newer than what is in the file");
        assert!(block.give_up(block.on_disk(0).unwrap().1));
        run.drain.turn().0 == 1
    };
    assert!(!read_by(&block, 3, &mut page, given_up));
}

#[test]
fn who_waits_for_the_disk_keeps_nothing_that_others_wait_for() {
    let mut run = Run::new();
    let block = run.block().clone();
    let mut process = 1..;
    let mut writer = || {
        let far = run.memory.far().unwrap();
        let far = far.writing(&block, Owner::Process(process.next().unwrap())).unwrap();
        with_disk(far, &run.file)
    };
    let (mut stopped, mut late) = (writer(), writer());
    let mut busy: Vec<_> = std::iter::repeat_with(writer).take(7).collect();
    assert!(stopped.reserve(&block, 512) && busy.iter_mut().all(|far| far.reserve(&block, 512)));
    let page: Words = [7; PAGE / 8];
    for (first, far) in (0..).step_by(74).zip(&mut busy) {
        let slots = first..first + 74;
        slots.clone().for_each(|slot| block.holders()[slot as usize].store(1, SeqCst));
        let mut pages: Vec<_> =
            slots.map(|slot| WriteOut::page(page.as_ptr() as usize, slot)).collect();
        far.write_all(&block, &mut pages);
    }
    assert_eq!(run.drain.turn(), (7 * 74, None));
    // It is stopped too, as soon as it has its room.
    assert!(late.reserve(&block, 512));
    assert!(busy.iter_mut().any(|far| far.reserve(&block, 512)), "they wait for each other");
}
