//! Tests of recipients and a donor whose frames travel through rings: no byte may be wrong, no
//! death may cause a hang.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::common::{ID, KEY, OneGrant, Random};
use venice_fabric::{
    AccessError, DownReason, FabricError, InitiatorConfig, LinkModel, PeerState, Refusal,
    TargetConfig,
};
use venice_ports::monotonic_ns;
use venice_ports::ring::{RingConfig, RingDriver, RingListener, RingServer, connect_ring};
use venice_wire::{GrantKey, NodeId};

const MEMORY_BYTES: usize = 1 << 20;
const DONOR: NodeId = NodeId(1);
/// Address at which the recipient maps the donor's memory.
const WINDOW: u64 = 0x7000_0000_0000;
const PATIENCE_NS: u64 = 60_000_000_000;

fn donor(path: &Path, link: Option<LinkModel>) -> RingServer {
    // The smallest ring, which fills up.
    let listener = RingListener::bind(path, RingConfig { ring_bytes: 0, link }).unwrap();
    let memory = OneGrant(vec![0; MEMORY_BYTES]);
    RingServer::start(listener, TargetConfig::new(DONOR, 1), memory).unwrap()
}

/// Makes a recipient with the donor's memory mapped at [`WINDOW`].
fn recipient(path: &Path, link_seed: u64, key: GrantKey) -> RingDriver {
    let config = InitiatorConfig::new(NodeId(100), link_seed);
    let mut driver = RingDriver::new(config).unwrap();
    let peer = driver.add_peer(monotonic_ns(), DONOR, connect_ring(path).unwrap()).unwrap();
    driver.initiator().map_window(WINDOW, MEMORY_BYTES as u64, peer, 0, ID, key).unwrap();
    let deadline_ns = monotonic_ns() + PATIENCE_NS;
    while driver.initiator().peer_state(peer) != PeerState::Up {
        assert!(monotonic_ns() < deadline_ns, "no link");
        driver.pump(monotonic_ns()).unwrap();
        driver.wait(1_000_000).unwrap();
    }
    driver
}

type Finished = (u64, Result<(), AccessError>, Vec<u8>);

/// Pumps until `count` accesses have finished.
fn finish(driver: &mut RingDriver, count: usize) -> Vec<Finished> {
    let deadline_ns = monotonic_ns() + PATIENCE_NS;
    let mut finished = Vec::new();
    while finished.len() < count {
        assert!(monotonic_ns() < deadline_ns, "{} of {count} finished", finished.len());
        driver.pump(monotonic_ns()).unwrap();
        while let Some(done) = driver.initiator().poll_completion() {
            finished.push((done.token, done.result, done.data.to_vec()));
        }
        if finished.len() < count {
            driver.wait(1_000_000_000).unwrap();
        }
    }
    finished
}

/// Makes random reads and writes, up to 32 at once on separate pages, against a plain array.
fn hammer(driver: &mut RingDriver, seed: u64, rounds: u64) {
    let mut random = Random(seed);
    let mut model = vec![0u8; MEMORY_BYTES];
    for round in 0..rounds {
        let mut expected = Vec::new();
        let first_page = random.below(200);
        for page in first_page..first_page + 1 + random.below(32) {
            let at = (page * 4096 + random.below(2000)) as usize;
            let len = 1 + random.below(2096) as usize;
            let (now_ns, addr) = (monotonic_ns(), WINDOW + at as u64);
            let token = round * 1000 + page;
            if random.below(2) == 0 {
                let data = random.bytes(len);
                driver.initiator().write(now_ns, token, addr, &data).unwrap();
                model[at..at + len].copy_from_slice(&data);
                expected.push((token, Ok(()), Vec::new()));
            } else {
                driver.initiator().read(now_ns, token, addr, len as u32).unwrap();
                expected.push((token, Ok(()), model[at..at + len].to_vec()));
            }
        }
        let finished = finish(driver, expected.len());
        assert!(finished == expected, "seed {seed} round {round}");
    }
}

fn socket() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("ring.sock");
    (dir, path)
}

#[test]
fn random_accesses_read_back() {
    let (_dir, path) = socket();
    let _donor = donor(&path, None);
    hammer(&mut recipient(&path, 11, KEY), 1, 300);
}

#[test]
fn random_accesses_over_emulated_link() {
    let (_dir, path) = socket();
    let _donor = donor(&path, Some("latency=20us,bandwidth=10Gbps".parse().unwrap()));
    hammer(&mut recipient(&path, 12, KEY), 2, 100);
}

#[test]
fn bulk_transfers_both_ways() {
    let (_dir, path) = socket();
    let _donor = donor(&path, None);
    let mut driver = recipient(&path, 13, KEY);
    let mut random = Random(3);
    for len in [1, 4096, 100_000, MEMORY_BYTES] {
        let data = random.bytes(len);
        driver.initiator().rdma_write(monotonic_ns(), 1, WINDOW, data.clone()).unwrap();
        assert_eq!(finish_bulk(&mut driver), (Ok(()), data.clone()));
        driver.initiator().rdma_read(monotonic_ns(), 2, WINDOW, vec![0; len]).unwrap();
        assert!(finish_bulk(&mut driver) == (Ok(()), data), "{len} bytes");
    }
}

fn finish_bulk(driver: &mut RingDriver) -> (Result<(), AccessError>, Vec<u8>) {
    let deadline_ns = monotonic_ns() + PATIENCE_NS;
    loop {
        driver.pump(monotonic_ns()).unwrap();
        if let Some(done) = driver.initiator().poll_rdma_completion() {
            return (done.result, done.buffer);
        }
        assert!(monotonic_ns() < deadline_ns);
        driver.wait(1_000_000_000).unwrap();
    }
}

#[test]
fn serves_many_recipients() {
    let (_dir, path) = socket();
    let _donor = donor(&path, None);
    std::thread::scope(|scope| {
        for number in 0..8u64 {
            let path = &path;
            scope.spawn(move || {
                let mut driver = recipient(path, 50 + number, KEY);
                let addr = WINDOW + number * 100_000;
                let mut random = Random(number);
                for _ in 0..200 {
                    let page = random.bytes(4096);
                    driver.initiator().write(monotonic_ns(), 1, addr, &page).unwrap();
                    driver.initiator().read(monotonic_ns(), 2, addr, 4096).unwrap();
                    let finished = finish(&mut driver, 2);
                    assert!(finished[1] == (2, Ok(()), page), "recipient {number}");
                }
            });
        }
    });
}

#[test]
fn wrong_key_is_refused() {
    let (_dir, path) = socket();
    let _donor = donor(&path, None);
    let mut driver = recipient(&path, 31, GrantKey(1));
    driver.initiator().read(monotonic_ns(), 7, WINDOW, 64).unwrap();
    let refused = Err(AccessError::Refused(Refusal::WrongKey));
    assert_eq!(finish(&mut driver, 1), [(7, refused, vec![])]);
}

/// Donor process that the next test kills; no test of its own.
#[test]
fn child() {
    let Ok(path) = std::env::var("VENICE_RING_DONOR") else { return };
    let _donor = donor(Path::new(&path), None);
    std::thread::sleep(std::time::Duration::from_secs(120));
}

#[test]
fn killed_donor_fails_access() {
    let (_dir, path) = socket();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "ring_fabric::child", "--nocapture"])
        .env("VENICE_RING_DONOR", &path)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let deadline_ns = monotonic_ns() + PATIENCE_NS;
    while connect_ring(&path).is_err() {
        assert!(monotonic_ns() < deadline_ns);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let mut driver = recipient(&path, 41, KEY);
    driver.initiator().write(monotonic_ns(), 1, WINDOW, b"before").unwrap();
    assert_eq!(finish(&mut driver, 1)[0].1, Ok(()));
    child.kill().unwrap();
    child.wait().unwrap();
    driver.initiator().read(monotonic_ns(), 2, WINDOW, 6).unwrap();
    let down = Err(AccessError::PeerDown(DownReason::PortClosed));
    assert_eq!(finish(&mut driver, 1), [(2, down, vec![])]);
    let later = driver.initiator().read(monotonic_ns(), 3, WINDOW, 6);
    assert_eq!(later, Err(FabricError::PeerDown(DownReason::PortClosed)));
}

/// A donor that ends regularly, and one that never existed: neither causes a hang.
#[test]
fn sleeping_driver_detects_donor_end() {
    let (_dir, path) = socket();
    let ending = donor(&path, None);
    let mut driver = recipient(&path, 42, KEY);
    driver.initiator().write(monotonic_ns(), 1, WINDOW, b"before").unwrap();
    assert_eq!(finish(&mut driver, 1)[0].1, Ok(()));
    drop(ending);
    let deadline_ns = monotonic_ns() + PATIENCE_NS;
    let peer = venice_fabric::PeerIndex(0);
    while !matches!(driver.initiator().peer_state(peer), PeerState::Down { .. }) {
        driver.wait(1_000_000_000).unwrap();
        driver.pump(monotonic_ns()).unwrap();
        assert!(monotonic_ns() < deadline_ns);
    }
}
