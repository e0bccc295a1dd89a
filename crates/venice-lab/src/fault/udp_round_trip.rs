//! A bare exchange of datagrams, a small request and a page in return: the cost of udp without any
//! protocol.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::PAGE_BYTES;
use crate::wire::Wire;
use venice_measure::{cpus, interrupt};

const HEADER_BYTES: usize = 64;
const REPLY_BYTES: usize = HEADER_BYTES + PAGE_BYTES as usize;
const WARM_UP_EXCHANGES: u64 = 1_000;
const EXCHANGES: u64 = 15_000;
/// Duration for one placement of the two ends.
const LENGTH: Duration = Duration::from_secs(2);
/// Longer exchanges are counted as this long.
const MAX_NS: u64 = 60_000_000_000;
const POLL: Duration = Duration::from_millis(100);

/// The bare round trip and its path. The placement of the ends matters: waking a thread on another
/// core that sleeps may take longer than all the rest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// `veth` (another network namespace, behind a bridge) or `loopback`.
    pub path: String,
    /// With both ends where the scheduler puts them.
    pub unpinned: TripLatency,
    /// With both ends on one core.
    pub same_core: TripLatency,
    /// With the ends on two cores, if there are two.
    pub other_core: Option<TripLatency>,
}

/// Latency of an exchange.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TripLatency {
    /// Exchanges measured.
    pub exchanges: u64,
    /// Mean in microseconds.
    pub mean_us: f64,
    /// Median in microseconds.
    pub p50_us: f64,
    /// 99th percentile in microseconds.
    pub p99_us: f64,
}

/// Measures it across a virtual wire with root, over loopback otherwise.
///
/// # Errors
/// When sockets fail or do not answer, and on an interrupt.
pub(crate) fn measure() -> Result<RoundTrip> {
    match Wire::lay() {
        Ok(wire) => placements("veth", wire.far, || wire.namespace_file().map(Some)),
        Err(error) => {
            venice_measure::progress::note(&format!("bare UDP goes over loopback: {error:#}"));
            placements("loopback", Ipv4Addr::LOCALHOST, || Ok(None))
        }
    }
}

fn placements(
    path: &str,
    address: Ipv4Addr,
    namespace: impl Fn() -> Result<Option<File>>,
) -> Result<RoundTrip> {
    let cpus = cpus::allowed()?;
    let trip = |near: Option<usize>, far: Option<usize>| {
        let server = Server::start(address, namespace()?, far)?;
        on_thread(near, || exchange(server.address))
    };
    let first = cpus[0];
    Ok(RoundTrip {
        path: path.to_owned(),
        unpinned: trip(None, None)?,
        same_core: trip(Some(first), Some(first))?,
        other_core: cpus.get(1).map(|second| trip(Some(first), Some(*second))).transpose()?,
    })
}

/// Runs `body` on a thread of its own, so that pinning affects neither this thread nor its
/// children.
fn on_thread<T: Send>(cpu: Option<usize>, body: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            cpu.map_or(Ok(()), cpus::pin_to)?;
            body()
        });
        thread.join().unwrap_or_else(|_| bail!("the measuring thread panicked"))
    })
}

fn exchange(server: SocketAddr) -> Result<TripLatency> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot bind a socket")?;
    socket.connect(server).context("no route to the far end of the wire")?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;

    let mut histogram = Histogram::<u64>::new_with_max(MAX_NS, 3)?;
    let start = Instant::now();
    for number in 0..WARM_UP_EXCHANGES + EXCHANGES {
        let latency_ns = one_exchange(&socket)?;
        if number >= WARM_UP_EXCHANGES {
            histogram.saturating_record(latency_ns);
        }
        if number % 64 == 0 {
            interrupt::check()?;
            if start.elapsed() > LENGTH && !histogram.is_empty() {
                break;
            }
        }
    }
    Ok(TripLatency {
        exchanges: histogram.len(),
        mean_us: histogram.mean() / 1e3,
        p50_us: histogram.value_at_quantile(0.50) as f64 / 1e3,
        p99_us: histogram.value_at_quantile(0.99) as f64 / 1e3,
    })
}

/// Repeats the request if a datagram is lost; its time counts.
fn one_exchange(socket: &UdpSocket) -> Result<u64> {
    let request = [0x56u8; HEADER_BYTES];
    let mut reply = [0u8; REPLY_BYTES];
    let start = Instant::now();
    for _ in 0..10 {
        socket.send(&request).context("cannot send on the wire")?;
        match socket.recv(&mut reply) {
            Ok(REPLY_BYTES) => return Ok(start.elapsed().as_nanos() as u64),
            Ok(other) => bail!("a reply of {other} bytes instead of {REPLY_BYTES}"),
            Err(error) if is_timeout(&error) => interrupt::check()?,
            Err(error) => return Err(error).context("the wire failed"),
        }
    }
    bail!("no answer from the far end of the wire")
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// The far end: a thread that answers every datagram with a page.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    fn start(address: Ipv4Addr, namespace: Option<File>, cpu: Option<usize>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (bound, wait_bound) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || match bind_inside(address, namespace, cpu) {
                Ok(socket) => {
                    // The receiver waits for exactly this; it is gone only if it failed itself.
                    let _ = bound.send(socket.local_addr().map_err(Into::into));
                    answer(&socket, &stop);
                }
                Err(error) => {
                    let _ = bound.send(Err(error));
                }
            }
        });
        let address = wait_bound
            .recv_timeout(Duration::from_secs(10))
            .context("the far end of the wire does not start")??;
        Ok(Self { address, stop, thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn bind_inside(
    address: Ipv4Addr,
    namespace: Option<File>,
    cpu: Option<usize>,
) -> Result<UdpSocket> {
    cpu.map_or(Ok(()), cpus::pin_to)?;
    if let Some(file) = namespace {
        use std::os::fd::AsFd;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .context("cannot enter the network namespace")?;
    }
    let socket = UdpSocket::bind((address, 0)).context("cannot bind in the network namespace")?;
    socket.set_read_timeout(Some(POLL))?;
    Ok(socket)
}

fn answer(socket: &UdpSocket, stop: &AtomicBool) {
    let mut request = [0u8; HEADER_BYTES];
    let reply = [0x76u8; REPLY_BYTES];
    while !stop.load(Ordering::Relaxed) {
        if let Ok((_, from)) = socket.recv_from(&mut request) {
            // A failed reply is a lost datagram to the other side.
            let _ = socket.send_to(&reply, from);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_measured() {
        let trip = placements("loopback", Ipv4Addr::LOCALHOST, || Ok(None)).unwrap();
        for latency in [Some(trip.unpinned), Some(trip.same_core), trip.other_core].iter().flatten()
        {
            assert!(latency.exchanges > 0 && latency.p50_us > 0.0, "{latency:?}");
            assert!(latency.p50_us <= latency.p99_us, "{latency:?}");
        }
    }

    #[test]
    fn loopback_answers_with_a_page() {
        let server = Server::start(Ipv4Addr::LOCALHOST, None, None).unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect(server.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(one_exchange(&socket).unwrap() > 0);
    }
}
