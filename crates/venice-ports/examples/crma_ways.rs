//! A CRMA exchange through the fabric's two ends, by the udp port and by AF_XDP.
//!
//! Reads, one after the other, by the udp port with its sockets alone, and with AF_XDP beside them
//! at the donor's end or at both; and bulk transfers, which go by the sockets in trains whatever
//! is attached.
//!
//! `cargo run --release -p venice-ports --example crma_ways [sealed]` (as root; two processors)

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use venice_fabric::{GrantedMemory, InitiatorConfig, PeerState, Refusal, TargetConfig};
use venice_ports::monotonic_ns;
use venice_ports::seal::{SealKeys, SealedAs, node_key};
use venice_ports::udp::{
    UdpDriver, UdpServer, UdpService, UdpSocket, Xdp, XdpInterface, XdpMode as Mode,
};
use venice_wire::{GrantId, GrantKey, KeyName, NodeId, NodeSecret};

use wire::{FAR, FAR_ADDRESS, NEAR, NEAR_ADDRESS, Wire, enter};

mod wire;
const SECRET: NodeSecret = NodeSecret([1; 32]);

const LENGTH: Duration = Duration::from_millis(150);
const ROUNDS: usize = 7;
const MTU: u32 = 9000;
const PORT: u16 = 7777;
const MEMORY: usize = 16 << 20;
const BULK: usize = 1 << 20;
const BULKS: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Spin,
    Sleep,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Sockets at both ends.
    Sockets,
    /// AF_XDP at the donor.
    Donor(Mode),
    /// At both.
    Both(Mode),
}

const WAYS: [Way; 5] = [
    Way::Sockets,
    Way::Donor(Mode::Native),
    Way::Donor(Mode::Generic),
    Way::Both(Mode::Native),
    Way::Both(Mode::Generic),
];

struct Lent(Vec<u8>);

impl GrantedMemory for Lent {
    fn read(&mut self, _: GrantId, _: GrantKey, at: u64, into: &mut [u8]) -> Result<(), Refusal> {
        let at = at as usize;
        into.copy_from_slice(self.0.get(at..at + into.len()).ok_or(Refusal::OutOfRange)?);
        Ok(())
    }

    fn write(&mut self, _: GrantId, _: GrantKey, at: u64, from: &[u8]) -> Result<(), Refusal> {
        let at = at as usize;
        self.0.get_mut(at..at + from.len()).ok_or(Refusal::OutOfRange)?.copy_from_slice(from);
        Ok(())
    }
}

fn main() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root: it makes two network namespaces");
        return;
    }
    let _wire = Wire::new(MTU);
    let protection = if is_sealed() { "sealed" } else { "plain" };
    println!(
        "veth pair between two namespaces, MTU {MTU}, {protection}; medians of {ROUNDS} turns"
    );
    for waiting in [Waiting::Spin, Waiting::Sleep] {
        for len in [64u32, 4096] {
            let all = in_turns(|way| exchange(way, waiting, len) / 1e3);
            tell(&format!("read of {len} B, {waiting:?}"), "us", all);
        }
    }
    tell("bulk read", "GB/s", in_turns(|way| stream(way, false) / 1e9));
    tell("bulk write", "GB/s", in_turns(|way| stream(way, true) / 1e9));
}

/// All figures of each way, the ways taking turns: the machine's mood is the same for them.
fn in_turns(mut measure: impl FnMut(Way) -> f64) -> Vec<Vec<f64>> {
    let mut found = vec![Vec::new(); WAYS.len()];
    for _ in 0..ROUNDS {
        WAYS.iter().zip(&mut found).for_each(|(way, found)| found.push(measure(*way)));
    }
    found
}

/// The median of each way, that of its share of the sockets' figure in the same turn, and all.
fn tell(what: &str, unit: &str, all: Vec<Vec<f64>>) {
    for (way, figures) in WAYS.iter().zip(&all) {
        let shares = figures.iter().zip(&all[0]).map(|(one, base)| one / base).collect();
        let each: Vec<_> = figures.iter().map(|figure| format!("{figure:.2}")).collect();
        println!(
            "{what}, {way:?}: {:.2} {unit}, {:.2} of the sockets' ({})",
            median(figures.clone()),
            median(shares),
            each.join(" ")
        );
    }
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

struct Far {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Far {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

fn far(by: Option<Mode>) -> Far {
    let stop = Arc::new(AtomicBool::new(false));
    let (tell, hear) = std::sync::mpsc::channel();
    let thread = std::thread::spawn({
        let stop = Arc::clone(&stop);
        move || {
            pin(1);
            enter(FAR);
            let mut memory = Some(Lent(vec![7; MEMORY]));
            let target = TargetConfig::new(NodeId(1), 1);
            let socket = UdpSocket::bind((FAR_ADDRESS, PORT).into()).unwrap();
            let is_sealed = is_sealed();
            let xdp = by.map(|mode| Xdp::open(&eth0(mode), &socket, is_sealed).unwrap());
            let keys = is_sealed.then(|| Arc::new(SECRET) as Arc<dyn SealKeys + Send + Sync>);
            let service = UdpService { sockets: vec![socket], target, keys, xdp };
            let _server = UdpServer::serve(service, || memory.take().unwrap()).unwrap();
            tell.send(()).unwrap();
            while !stop.load(Ordering::Relaxed) {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        }
    });
    hear.recv().unwrap();
    Far { stop, thread: Some(thread) }
}

fn eth0(mode: Mode) -> XdpInterface {
    XdpInterface { name: "eth0".into(), mode }
}

fn is_sealed() -> bool {
    std::env::args().nth(1).as_deref() == Some("sealed")
}

/// Median nanoseconds.
fn exchange(way: Way, waiting: Waiting, len: u32) -> f64 {
    let (near, far_by) = match way {
        Way::Sockets => (None, None),
        Way::Donor(mode) => (None, Some(mode)),
        Way::Both(mode) => (Some(mode), Some(mode)),
    };
    let _far = far(far_by);
    std::thread::spawn(move || {
        pin(0);
        enter(NEAR);
        let mut near = join(near);
        let mut times_ns = Vec::new();
        let begin = Instant::now();
        while begin.elapsed() < LENGTH {
            let start = Instant::now();
            near.initiator().read(monotonic_ns(), 0, 0, len).unwrap();
            loop {
                let now_ns = monotonic_ns();
                near.pump(now_ns).unwrap();
                if let Some(done) = near.initiator().poll_completion() {
                    done.result.unwrap();
                    break;
                }
                if waiting == Waiting::Sleep {
                    near.wait(now_ns, 50_000_000).unwrap();
                }
            }
            times_ns.push(start.elapsed().as_nanos() as f64);
        }
        median(times_ns)
    })
    .join()
    .unwrap()
}

fn join(by: Option<Mode>) -> UdpDriver {
    let name = KeyName::Grant(GrantId(1));
    let named = is_sealed().then(|| SealedAs { name, key: node_key(&SECRET, name) });
    let config = InitiatorConfig::new(NodeId(2), 2);
    let (near, far) = ((NEAR_ADDRESS, 0).into(), (FAR_ADDRESS, PORT).into());
    let (mut near, peer) = UdpDriver::towards(near, config, NodeId(1), far, named).unwrap();
    by.into_iter().for_each(|mode| near.use_xdp(&eth0(mode)).unwrap());
    let initiator = near.initiator();
    initiator.map_window(0, MEMORY as u64, peer, 0, GrantId(1), GrantKey(1)).unwrap();
    while near.initiator().peer_state(peer) != PeerState::Up {
        near.pump(monotonic_ns()).unwrap();
    }
    near
}

/// Bytes a second by sockets, with a program attached.
fn stream(way: Way, is_write: bool) -> f64 {
    let (at_near, at_far) = match way {
        Way::Sockets => (None, None),
        Way::Donor(mode) => (None, Some(mode)),
        Way::Both(mode) => (Some(mode), Some(mode)),
    };
    let _far = far(at_far);
    std::thread::spawn(move || {
        pin(0);
        enter(NEAR);
        let mut near = join(at_near);
        let mut buffers = vec![vec![1u8; BULK]; BULKS];
        let (begin, mut bytes) = (Instant::now(), 0);
        while begin.elapsed() < LENGTH {
            let now_ns = monotonic_ns();
            while let Some(buffer) = buffers.pop() {
                if is_write {
                    near.initiator().rdma_write(now_ns, 0, 0, buffer).unwrap();
                } else {
                    near.initiator().rdma_read(now_ns, 0, 0, buffer).unwrap();
                }
            }
            near.pump(now_ns).unwrap();
            while let Some(done) = near.initiator().poll_rdma_completion() {
                done.result.unwrap();
                bytes += BULK;
                buffers.push(done.buffer);
            }
        }
        bytes as f64 / begin.elapsed().as_secs_f64()
    })
    .join()
    .unwrap()
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("two processors");
}
