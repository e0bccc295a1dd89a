//! Small messages through a QPair between two threads: how many a second, and how long one takes.
//!
//! `cargo run --release -p venice-ports --example qpair_rate [BYTES]` prints, for rings and for udp
//! on loopback, the rate of one direction and percentiles of the one-way latency (half a round
//! trip, both sides spinning). Each thread has a core of its own, if there are two.

use std::time::Duration;

use rustix::thread::{CpuSet, sched_setaffinity};
use venice_ports::monotonic_ns;
use venice_ports::qpair::{
    QPairAddress, QPairListener, QPairMessages, QPairOptions, QPairSocketError,
};

const SERVICE: u32 = 1;
const PATIENCE: Option<Duration> = Some(Duration::from_secs(20));

fn main() -> Result<(), QPairSocketError> {
    let len_bytes = std::env::args().nth(1).map_or(64, |text| text.parse().expect("BYTES"));
    let dir = std::env::temp_dir().join(format!("venice-qpair-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for the socket");
    println!("messages of {len_bytes} bytes   one way p50      p90      p99       rate");
    measure("rings", &QPairAddress::ring(dir.join("rate.sock")), len_bytes, 2_000_000)?;
    let loopback = "127.0.0.1:0".parse().expect("an address");
    measure("udp", &QPairAddress::plain_udp(loopback), len_bytes, 200_000)?;
    let _ = std::fs::remove_dir_all(&dir);
    Ok(())
}

fn measure(
    name: &str,
    address: &QPairAddress,
    len_bytes: usize,
    count: u32,
) -> Result<(), QPairSocketError> {
    let mut listener = QPairListener::bind(address, SERVICE)?;
    let address = listener.local_addr().map_or(address.clone(), QPairAddress::plain_udp);
    let echo = std::thread::spawn(move || echo(&mut listener, count));
    pin(0);
    let mut socket = QPairMessages::connect(&address, SERVICE, &QPairOptions::default())?;
    socket.set_timeout(PATIENCE);

    let (message, mut buffer) = (vec![7; len_bytes], vec![0; len_bytes]);
    let mut trips_ns = Vec::with_capacity(count as usize / 10);
    for _ in 0..count / 10 {
        let start_ns = monotonic_ns();
        socket.send(&message)?;
        socket.recv(&mut buffer)?;
        trips_ns.push(monotonic_ns() - start_ns);
    }
    trips_ns.sort_unstable();
    let one_way_us =
        |share: f64| trips_ns[(trips_ns.len() as f64 * share) as usize] as f64 / 2000.0;

    let start_ns = monotonic_ns();
    for _ in 0..count {
        socket.send(&message)?;
    }
    socket.recv(&mut buffer)?;
    let took_s = (monotonic_ns() - start_ns) as f64 / 1e9;
    let (p50, p90, p99) = (one_way_us(0.5), one_way_us(0.9), one_way_us(0.99));
    let rate = f64::from(count) / took_s / 1e6;
    println!("{name:>20}   {p50:9.2} us {p90:6.2} us {p99:6.2} us {rate:6.2} M/s");
    echo.join().expect("the other thread ends in order")
}

/// Answers the first tenth one by one, takes the rest, and answers the last.
fn echo(listener: &mut QPairListener, count: u32) -> Result<(), QPairSocketError> {
    pin(1);
    let mut socket = listener.accept_messages(PATIENCE)?;
    socket.set_timeout(PATIENCE);
    let mut buffer = vec![0; 1 << 20];
    for _ in 0..count / 10 {
        let len_bytes = socket.recv(&mut buffer)?;
        socket.send(&buffer[..len_bytes])?;
    }
    let mut len_bytes = 0;
    for _ in 0..count {
        len_bytes = socket.recv(&mut buffer)?;
    }
    socket.send(&buffer[..len_bytes])?;
    // Until the other side has it.
    while socket.recv(&mut buffer).is_ok_and(|len_bytes| len_bytes > 0) {}
    Ok(())
}

/// To a core of its own; without it the figures are worse, not wrong.
fn pin(core: usize) {
    let mut cores = CpuSet::new();
    cores.set(core);
    let _ = sched_setaffinity(None, &cores);
}
