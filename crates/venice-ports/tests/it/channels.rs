//! One set of scenarios for programs, over every port: shm, rings, udp, verbs.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::common::shm_grant::Slabs;
use crate::common::{ID, KEY, OneGrant, RDMA_ROOM, Random};
use venice_fabric::{AccessError, FabricError, InitiatorConfig, LinkModel, TargetConfig};
use venice_ports::channels::{
    ChannelError, Channels, ReadPart, ShmChannels, VerbsChannels, WritePart,
};
use venice_ports::monotonic_ns;
use venice_ports::ring::{RingConfig, RingDriver, RingListener, RingServer, connect_ring};
use venice_ports::udp::{self, UdpDriver, UdpServer};
use venice_ports::verbs::{Device, VerbsConfig, VerbsDriver, VerbsServer};
use venice_testkit::guest::inside;
use venice_wire::{NodeId, SLAB_BYTES};

const DONOR: NodeId = NodeId(1);
/// Two mappings side by side, of two donors over shm and of one over the other ports.
const WINDOW: u64 = 0x10_0000_0000;
const LEN: u64 = 2 * SLAB_BYTES;

/// Channels with `LEN` bytes mapped, and the values that must live as long.
struct Rack {
    channels: Channels,
    donors: Vec<Box<dyn std::any::Any>>,
    _dir: tempfile::TempDir,
}

fn socket(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    (dir, path)
}

fn shm(model: Option<LinkModel>) -> Rack {
    let (dir, path) = socket("shm.sock");
    let other_path = dir.path().join("other.sock");
    let mut channels = ShmChannels::new(model).unwrap();
    let mut donors: Vec<Box<dyn std::any::Any>> = Vec::new();
    for (number, path) in [path, other_path].iter().enumerate() {
        donors.push(Box::new(Slabs::new(1).serve(path)));
        let (addr, donor) = (WINDOW + number as u64 * SLAB_BYTES, NodeId(number as u32 + 1));
        channels.map_grant(addr, donor, path, ID, KEY, SLAB_BYTES).unwrap();
    }
    Rack { channels: channels.into(), donors, _dir: dir }
}

fn ring(link: Option<LinkModel>) -> Rack {
    let (dir, path) = socket("ring.sock");
    let listener = RingListener::bind(&path, RingConfig { link, ..Default::default() }).unwrap();
    let memory = OneGrant(vec![0; LEN as usize]);
    let donor = RingServer::start(listener, TargetConfig::new(DONOR, 1), memory).unwrap();
    let mut driver = RingDriver::new(InitiatorConfig::new(NodeId(100), 5)).unwrap();
    let peer = driver.add_peer(monotonic_ns(), DONOR, connect_ring(&path).unwrap()).unwrap();
    driver.initiator().map_window(WINDOW, LEN, peer, 0, ID, KEY).unwrap();
    Rack { channels: driver.into(), donors: vec![Box::new(donor)], _dir: dir }
}

fn udp() -> Rack {
    let (dir, _) = socket("");
    let loopback: SocketAddr = "127.0.0.1:0".parse().unwrap();
    let memory = OneGrant(vec![0; LEN as usize]);
    let socket = udp::UdpSocket::bind(loopback).unwrap();
    let donor = UdpServer::start(socket, TargetConfig::new(DONOR, 1), memory).unwrap();
    let address = donor.local_addr();
    let config = InitiatorConfig::new(NodeId(100), 5);
    let mut driver = UdpDriver::new(udp::unspecified_like(address), config).unwrap();
    let peer = driver.add_peer(monotonic_ns(), DONOR, address).unwrap();
    driver.initiator().map_window(WINDOW, LEN, peer, 0, ID, KEY).unwrap();
    Rack { channels: driver.into(), donors: vec![Box::new(donor)], _dir: dir }
}

/// Makes the rack inside the guest.
fn verbs() -> Rack {
    let (dir, _) = socket("");
    let device = Device::open(None).unwrap();
    let address = "10.77.0.1:0".parse().unwrap();
    let donor = VerbsServer::start(Arc::clone(&device), address, Slabs::new(2)).unwrap();
    let mut driver = VerbsDriver::new(&device, VerbsConfig::default()).unwrap();
    let peer = driver.add_grant(donor.local_addr(), ID, KEY).unwrap();
    driver.map_window(WINDOW, LEN, peer, 0).unwrap();
    let channels = VerbsChannels::new(driver).unwrap();
    Rack { channels: channels.into(), donors: vec![Box::new(donor)], _dir: dir }
}

/// Makes every blocking call, at random, against a plain array.
fn hammer(channels: &mut Channels, rounds: u64) {
    let mut random = Random(9);
    // Around the border between the two mappings.
    let first = SLAB_BYTES - 8 * 4096;
    let mut model = vec![0u8; 16 * 4096];
    for round in 0..rounds {
        let at = random.below(8 * 4096) as usize;
        let addr = WINDOW + first + at as u64;
        let crosses = |len: usize| at < 8 * 4096 && at + len > 8 * 4096;
        let len = 1 + random.below(4096) as usize;
        let data = random.bytes(len);
        match random.below(8) {
            0 if !crosses(len) => {
                channels.write(addr, &data).unwrap();
                model[at..at + len].copy_from_slice(&data);
            }
            1 if !crosses(len) => {
                channels.post(addr, &data).unwrap();
                model[at..at + len].copy_from_slice(&data);
            }
            2 => channels.fence().unwrap(),
            3 if !crosses(len) => {
                // A read sees earlier posted writes.
                let mut back = vec![0; len];
                channels.read(addr, &mut back).unwrap();
                assert!(back == model[at..at + len], "round {round}");
            }
            4 => {
                channels.fence().unwrap();
                let long_len = 1 + random.below(30_000) as usize;
                let long = random.bytes(long_len);
                channels.rdma_write(addr, &long).unwrap();
                model[at..at + long.len()].copy_from_slice(&long);
            }
            5 => {
                channels.fence().unwrap();
                let mut long = vec![0; 1 + random.below(30_000) as usize];
                channels.rdma_read(addr, &mut long).unwrap();
                assert!(long == model[at..at + long.len()], "round {round}");
            }
            6 => {
                channels.fence().unwrap();
                let at = at & !7;
                let old = channels.fetch_add(WINDOW + first + at as u64, round).unwrap();
                let number = u64::from_le_bytes(model[at..at + 8].try_into().unwrap());
                assert_eq!(old, number);
                model[at..at + 8].copy_from_slice(&number.wrapping_add(round).to_le_bytes());
            }
            _ => {
                channels.fence().unwrap();
                let at = at & !7;
                let number = u64::from_le_bytes(model[at..at + 8].try_into().unwrap());
                let expected = if random.below(2) == 0 { number } else { !number };
                let addr = WINDOW + first + at as u64;
                assert_eq!(channels.compare_swap(addr, expected, round).unwrap(), number);
                if expected == number {
                    model[at..at + 8].copy_from_slice(&round.to_le_bytes());
                }
            }
        }
    }
    channels.fence().unwrap();
    let mut all = vec![0; model.len()];
    channels.rdma_read(WINDOW + first, &mut all).unwrap();
    assert!(all == model);
}

/// Moves scattered and gathered pieces, across donors.
fn scatter(channels: &mut Channels) {
    let mut random = Random(4);
    let pieces: Vec<_> = (0..20).map(|_| random.bytes(9_999)).collect();
    let addr = |number: usize| WINDOW + SLAB_BYTES - 100_000 + number as u64 * 10_000;
    let parts: Vec<_> = (0..20)
        .map(|number| WritePart { window_addr: addr(number), from: &pieces[number] })
        .collect();
    channels.rdma_write_gathered(&parts).unwrap();
    let mut back = vec![vec![0; 9_999]; 20];
    let mut parts: Vec<_> = back
        .iter_mut()
        .enumerate()
        .rev()
        .map(|(number, into)| ReadPart { window_addr: addr(number), into })
        .collect();
    channels.rdma_read_scattered(&mut parts).unwrap();
    assert!(back == pieces);
}

/// Makes many polled accesses at once, with a blocking one in between.
fn polled(channels: &mut Channels) {
    let at = |number: u64| WINDOW + number * 4096;
    for number in 0..100 {
        channels.start_write(number, at(number), &[number as u8; 4096]).unwrap();
        poll_until(channels, |done| *done == (number, Vec::new()));
    }
    for number in 0..30 {
        channels.start_read(number, at(number), 4096).unwrap();
    }
    channels.start_fetch_add(1000, at(200), 7).unwrap();
    channels.start_compare_swap(1001, at(200), 7, 9).unwrap();
    assert_eq!(channels.fetch_add(at(200), 0).unwrap(), 9);
    for number in 0..30 {
        poll_until(channels, |done| *done == (number, vec![number as u8; 4096]));
    }
    poll_until(channels, |done| *done == (1000, 0u64.to_le_bytes().to_vec()));
    poll_until(channels, |done| *done == (1001, 7u64.to_le_bytes().to_vec()));
    channels.start_rdma_write(5, at(10), vec![77; 1 << 20]).unwrap();
    assert_eq!(poll_bulk(channels).0, 5);
    channels.start_rdma_read(6, at(10), vec![0; 1 << 20]).unwrap();
    assert!(poll_bulk(channels) == (6, vec![77; 1 << 20]));
}

fn poll_until(channels: &mut Channels, expected: impl Fn(&(u64, Vec<u8>)) -> bool) {
    let deadline_ns = monotonic_ns() + 60_000_000_000;
    loop {
        if let Some(done) = channels.poll().unwrap() {
            assert_eq!(done.result, Ok(()));
            let done = (done.token, done.data.to_vec());
            assert!(expected(&done), "token {}", done.0);
            return;
        }
        assert!(monotonic_ns() < deadline_ns);
        channels.wait(1_000_000).unwrap();
    }
}

fn poll_bulk(channels: &mut Channels) -> (u64, Vec<u8>) {
    let deadline_ns = monotonic_ns() + 60_000_000_000;
    loop {
        if let Some(done) = channels.poll_rdma().unwrap() {
            assert_eq!(done.result, Ok(()));
            return (done.token, done.buffer);
        }
        assert!(monotonic_ns() < deadline_ns);
        channels.wait(1_000_000).unwrap();
    }
}

/// Makes invalid calls: each returns an error and changes nothing.
fn refusals(channels: &mut Channels) {
    let not_mapped = |result: Result<(), ChannelError>| {
        matches!(result, Err(ChannelError::NotTaken(FabricError::NotMapped { .. })))
    };
    assert!(not_mapped(channels.read(WINDOW - 1, &mut [0; 2])));
    assert!(not_mapped(channels.read(WINDOW + LEN - 1, &mut [0; 2])));
    assert!(not_mapped(channels.write(WINDOW + LEN, &[0; 1])));
    assert!(not_mapped(channels.post(u64::MAX, &[0; 1])));
    for len in [0, 4097] {
        let error = channels.write(WINDOW, &vec![0; len]).unwrap_err();
        assert!(matches!(error, ChannelError::NotTaken(FabricError::BadLength { .. })));
    }
    let error = channels.fetch_add(WINDOW + 4, 1).unwrap_err();
    assert!(matches!(error, ChannelError::NotTaken(FabricError::Unaligned { .. })));
    let past_the_end = channels.rdma_read(WINDOW + LEN - 4096, &mut [0; 8192]);
    assert!(past_the_end.is_err());
    channels.start_rdma_read(3, WINDOW + LEN - 4096, vec![0; 8192]).unwrap();
    let deadline_ns = monotonic_ns() + 60_000_000_000;
    loop {
        if let Some(done) = channels.poll_rdma().unwrap() {
            assert_eq!((done.token, done.result), (3, Err(AccessError::NotMapped)));
            break;
        }
        assert!(monotonic_ns() < deadline_ns);
        channels.wait(1_000_000).unwrap();
    }
    channels.write(WINDOW, b"still there").unwrap();
}

/// Accesses fail once the donor is gone; at most for a moment they still succeed.
fn death(rack: &mut Rack) {
    rack.channels.write(WINDOW, b"before").unwrap();
    rack.donors.remove(0);
    let deadline_ns = monotonic_ns() + 60_000_000_000;
    let error = loop {
        match rack.channels.read(WINDOW, &mut [0; 6]) {
            Ok(()) => assert!(monotonic_ns() < deadline_ns),
            Err(error) => break error,
        }
    };
    let is_down = matches!(
        error,
        ChannelError::NotTaken(FabricError::PeerDown(_))
            | ChannelError::Failed(AccessError::PeerDown(_))
    );
    assert!(is_down, "{error}");
    assert!(rack.channels.rdma_write(WINDOW, &[0; 9000]).is_err());
}

fn all(mut rack: Rack, rounds: u64) {
    polled(&mut rack.channels);
    scatter(&mut rack.channels);
    refusals(&mut rack.channels);
    rack.channels.rdma_write(WINDOW + SLAB_BYTES - 8 * 4096, &[0; 16 * 4096]).unwrap();
    hammer(&mut rack.channels, rounds);
    death(&mut rack);
}

#[test]
fn over_shm() {
    all(shm(None), 5_000);
}

#[test]
fn over_shm_with_an_emulated_link() {
    all(shm(Some("latency=5us,bandwidth=100Gbps".parse().unwrap())), 500);
}

#[test]
fn over_rings() {
    all(ring(None), 2_000);
}

#[test]
fn over_rings_with_an_emulated_link() {
    all(ring(Some("latency=5us,bandwidth=100Gbps".parse().unwrap())), 300);
}

#[test]
fn over_udp() {
    all(udp(), 1_000);
}

#[test]
fn over_verbs_in_guest() {
    inside(&RDMA_ROOM, "over_verbs_in_guest", Duration::from_secs(100), || all(verbs(), 200));
}

#[test]
fn maps_and_unmaps_grants() {
    let (_dir, path) = socket("shm.sock");
    let _donor = Slabs::new(2).serve(&path);
    let mut channels = ShmChannels::new(None).unwrap();
    assert!(channels.map_grant(0, DONOR, &path, ID, KEY, 4096).is_err(), "not a slab");
    channels.map_grant(0, DONOR, &path, ID, KEY, LEN).unwrap();
    let again = channels.map_grant(SLAB_BYTES, DONOR, &path, ID, KEY, LEN);
    assert!(matches!(again, Err(ChannelError::NotTaken(FabricError::Overlap { .. }))));
    let mut channels = Channels::from(channels);
    channels.write(SLAB_BYTES + 5, b"kept").unwrap();
    let Channels::Shm(shm) = &mut channels else { unreachable!() };
    shm.unmap(0).unwrap();
    shm.map_grant(7 * SLAB_BYTES, DONOR, &path, ID, KEY, LEN).unwrap();
    assert!(channels.read(SLAB_BYTES + 5, &mut [0; 4]).is_err());
    let mut back = [0; 4];
    channels.read(8 * SLAB_BYTES + 5, &mut back).unwrap();
    assert_eq!(&back, b"kept");
}
