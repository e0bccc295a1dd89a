//! A read of 4 KiB through the udp port beside a bare exchange of datagrams of the same sizes, in
//! turns, each end on a processor of its own: over a veth pair between two network namespaces as
//! root, else over loopback.
//!
//! `cargo run --release -p venice-ports --example udp_latency [WAY...]`, where a `WAY` is any of the
//! names it prints; all of them unless said.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use venice_fabric::{GrantedMemory, InitiatorConfig, PeerState, Refusal, TargetConfig};
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{self, UdpDriver, UdpServer, UdpService};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret};

use wire::{FAR, FAR_ADDRESS, NEAR, NEAR_ADDRESS, Wire, enter};

mod wire;

const PAGE_BYTES: usize = 4096;
const HEADER_BYTES: usize = 64;
const MEMORY_BYTES: usize = 1 << 20;
/// The median of so many is told; the ways take turns.
const ROUNDS: usize = 9;
const LENGTH: Duration = Duration::from_millis(60);
const SECRET: NodeSecret = NodeSecret([1; 32]);
const NAME: KeyName = KeyName::Grant(GrantId(1));

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Blocking calls on bare sockets, or calls that do not wait, again and again.
    Bare { spins: bool },
    /// The port: its user looks again and again, or lets it wait.
    Port { is_sealed: bool, spins: bool },
}

const WAYS: [(&str, Way); 6] = [
    ("bare-spin", Way::Bare { spins: true }),
    ("plain-spin", Way::Port { is_sealed: false, spins: true }),
    ("sealed-spin", Way::Port { is_sealed: true, spins: true }),
    ("bare-sleep", Way::Bare { spins: false }),
    ("plain-sleep", Way::Port { is_sealed: false, spins: false }),
    ("sealed-sleep", Way::Port { is_sealed: true, spins: false }),
];

fn main() {
    let wanted: Vec<_> = std::env::args().skip(1).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|each| each == name);
    let ways: Vec<_> = WAYS.into_iter().filter(|(name, _)| is_wanted(name)).collect();
    let wire = rustix::process::geteuid().is_root().then(|| Wire::new(9000));
    let path = Path { has_wire: wire.is_some() };
    println!("{}; p50 in ns, medians of {ROUNDS} turns", path.name());
    let (mut lines, mut found) = (Vec::new(), vec![Vec::new(); ways.len()]);
    for _ in 0..ROUNDS {
        lines.push(line_ns());
        for ((_, way), figures) in ways.iter().zip(&mut found) {
            figures.push(match *way {
                Way::Bare { spins } => bare(path, spins),
                Way::Port { is_sealed, spins } => port(path, is_sealed, spins),
            });
        }
    }
    println!("{:14} {:8.0}   {}", "cache line", median(lines.clone()), row(&lines));
    for ((name, _), figures) in ways.iter().zip(&found) {
        println!("{name:14} {:8.0}   {}", median(figures.clone()), row(figures));
    }
    for (name, bare, port) in [("spin", 0, 1), ("spin", 0, 2), ("sleep", 3, 4), ("sleep", 3, 5)] {
        let at = |way: usize| ways.iter().position(|(name, _)| *name == WAYS[way].0);
        let (Some(bare), Some(port)) = (at(bare), at(port)) else { continue };
        let ratios: Vec<_> = found[port].iter().zip(&found[bare]).map(|(p, b)| p / b).collect();
        println!("{:14} {:8.2}   of bare, {name}, turn by turn", ways[port].0, median(ratios));
    }
}

fn row(figures: &[f64]) -> String {
    figures.iter().map(|ns| format!("{ns:7.0}")).collect()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Where the two ends are.
#[derive(Clone, Copy)]
struct Path {
    has_wire: bool,
}

impl Path {
    fn name(self) -> &'static str {
        if self.has_wire { "veth pair between two namespaces, MTU 9000" } else { "loopback" }
    }

    /// Moves the calling thread to its end and its processor.
    fn near(self) -> SocketAddr {
        self.at(NEAR, NEAR_ADDRESS, 0)
    }

    fn far(self) -> SocketAddr {
        self.at(FAR, FAR_ADDRESS, 1)
    }

    fn at(self, namespace: &str, address: Ipv4Addr, cpu: usize) -> SocketAddr {
        if self.has_wire {
            enter(namespace);
        }
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).expect("two processors");
        (IpAddr::from(if self.has_wire { address } else { Ipv4Addr::LOCALHOST }), 0).into()
    }
}

/// A thread at the far end that works until it is told to stop.
struct FarEnd {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl FarEnd {
    fn start(
        path: Path,
        body: impl FnOnce(SocketAddr, &dyn Fn(SocketAddr), &AtomicBool) + Send + 'static,
    ) -> (Self, SocketAddr) {
        let (stop, (tell, told)) = (Arc::new(AtomicBool::new(false)), channel());
        let theirs = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            body(path.far(), &|address| tell.send(address).unwrap(), &theirs);
        });
        let address = told.recv().unwrap();
        (Self { stop, thread: Some(thread) }, address)
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

/// The median time of `exchange` at the near end.
fn near_end<T>(
    path: Path,
    make: impl FnOnce(SocketAddr) -> T + Send,
    mut exchange: impl FnMut(&mut T) + Send,
) -> f64 {
    let measure = move || {
        let mut end = make(path.near());
        let (begin, mut times_ns) = (Instant::now(), Vec::with_capacity(1 << 16));
        while begin.elapsed() < LENGTH {
            let start = Instant::now();
            exchange(&mut end);
            times_ns.push(start.elapsed().as_nanos() as f64);
        }
        median(times_ns)
    };
    std::thread::scope(|scope| scope.spawn(measure).join().unwrap())
}

/// As the benchmark's: the near end connected, the far one not.
fn bare(path: Path, spins: bool) -> f64 {
    let bind = move |address| {
        let socket = UdpSocket::bind(address).unwrap();
        socket.set_nonblocking(spins).unwrap();
        if !spins {
            socket.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        }
        socket
    };
    let (_far, server) = FarEnd::start(path, move |address, tell, stop| {
        let socket = bind(address);
        tell(socket.local_addr().unwrap());
        let (mut request, reply) = ([0; HEADER_BYTES], [7; HEADER_BYTES + PAGE_BYTES]);
        while !stop.load(Ordering::Relaxed) {
            if let Ok((_, from)) = socket.recv_from(&mut request) {
                let _ = socket.send_to(&reply, from);
            }
        }
    });
    let make = move |address| {
        let socket = bind(address);
        socket.connect(server).unwrap();
        socket
    };
    near_end(path, make, |socket| {
        let mut reply = [0; HEADER_BYTES + PAGE_BYTES];
        socket.send(&[0; HEADER_BYTES]).unwrap();
        while socket.recv(&mut reply).is_err() {}
    })
}

/// Plain memory.
struct Lent(Vec<u8>);

impl GrantedMemory for Lent {
    fn read(&mut self, _: GrantId, _: GrantKey, at: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let range = at as usize..at as usize + into.len();
        into.copy_from_slice(self.0.get(range).ok_or(Refusal::OutOfRange)?);
        Ok(())
    }

    fn write(&mut self, _: GrantId, _: GrantKey, _: u64, _: &[u8]) -> Result<(), Refusal> {
        Err(Refusal::OutOfRange)
    }
}

fn port(path: Path, is_sealed: bool, spins: bool) -> f64 {
    let (_far, donor) = FarEnd::start(path, move |address, tell, stop| {
        let keys = is_sealed.then(|| Arc::new(SECRET) as Arc<dyn SealKeys + Send + Sync>);
        let sockets = vec![udp::UdpSocket::bind(address).unwrap()];
        let target = TargetConfig::new(NodeId(1), 1);
        let service = UdpService { sockets, target, keys, xdp: None };
        let server = UdpServer::serve(service, || Lent(vec![7; MEMORY_BYTES])).unwrap();
        tell(server.local_addr());
        while !stop.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(5));
        }
    });
    let make = move |address| {
        let named = is_sealed.then(|| SealedAs { name: NAME, key: node_key(&SECRET, NAME) });
        let config = InitiatorConfig::new(NodeId(2), 2);
        let (mut driver, peer) =
            UdpDriver::towards(address, config, NodeId(1), donor, named).unwrap();
        let initiator = driver.initiator();
        initiator.map_window(0, MEMORY_BYTES as u64, peer, 0, GrantId(1), GrantKey(1)).unwrap();
        while driver.initiator().peer_state(peer) != PeerState::Up {
            driver.pump(monotonic_ns()).unwrap();
        }
        driver
    };
    near_end(path, make, |driver| read(driver, spins))
}

fn read(driver: &mut UdpDriver, spins: bool) {
    driver.initiator().read(monotonic_ns(), 1, 0, PAGE_BYTES as u32).unwrap();
    loop {
        driver.pump(monotonic_ns()).unwrap();
        if let Some(done) = driver.initiator().poll_completion() {
            return done.result.unwrap();
        }
        if !spins {
            driver.wait(monotonic_ns(), 50_000_000).unwrap();
        }
    }
}

/// A round trip of one cache line that both processors write in turn: whether the host has them near
/// each other.
fn line_ns() -> f64 {
    const TRIPS: u64 = 2_000;
    let word = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&word);
    let far = std::thread::spawn(move || {
        Path { has_wire: false }.far();
        for trip in 0..TRIPS {
            while theirs.load(Ordering::Acquire) != 2 * trip + 1 {}
            theirs.store(2 * trip + 2, Ordering::Release);
        }
    });
    let near = std::thread::spawn(move || {
        Path { has_wire: false }.near();
        let time = |trip: u64| {
            let start = Instant::now();
            word.store(2 * trip + 1, Ordering::Release);
            while word.load(Ordering::Acquire) != 2 * trip + 2 {}
            start.elapsed().as_nanos() as f64
        };
        median((0..TRIPS).map(time).collect())
    });
    far.join().unwrap();
    near.join().unwrap()
}
