//! A bare exchange of datagrams: a small request, a page in return. What udp costs before any
//! protocol is added.

use std::fs::File;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hdrhistogram::Histogram;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde::{Deserialize, Serialize};

use super::PAGE_BYTES;
use crate::child::run_tool;
use crate::interrupt;

const HEADER_BYTES: usize = 64;
const REPLY_BYTES: usize = HEADER_BYTES + PAGE_BYTES as usize;
const WARM_UP_EXCHANGES: u64 = 2_000;
const EXCHANGES: u64 = 30_000;
const LENGTH: Duration = Duration::from_secs(3);
/// Longer exchanges are counted as this long.
const MAX_NS: u64 = 60_000_000_000;
const POLL: Duration = Duration::from_millis(100);
/// As on the wires of a rack: a page and its header fit in one packet.
const MTU: &str = "9000";

/// The bare round trip and the path it took.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// `veth` (another network namespace, behind a bridge) or `loopback`.
    pub path: String,
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
/// When sockets fail or stay silent, and on an interrupt.
pub(crate) fn measure() -> Result<RoundTrip> {
    match Wire::lay() {
        Ok(wire) => exchange("veth", wire.far, Some(wire.namespace_file()?)),
        Err(error) => {
            crate::progress::note(&format!("bare UDP goes over loopback: {error:#}"));
            exchange("loopback", Ipv4Addr::LOCALHOST, None)
        }
    }
}

fn exchange(path: &str, address: Ipv4Addr, namespace: Option<File>) -> Result<RoundTrip> {
    let server = Server::start(address, namespace)?;
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).context("cannot bind a socket")?;
    socket.connect(server.address).context("no route to the far end of the wire")?;
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
    Ok(RoundTrip {
        path: path.to_owned(),
        exchanges: histogram.len(),
        mean_us: histogram.mean() / 1e3,
        p50_us: histogram.value_at_quantile(0.50) as f64 / 1e3,
        p99_us: histogram.value_at_quantile(0.99) as f64 / 1e3,
    })
}

/// A lost datagram is asked for again; its time counts.
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
    bail!("nobody answers at the far end of the wire")
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
    fn start(address: Ipv4Addr, namespace: Option<File>) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (bound, wait_bound) = std::sync::mpsc::channel();
        let thread = std::thread::spawn({
            let stop = Arc::clone(&stop);
            move || match bind_inside(address, namespace) {
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

fn bind_inside(address: Ipv4Addr, namespace: Option<File>) -> Result<UdpSocket> {
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
            // A reply that cannot be sent is a lost datagram to the other side.
            let _ = socket.send_to(&reply, from);
        }
    }
}

/// A bridge here, a network namespace there and a veth pair between them. Dropping it removes all.
struct Wire {
    bridge: String,
    namespace: String,
    far: Ipv4Addr,
}

impl Wire {
    fn lay() -> Result<Self> {
        if !rustix::process::geteuid().is_root() {
            bail!("network namespaces need root");
        }
        let pid = std::process::id();
        // Interface names have at most 15 characters.
        let (near, far) = addresses(pid);
        let wire =
            Self { bridge: format!("vbn{pid}"), namespace: format!("venice-bench-{pid}"), far };
        let (bridge, namespace) = (wire.bridge.as_str(), wire.namespace.as_str());
        let port = format!("vbw{pid}");
        let ip = |arguments: &[&str]| run_tool("ip", arguments);
        ip(&["netns", "add", namespace])?;
        ip(&["link", "add", bridge, "type", "bridge"])?;
        ip(&["link", "set", bridge, "mtu", MTU])?;
        ip(&["addr", "add", &format!("{near}/30"), "dev", bridge])?;
        ip(&["link", "set", bridge, "up"])?;
        let pair = ["type", "veth", "peer", "name", "eth0", "netns", namespace];
        ip(&[&["link", "add", &port], &pair[..]].concat())?;
        ip(&["link", "set", &port, "mtu", MTU, "master", bridge, "up"])?;
        ip(&["-n", namespace, "addr", "add", &format!("{far}/30"), "dev", "eth0"])?;
        ip(&["-n", namespace, "link", "set", "eth0", "mtu", MTU, "up"])?;
        Ok(wire)
    }

    fn namespace_file(&self) -> Result<File> {
        let path = Path::new("/run/netns").join(&self.namespace);
        File::open(&path).with_context(|| format!("cannot open {}", path.display()))
    }
}

/// The two addresses of a /30 network of our own, so that two runs at a time do not meet: out of
/// 198.18.0.0/15, which RFC 2544 sets aside for benchmarks.
fn addresses(pid: u32) -> (Ipv4Addr, Ipv4Addr) {
    let network = u32::from(Ipv4Addr::new(198, 18, 0, 0)) + pid % (1 << 15) * 4;
    (Ipv4Addr::from(network + 1), Ipv4Addr::from(network + 2))
}

impl Drop for Wire {
    fn drop(&mut self) {
        // Either may be missing when laying the wire is what failed. The veth pair goes with the
        // namespace.
        let _ = run_tool("ip", &["netns", "del", &self.namespace]);
        let _ = run_tool("ip", &["link", "del", &self.bridge]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_in_the_range_for_benchmarks() {
        assert_eq!(addresses(1).0, Ipv4Addr::new(198, 18, 0, 5));
        assert_eq!(addresses((1 << 15) - 1).1, Ipv4Addr::new(198, 19, 255, 254));
        assert_eq!(addresses(u32::MAX), addresses((1 << 15) - 1));
    }

    #[test]
    fn loopback_is_measured() {
        let trip = exchange("loopback", Ipv4Addr::LOCALHOST, None).unwrap();
        assert!(trip.exchanges > 0 && trip.p50_us > 0.0 && trip.p50_us <= trip.p99_us, "{trip:?}");
    }

    #[test]
    fn loopback_answers_with_a_page() {
        let server = Server::start(Ipv4Addr::LOCALHOST, None).unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        socket.connect(server.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert!(one_exchange(&socket).unwrap() > 0);
    }
}
