//! Regions of confined hosts.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};
use venice_accel::region::{Region, RegionError, Ticket, TicketReader};
use venice_ports::udp::UdpSocket;
use venice_rack::types::ServiceAccess;
use venice_service::{HostEvent, ServiceClient};
use venice_wire::{GrantId, SLAB_BYTES};

use crate::common::{Fixture, LIMIT, PORTS, Port};

struct Bulk {
    fixture: Fixture,
    access: ServiceAccess,
    client: ServiceClient,
    udp_port: Option<u16>,
}

impl Bulk {
    fn start(port: Port, mib: u64) -> Self {
        let fixture = Fixture::new();
        let access = fixture.start(5, "bulk", port, |spec| {
            spec.options = mib.to_string();
            spec.limits.memory_bytes = (mib + 64) << 20;
        });
        let mut client = ServiceClient::open(&access, Some(LIMIT)).unwrap();
        let (_, answer) = client.call(1, 1, &[]).unwrap();
        let udp_port = u16::from_le_bytes(answer.try_into().unwrap());
        Self { fixture, access, client, udp_port: Some(udp_port).filter(|port| *port > 0) }
    }

    fn open(&self, mib: u64) -> Result<Region, RegionError> {
        Region::open(&self.access, self.udp_port, mib << 20, LIMIT)
    }

    fn call(&mut self, opcode: u16, offset: u64, len: u64) -> Vec<u8> {
        let payload = [offset.to_le_bytes(), len.to_le_bytes()].concat();
        match self.client.call(2, opcode, &payload) {
            Ok((_, answer)) => answer,
            Err(error) => panic!("{error}: {:?}", self.fixture.event()),
        }
    }

    fn kill(&mut self) {
        self.client.request(3, 99, &[]).unwrap();
        self.client.flush().unwrap();
        match self.fixture.event() {
            HostEvent::Died { grant, .. } => assert_eq!(grant, GrantId(5)),
            other => panic!("{other:?}"),
        }
    }
}

#[derive(Clone, Debug)]
enum Op {
    Write { offset: u64, len: usize, byte: u8, posted: bool },
    Read { offset: u64, len: usize },
    Word { offset: u64, word: u64 },
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    // Around the border of two slabs, and long enough for several descriptors.
    let range =
        || (SLAB_BYTES - 40_000..SLAB_BYTES + 40_000, prop_oneof![0usize..5000, 0usize..700_000]);
    let op =
        prop_oneof![
            (range(), any::<u8>(), any::<bool>())
                .prop_map(|((offset, len), byte, posted)| Op::Write { offset, len, byte, posted }),
            range().prop_map(|(offset, len)| Op::Read { offset, len }),
            (SLAB_BYTES / 8 - 9..SLAB_BYTES / 8 + 9, any::<u64>())
                .prop_map(|(at, word)| Op::Word { offset: at * 8, word }),
        ];
    proptest::collection::vec(op, 1..30)
}

#[test]
fn ticket_opens_its_slabs() {
    const TICKET: u64 = 77;
    for port in [Port::PlainUdp, Port::SealedUdp] {
        let mut bulk = Bulk::start(port, 64);
        let region = bulk.open(64).unwrap();
        let (start, len) = (SLAB_BYTES + 4000, 3 << 20);
        let bytes: Vec<u8> = (0..len).map(|at| (at % 251) as u8).collect();
        region.write(start, &bytes).unwrap();
        let ticket = region.ticket(TICKET, start, len).unwrap();
        let within = Duration::from_millis(500);
        let open = |ticket: Ticket| {
            let socket = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
            TicketReader::open(socket, ticket, within)
        };
        open(ticket.clone()).unwrap_err();
        assert_eq!(bulk.call(4, start, 1 << 40), [0], "beyond the end");
        assert_eq!(bulk.call(4, start, len), [1]);
        assert_eq!(bulk.call(4, start, len), [0], "the number is taken");
        let mut reader = open(ticket.clone()).unwrap();
        let mut read = vec![0; bytes.len()];
        reader.read(0, &mut read).unwrap();
        assert!(read == bytes);
        reader.read(SLAB_BYTES, &mut read).unwrap_err();
        // Another number, key or length opens nothing.
        for wrong in [
            Ticket { number: 78, ..ticket.clone() },
            Ticket { key: ticket.key ^ 1, ..ticket.clone() },
            Ticket { window_bytes: 2 * SLAB_BYTES, ..ticket.clone() },
        ] {
            open(wrong).unwrap_err();
        }
        bulk.call(5, 0, 0);
        reader.read(0, &mut read).unwrap_err();
        open(ticket).unwrap_err();
        // The recipient's own way stays open.
        region.read(start, &mut read).unwrap();
        assert!(read == bytes);
    }
    let bulk = Bulk::start(Port::Shm, 16);
    assert_eq!(bulk.open(16).unwrap().ticket(TICKET, 0, 16), None);
}

#[test]
fn region_behaves_like_array() {
    for port in PORTS {
        let bulk = Bulk::start(port, 32);
        let region = bulk.open(32).unwrap();
        assert_eq!((region.len_bytes(), region.is_mapped()), (32 << 20, port == Port::Shm));
        let mut model = vec![0u8; 32 << 20];
        let mut runner = TestRunner::new(ProptestConfig::with_cases(12));
        let ran = runner.run(&ops(), |ops| {
            // Proptest's closure is `Fn`: each case begins from what the region has.
            let mut model = model.clone();
            region.read(0, &mut model).unwrap();
            ops.into_iter().try_for_each(|op| apply(&region, &mut model, op))
        });
        ran.unwrap();
        region.read(0, &mut model).unwrap();
        assert!(model.iter().any(|byte| *byte != 0));
        bulk.fixture.end(&bulk.access);
    }
}

fn apply(region: &Region, model: &mut [u8], op: Op) -> Result<(), TestCaseError> {
    match op {
        Op::Write { offset, len, byte, posted } => {
            let bytes: Vec<u8> = (0..len).map(|at| byte.wrapping_add(at as u8)).collect();
            if posted {
                region.post(offset, &bytes).unwrap();
                region.fence().unwrap();
            } else {
                region.write(offset, &bytes).unwrap();
            }
            model[offset as usize..][..len].copy_from_slice(&bytes);
        }
        Op::Read { offset, len } => {
            let mut bytes = vec![0xa5; len];
            region.read(offset, &mut bytes).unwrap();
            prop_assert!(bytes == model[offset as usize..][..len]);
        }
        Op::Word { offset, word } => {
            let at = offset as usize..offset as usize + 8;
            let before = u64::from_le_bytes(model[at.clone()].try_into().unwrap());
            prop_assert_eq!(region.load_word(offset).unwrap(), before);
            region.store_word(offset, word).unwrap();
            model[at].copy_from_slice(&word.to_le_bytes());
        }
    }
    Ok(())
}

#[test]
fn host_sees_writes_and_discards() {
    for port in PORTS {
        let mut bulk = Bulk::start(port, 16);
        let region = bulk.open(16).unwrap();
        region.write(100, &vec![3; 100_000]).unwrap();
        assert_eq!(bulk.call(2, 0, 1 << 20), 300_000u64.to_le_bytes());
        bulk.call(3, 1100, 98_000);
        let mut left = vec![9; 100_000];
        region.read(100, &mut left).unwrap();
        assert!(left[..1000].iter().chain(&left[99_000..]).all(|byte| *byte == 3));
        assert!(left[1000..99_000].iter().all(|byte| *byte == 0), "{port:?}");
    }
}

#[test]
fn ranges_beyond_end_are_refused() {
    for port in [Port::Shm, Port::SealedUdp] {
        let bulk = Bulk::start(port, 16);
        let region = bulk.open(16).unwrap();
        let end = region.len_bytes();
        for (offset, len) in
            [(end, 1), (end - 1, 2), (u64::MAX, 1), (u64::MAX - 1, 5000), (0, 17 << 20)]
        {
            let mut bytes = vec![0; len];
            let refused = [
                region.read(offset, &mut bytes).unwrap_err(),
                region.write(offset, &bytes).unwrap_err(),
                region.post(offset, &bytes).unwrap_err(),
            ];
            for error in refused {
                assert!(matches!(error, RegionError::OutOfRange { .. }), "{error}");
            }
            assert!(region.mapped(offset, len).is_none());
        }
        assert!(matches!(region.load_word(12), Err(RegionError::Unaligned(12))));
        assert!(matches!(region.store_word(end, 1), Err(RegionError::OutOfRange { .. })));
        assert!(region.read(end, &mut []).is_ok() && region.write(end, &[]).is_ok());
    }
}

#[test]
fn wrong_secret_is_refused() {
    for port in PORTS {
        let mut bulk = Bulk::start(port, 16);
        bulk.access.secret = [8; 32];
        let error = bulk.open(16).unwrap_err();
        assert!(matches!(error, RegionError::Open { .. }), "{port:?}: {error}");
        bulk.access.secret = [7; 32];
        assert!(bulk.open(32).is_err(), "longer than the region");
        bulk.open(16).unwrap();
    }
}

#[test]
fn silent_strangers_keep_nobody_out() {
    let bulk = Bulk::start(Port::Shm, 16);
    let socket =
        std::path::Path::new(&bulk.access.endpoints[0].address).with_file_name("region.sock");
    let address = SocketAddrUnix::new(&socket).unwrap();
    let strangers: Vec<_> = (0..400)
        .map(|_| {
            let stranger =
                socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None);
            let stranger = stranger.unwrap();
            connect(&stranger, &address).unwrap();
            stranger
        })
        .collect();
    let region = bulk.open(16).unwrap();
    region.write(0, &[1; 100]).unwrap();
    drop(strangers);
    assert!(region.read(0, &mut [0; 100]).is_ok());
}

#[test]
fn unreachable_endpoints_are_named() {
    let mut bulk = Bulk::start(Port::Shm, 16);
    bulk.access.endpoints[0].extra = b"another machine".to_vec();
    let error = bulk.open(16).unwrap_err();
    assert!(matches!(error, RegionError::NoEndpoint { .. }), "{error}");
    assert!(error.to_string().contains("ring:/"), "{error}");
}

#[test]
fn dead_host_is_an_error() {
    for port in PORTS {
        let mut bulk = Bulk::start(port, 16);
        let region = bulk.open(16).unwrap();
        let in_place = region.mapped(0, 4096);
        region.write(0, &[1; 5000]).unwrap();
        bulk.kill();
        let started = Instant::now();
        let error = loop {
            let word = region.load_word(0);
            if let Err(error) = word.and_then(|_| region.write(0, &[2; 9000])) {
                break error;
            }
            assert!(started.elapsed() < LIMIT, "{port:?}: a dead host is noticed");
        };
        println!("{port:?}: noticed after {:?}: {error}", started.elapsed());
        assert!(error.is_lost(), "{port:?}: {error}");
        assert!(region.read(0, &mut [0; 10]).unwrap_err().is_lost());
        assert_eq!(in_place.is_some(), port == Port::Shm);
    }
}

#[test]
fn idle_region_stays_open() {
    for port in [Port::PlainUdp, Port::SealedUdp] {
        let bulk = Bulk::start(port, 16);
        let region = bulk.open(16).unwrap();
        region.store_word(8, 5).unwrap();
        // Longer than the link's silence.
        std::thread::sleep(Duration::from_millis(4500));
        assert_eq!(region.load_word(8).unwrap(), 5);
    }
}

#[test]
fn memory_limit_bounds_region() {
    let fixture = Fixture::new();
    let started = fixture.try_start(6, "bulk", Port::Shm, |spec| {
        spec.options = "256".into();
        spec.limits.memory_bytes = 256 << 20;
    });
    let why = started.unwrap_err();
    assert!(why.contains("memory limit"), "{why}");
}

/// Prints the throughput of bulk data. Asserts no time.
#[test]
fn throughput_is_printed() {
    const LEN: usize = 64 << 20;
    let bytes = vec![7u8; LEN];
    let mut back = vec![0u8; LEN];
    let gbps = |started: Instant| LEN as f64 / started.elapsed().as_secs_f64() / 1e9;
    for _ in 0..2 {
        let started = Instant::now();
        back.copy_from_slice(std::hint::black_box(&bytes));
        println!("memcpy: {:.2} GB/s", gbps(started));
    }
    for port in PORTS {
        let bulk = Bulk::start(port, 64);
        let region = bulk.open(64).unwrap();
        for _ in 0..3 {
            let started = Instant::now();
            region.write(0, &bytes).unwrap();
            let write = gbps(started);
            let started = Instant::now();
            region.read(0, &mut back).unwrap();
            println!("{port:?}: write {write:.2} GB/s, read {:.2} GB/s", gbps(started));
        }
        assert!(back == bytes);
    }
}
