//! Bare datagrams.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Waiting;
use crate::channels::measure::{Effort, Ends, median, on_cpu};
use crate::channels::path::{FarEnd, Path};
use crate::channels::series::{Medium, Operation, Point, Series, System};

/// Size of a header: a CRMA read sends one and receives one with the bytes.
const HEADER_BYTES: usize = 64;
/// The largest access that is one datagram.
const PAGE_BYTES: u64 = 4096;
/// Period of a sleeping end's checks of its stop flag.
const POLL: Duration = Duration::from_millis(50);
/// Time after which a datagram counts as lost.
const LOST: Duration = Duration::from_millis(300);
/// Datagrams between two clock reads of a stream.
const BURST: usize = 32;

/// Measures the exchange of a CRMA read without Venice: 64 bytes there, 64 and the size back.
pub(in crate::channels) fn udp_round_trips(
    effort: &Effort,
    ends: Ends,
    path: &Path,
    sizes: &[u64],
    waiting: Waiting,
) -> Result<Series> {
    let variant = format!("UDP, sizes of a CRMA read, {}", waiting.name());
    let mut series = Series::new(System::Raw, Medium::Udp, Operation::RoundTrip, &variant);
    if waiting == Waiting::Spin && ends.near_cpu == ends.far_cpu {
        return Ok(series.absent("needs two processors"));
    }
    let far_address = path.far();
    let prepare = move || {
        let socket = bind((far_address, 0).into(), waiting)?;
        Ok((socket.local_addr()?, socket))
    };
    let (_far, server) = FarEnd::start(Some(path), ends.far_cpu, prepare, answer)?;
    series.points = on_cpu(ends.near_cpu, || {
        let socket = bind((path.near(), 0).into(), waiting)?;
        socket.connect(server).context("no route to the far end")?;
        sizes
            .iter()
            .filter(|size_bytes| **size_bytes <= PAGE_BYTES)
            .map(|&size_bytes| {
                let latency = effort.latency(|| exchange(&socket, size_bytes as usize))?;
                Ok(Point { size_bytes, latency: Some(latency), bandwidth_bytes_per_s: None })
            })
            .collect::<Result<Vec<_>>>()
    })?;
    Ok(series)
}

fn bind(address: SocketAddr, waiting: Waiting) -> Result<UdpSocket> {
    let socket = UdpSocket::bind(address).context("cannot bind a UDP socket")?;
    match waiting {
        Waiting::Spin => socket.set_nonblocking(true)?,
        Waiting::Sleep => socket.set_read_timeout(Some(POLL))?,
    }
    Ok(socket)
}

fn exchange(socket: &UdpSocket, size: usize) -> Result<()> {
    let mut request = [0u8; HEADER_BYTES];
    request[..8].copy_from_slice(&(size as u64).to_le_bytes());
    let mut reply = [0u8; HEADER_BYTES + PAGE_BYTES as usize];
    for _ in 0..10 {
        socket.send(&request).context("cannot send on the wire")?;
        let mut asked = None;
        loop {
            match socket.recv(&mut reply) {
                Ok(len) if len == HEADER_BYTES + size => return Ok(()),
                // The late answer of an abandoned exchange.
                Ok(_) => {}
                Err(error) if !is_timeout(&error) => return Err(error).context("the wire failed"),
                Err(_) if *asked.get_or_insert_with(Instant::now) + LOST < Instant::now() => break,
                Err(_) => std::hint::spin_loop(),
            }
        }
    }
    bail!("no answer from the far end of the wire")
}

fn answer(socket: UdpSocket, stop: &AtomicBool) {
    let mut request = [0u8; HEADER_BYTES];
    let reply = [0x76u8; HEADER_BYTES + PAGE_BYTES as usize];
    while !stop.load(Ordering::Relaxed) {
        match socket.recv_from(&mut request) {
            Ok((HEADER_BYTES, from)) => {
                let size = u64::from_le_bytes(request[..8].try_into().expect("eight bytes"));
                let len = HEADER_BYTES + size.min(PAGE_BYTES) as usize;
                // A failed send is a lost datagram to the other side.
                let _ = socket.send_to(&reply[..len], from);
            }
            _ => std::hint::spin_loop(),
        }
    }
}

fn is_timeout(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

/// Measures datagrams of a size sent by one thread, one system call each; received bytes count.
pub(in crate::channels) fn udp_streams(
    effort: &Effort,
    ends: Ends,
    path: &Path,
    sizes: &[u64],
) -> Result<Series> {
    let variant = "UDP, one datagram a call";
    let mut series = Series::new(System::Raw, Medium::Udp, Operation::Stream, variant);
    let arrived = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&arrived);
    let far_address = path.far();
    let prepare = move || {
        let socket = bind((far_address, 0).into(), Waiting::Sleep)?;
        Ok((socket.local_addr()?, socket))
    };
    let take = move |socket: UdpSocket, stop: &AtomicBool| {
        let mut buffer = [0u8; 1 << 16];
        while !stop.load(Ordering::Relaxed) {
            if let Ok(len) = socket.recv(&mut buffer) {
                count.fetch_add(len as u64, Ordering::Relaxed);
            }
        }
    };
    let (_far, server) = FarEnd::start(Some(path), ends.far_cpu, prepare, take)?;
    series.points = on_cpu(ends.near_cpu, || {
        let socket = bind((path.near(), 0).into(), Waiting::Sleep)?;
        socket.connect(server).context("no route to the far end")?;
        let burst = |size: u64| {
            let datagram = [0x56u8; PAGE_BYTES as usize];
            for _ in 0..BURST {
                // A full queue drops it, as any datagram may be dropped.
                let _ = socket.send(&datagram[..size as usize]);
            }
        };
        let sizes = sizes.iter().copied().filter(|size_bytes| *size_bytes <= PAGE_BYTES);
        sizes.map(|size_bytes| stream_of(effort, size_bytes, &arrived, burst)).collect()
    })?;
    Ok(series)
}

fn stream_of(
    effort: &Effort,
    size_bytes: u64,
    arrived: &AtomicU64,
    burst: impl Fn(u64),
) -> Result<Point> {
    let mut found = Vec::new();
    for _ in 0..effort.repetitions {
        venice_measure::interrupt::check()?;
        let (start, before) = (Instant::now(), arrived.load(Ordering::Relaxed));
        while start.elapsed() < effort.length {
            burst(size_bytes);
        }
        let bytes = arrived.load(Ordering::Relaxed) - before;
        found.push(bytes as f64 / start.elapsed().as_secs_f64());
        // Datagrams still queued at the far end do not belong to the next repetition.
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(Point { size_bytes, latency: None, bandwidth_bytes_per_s: Some(median(found)) })
}
