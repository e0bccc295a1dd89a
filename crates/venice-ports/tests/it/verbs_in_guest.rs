//! Tests of a recipient and a donor over RDMA: on soft RoCE in a guest, because the host may have
//! no device.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Pid, Signal};
use venice_fabric::{AccessError, FabricError, Refusal};
use venice_ports::shm::{MappedSlab, SlabBatch, SlabSource};
use venice_ports::verbs::{Bulk, Device, VerbsConfig, VerbsDriver, VerbsError, VerbsServer};
use venice_testkit::guest::inside;
use venice_testkit::own_test::this_program;
use venice_testkit::process::ChildGuard;
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use crate::common::RDMA_ROOM;

const LIMIT: Duration = Duration::from_secs(100);
const ID: GrantId = GrantId(7);
const KEY: GrantKey = GrantKey(0xfeed_beef);
const OTHER_ID: GrantId = GrantId(8);

/// Source of two grants of memfds, the second of one slab.
struct Grants {
    fds: Vec<OwnedFd>,
    other: OwnedFd,
}

impl Grants {
    fn new(slabs: usize) -> Self {
        Self { fds: (0..slabs).map(|_| memfd()).collect(), other: memfd() }
    }

    /// Maps a slab as the donor sees it.
    fn view(&self, slab: usize) -> MappedSlab {
        MappedSlab::map(&self.fds[slab].try_clone().unwrap().into(), SLAB_BYTES as usize).unwrap()
    }
}

fn memfd() -> OwnedFd {
    let fd = memfd_create("test-slab", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&fd, SLAB_BYTES).unwrap();
    fd
}

impl SlabSource for Grants {
    fn slabs(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        let fds = match (id, key) {
            (ID, KEY) => &self.fds[..],
            (OTHER_ID, KEY) => std::slice::from_ref(&self.other),
            _ => return Err("no such grant or wrong key".into()),
        };
        let wanted = fds.get(first..first + count).ok_or("no such slabs")?;
        let wanted = wanted.iter().map(|fd| fd.try_clone().unwrap().into()).collect();
        Ok(SlabBatch { total: fds.len(), files: wanted })
    }
}

fn start(grants: Grants) -> (Arc<Device>, VerbsServer) {
    let device = Device::open(None).unwrap();
    let address: SocketAddr = "10.77.0.1:0".parse().unwrap();
    let server = VerbsServer::start(Arc::clone(&device), address, grants).unwrap();
    (device, server)
}

/// Makes a driver that maps the whole grant [`ID`] at 0.
fn connect(device: &Arc<Device>, address: SocketAddr, slabs: u64) -> VerbsDriver {
    let mut driver = VerbsDriver::new(device, VerbsConfig::default()).unwrap();
    let peer = driver.add_grant(address, ID, KEY).unwrap();
    driver.map_window(0, slabs * SLAB_BYTES, peer, 0).unwrap();
    driver
}

/// Waits a bounded time for the next completion.
fn next(driver: &mut VerbsDriver) -> (u64, Result<(), AccessError>, Vec<u8>) {
    let start = Instant::now();
    loop {
        if let Some(done) = driver.poll_completion() {
            return (done.token, done.result, done.data.to_vec());
        }
        assert!(start.elapsed() < Duration::from_secs(30), "no completion");
        driver.wait(1_000_000_000).unwrap();
    }
}

fn read(driver: &mut VerbsDriver, addr: u64, len: u32) -> Result<Vec<u8>, AccessError> {
    driver.read(1, addr, len).unwrap();
    let (token, result, data) = next(driver);
    assert_eq!(token, 1);
    result.map(|()| data)
}

fn write(driver: &mut VerbsDriver, addr: u64, data: &[u8]) -> Result<(), AccessError> {
    driver.write(2, addr, data).unwrap();
    next(driver).1
}

fn old_value(done: (u64, Result<(), AccessError>, Vec<u8>)) -> u64 {
    done.1.unwrap();
    u64::from_le_bytes(done.2.try_into().unwrap())
}

#[derive(Clone, Debug)]
enum Op {
    Read { addr: u64, len: u32 },
    Write { addr: u64, data: Vec<u8> },
    FetchAdd { word: u64, add: u64 },
    CompareSwap { word: u64, hit: bool, new: u64 },
}

/// Generates accesses around the border of two slabs.
fn ops() -> impl Strategy<Value = Vec<Op>> {
    let addr = || SLAB_BYTES - 6000..SLAB_BYTES + 6000;
    let word = || (SLAB_BYTES - 800) / 8..(SLAB_BYTES + 800) / 8;
    let data = proptest::collection::vec(any::<u8>(), 1..=4096);
    let op = prop_oneof![
        (addr(), 1u32..=4096).prop_map(|(addr, len)| Op::Read { addr, len }),
        (addr(), data).prop_map(|(addr, data)| Op::Write { addr, data }),
        (word(), any::<u64>()).prop_map(|(word, add)| Op::FetchAdd { word, add }),
        (word(), any::<bool>(), any::<u64>()).prop_map(|(word, hit, new)| Op::CompareSwap {
            word,
            hit,
            new
        }),
    ];
    proptest::collection::vec(op, 1..60)
}

#[test]
fn accesses_match_array_model() {
    inside(&RDMA_ROOM, "accesses_match_array_model", LIMIT, || {
        let grants = Grants::new(2);
        let views = [grants.view(0), grants.view(1)];
        let (device, server) = start(grants);
        assert!(device.has_atomics());
        let driver = connect(&device, server.local_addr(), 2);
        let state = RefCell::new((driver, vec![0u8; 2 * SLAB_BYTES as usize]));
        let config = Config { cases: 24, failure_persistence: None, ..Config::default() };
        let result = TestRunner::new(config).run(&ops(), |ops| {
            let (driver, model) = &mut *state.borrow_mut();
            for op in &ops {
                apply(driver, model, op);
            }
            Ok(())
        });
        result.unwrap();
        let (_driver, model) = state.into_inner();
        for (view, model) in views.iter().zip(model.chunks(SLAB_BYTES as usize)) {
            // SAFETY: nothing writes to the slab any more; the mapping is as long as the slab.
            let seen = unsafe { std::slice::from_raw_parts(view.as_ptr(), view.len_bytes()) };
            assert!(seen == model, "the donor sees what was written, and nothing else changed");
        }
    });
}

fn apply(driver: &mut VerbsDriver, model: &mut [u8], op: &Op) {
    let word_at = |model: &[u8], word: &u64| {
        let at = *word as usize * 8;
        u64::from_le_bytes(model[at..at + 8].try_into().unwrap())
    };
    match op {
        Op::Read { addr, len } => {
            let expected = &model[*addr as usize..][..*len as usize];
            assert_eq!(read(driver, *addr, *len).unwrap(), expected);
        }
        Op::Write { addr, data } => {
            write(driver, *addr, data).unwrap();
            model[*addr as usize..][..data.len()].copy_from_slice(data);
        }
        Op::FetchAdd { word, add } => {
            driver.fetch_add(3, word * 8, *add).unwrap();
            let now = word_at(model, word);
            assert_eq!(old_value(next(driver)), now);
            model[*word as usize * 8..][..8].copy_from_slice(&now.wrapping_add(*add).to_le_bytes());
        }
        Op::CompareSwap { word, hit, new } => {
            let now = word_at(model, word);
            let expected = if *hit { now } else { !now };
            driver.compare_swap(4, word * 8, expected, *new).unwrap();
            assert_eq!(old_value(next(driver)), now);
            if *hit {
                model[*word as usize * 8..][..8].copy_from_slice(&new.to_le_bytes());
            }
        }
    }
}

#[test]
fn concurrent_accesses_and_transfers() {
    inside(&RDMA_ROOM, "concurrent_accesses_and_transfers", LIMIT, || {
        let (device, server) = start(Grants::new(3));
        let mut driver = connect(&device, server.local_addr(), 3);
        let len = 20 << 20; // Across the border of a slab, twenty requests each way.
        let (from, to) = (driver.add_buffer(len).unwrap(), driver.add_buffer(len).unwrap());
        let sent: Vec<u8> = (0..len as u64 / 8).flat_map(|at| (at * at).to_le_bytes()).collect();
        // SAFETY: the buffer is as long, and no transfer uses it yet.
        unsafe { driver.buffer(from).cast::<u8>().copy_from(sent.as_ptr(), len) };
        let start = SLAB_BYTES - 12_345;
        driver.transfer(1000, Bulk::Write, start, from, 0, len).unwrap();
        // Single accesses continue beside it, as many as fit.
        let mut refused = 0;
        for page in 0..400u64 {
            match driver.write(page, page * 4096, &page.to_le_bytes()) {
                Ok(()) => {}
                Err(FabricError::WouldBlock) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        assert!((1..400).contains(&refused), "the queues are bounded: {refused} refused");
        let mut seen = vec![false; 1001];
        for _ in 0..=400 - refused {
            let (token, result, _) = next(&mut driver);
            result.unwrap();
            assert!(!std::mem::replace(&mut seen[token as usize], true), "{token} completed twice");
        }
        assert!(driver.poll_completion().is_none() && seen[1000]);

        driver.transfer(1, Bulk::Read, start, to, 0, len).unwrap();
        next(&mut driver).1.unwrap();
        // SAFETY: the transfer has ended.
        assert!(unsafe { &*driver.buffer(to) } == sent, "what was written comes back");
        let beyond = driver.transfer(1, Bulk::Read, 0, to, 1, len).unwrap_err();
        assert!(matches!(beyond, FabricError::BadLength { .. }), "{beyond}");
    });
}

#[test]
fn concurrent_atomics_lose_nothing() {
    inside(&RDMA_ROOM, "concurrent_atomics_lose_nothing", LIMIT, || {
        let (device, server) = start(Grants::new(1));
        let address = server.local_addr();
        let add = |count: u64| {
            let mut driver = connect(&device, address, 1);
            for _ in 0..count {
                driver.fetch_add(0, 64, 1).unwrap();
                old_value(next(&mut driver));
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| add(300));
            scope.spawn(|| add(500));
        });
        let mut driver = connect(&device, address, 1);
        driver.fetch_add(0, 64, 0).unwrap();
        assert_eq!(old_value(next(&mut driver)), 800);
    });
}

#[test]
fn refuses_access_outside_grant() {
    inside(&RDMA_ROOM, "refuses_access_outside_grant", LIMIT, || {
        let (device, server) = start(Grants::new(1));
        let mut driver = connect(&device, server.local_addr(), 1);
        for (id, key) in [(ID, GrantKey(1)), (GrantId(9), KEY)] {
            let refused = driver.add_grant(server.local_addr(), id, key).unwrap_err();
            assert!(
                matches!(&refused, VerbsError::Refused { reason, .. } if reason.contains("key")),
                "{refused}"
            );
        }
        let far = driver.read(1, SLAB_BYTES - 1, 2).unwrap_err();
        assert!(matches!(far, FabricError::NotMapped { .. }), "{far}");
        let peer = driver.add_grant(server.local_addr(), OTHER_ID, KEY).unwrap();
        let long = driver.map_window(1 << 40, SLAB_BYTES + 1, peer, 0).unwrap_err();
        assert!(matches!(long, FabricError::BadLength { .. }), "{long}");
        assert!(matches!(driver.fetch_add(1, 4, 1), Err(FabricError::Unaligned { .. })));
        assert!(matches!(driver.read(1, 0, 4097), Err(FabricError::BadLength { .. })));
        write(&mut driver, 0, b"still works").unwrap();
    });
}

#[test]
fn revocation_takes_effect_at_once() {
    inside(&RDMA_ROOM, "revocation_takes_effect_at_once", LIMIT, || {
        let grants = Grants::new(1);
        let view = grants.view(0);
        let (device, server) = start(grants);
        let mut driver = connect(&device, server.local_addr(), 1);
        write(&mut driver, 100, &[1; 100]).unwrap();
        let other = driver.add_grant(server.local_addr(), OTHER_ID, KEY).unwrap();
        driver.map_window(1 << 40, SLAB_BYTES, other, 0).unwrap();

        server.revoke(ID);
        // SAFETY: the mapping is live; no reference is formed.
        unsafe { view.as_ptr().add(100).write_volatile(9) };
        let result = match driver.write(5, 100, &[2; 100]) {
            Ok(()) => next(&mut driver).1,
            Err(error) => panic!("refused before a completion was polled: {error}"),
        };
        assert_eq!(result, Err(AccessError::Refused(Refusal::UnknownGrant)));
        // SAFETY: as above.
        assert_eq!(unsafe { view.as_ptr().add(100).read_volatile() }, 9, "nothing was written");
        assert!(matches!(driver.read(6, 0, 8), Err(FabricError::Revoked { .. })));
        // The recipient's other grant has another queue pair.
        write(&mut driver, 1 << 40, b"untouched").unwrap();
    });
}

/// A donor in a process of its own, until killed.
struct Donor {
    process: ChildGuard,
    address: SocketAddr,
}

const DONOR: &str = "VENICE_TEST_DONOR";

impl Donor {
    fn start() -> Self {
        let mut process = this_program("donor_process")
            .env(DONOR, "1")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(process.stdout.take().unwrap()).lines().map(Result::unwrap);
        let mut addresses =
            lines.filter_map(|line| Some(line.split_once("LISTENS ")?.1.parse().unwrap()));
        let address = addresses.next().expect("the donor starts");
        Self { process: ChildGuard(process), address }
    }

    fn signal(&self, signal: Signal) {
        let process = Pid::from_child(&self.process);
        rustix::process::kill_process(process, signal).unwrap();
    }

    /// Returns the state letters of its threads, as in `proc(5)`.
    fn thread_states(&self) -> Vec<char> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).unwrap();
        tasks
            .map(|task| std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap())
            .map(|stat| stat.rsplit_once(") ").unwrap().1.chars().next().unwrap())
            .collect()
    }
}

/// Process of [`Donor::start`]; no test of its own. It ends with its standard input.
#[test]
fn donor_process() {
    if std::env::var_os(DONOR).is_none() {
        return;
    }
    let (_device, server) = start(Grants::new(2));
    println!("LISTENS {}", server.local_addr());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
}

#[test]
fn stopped_donor_serves_accesses() {
    inside(&RDMA_ROOM, "stopped_donor_serves_accesses", LIMIT, || {
        let donor = Donor::start();
        let device = Device::open(None).unwrap();
        let mut driver = connect(&device, donor.address, 2);
        donor.signal(Signal::STOP);
        let start = Instant::now();
        while donor.thread_states().iter().any(|state| *state != 'T') {
            assert!(start.elapsed() < Duration::from_secs(10), "{:?}", donor.thread_states());
        }
        let bytes: Vec<u8> = (0..4096u32).map(|at| (at * 7) as u8).collect();
        for page in 0..64 {
            write(&mut driver, page * 4096, &bytes).unwrap();
            assert_eq!(read(&mut driver, page * 4096, 4096).unwrap(), bytes);
        }
        driver.fetch_add(1, SLAB_BYTES, 5).unwrap();
        assert_eq!(old_value(next(&mut driver)), 0);
        driver.compare_swap(1, SLAB_BYTES, 5, 6).unwrap();
        assert_eq!(old_value(next(&mut driver)), 5);
        let buffer = driver.add_buffer(4 << 20).unwrap();
        driver.transfer(9, Bulk::Read, 0, buffer, 0, 4 << 20).unwrap();
        next(&mut driver).1.unwrap();
        // SAFETY: the transfer has ended.
        let seen = unsafe { &*driver.buffer(buffer) };
        assert!(seen[63 * 4096..64 * 4096] == bytes);
        assert!(donor.thread_states().iter().all(|state| *state == 'T'), "the donor never ran");
        donor.signal(Signal::CONT);
    });
}

#[test]
fn killed_donor_fails_accesses() {
    inside(&RDMA_ROOM, "killed_donor_fails_accesses", LIMIT, || {
        let donors = [Donor::start(), Donor::start()];
        let device = Device::open(None).unwrap();
        let mut driver = connect(&device, donors[0].address, 2);
        let other = driver.add_grant(donors[1].address, OTHER_ID, KEY).unwrap();
        driver.map_window(1 << 40, SLAB_BYTES, other, 0).unwrap();
        write(&mut driver, 0, b"alive").unwrap();

        donors[0].signal(Signal::KILL);
        // Outstanding and new accesses, until the end is detected: all complete, with the error.
        let start = Instant::now();
        let mut lost = 0;
        let refused = loop {
            match driver.read(1, 0, 4096) {
                Ok(()) => {
                    let result = next(&mut driver).1;
                    lost += u32::from(result.is_err());
                    assert!(matches!(result, Ok(()) | Err(AccessError::PeerDown(_))));
                }
                Err(error) => break error,
            }
            assert!(start.elapsed() < Duration::from_secs(30), "the death was not detected");
        };
        assert!(matches!(refused, FabricError::PeerDown(_)), "{refused}");
        println!("detected after {:?}, {lost} accesses lost", start.elapsed());
        write(&mut driver, 1 << 40, b"the other donor lives").unwrap();
    });
}

#[test]
fn idle_wait_detects_donor_death() {
    inside(&RDMA_ROOM, "idle_wait_detects_donor_death", LIMIT, || {
        let donor = Donor::start();
        let device = Device::open(None).unwrap();
        let mut driver = VerbsDriver::new(&device, VerbsConfig::default()).unwrap();
        let peer = driver.add_grant(donor.address, ID, KEY).unwrap();
        assert_eq!(driver.peer_error(peer), None);
        donor.signal(Signal::KILL);
        let start = Instant::now();
        while driver.peer_error(peer).is_none() {
            driver.wait(1_000_000_000).unwrap();
            assert!(start.elapsed() < Duration::from_secs(30), "the death was not detected");
        }
        let error = driver.add_grant(donor.address, ID, KEY).unwrap_err();
        assert!(matches!(error, VerbsError::SideChannel { .. }), "{error}");
    });
}

#[test]
fn later_grants_join_spare_pairs() {
    inside(&RDMA_ROOM, "later_grants_join_spare_pairs", LIMIT, || {
        let device = Device::open(None).unwrap();
        let first = Donor::start();
        let mut driver = connect(&device, first.address, 2);
        driver.make_ready(1, 600).unwrap();
        // One donor after the other, each over the queue pair of the last one.
        for round in 0..4u8 {
            let donor = Donor::start();
            let peer = driver.join_grant(donor.address, OTHER_ID, KEY).unwrap();
            assert!(driver.connection(peer).unwrap() >= 600);
            driver.map_window(1 << 40, SLAB_BYTES, peer, 0).unwrap();
            let page = vec![round; 4096];
            for at in 0..20 {
                write(&mut driver, (1 << 40) + at * 4096, &page).unwrap();
            }
            assert_eq!(read(&mut driver, (1 << 40) + 19 * 4096, 4096).unwrap(), page);
            let none = driver.join_grant(first.address, OTHER_ID, KEY).unwrap_err();
            assert!(matches!(none, VerbsError::NoneReady { .. }), "{none}");

            donor.signal(Signal::KILL);
            let start = Instant::now();
            while driver.peer_error(peer).is_none() {
                driver.wait(1_000_000_000).unwrap();
                assert!(start.elapsed() < Duration::from_secs(30), "the death was not detected");
            }
            assert_eq!(driver.take_ended().count(), 1);
            assert_eq!(driver.take_ended().count(), 0);
            // It is refused, and the queue pair remains for the next one.
            let refused = driver.join_grant(first.address, OTHER_ID, GrantKey(1)).unwrap_err();
            assert!(matches!(refused, VerbsError::Refused { .. }), "{refused}");
            assert!(matches!(driver.read(1, 1 << 40, 8), Err(FabricError::NotMapped { .. })));
        }
        write(&mut driver, 0, b"the first donor lives").unwrap();
    });
}

#[test]
fn missing_device_error_names_remedy() {
    let error = Device::open(Some("no-such-device")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("no-such-device") && text.contains("rdma link add"), "{text}");
}
