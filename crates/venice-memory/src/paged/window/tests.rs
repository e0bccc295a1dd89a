//! Pieces move between the slabs of two donors while threads and system calls write to them. No
//! write may be lost.

use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::{Scope, ScopedJoinHandle};

use venice_wire::SLAB_BYTES;

use super::super::run_block::{Mobility, PortKind, ReplicaAt, ReplicaState};
use super::super::sys::{self, nr};
use super::super::uffd::Uffd;
use super::mapped::Mapped;
use super::structure::{MAP_PRIVATE_ANONYMOUS, READ_WRITE};
use venice_ports::shm::SlabFile;

use super::*;

const SLABS: usize = 2;
/// More than one slab, and not a whole number of slabs.
const BYTES: usize = SLAB_BYTES as usize + 37 * PAGE;
const MOVES: usize = 40;

/// Slabs that move between two donors.
struct Moving {
    block: RunBlockMap,
    window: &'static Window,
    process: usize,
    memory: Arc<Mutex<Vec<OwnedFd>>>,
    uffd: Uffd,
    mapped: Mapped,
}

/// Creates the fixture; `None`: this machine does not let processes block writes.
fn moving(test: &str) -> Option<Moving> {
    let uffd = match Uffd::open_for_writes() {
        Ok(uffd) => uffd,
        Err(errno) => {
            eprintln!("SKIPPED {test}: no userfaultfd for writes ({errno})");
            return None;
        }
    };
    let (fd, block) = RunBlockMap::create(PortKind::Shm, SLABS, 1).unwrap();
    block.set_window();
    for donor in 0..2 {
        block.add_donor(&format!("node{donor}"), donor, "").unwrap();
    }
    let memory = Arc::new(Mutex::new(Vec::new()));
    for _ in 0..SLABS {
        block.add_slab(at(0)).unwrap();
        memory.lock().unwrap().push(slab());
    }
    let process = block.enter_process(sys::getpid()).unwrap();
    let theirs = RunBlockMap::open(std::os::fd::AsFd::as_fd(&fd)).unwrap();
    let slabs = memory.clone();
    let source = move |replica: usize| {
        slabs.lock().unwrap().get(replica)?.try_clone().ok().map(SlabFile::from)
    };
    let window = Window::new(theirs, process, Box::new(source)).unwrap();
    Some(Moving { block, window, process, memory, uffd, mapped: Mapped::default() })
}

fn at(donor: usize) -> ReplicaAt {
    ReplicaAt { donor, remote_addr: 0, grant: 1, key: 1 }
}

fn slab() -> OwnedFd {
    let fd = rustix::fs::memfd_create("slab", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&fd, SLAB_BYTES).unwrap();
    fd
}

impl Moving {
    /// Maps fresh memory of the program, all of it in the window.
    fn place(&self, len_bytes: usize) -> usize {
        let arguments = [0, len_bytes, READ_WRITE, MAP_PRIVATE_ANONYMOUS, usize::MAX, 0];
        // SAFETY: a fresh mapping.
        let addr = unsafe { sys::syscall(nr::MMAP, arguments) }.unwrap();
        self.window.hold().place(addr, len_bytes).unwrap();
        assert!(self.window.hold().touches(addr, len_bytes));
        addr
    }

    /// Enters new replicas of all slabs, as the supervisor does.
    fn build(&self, donor: usize) -> Vec<usize> {
        let mut memory = self.memory.lock().unwrap();
        let add = |index| {
            memory.push(slab());
            self.block.add_replica(index, at(donor), ReplicaState::Building).unwrap()
        };
        (0..SLABS).map(add).collect()
    }

    fn move_slabs(&mut self) -> Result<(), Mobility> {
        self.window.move_slabs(self.uffd, &mut self.mapped)
    }

    /// Moves all slabs to a donor, and drops their old replicas.
    fn move_to(&mut self, donor: usize) {
        let former: Vec<usize> =
            (0..SLABS).filter_map(|slab| self.block.newest_location(slab)).collect();
        let new = self.build(donor);
        while let Err(why) = self.move_slabs() {
            // Other tests of this process may have devices open for a moment.
            assert_eq!(why, Mobility::BlockedByDevices);
            sys::yield_now();
        }
        for (slab, (old, new)) in former.into_iter().zip(new).enumerate() {
            assert!(self.block.is_location_of_all(new) && self.block.commit_location(new));
            assert!(self.block.drop_replica(&self.block.replicas()[old]));
            assert_eq!(self.mappings_of(old), 0, "the old replica is unmapped");
            assert_eq!(self.window.location(slab), Some(new));
        }
    }

    /// The number of this process's mappings of a replica.
    fn mappings_of(&self, replica: usize) -> usize {
        let inode = rustix::fs::fstat(&self.memory.lock().unwrap()[replica]).unwrap().st_ino;
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_of = |line: &&str| {
            line.contains("/memfd:slab")
                && line.split_whitespace().nth(4) == Some(&inode.to_string())
        };
        maps.lines().filter(is_of).count()
    }
}

fn words(addr: usize, len_bytes: usize) -> &'static [AtomicU64] {
    // SAFETY: mapped for as long as the test runs, and used by atomic accesses only.
    unsafe { std::slice::from_raw_parts(addr as *const AtomicU64, len_bytes / 8) }
}

/// Spawns a thread that counts in every page, in the `nth` word, until `stop` is set. It returns
/// its number of rounds.
fn counts<'scope>(
    scope: &'scope Scope<'scope, '_>,
    (words, nth): (&'static [AtomicU64], usize),
    stop: &'static AtomicBool,
) -> ScopedJoinHandle<'scope, u64> {
    scope.spawn(move || {
        let mut rounds = 0;
        while !stop.load(Ordering::Relaxed) {
            for page in words.chunks(PAGE / 8) {
                let before = page[nth].load(Ordering::Relaxed);
                assert_eq!(before, rounds, "no other thread counts there");
                page[nth].store(before + 1, Ordering::Relaxed);
                page[9].fetch_add(1, Ordering::Relaxed);
            }
            rounds += 1;
        }
        rounds
    })
}

fn flag() -> &'static AtomicBool {
    Box::leak(Box::new(AtomicBool::new(false)))
}

#[test]
fn counting_threads_survive_moves() {
    let Some(mut moving) = moving("counting_threads_survive_moves") else { return };
    let words = words(moving.place(BYTES), BYTES);
    words.iter().enumerate().skip(10).for_each(|(at, word)| {
        if at % (PAGE / 8) > 9 {
            word.store(at as u64, Ordering::Relaxed);
        }
    });
    let stop = flag();
    let rounds: Vec<u64> = std::thread::scope(|scope| {
        let threads = [0, 1, 2].map(|nth| counts(scope, (words, nth), stop));
        for turn in 0..MOVES {
            moving.move_to((turn + 1) % 2);
        }
        stop.store(true, Ordering::Relaxed);
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (at, word) in words.iter().enumerate() {
        let is = word.load(Ordering::Relaxed);
        match at % (PAGE / 8) {
            nth @ 0..3 => assert_eq!(is, rounds[nth], "word {at}"),
            9 => assert_eq!(is, rounds.iter().sum::<u64>(), "word {at}"),
            3..9 => assert_eq!(is, 0),
            _ => assert_eq!(is, at as u64),
        }
    }
}

#[test]
fn system_calls_write_during_moves() {
    let Some(mut moving) = moving("system_calls_write_during_moves") else { return };
    let addr = moving.place(BYTES);
    let stop = flag();
    let (mut from, mut to) = std::io::pipe().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(move || {
            let mut generation = 0u8;
            while !stop.load(Ordering::Relaxed) {
                generation = generation.wrapping_add(1);
                to.write_all(&[generation; PAGE]).unwrap();
            }
        });
        let reader = scope.spawn(move || {
            let mut meant = 0u8;
            for at in (0..BYTES / PAGE).cycle() {
                // SAFETY: a page that is mapped for as long as the test runs, and used by this
                // thread only.
                let page =
                    unsafe { std::slice::from_raw_parts_mut((addr + at * PAGE) as *mut u8, PAGE) };
                if from.read_exact(page).is_err() {
                    return;
                }
                meant = meant.wrapping_add(1);
                assert!(page.iter().all(|byte| *byte == meant), "page {at}");
            }
        });
        for turn in 0..MOVES {
            moving.move_to((turn + 1) % 2);
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap();
        reader.join().unwrap();
    });
}

#[test]
fn moves_keep_protection_and_holes() {
    let Some(mut moving) = moving("moves_keep_protection_and_holes") else { return };
    let addr = moving.place(BYTES);
    let all = words(addr, BYTES);
    all.iter().enumerate().for_each(|(at, word)| word.store(at as u64, Ordering::Relaxed));
    let (shut, hole, read_only) = (addr + 5 * PAGE, addr + 100 * PAGE, addr + 200 * PAGE);
    // SAFETY: the test's own memory.
    unsafe {
        sys::syscall(nr::MPROTECT, [shut, PAGE, 0, 0, 0, 0]).unwrap();
        sys::syscall(nr::MPROTECT, [read_only, 3 * PAGE, 1, 0, 0, 0]).unwrap();
        sys::syscall(nr::MUNMAP, [hole, 2 * PAGE, 0, 0, 0, 0]).unwrap();
    }
    moving.window.hold().release(hole, 2 * PAGE);
    moving.window.hold().discard(addr + 300 * PAGE, PAGE).unwrap();
    moving.move_to(1);
    moving.window.hold().discard(addr + 301 * PAGE, PAGE).unwrap();
    moving.mapped.refresh().unwrap();
    let protection = |addr| moving.mapped.at(addr).map(|mapping| mapping.protection);
    assert_eq!((protection(shut), protection(read_only)), (Some(0), Some(1)));
    assert_eq!((protection(addr), protection(hole)), (Some(3), None));
    // SAFETY: as above.
    unsafe { sys::syscall(nr::MPROTECT, [shut, PAGE, 1, 0, 0, 0]).unwrap() };
    for (at, word) in all.iter().enumerate() {
        match at / (PAGE / 8) {
            100 | 101 => {}
            300 | 301 => assert_eq!(word.load(Ordering::Relaxed), 0),
            _ => assert_eq!(word.load(Ordering::Relaxed), at as u64),
        }
    }
    let more = moving.place(BYTES / 4);
    assert!(words(more, BYTES / 4).iter().all(|word| word.load(Ordering::Relaxed) == 0));
    moving.window.hold().release(addr, BYTES);
    moving.window.hold().release(more, BYTES / 4);
    assert_eq!(moving.block.slots_used.load(Ordering::Relaxed), 0);
}

#[test]
fn futex_waiters_are_woken() {
    let Some(mut moving) = moving("futex_waiters_are_woken") else { return };
    let addr = moving.place(BYTES);
    // SAFETY: a word of memory that is mapped for as long as the test runs.
    let word: &AtomicU32 = unsafe { &*((addr + 8 * PAGE) as *const AtomicU32) };
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while word.load(Ordering::Acquire) == 0 {
                // A shared futex.
                sys::futex_wait(word, 0, None, true);
            }
        });
        for turn in 0..MOVES {
            moving.move_to((turn + 1) % 2);
        }
        word.store(1, Ordering::Release);
        sys::futex_wake(word, 1, true);
        sleeper.join().unwrap();
    });
}

#[test]
fn failed_move_is_undone() {
    let Some(mut moving) = moving("failed_move_is_undone") else { return };
    let words = words(moving.place(BYTES), BYTES);
    words.iter().enumerate().for_each(|(at, word)| word.store(at as u64, Ordering::Relaxed));
    let new = moving.build(1);
    // One of the slabs has moved and was written when its donor reclaims it again.
    while moving.move_slabs().is_err() {
        sys::yield_now();
    }
    words[7].store(77, Ordering::Relaxed);
    for replica in new {
        assert!(moving.block.drop_replica(&moving.block.replicas()[replica]));
    }
    while moving.move_slabs().is_err() {
        sys::yield_now();
    }
    assert!((0..SLABS).all(|slab| moving.block.is_location(moving.process, slab, slab)));
    for (at, word) in words.iter().enumerate() {
        assert_eq!(word.load(Ordering::Relaxed), if at == 7 { 77 } else { at as u64 });
    }
}

#[test]
fn device_descriptors_block_moves() {
    let Some(mut moving) = moving("device_descriptors_block_moves") else { return };
    let words = words(moving.place(BYTES), BYTES);
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (flags, mode) = (rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE, 0o600.into());
    let path = folder.path().join("direct");
    let Ok(direct) = rustix::fs::open(path, flags | rustix::fs::OFlags::DIRECT, mode) else {
        eprintln!("SKIPPED device_descriptors_block_moves: no O_DIRECT in /var/tmp");
        return;
    };
    moving.build(1);
    assert_eq!(moving.move_slabs(), Err(Mobility::BlockedByDevices));
    words[0].store(5, Ordering::Relaxed);
    drop(direct);
    while moving.move_slabs().is_err() {
        sys::yield_now();
    }
    assert_eq!(words[0].load(Ordering::Relaxed), 5);
}
