//! Calls on sockets, and the kernel's work for packets.
//!
//! All of it is over loopback, on one processor: a packet that is sent goes through the whole stack in
//! the call that sends it, and the kernel stamps it where it would leave for the card's ring. So the
//! call's time is divided into the sender's and the receiver's half. The work of a card's driver and
//! its interrupt are missing.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::net::{SendFlags, SocketFlags, sockopt};
use venice_measure::interrupt;

use super::raw::Raws;
use super::sample::{Cost, Effort};
use super::stamp;

/// Calls of a sample.
const RUN: usize = 64;
/// Sizes of the datagrams whose difference is the copy.
pub(super) const SMALL: usize = 1 << 10;
pub(super) const LARGE: usize = 32 << 10;
/// The kernel begins to stamp packets within this time.
const PATIENCE: Duration = Duration::from_secs(20);
/// Connections of a sample.
const CONNECTIONS: usize = 16;

/// Measures all of them.
pub(super) fn measure(effort: &Effort, raws: &mut Raws) -> Result<()> {
    udp(effort, raws)?;
    tcp(effort, raws)?;
    connections(effort, raws)
}

/// The two halves of a packet's way.
struct Halves {
    out: Vec<f64>,
    into: Vec<f64>,
}

impl Halves {
    /// Sends packets, each of which is received before the next one.
    fn of(
        effort: &Effort,
        mut send: impl FnMut() -> Result<()>,
        mut receive: impl FnMut() -> Result<Option<i64>>,
    ) -> Result<Self> {
        let mut halves = Self { out: Vec::new(), into: Vec::new() };
        let begin = Instant::now();
        while halves.out.len() < effort.samples * 4 {
            interrupt::check()?;
            let before = stamp::now_ns();
            send()?;
            let after = stamp::now_ns();
            let Some(stamped) = receive()? else {
                if begin.elapsed() > PATIENCE {
                    bail!("the kernel stamps no packets");
                }
                continue;
            };
            // Half of reading a clock is in each.
            let ns = |from: i64, to: i64| ((to - from) as f64 - effort.clock_ns / 2.0).max(0.0);
            halves.out.push(ns(before, stamped));
            halves.into.push(ns(stamped, after));
        }
        Ok(halves)
    }
}

/// Notes both halves.
fn note_halves(raws: &mut Raws, names: [&'static str; 2], measured: Result<Halves>) -> Result<()> {
    match measured {
        Ok(Halves { out, into }) => {
            raws.note(names[0], Cost::of(out))?;
            raws.note(names[1], Cost::of(into))
        }
        Err(error) => {
            interrupt::check()?;
            raws.leave_out(&names, &format!("{error:#}"));
            Ok(())
        }
    }
}

/// Two sockets that are connected to each other.
fn datagram_pair() -> Result<(UdpSocket, UdpSocket)> {
    let open = || UdpSocket::bind("127.0.0.1:0").context("cannot open a UDP socket on 127.0.0.1");
    let (one, other) = (open()?, open()?);
    let address = |socket: &UdpSocket| socket.local_addr().context("a socket without an address");
    one.connect(address(&other)?).context("cannot connect a UDP socket")?;
    other.connect(address(&one)?).context("cannot connect a UDP socket")?;
    Ok((one, other))
}

fn udp(effort: &Effort, raws: &mut Raws) -> Result<()> {
    let (near, far) = datagram_pair()?;
    let send = |bytes: &[u8]| near.send(bytes).map(drop).context("cannot send over loopback");
    let mut buffer = vec![0; LARGE];
    // Bytes that wait for more make no packet: the call alone.
    let flush = || {
        send(&[0])?;
        far.recv(&mut [0; 8]).map(drop).context("cannot receive over loopback")
    };
    let mut is_corked = false;
    let corked = effort.measure(
        RUN,
        || if std::mem::replace(&mut is_corked, true) { flush() } else { Ok(()) },
        || rustix::net::send(&near, &[0], SendFlags::MORE).map(drop).context("send(2)"),
    );
    raws.note("udp-more", corked)?;
    flush()?;
    for (name, size, run) in
        [("udp-recv", 1, RUN), ("udp-recv-1k", SMALL, 4), ("udp-recv-32k", LARGE, 4)]
    {
        let bytes = vec![0; size];
        let fill = || (0..run).try_for_each(|_| send(&bytes));
        let received = effort.measure(run, fill, || {
            far.recv(&mut buffer).map(drop).context("cannot receive over loopback")
        });
        raws.note(name, received)?;
    }
    let halves =
        stamp::ask(&far).and_then(|()| Halves::of(effort, || send(&[0]), || stamp::receive(&far)));
    note_halves(raws, ["udp-out", "udp-in"], halves)
}

/// Two ends of a connection over loopback.
fn stream_pair() -> Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr().context("a socket without an address")?;
    let near = TcpStream::connect(address).context("cannot connect over loopback")?;
    let (far, _) = listener.accept().context("accept(2)")?;
    near.set_nodelay(true).context("TCP_NODELAY")?;
    Ok((near, far))
}

fn tcp(effort: &Effort, raws: &mut Raws) -> Result<()> {
    let (mut near, mut far) = stream_pair()?;
    let mut is_corked = false;
    let corking = near.try_clone().context("cannot share a socket")?;
    let mut flush = || -> Result<()> {
        near.write_all(&[0]).context("cannot send over loopback")?;
        far.read_exact(&mut [0; RUN + 1]).context("cannot receive over loopback")
    };
    let corked = effort.measure(
        RUN,
        || if std::mem::replace(&mut is_corked, true) { flush() } else { Ok(()) },
        || rustix::net::send(&corking, &[0], SendFlags::MORE).map(drop).context("send(2)"),
    );
    flush()?;
    raws.note("tcp-more", corked)?;
    let received = {
        let mut reader = far.try_clone().context("cannot share a socket")?;
        effort.measure(
            RUN,
            || near.write_all(&[0; RUN]).context("cannot send over loopback"),
            || reader.read_exact(&mut [0]).context("cannot receive over loopback"),
        )
    };
    raws.note("tcp-recv", received)?;
    acknowledgments(effort, raws, &mut near, &mut far)?;
    // An acknowledgment waits: it is measured alone.
    let delay = || sockopt::set_tcp_quickack(&far, false).context("TCP_QUICKACK");
    let halves = stamp::ask(&far).and_then(|()| delay()).and_then(|()| {
        let send = || near.write_all(&[0]).context("cannot send over loopback");
        Halves::of(effort, send, || stamp::receive(&far).and_then(|at| delay().map(|()| at)))
    });
    note_halves(raws, ["tcp-out", "tcp-in"], halves)
}

/// An acknowledgment that waits is sent, and received, in the call that ends its waiting.
fn acknowledgments(
    effort: &Effort,
    raws: &mut Raws,
    near: &mut TcpStream,
    far: &mut TcpStream,
) -> Result<()> {
    let end = far.try_clone().context("cannot share a socket")?;
    let hurry = || sockopt::set_tcp_quickack(&end, true).context("TCP_QUICKACK");
    raws.note("quickack", effort.repeat(RUN, hurry))?;
    let wait = || {
        sockopt::set_tcp_quickack(&end, false).context("TCP_QUICKACK")?;
        near.write_all(&[0]).context("cannot send over loopback")?;
        far.read_exact(&mut [0]).context("cannot receive over loopback")
    };
    raws.note("quickack-sends", effort.measure(1, wait, hurry))
}

fn connections(effort: &Effort, raws: &mut Raws) -> Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").context("cannot listen on 127.0.0.1")?;
    let address = listener.local_addr().context("a socket without an address")?;
    // Connections are made in runs: fewer of them are enough.
    let effort = Effort { samples: (effort.samples / 4).max(20), ..*effort };
    let mut connect = Vec::new();
    let mut accept = Vec::new();
    let mut accept4 = Vec::new();
    for round in 0..effort.samples {
        interrupt::check()?;
        let accepted = if round % 2 == 0 { &mut accept } else { &mut accept4 };
        connections_of_round(&effort, &listener, address, round % 2 == 0, &mut connect, accepted)?;
    }
    raws.note("connect", Cost::of(connect))?;
    raws.note("accept", Cost::of(accept))?;
    raws.note("accept4", Cost::of(accept4))
}

fn connections_of_round(
    effort: &Effort,
    listener: &TcpListener,
    address: SocketAddr,
    is_plain: bool,
    connect: &mut Vec<f64>,
    accept: &mut Vec<f64>,
) -> Result<()> {
    let mut near: Vec<OwnedFd> = Vec::with_capacity(CONNECTIONS);
    for _ in 0..CONNECTIONS {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::INET,
            rustix::net::SocketType::STREAM,
            None,
        );
        near.push(socket.context("socket(2)")?);
    }
    let timed = |run: &mut dyn FnMut() -> Result<()>| -> Result<f64> {
        let start = Instant::now();
        run()?;
        let ns = start.elapsed().as_nanos() as f64 - effort.clock_ns;
        Ok(ns.max(0.0) / CONNECTIONS as f64)
    };
    connect.push(timed(&mut || {
        near.iter().try_for_each(|socket| {
            rustix::net::connect(socket, &address).context("cannot connect over loopback")
        })
    })?);
    let mut far: Vec<OwnedFd> = Vec::with_capacity(CONNECTIONS);
    accept.push(timed(&mut || {
        for _ in 0..CONNECTIONS {
            let socket = match is_plain {
                true => rustix::net::accept(listener),
                false => rustix::net::accept_with(listener, SocketFlags::NONBLOCK),
            };
            far.push(socket.context("accept(2)")?);
        }
        Ok(())
    })?);
    // A reset leaves nothing in TIME-WAIT.
    for socket in &near {
        sockopt::set_socket_linger(socket, Some(Duration::ZERO)).context("SO_LINGER")?;
    }
    if far.len() != near.len() {
        bail!("{} of {} connections were accepted", far.len(), near.len());
    }
    Ok(())
}
