//! Random sequences of writes, deaths and runs of the drain: each read returns the last write, as
//! long as any replica has it.

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

/// Slabs of the run.
const SLABS: usize = 2;
const USED: u32 = 24;

/// Two slabs, each at a donor of its own, and on disk; and a third donor without contents.
struct Run {
    memory: Arc<FarMemory>,
    file: Arc<OwnedFd>,
    drain: Drain,
    far: Far,
    /// The round that wrote each slot last.
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
        let (_fd, block) = RunBlockMap::create_write_behind(PortKind::Shm, SLABS, 1).unwrap();
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

    /// Writes a slot; `true`: it is readable afterwards.
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

    /// The round that wrote the contents read; `None`: they are lost.
    fn read(&mut self, slot: u32) -> Option<u64> {
        let block = self.memory.block().clone();
        let Fetch::Ready(address) = self.far.fetch(&block, slot, 0) else { return None };
        // SAFETY: a page of a mapped slab or of the far memory's buffer, which no thread writes
        // now.
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

    /// Builds a copy of a slab at the empty donor.
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
    fn random_deaths_lose_nothing(ops in prop::collection::vec(op(), 1..200)) {
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
        prop_assert_eq!(run.block().undrained_pages(), 0);
        (0..=SLABS).for_each(|donor| run.block().donors()[donor].lose(Fate::Died));
        run.check();
    }
}

#[test]
fn disk_failure_keeps_sole_copies() {
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
    assert!(run.block().disk_replica(0).is_some() && run.block().disk_replica(1).is_none());
    // A slab copied to another donor need not wait.
    run.build(0);
    let (freed, trouble) = run.drain.turn();
    assert_eq!((freed, trouble.map(|trouble| trouble.given_up)), (USED as usize, Some(1)));
    run.check();
    run.block().donors()[1].lose(Fate::Died);
    assert_eq!((run.read(SLAB_SLOTS), run.write(SLAB_SLOTS)), (None, false));
}

#[test]
fn slow_disk_exhausts_frames() {
    let mut run = Run::new();
    let block = run.block().clone();
    for at in 0..BEHIND_FRAMES as u32 {
        assert!(run.write(at % USED));
    }
    assert!(!run.far.reserve(&block, 1) && block.undrained_pages() == BEHIND_FRAMES as u64);
    assert_eq!(run.drain.turn(), (BEHIND_FRAMES, None));
    assert!(run.far.reserve(&block, 512) && run.far.reserve(&block, 512));
    let mut other = run.memory.far().unwrap().writing(&block, Owner::Process(1)).unwrap();
    other = with_disk(other, &run.file);
    assert!(other.reserve(&block, 1024));
    run.far.release(&block);
    run.check();
}

#[test]
fn unneeded_pages_skip_disk() {
    let mut run = Run::new();
    let block = run.block().clone();
    assert!(run.write(1) && run.write(2));
    block.holders()[1].store(0, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(run.drain.turn(), (2, None));
    assert_eq!(block.counters.behind_out.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// A thread that cannot reach a live donor reads from the disk, whose replica is dropped at that
/// moment.
#[test]
fn dropped_disk_replica_is_not_read() {
    let mut run = Run::new();
    let block = run.block().clone();
    assert!(run.write(3));
    assert_eq!(run.drain.turn(), (1, None));
    let mut page: Words = [0; PAGE / 8];
    let given_up = |_: &mut Words| {
        assert!(run.write(3), "newer than what is in the file");
        assert!(block.drop_replica(block.disk_replica(0).unwrap().1));
        run.drain.turn().0 == 1
    };
    assert!(!read_by(&block, 3, &mut page, given_up));
}

#[test]
fn waiting_writer_holds_no_frames() {
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
    // This writer stops too, as soon as it has its frames.
    assert!(late.reserve(&block, 512));
    assert!(busy.iter_mut().any(|far| far.reserve(&block, 512)), "writers wait for each other");
}
