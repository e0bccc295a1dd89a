//! Incast on Linux: the client and its servers, a thread each in a namespace of its own.
//!
//! The programs do what those of the simulator do, call by call.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::net::sockopt;
use rustix::time::Timespec;
use venice_measure::interrupt;

use super::network::{Network, address};
use super::{Case, Client, Congestion};

const PORT: u16 = 5001;
/// Bytes of a request, and those that one call receives at most: the simulator's.
const REQUEST_BYTES: usize = 64;
const RECEIVE_BYTES: usize = 64 << 10;
/// A thread without data looks so often for the end.
const POLL: Duration = Duration::from_millis(50);
/// Connections that are opened within this time.
const START: Duration = Duration::from_secs(10);
/// A connection without data for so long is dead.
const PATIENCE: Duration = Duration::from_secs(120);

/// Figures of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Ran {
    /// Bytes received.
    pub bytes: u64,
    /// Time from the request for each block until all of it had come, in sum.
    pub seconds: f64,
    /// Packets that the client's output of the switch has dropped.
    pub drops: u64,
}

/// Runs a case.
///
/// # Errors
/// When the kernel refuses something, a connection dies, and on an interrupt.
pub(super) fn run(network: &Network, case: &Case) -> Result<Ran> {
    network.set_rto_min(Duration::from_nanos(case.rto_min.0))?;
    let dropped = network.drops_to(0)?;
    let stop = AtomicBool::new(false);
    let (ready, started) = channel();
    let received = std::thread::scope(|scope| {
        let mut servers = Vec::new();
        for server in 1..=case.servers {
            let (ready, stop, door) = (ready.clone(), &stop, network.door(server));
            servers.push(scope.spawn(move || {
                let result = door.and_then(|door| door.enter()).and_then(|()| listen(server, case));
                serve(result, &ready, case, stop)
            }));
        }
        let started = wait_for(&started, case.servers);
        let stop = &stop;
        let client = scope.spawn(move || {
            let result = started.and_then(|()| network.door(0)?.enter());
            let result = result.and_then(|()| receive(case, stop));
            // Also those that wait for requests end.
            stop.store(true, Ordering::Relaxed);
            result
        });
        let received = client.join().unwrap_or_else(|_| bail!("the client panicked"));
        for server in servers {
            let ended = server.join().unwrap_or_else(|_| bail!("a server panicked"));
            if received.is_ok() {
                ended?;
            }
        }
        received
    });
    let (bytes, seconds) = received?;
    Ok(Ran { bytes, seconds, drops: network.drops_to(0)? - dropped })
}

fn wait_for(started: &Receiver<Result<()>>, servers: u32) -> Result<()> {
    for _ in 0..servers {
        started.recv_timeout(START).context("a server does not start")??;
    }
    Ok(())
}

/// Opens the socket of a server.
fn listen(server: u32, case: &Case) -> Result<TcpListener> {
    let listener = TcpListener::bind((address(server), PORT)).context("cannot listen")?;
    // Connections have what their listening socket has.
    set_congestion(&listener, case.congestion)?;
    listener.set_nonblocking(true).context("cannot listen")?;
    Ok(listener)
}

fn set_congestion(socket: impl std::os::fd::AsFd, congestion: Congestion) -> Result<()> {
    let name = congestion.of_linux();
    let hint = "see /proc/sys/net/ipv4/tcp_available_congestion_control";
    sockopt::set_tcp_congestion(socket, name).with_context(|| format!("no {name}: {hint}"))
}

/// Sends a block for each request, until the client is gone.
fn serve(
    listening: Result<TcpListener>,
    ready: &Sender<Result<()>>,
    case: &Case,
    stop: &AtomicBool,
) -> Result<()> {
    let listener = match listening {
        Ok(listener) => listener,
        Err(error) => {
            // The client's thread has gone only if it failed itself.
            let _ = ready.send(Err(error));
            return Ok(());
        }
    };
    let _ = ready.send(Ok(()));
    let mut stream = loop {
        match listener.accept() {
            Ok((stream, _)) => break stream,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) {
                    return Ok(());
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(error) => return Err(error).context("cannot accept the client"),
        }
    };
    stream.set_nonblocking(false).context("cannot use the connection")?;
    stream.set_read_timeout(Some(POLL)).context("cannot use the connection")?;
    stream.set_write_timeout(Some(POLL)).context("cannot use the connection")?;
    let block = vec![0x56; case.bytes_of_server() as usize];
    let mut request = [0; REQUEST_BYTES];
    while transfer(stop, REQUEST_BYTES, |done| stream.read(&mut request[done..]))? {
        if !transfer(stop, block.len(), |done| stream.write(&block[done..]))? {
            break;
        }
    }
    Ok(())
}

/// Moves so many bytes by calls that move some. False: the run, or the connection, is over.
fn transfer(
    stop: &AtomicBool,
    bytes: usize,
    mut some: impl FnMut(usize) -> io::Result<usize>,
) -> Result<bool> {
    let mut done = 0;
    while done < bytes {
        match some(done) {
            Ok(0) => return Ok(false),
            Ok(moved) => done += moved,
            Err(error) if [ErrorKind::WouldBlock, ErrorKind::TimedOut].contains(&error.kind()) => {
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) if stop.load(Ordering::Relaxed) => return Ok(false),
            Err(error) => return Err(error).context("a connection failed"),
        }
    }
    Ok(true)
}

/// Opens all connections, and receives all blocks; returns the bytes and the seconds.
fn receive(case: &Case, stop: &AtomicBool) -> Result<(u64, f64)> {
    let mut streams = Vec::with_capacity(case.servers as usize);
    for server in 1..=case.servers {
        let to = SocketAddr::from((address(server), PORT));
        let stream = TcpStream::connect_timeout(&to, START);
        let stream = stream.with_context(|| format!("cannot connect to server {server}"))?;
        set_congestion(&stream, case.congestion)?;
        streams.push(stream);
    }
    match case.client {
        Client::Epoll => receive_by_epoll(case, &mut streams),
        Client::Pthread => receive_by_threads(case, streams, stop),
    }
}

fn receive_by_epoll(case: &Case, streams: &mut [TcpStream]) -> Result<(u64, f64)> {
    let instance = epoll::create(CreateFlags::CLOEXEC).context("epoll_create1(2)")?;
    for (number, stream) in (0..).zip(&*streams) {
        stream.set_nonblocking(true).context("cannot use the connection")?;
        epoll::add(&instance, stream, EventData::new_u64(number), EventFlags::IN)
            .context("epoll_ctl(2)")?;
    }
    let wait = Timespec { tv_sec: 0, tv_nsec: POLL.as_nanos() as i64 };
    let (mut buffer, mut events) = (vec![0; RECEIVE_BYTES], Vec::with_capacity(64));
    let (mut bytes, mut seconds) = (0, 0.0);
    for _ in 0..case.rounds {
        let begin = Instant::now();
        for stream in &mut *streams {
            stream.write_all(&[0; REQUEST_BYTES]).context("cannot send a request")?;
        }
        let mut left = u64::from(case.servers) * case.bytes_of_server();
        bytes += left;
        while left > 0 {
            interrupt::check()?;
            if begin.elapsed() > PATIENCE {
                bail!("a block does not come within {} s", PATIENCE.as_secs());
            }
            events.clear();
            let room = rustix::buffer::spare_capacity(&mut events);
            epoll::wait(&instance, room, Some(&wait)).context("epoll_wait(2)")?;
            for event in &events {
                let stream = &mut streams[event.data.u64() as usize];
                match stream.read(&mut buffer) {
                    Ok(0) => bail!("a server has closed its connection"),
                    Ok(count) => left = left.saturating_sub(count as u64),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error).context("a connection failed"),
                }
            }
        }
        seconds += begin.elapsed().as_secs_f64();
    }
    Ok((bytes, seconds))
}

/// A thread for each server; all meet before each block.
fn receive_by_threads(
    case: &Case,
    streams: Vec<TcpStream>,
    stop: &AtomicBool,
) -> Result<(u64, f64)> {
    let barrier = Barrier::new(streams.len());
    let (bytes, times) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let each = |mut stream: TcpStream, is_first: bool| -> Result<()> {
        stream.set_read_timeout(Some(POLL)).context("cannot use the connection")?;
        let mut buffer = vec![0; RECEIVE_BYTES];
        let mut result = Ok(());
        for round in 0..=case.rounds {
            // All come to all meetings, so that none waits for ever.
            barrier.wait();
            if is_first {
                times.lock().expect("no thread panics with it").push(Instant::now());
            }
            if round == case.rounds || result.is_err() || stop.load(Ordering::Relaxed) {
                continue;
            }
            result = stream.write_all(&[0; REQUEST_BYTES]).context("cannot send a request");
            let block = case.bytes_of_server() as usize;
            if result.is_ok() {
                result = transfer(stop, block, |done| {
                    if interrupt::check().is_err() {
                        stop.store(true, Ordering::Relaxed);
                    }
                    stream.read(&mut buffer[..RECEIVE_BYTES.min(block - done)])
                })
                .and_then(|is_whole| match is_whole {
                    true => {
                        bytes.fetch_add(block as u64, Ordering::Relaxed);
                        Ok(())
                    }
                    false => interrupt::check().and_then(|()| bail!("a server has closed")),
                });
            }
            if result.is_err() {
                stop.store(true, Ordering::Relaxed);
            }
        }
        result
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..)
            .zip(streams)
            .map(|(number, stream)| scope.spawn(move || each(stream, number == 0)))
            .collect();
        threads.into_iter().try_for_each(|thread| {
            thread.join().unwrap_or_else(|_| bail!("a thread of the client panicked"))
        })
    })?;
    let times = times.into_inner().expect("no thread panics with it");
    let seconds = match (times.first(), times.last()) {
        (Some(first), Some(last)) => (*last - *first).as_secs_f64(),
        _ => 0.0,
    };
    Ok((bytes.into_inner(), seconds))
}
