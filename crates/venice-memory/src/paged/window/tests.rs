//! Pieces are moved to and fro between two donors' slabs while threads, and system calls, write to
//! them: nothing is lost, and nobody notices.

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
/// More than one slab, and not a whole number of them.
const BYTES: usize = SLAB_BYTES as usize + 37 * PAGE;
const MOVES: usize = 40;

/// Slabs at two donors, of which one or the other has them at a time.
struct Moving {
    block: RunBlockMap,
    window: &'static Window,
    process: usize,
    memory: Arc<Mutex<Vec<OwnedFd>>>,
    uffd: Uffd,
    mapped: Mapped,
}

/// `None`: this machine lets nobody hold writes up.
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
    /// Fresh memory of the program, all of it in the window.
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

    fn follow(&mut self) -> Result<(), Mobility> {
        self.window.follow(self.uffd, &mut self.mapped)
    }

    /// Moves all slabs to a donor, and lets go of where they were.
    fn move_to(&mut self, donor: usize) {
        let former: Vec<usize> =
            (0..SLABS).filter_map(|slab| self.block.newest_home(slab)).collect();
        let new = self.build(donor);
        while let Err(why) = self.follow() {
            // Other tests of this process may have devices open for a moment.
            assert_eq!(why, Mobility::HeldByDevices);
            sys::yield_now();
        }
        for (slab, (old, new)) in former.into_iter().zip(new).enumerate() {
            assert!(self.block.is_home_of_all(new) && self.block.settle_home(new));
            assert!(self.block.give_up(&self.block.replicas()[old]));
            assert_eq!(self.mappings_of(old), 0, "its donor has all of its memory back");
            assert_eq!(self.window.home(slab), Some(new));
        }
    }

    /// How often this process has the memory of a replica mapped.
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
    // SAFETY: mapped for as long as the test runs, and used by atomic accesses alone.
    unsafe { std::slice::from_raw_parts(addr as *const AtomicU64, len_bytes / 8) }
}

/// A thread that counts in every page, in the `nth` word, until it is told to stop; how often.
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
                assert_eq!(before, rounds, "nobody else counts there");
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
fn threads_that_count_lose_nothing_while_it_moves() {
    let Some(mut moving) = moving("threads_that_count_lose_nothing_while_it_moves") else { return };
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
fn system_calls_write_into_it_while_it_moves() {
    let Some(mut moving) = moving("system_calls_write_into_it_while_it_moves") else { return };
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
                // SAFETY: a page that is mapped for as long as the test runs, and this thread's alone.
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
fn what_the_program_did_to_it_stays_so() {
    let Some(mut moving) = moving("what_the_program_did_to_it_stays_so") else { return };
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
    moving.mapped.look().unwrap();
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
fn who_sleeps_on_a_word_of_it_is_woken() {
    let Some(mut moving) = moving("who_sleeps_on_a_word_of_it_is_woken") else { return };
    let addr = moving.place(BYTES);
    // SAFETY: a word of memory that is mapped for as long as the test runs.
    let word: &AtomicU32 = unsafe { &*((addr + 8 * PAGE) as *const AtomicU32) };
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            while word.load(Ordering::Acquire) == 0 {
                // As on a word that processes share.
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
fn a_move_that_comes_to_nothing_is_taken_back() {
    let Some(mut moving) = moving("a_move_that_comes_to_nothing_is_taken_back") else { return };
    let words = words(moving.place(BYTES), BYTES);
    words.iter().enumerate().for_each(|(at, word)| word.store(at as u64, Ordering::Relaxed));
    let new = moving.build(1);
    // One of the slabs is there already, and written, when its donor wants it back again.
    while moving.follow().is_err() {
        sys::yield_now();
    }
    words[7].store(77, Ordering::Relaxed);
    for replica in new {
        assert!(moving.block.give_up(&moving.block.replicas()[replica]));
    }
    while moving.follow().is_err() {
        sys::yield_now();
    }
    assert!((0..SLABS).all(|slab| moving.block.is_home(moving.process, slab, slab)));
    for (at, word) in words.iter().enumerate() {
        assert_eq!(word.load(Ordering::Relaxed), if at == 7 { 77 } else { at as u64 });
    }
}

#[test]
fn nothing_moves_while_a_device_may_write_to_it() {
    let Some(mut moving) = moving("nothing_moves_while_a_device_may_write_to_it") else { return };
    let words = words(moving.place(BYTES), BYTES);
    let folder = tempfile::tempdir_in("/var/tmp").unwrap();
    let (flags, mode) = (rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CREATE, 0o600.into());
    let path = folder.path().join("direct");
    let Ok(direct) = rustix::fs::open(path, flags | rustix::fs::OFlags::DIRECT, mode) else {
        eprintln!("SKIPPED nothing_moves_while_...: no O_DIRECT in /var/tmp");
        return;
    };
    moving.build(1);
    assert_eq!(moving.follow(), Err(Mobility::HeldByDevices));
    words[0].store(5, Ordering::Relaxed);
    drop(direct);
    while moving.follow().is_err() {
        sys::yield_now();
    }
    assert_eq!(words[0].load(Ordering::Relaxed), 5);
}
