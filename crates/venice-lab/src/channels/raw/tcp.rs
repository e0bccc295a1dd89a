//! A bare TCP connection.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::Waiting;
use crate::channels::measure::{Effort, Ends, median, on_cpu};
use crate::channels::path::{FarEnd, Path};
use crate::channels::series::{Medium, Operation, Point, Series, System};
use venice_measure::interrupt;

/// Time without data after which an end checks its stop flag.
const POLL: Duration = Duration::from_millis(50);
/// Polls of a spinning end between two checks of its stop flag.
const LOOKS: u32 = 1 << 16;
/// Larger echoes show nothing that the stream does not.
const MAX_ECHO_BYTES: u64 = 1 << 20;

/// Measures round trips of the same size in both directions.
pub(in crate::channels) fn tcp_round_trips(
    effort: &Effort,
    ends: Ends,
    path: &Path,
    sizes: &[u64],
    waiting: Waiting,
) -> Result<Series> {
    let variant = format!("TCP echo, {}", waiting.name());
    let mut series = Series::new(System::Raw, Medium::Udp, Operation::RoundTrip, &variant);
    if waiting == Waiting::Spin && ends.near_cpu == ends.far_cpu {
        return Ok(series.absent("needs two processors"));
    }
    for &size_bytes in sizes.iter().filter(|size_bytes| **size_bytes <= MAX_ECHO_BYTES) {
        let echo = move |listener: TcpListener, stop: &AtomicBool| {
            let Ok(mut stream) = accept(&listener, waiting, stop) else { return };
            let mut buffer = vec![0u8; size_bytes as usize];
            let go_on = || !stop.load(Ordering::Relaxed);
            while stream.read_all(&mut buffer, go_on).is_ok()
                && stream.write_all(&buffer, go_on).is_ok()
            {}
        };
        let (_far, address) = FarEnd::start(Some(path), ends.far_cpu, listen(path), echo)?;
        series.points.push(on_cpu(ends.near_cpu, || {
            let mut stream = connect(address, waiting)?;
            let mut buffer = vec![0x56u8; size_bytes as usize];
            let go_on = || interrupt::check().is_ok();
            let latency = effort.latency(|| {
                stream.write_all(&buffer, go_on)?;
                stream.read_all(&mut buffer, go_on)
            })?;
            Ok(Point { size_bytes, latency: Some(latency), bandwidth_bytes_per_s: None })
        })?);
    }
    Ok(series)
}

/// Measures a stream from one thread, a call for each size; received bytes count.
pub(in crate::channels) fn tcp_streams(
    effort: &Effort,
    ends: Ends,
    path: &Path,
    sizes: &[u64],
) -> Result<Series> {
    let mut series = Series::new(System::Raw, Medium::Udp, Operation::Stream, "TCP");
    for &size_bytes in sizes {
        let arrived = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&arrived);
        let take = move |listener: TcpListener, stop: &AtomicBool| {
            let Ok(mut stream) = accept(&listener, Waiting::Sleep, stop) else { return };
            let mut buffer = vec![0u8; 1 << 18];
            while !stop.load(Ordering::Relaxed) {
                match stream.stream.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(len) => drop(count.fetch_add(len as u64, Ordering::Relaxed)),
                    Err(_) => {}
                }
            }
        };
        let (_far, address) = FarEnd::start(Some(path), ends.far_cpu, listen(path), take)?;
        series.points.push(on_cpu(ends.near_cpu, || {
            let mut stream = connect(address, Waiting::Sleep)?;
            let buffer = vec![0x56u8; size_bytes as usize];
            let mut found = Vec::new();
            for _ in 0..effort.repetitions {
                let (start, before) = (Instant::now(), arrived.load(Ordering::Relaxed));
                while start.elapsed() < effort.length {
                    stream.write_all(&buffer, || interrupt::check().is_ok())?;
                }
                let bytes = arrived.load(Ordering::Relaxed) - before;
                found.push(bytes as f64 / start.elapsed().as_secs_f64());
            }
            let bandwidth_bytes_per_s = Some(median(found));
            Ok(Point { size_bytes, latency: None, bandwidth_bytes_per_s })
        })?);
    }
    Ok(series)
}

fn listen(path: &Path) -> impl FnOnce() -> Result<(SocketAddr, TcpListener)> + Send + 'static {
    let far = path.far();
    move || {
        let listener = TcpListener::bind((far, 0)).context("cannot listen at the far end")?;
        listener.set_nonblocking(true)?;
        Ok((listener.local_addr()?, listener))
    }
}

fn connect(address: SocketAddr, waiting: Waiting) -> Result<Connection> {
    let stream = TcpStream::connect(address).context("no route to the far end")?;
    Connection::new(stream, waiting)
}

fn accept(listener: &TcpListener, waiting: Waiting, stop: &AtomicBool) -> Result<Connection> {
    while !stop.load(Ordering::Relaxed) {
        if let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(false)?;
            return Connection::new(stream, waiting);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    bail!("no connection arrived")
}

/// A stream with bounded waits.
struct Connection {
    stream: TcpStream,
    waiting: Waiting,
}

impl Connection {
    fn new(stream: TcpStream, waiting: Waiting) -> Result<Self> {
        stream.set_nodelay(true)?;
        match waiting {
            Waiting::Spin => stream.set_nonblocking(true)?,
            Waiting::Sleep => {
                stream.set_read_timeout(Some(POLL))?;
                stream.set_write_timeout(Some(POLL))?;
            }
        }
        Ok(Self { stream, waiting })
    }

    fn write_all(&mut self, mut bytes: &[u8], go_on: impl Fn() -> bool) -> Result<()> {
        let mut looks = 0;
        while !bytes.is_empty() {
            match self.stream.write(bytes) {
                Ok(0) => bail!("the connection was closed"),
                Ok(len) => bytes = &bytes[len..],
                Err(error) => self.look_again(error, &mut looks, &go_on)?,
            }
        }
        Ok(())
    }

    fn read_all(&mut self, buffer: &mut [u8], go_on: impl Fn() -> bool) -> Result<()> {
        let (mut filled, mut looks) = (0, 0);
        while filled < buffer.len() {
            match self.stream.read(&mut buffer[filled..]) {
                Ok(0) => bail!("the connection was closed"),
                Ok(len) => filled += len,
                Err(error) => self.look_again(error, &mut looks, &go_on)?,
            }
        }
        Ok(())
    }

    /// Decides whether to wait again: after each wait in the kernel it checks the stop flag,
    /// spinning only seldom.
    fn look_again(
        &self,
        error: std::io::Error,
        looks: &mut u32,
        go_on: &impl Fn() -> bool,
    ) -> Result<()> {
        match error.kind() {
            ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted => {}
            _ => return Err(error).context("the connection failed"),
        }
        *looks += 1;
        if (self.waiting == Waiting::Sleep || looks.is_multiple_of(LOOKS)) && !go_on() {
            bail!("interrupted");
        }
        std::hint::spin_loop();
        Ok(())
    }
}
