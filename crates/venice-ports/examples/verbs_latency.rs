//! One-sided access over an RDMA device, by size, beside a round trip of TCP.
//!
//! `cargo run --release -p venice-ports --example verbs_latency` on a machine with an RDMA device;
//! with `--guest`, over soft RoCE in the guest of `scripts/guest.sh`, where an emulated processor
//! runs both ends: the shape of those figures means something, their size does not.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use venice_ports::monotonic_ns;
use venice_ports::shm::{SlabBatch, SlabSource};
use venice_ports::verbs::{Bulk, Device, VerbsConfig, VerbsDriver, VerbsServer};
use venice_testkit::guest::{Guest, GuestPlan};
use venice_wire::{GrantId, GrantKey, SLAB_BYTES};

const SIZES: [usize; 7] = [8, 64, 512, 4096, 65_536, 1 << 20, 16 << 20];
/// Each cell takes about so long.
const CELL: Duration = Duration::from_millis(1500);
const MAX_ROUNDS: usize = 20_000;
/// Accesses under way for the rate.
const AT_ONCE: u64 = 32;

struct OneSlab(OwnedFd);

impl SlabSource for OneSlab {
    fn slabs(&self, _: GrantId, _: GrantKey, _: usize, count: usize) -> Result<SlabBatch, String> {
        let files = (0..count).map(|_| self.0.try_clone().unwrap().into()).collect();
        Ok(SlabBatch { total: 1, files })
    }
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    match arguments.next().as_deref() {
        Some("--guest") => in_guest(),
        Some(ip) => measure(ip.parse().expect("an IP address of the device")),
        None => measure(IpAddr::from([127, 0, 0, 1])),
    }
}

fn in_guest() {
    let plan = GuestPlan {
        set_up: "ip link add venice0 type veth peer name venice1 && \
                 ip addr add 10.77.0.1/24 dev venice0 && \
                 ip link set venice0 up && ip link set venice1 up && \
                 rdma link add rxe0 type rxe netdev venice0",
        ..GuestPlan::new("verbs-latency", &["veth", "rdma_rxe"])
    };
    let mut guest = Guest::boot(&plan).unwrap();
    println!("in a guest, kernel {}, emulated processor", guest.kernel_version());
    let program = std::env::current_exe().unwrap();
    let command = format!("'{}' 10.77.0.1", program.display());
    print!("{}", guest.must(&command, Duration::from_secs(300)).unwrap());
}

fn measure(ip: IpAddr) {
    let device = Device::open(None).unwrap_or_else(|error| panic!("{error}"));
    let slab = memfd_create("slab", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&slab, SLAB_BYTES).unwrap();
    let address = SocketAddr::new(ip, 0);
    let server = VerbsServer::start(Arc::clone(&device), address, OneSlab(slab)).unwrap();
    let mut driver = VerbsDriver::new(&device, VerbsConfig::default()).unwrap();
    let peer = driver.add_grant(server.local_addr(), GrantId(1), GrantKey(1)).unwrap();
    driver.map_window(0, SLAB_BYTES, peer, 0).unwrap();
    let buffer = driver.add_buffer(SLAB_BYTES as usize).unwrap();

    println!("device {}, donor and recipient on it; p50 / p99 in microseconds", device.name());
    println!("{:>9}  {:>17}  {:>17}  {:>17}", "bytes", "read", "write", "TCP there and back");
    for size in SIZES {
        let mut one = |way| {
            rounds(|| {
                start(&mut driver, way, buffer, size);
                finish(&mut driver, 1);
            })
        };
        let (read, write) = (one(Bulk::Read), one(Bulk::Write));
        let tcp = tcp(ip, size);
        println!("{size:>9}  {}  {}  {}", shown(read), shown(write), shown(tcp));
    }
    let add = rounds(|| {
        driver.fetch_add(0, 64, 1).unwrap();
        finish(&mut driver, 1);
    });
    println!("fetch-add  {}", shown(add));
    rates(&mut driver, buffer);
}

fn rates(driver: &mut VerbsDriver, buffer: venice_ports::verbs::BufferId) {
    println!("{AT_ONCE} under way:");
    for (size, name) in [(64, "64 B reads"), (4096, "4 KiB reads"), (1 << 20, "1 MiB reads")] {
        let started = Instant::now();
        let mut count = 0u64;
        while started.elapsed() < CELL {
            (0..AT_ONCE).for_each(|_| start(driver, Bulk::Read, buffer, size));
            finish(driver, AT_ONCE);
            count += AT_ONCE;
        }
        let seconds = started.elapsed().as_secs_f64();
        let mib = count as f64 * size as f64 / seconds / f64::from(1 << 20);
        println!("{name:>12} {:>10.0}/s {mib:>9.1} MiB/s", count as f64 / seconds);
    }
}

fn start(driver: &mut VerbsDriver, way: Bulk, buffer: venice_ports::verbs::BufferId, size: usize) {
    static BYTES: [u8; 4096] = [7; 4096];
    match (way, size) {
        (Bulk::Read, ..=4096) => driver.read(0, 0, size as u32).unwrap(),
        (Bulk::Write, ..=4096) => driver.write(0, 0, &BYTES[..size]).unwrap(),
        _ => driver.transfer(0, way, 0, buffer, 0, size).unwrap(),
    }
}

fn finish(driver: &mut VerbsDriver, mut left: u64) {
    while left > 0 {
        match driver.poll_completion() {
            Some(done) => {
                done.result.unwrap();
                left -= 1;
            }
            None => std::thread::yield_now(),
        }
    }
}

/// The time of each round.
fn rounds(mut round: impl FnMut()) -> Vec<u64> {
    let started = Instant::now();
    let mut times_ns = Vec::new();
    while (started.elapsed() < CELL && times_ns.len() < MAX_ROUNDS) || times_ns.len() < 5 {
        let start_ns = monotonic_ns();
        round();
        times_ns.push(monotonic_ns() - start_ns);
    }
    times_ns
}

/// 64 bytes there, `size` bytes back.
fn tcp(ip: IpAddr, size: usize) -> Vec<u64> {
    let listener = TcpListener::bind(SocketAddr::new(ip, 0)).unwrap();
    let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut theirs, _) = listener.accept().unwrap();
    for stream in [&ours, &theirs] {
        stream.set_nodelay(true).unwrap();
    }
    std::thread::spawn(move || {
        let (mut request, answer) = ([0; 64], vec![1; size]);
        while theirs.read_exact(&mut request).is_ok() && theirs.write_all(&answer).is_ok() {}
    });
    let mut answer = vec![0; size];
    rounds(|| {
        ours.write_all(&[0; 64]).unwrap();
        ours.read_exact(&mut answer).unwrap();
    })
}

fn shown(mut times_ns: Vec<u64>) -> String {
    times_ns.sort_unstable();
    let at = |share: f64| times_ns[(times_ns.len() as f64 * share) as usize] as f64 / 1000.0;
    format!("{:>8.1} {:>8.1}", at(0.5), at(0.99))
}
