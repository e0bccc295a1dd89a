//! Bare datagrams by the ways that the kernel offers, without Venice: what io_uring or AF_XDP would
//! bring.
//!
//! An exchange as a CRMA read makes it (64 B there, a header and a page back), and datagrams of a
//! header and a page one way, over a veth pair between two network namespaces; and shorter
//! ones, for a page with headers is longer than one of AF_XDP's frames.
//!
//! `cargo run --release -p venice-ports --example udp_ways` (as root; two processors)

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use ways::bpf::Mode;
use ways::xsk::Xsk;
use ways::{Calls, Epoll, Ring, Sink, Way};
use wire::{FAR, FAR_ADDRESS, NEAR, NEAR_ADDRESS, Wire, enter};

mod ways;
mod wire;

const REQUEST_BYTES: usize = 64;
/// In a train are as many frames as IP carries at once.
const TRAIN_BYTES: usize = 65_507;
/// Trains handed over at once.
const TRAINS: usize = 2;
const LENGTH: Duration = Duration::from_millis(200);
/// The median of so many is told; the ways take turns.
const ROUNDS: usize = 5;
const SOL_UDP: libc::c_int = 17;
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Spin,
    Sleep,
}

#[derive(Clone, Copy, Debug)]
enum Exchange {
    Calls,
    Epoll,
    Ring,
    Xsk(Mode),
}

#[derive(Clone, Copy, Debug)]
enum Stream {
    Singly,
    Trains,
    RingTrains,
    Xsk(Mode),
}

/// What is measured on one wire.
struct Plan {
    mtu: u32,
    frame_bytes: usize,
    exchanges: &'static [Exchange],
    streams: &'static [Stream],
}

const EXCHANGES: &[Exchange] = &[
    Exchange::Calls,
    Exchange::Epoll,
    Exchange::Ring,
    Exchange::Xsk(Mode::Native),
    Exchange::Xsk(Mode::Generic),
];
const STREAMS: &[Stream] = &[
    Stream::Singly,
    Stream::Trains,
    Stream::RingTrains,
    Stream::Xsk(Mode::Native),
    Stream::Xsk(Mode::Generic),
];

const PLANS: [Plan; 3] = [
    // As on the wires of a rack: a header and a page.
    Plan { mtu: 9000, frame_bytes: 64 + 4096, exchanges: EXCHANGES, streams: STREAMS },
    // Fits into one of AF_XDP's frames, of a page, with what the kernel puts around it.
    Plan { mtu: 3498, frame_bytes: 64 + 3072, exchanges: EXCHANGES, streams: STREAMS },
    Plan { mtu: 1500, frame_bytes: 1400, exchanges: EXCHANGES, streams: STREAMS },
];

fn main() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root: it makes two network namespaces");
        return;
    }
    PLANS.iter().for_each(measure);
}

fn measure(plan: &Plan) {
    let Plan { mtu, frame_bytes, exchanges, streams } = plan;
    let _wire = Wire::new(*mtu);
    println!("veth pair between two namespaces, MTU {mtu}; medians of {ROUNDS}");
    for waiting in [Waiting::Spin, Waiting::Sleep] {
        let times_ns = in_turns(exchanges, |way| exchange(way, waiting, *frame_bytes));
        for (way, ns) in exchanges.iter().zip(times_ns) {
            let us = ns / 1e3;
            println!("64 B there, {frame_bytes} B back, {waiting:?}, {way:?}: p50 {us:.2} us");
        }
    }
    for (way, rate) in streams.iter().zip(in_turns(streams, |way| stream(way, *frame_bytes))) {
        println!("{frame_bytes} B one way, {way:?}: {:.2} GB/s arrive", rate / 1e9);
    }
}

/// The median of each way.
fn in_turns<W: Copy>(ways: &[W], mut measure: impl FnMut(W) -> f64) -> Vec<f64> {
    let mut found = vec![Vec::new(); ways.len()];
    for _ in 0..ROUNDS {
        for (way, figures) in ways.iter().zip(&mut found) {
            figures.push(measure(*way));
        }
    }
    found.into_iter().map(median).collect()
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Median nanoseconds of an exchange.
fn exchange(way: Exchange, waiting: Waiting, frame_bytes: usize) -> f64 {
    let [near, far] = ends(way, waiting);
    let stop = Arc::new(AtomicBool::new(false));
    let server = far_end({
        let stop = Arc::clone(&stop);
        move || {
            let mut end = far();
            end.expect();
            while !stop.load(Ordering::Relaxed) {
                if end.receive() > 0 {
                    end.send(frame_bytes);
                }
            }
        }
    });
    let times_ns = std::thread::scope(|scope| {
        let near_end = scope.spawn(move || {
            pin(0);
            let mut end = near();
            end.expect();
            let (begin, mut times_ns) = (Instant::now(), Vec::new());
            loop {
                let start = Instant::now();
                end.send(REQUEST_BYTES);
                // One that was lost, or came late on a busy machine, is no measurement.
                if end.receive() == frame_bytes {
                    times_ns.push(start.elapsed().as_nanos() as f64);
                }
                if begin.elapsed() > LENGTH {
                    break;
                }
            }
            // One more, so that the far end looks at its flag.
            stop.store(true, Ordering::Relaxed);
            end.send(REQUEST_BYTES);
            times_ns
        });
        near_end.join().unwrap()
    });
    server.join().unwrap();
    median(times_ns)
}

type Burst = Box<dyn FnMut()>;

/// Made in the thread that uses it.
type Make<T> = Box<dyn FnOnce() -> T + Send>;

fn ends(way: Exchange, waiting: Waiting) -> [Make<Box<dyn Way>>; 2] {
    if let Exchange::Xsk(mode) = way {
        return xsks(mode, waiting)
            .map(|xsk| -> Make<Box<dyn Way>> { Box::new(move || Box::new(xsk)) });
    }
    sockets().map(|socket| -> Make<Box<dyn Way>> {
        match way {
            Exchange::Calls => Box::new(move || Box::new(Calls::new(socket, waiting))),
            Exchange::Epoll => Box::new(move || Box::new(Epoll::new(socket, waiting))),
            _ => Box::new(move || Box::new(Ring::new(socket, waiting))),
        }
    })
}

/// Bytes a second that arrive.
fn stream(way: Stream, frame_bytes: usize) -> f64 {
    let (burst, sink) = stream_ends(way, frame_bytes);
    let (stop, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let sink = far_end({
        let (stop, arrived) = (Arc::clone(&stop), Arc::clone(&arrived));
        move || {
            let mut sink = sink();
            while !stop.load(Ordering::Relaxed) {
                arrived.fetch_add(sink.take() as u64, Ordering::Relaxed);
            }
        }
    });
    let rate = std::thread::scope(|scope| {
        let near_end = scope.spawn(|| {
            pin(0);
            let mut burst = burst();
            let (start, before) = (Instant::now(), arrived.load(Ordering::Relaxed));
            while start.elapsed() < LENGTH {
                burst();
            }
            let bytes = arrived.load(Ordering::Relaxed) - before;
            bytes as f64 / start.elapsed().as_secs_f64()
        });
        near_end.join().unwrap()
    });
    stop.store(true, Ordering::Relaxed);
    sink.join().unwrap();
    rate
}

/// What sends, and what takes it.
fn stream_ends(way: Stream, frame_bytes: usize) -> (Make<Burst>, Make<Sink>) {
    if let Stream::Xsk(mode) = way {
        let [near, far] = xsks(mode, Waiting::Spin);
        let burst = move || ways::frames_by_xsk(near, frame_bytes);
        return (Box::new(burst), Box::new(move || Sink::Xsk(Box::new(far))));
    }
    let [near, far] = sockets();
    if !matches!(way, Stream::Singly) {
        set(near.as_raw_fd(), SOL_UDP, UDP_SEGMENT, frame_bytes as i32);
        set(far.as_raw_fd(), SOL_UDP, UDP_GRO, 1);
    }
    let train_frames = TRAIN_BYTES / frame_bytes;
    let trains = [train_frames * frame_bytes; TRAINS];
    let burst = move || -> Burst {
        match way {
            Stream::Singly => Box::new(move || {
                (0..TRAINS * train_frames).for_each(|_| ways::send_once(&near, frame_bytes));
            }),
            Stream::Trains => ways::trains_by_calls(near, trains),
            _ => ways::trains_by_ring(near, trains),
        }
    };
    let sink = move || match way {
        Stream::RingTrains => Sink::by_ring(far),
        _ => Sink::by_calls(far),
    };
    (Box::new(burst), Box::new(sink))
}

/// One in each namespace, connected to each other.
fn sockets() -> [UdpSocket; 2] {
    let sockets = in_each(|[from, _]| UdpSocket::bind((from, 0)).unwrap());
    let [near, far] = &sockets;
    near.connect(far.local_addr().unwrap()).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    for socket in &sockets {
        set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20);
        set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 8 << 20);
        // Nobody waits for ever for a datagram that was lost.
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    }
    sockets
}

fn xsks(mode: Mode, waiting: Waiting) -> [Xsk; 2] {
    in_each(move |addresses| Xsk::new(addresses, mode, waiting))
}

/// Made in each namespace, for whom the addresses are its own and the other's.
fn in_each<T: Send + 'static>(
    make: impl Fn([Ipv4Addr; 2]) -> T + Clone + Send + 'static,
) -> [T; 2] {
    let ends = [(NEAR, [NEAR_ADDRESS, FAR_ADDRESS]), (FAR, [FAR_ADDRESS, NEAR_ADDRESS])];
    ends.map(|(namespace, addresses)| {
        let make = make.clone();
        let made = std::thread::spawn(move || {
            enter(namespace);
            make(addresses)
        });
        made.join().unwrap()
    })
}

fn set(socket: RawFd, level: libc::c_int, name: libc::c_int, value: i32) {
    let len = size_of::<i32>() as libc::socklen_t;
    // SAFETY: the kernel reads one `int` that lives until the call is over.
    let failed = unsafe { libc::setsockopt(socket, level, name, (&raw const value).cast(), len) };
    assert_eq!(failed, 0, "option {name}: {}", std::io::Error::last_os_error());
}

fn far_end(body: impl FnOnce() + Send + 'static) -> JoinHandle<()> {
    std::thread::spawn(move || {
        pin(1);
        body();
    })
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("two processors");
}
