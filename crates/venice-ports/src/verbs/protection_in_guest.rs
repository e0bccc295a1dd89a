//! Tests with a recipient that leaves its mappings: keys made up or taken from other grants, ranges
//! beyond a slab. The donor's device must refuse requests that the driver would never post.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use venice_fabric::{AccessError, Refusal};
use venice_testkit::guest::{GuestPlan, Room, inside};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

use super::{Device, VerbsConfig, VerbsDriver, VerbsServer};
use crate::shm::{SlabBatch, SlabSource};

const LIMIT: Duration = Duration::from_secs(60);
const KEY: GrantKey = GrantKey(99);

static ROOM: Room = Room::new(GuestPlan {
    set_up: "ip link add venice0 type veth peer name venice1 && \
             ip addr add 10.77.0.1/24 dev venice0 && \
             ip link set venice0 up && ip link set venice1 up && \
             rdma link add rxe0 type rxe netdev venice0",
    ..GuestPlan::new("verbs-protection", &["veth", "rdma_rxe"])
});

/// Source of grants, each one slab of its own number.
struct Numbered(Vec<OwnedFd>);

impl SlabSource for Numbered {
    fn slabs(
        &self,
        id: GrantId,
        _: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String> {
        let fd = self.0.get(id.0 as usize).ok_or("no such grant")?.try_clone().unwrap();
        assert_eq!((first, count), (0, 1), "the grant has one slab");
        Ok(SlabBatch { total: 1, files: vec![fd.into()] })
    }
}

fn start() -> (Arc<Device>, VerbsServer) {
    let slab = |_| {
        let fd = memfd_create("test-slab", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&fd, SLAB_BYTES).unwrap();
        fd
    };
    let device = Device::open(None).unwrap();
    let source = Numbered((0..2).map(slab).collect());
    let address = "10.77.0.1:0".parse().unwrap();
    let server = VerbsServer::start(Arc::clone(&device), address, source).unwrap();
    (device, server)
}

/// Makes a driver with both grants, each mapped at 2^40 times its number.
fn connect(device: &Arc<Device>, server: &VerbsServer) -> VerbsDriver {
    let mut driver = VerbsDriver::new(device, VerbsConfig::default()).unwrap();
    for number in 0..2u64 {
        let peer = driver.add_grant(server.local_addr(), GrantId(number), KEY).unwrap();
        driver.map_window(number << 40, SLAB_BYTES, peer, 0).unwrap();
    }
    driver
}

fn read(driver: &mut VerbsDriver, addr: u64) -> Result<(), AccessError> {
    driver.read(1, addr, 8).unwrap();
    let start = Instant::now();
    loop {
        if let Some(done) = driver.poll_completion() {
            assert!(done.result.is_ok() || done.data.is_empty());
            return done.result;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "no completion");
        driver.wait(1_000_000_000).unwrap();
    }
}

const REFUSED: Result<(), AccessError> = Err(AccessError::Refused(Refusal::UnknownGrant));

#[test]
fn device_refuses_invented_key() {
    inside(&ROOM, "verbs::protection_in_guest::device_refuses_invented_key", LIMIT, || {
        let (device, server) = start();
        for wrong in [1u32, 0x100, 0xffff_ffff] {
            let mut driver = connect(&device, &server);
            read(&mut driver, 0).unwrap();
            driver.links[0].keys[0] ^= wrong;
            assert_eq!(read(&mut driver, 0), REFUSED, "key xor {wrong:#x}");
            read(&mut driver, 1 << 40).unwrap();
        }
    });
}

#[test]
fn device_refuses_key_of_other_grant() {
    inside(&ROOM, "verbs::protection_in_guest::device_refuses_key_of_other_grant", LIMIT, || {
        let (device, server) = start();
        let mut driver = connect(&device, &server);
        // The right key of a slab that is lent by this donor now, but in another domain.
        driver.links[0].keys[0] = driver.links[1].keys[0];
        assert_eq!(read(&mut driver, 0), REFUSED);
        read(&mut driver, 1 << 40).unwrap();
    });
}

#[test]
fn device_refuses_range_beyond_slab() {
    inside(&ROOM, "verbs::protection_in_guest::device_refuses_range_beyond_slab", LIMIT, || {
        let (device, server) = start();
        let mut driver = connect(&device, &server);
        let peer = venice_fabric::PeerIndex(0);
        // The driver gets a second slab with the first one's key.
        let key = driver.links[0].keys[0];
        driver.links[0].keys.push(key);
        driver.map_window(2 << 40, SLAB_BYTES, peer, SLAB_BYTES).unwrap();
        assert_eq!(read(&mut driver, 2 << 40), REFUSED);
    });
}
