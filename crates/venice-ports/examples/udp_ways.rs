//! Bare datagrams by the ways that the kernel offers, without Venice: what io_uring would bring.
//!
//! An exchange as a CRMA read makes it (64 B there, a header and a page back), and datagrams of a
//! header and a page one way, over a veth pair between two network namespaces.
//!
//! `cargo run --release -p venice-ports --example udp_ways` (as root; two processors)

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};

use ways::{Calls, Epoll, Ring, Sink, Way};
use wire::{FAR, FAR_ADDRESS, NEAR, NEAR_ADDRESS, Wire, enter};

mod ways;
mod wire;

/// As on the wires of a rack.
const MTU: u32 = 9000;
const REQUEST_BYTES: usize = 64;
/// A header and a page.
const FRAME_BYTES: usize = 64 + 4096;
/// Frames in a train: as many as IP carries at once.
const TRAIN_FRAMES: usize = 15;
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
}

#[derive(Clone, Copy, Debug)]
enum Stream {
    Singly,
    Trains,
    RingTrains,
}

fn main() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("needs root: it makes two network namespaces");
        return;
    }
    let _wire = Wire::new(MTU);
    println!("veth pair between two namespaces, MTU {MTU}; medians of {ROUNDS}");
    for waiting in [Waiting::Spin, Waiting::Sleep] {
        let ways = [Exchange::Calls, Exchange::Epoll, Exchange::Ring];
        for (way, ns) in ways.into_iter().zip(in_turns(&ways, |way| exchange(way, waiting))) {
            println!("exchange of 64 B and a page, {waiting:?}, {way:?}: p50 {:.2} us", ns / 1e3);
        }
    }
    let ways = [Stream::Singly, Stream::Trains, Stream::RingTrains];
    for (way, rate) in ways.into_iter().zip(in_turns(&ways, stream)) {
        println!("pages one way, {way:?}: {:.2} GB/s arrive", rate / 1e9);
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
fn exchange(way: Exchange, waiting: Waiting) -> f64 {
    let (near, far) = sockets();
    let stop = Arc::new(AtomicBool::new(false));
    let server = far_end({
        let stop = Arc::clone(&stop);
        move || {
            let mut end = end(way, far, waiting);
            end.expect();
            while !stop.load(Ordering::Relaxed) {
                if end.receive() > 0 {
                    end.send(FRAME_BYTES);
                }
            }
        }
    });
    let times_ns = std::thread::scope(|scope| {
        let near_end = scope.spawn(|| {
            pin(0);
            let mut end = end(way, near, waiting);
            end.expect();
            let (begin, mut times_ns) = (Instant::now(), Vec::new());
            loop {
                let start = Instant::now();
                end.send(REQUEST_BYTES);
                // One that was lost, or came late on a busy machine, is no measurement.
                if end.receive() == FRAME_BYTES {
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

fn end(way: Exchange, socket: UdpSocket, waiting: Waiting) -> Box<dyn Way> {
    match way {
        Exchange::Calls => Box::new(Calls::new(socket, waiting)),
        Exchange::Epoll => Box::new(Epoll::new(socket, waiting)),
        Exchange::Ring => Box::new(Ring::new(socket, waiting)),
    }
}

/// Bytes a second that arrive.
fn stream(way: Stream) -> f64 {
    let (near, far) = sockets();
    let (stop, arrived) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    if !matches!(way, Stream::Singly) {
        set(near.as_raw_fd(), SOL_UDP, UDP_SEGMENT, FRAME_BYTES as i32);
        set(far.as_raw_fd(), SOL_UDP, UDP_GRO, 1);
    }
    let sink = far_end({
        let (stop, arrived) = (Arc::clone(&stop), Arc::clone(&arrived));
        move || {
            let mut sink = match way {
                Stream::Singly | Stream::Trains => Sink::by_calls(far),
                Stream::RingTrains => Sink::by_ring(far),
            };
            while !stop.load(Ordering::Relaxed) {
                arrived.fetch_add(sink.take() as u64, Ordering::Relaxed);
            }
        }
    });
    let rate = std::thread::scope(|scope| {
        let near_end = scope.spawn(|| {
            pin(0);
            let train = TRAIN_FRAMES * FRAME_BYTES;
            let mut burst: Box<dyn FnMut()> = match way {
                Stream::Singly => {
                    let lens = [FRAME_BYTES; TRAINS * TRAIN_FRAMES];
                    Box::new(move || lens.iter().for_each(|len| ways::send_once(&near, *len)))
                }
                Stream::Trains => ways::trains_by_calls(near, [train; TRAINS]),
                Stream::RingTrains => ways::trains_by_ring(near, [train; TRAINS]),
            };
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

/// One in each namespace, connected to each other.
fn sockets() -> (UdpSocket, UdpSocket) {
    let bind = |namespace: &'static str, address| {
        let (tell, told) = channel();
        std::thread::spawn(move || {
            enter(namespace);
            tell.send(UdpSocket::bind((address, 0)).unwrap()).unwrap();
        });
        told.recv().unwrap()
    };
    let (near, far) = (bind(NEAR, NEAR_ADDRESS), bind(FAR, FAR_ADDRESS));
    near.connect(far.local_addr().unwrap()).unwrap();
    far.connect(near.local_addr().unwrap()).unwrap();
    for socket in [&near, &far] {
        set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, 8 << 20);
        set(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_SNDBUFFORCE, 8 << 20);
        // Nobody waits for ever for a datagram that was lost.
        socket.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    }
    (near, far)
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
