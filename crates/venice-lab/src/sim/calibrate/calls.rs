//! System calls that need no network.

use std::io::Read;
use std::net::UdpSocket;
use std::sync::atomic::AtomicU32;

use anyhow::{Context, Result};
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::fs::OFlags;
use rustix::thread::futex;

use super::raw::Raws;
use super::sample::{Cost, Effort};

/// Calls of a sample: a hundred times longer than reading the clock.
const RUN: usize = 64;
/// Ready descriptors that one call returns.
pub(super) const READY: usize = 33;

/// Measures all of them.
pub(super) fn measure(effort: &Effort, raws: &mut Raws) -> Result<()> {
    let shortest = || {
        let _ = rustix::process::getppid();
        Ok(())
    };
    raws.note("getppid", effort.repeat(RUN, shortest))?;
    raws.note("futex-wait", futex_wait(effort))?;
    raws.note("futex-wake", futex_wake(effort))?;
    raws.note("fcntl", file_control(effort))?;
    pipe(effort, raws)?;
    raws.note("epoll-ctl", epoll_control(effort))?;
    raws.note("epoll-wait-1", epoll_wait(effort, 1))?;
    raws.note("epoll-wait-33", epoll_wait(effort, READY))
}

/// A wait that returns at once: the word has another value, as a lock that was given back meanwhile.
fn futex_wait(effort: &Effort) -> Result<Cost> {
    let word = AtomicU32::new(0);
    effort.repeat(RUN, || match futex::wait(&word, futex::Flags::PRIVATE, 1, None) {
        Err(rustix::io::Errno::AGAIN) => Ok(()),
        other => other.context("futex(2)"),
    })
}

fn futex_wake(effort: &Effort) -> Result<Cost> {
    let word = AtomicU32::new(0);
    effort
        .repeat(RUN, || futex::wake(&word, futex::Flags::PRIVATE, 1).map(drop).context("futex(2)"))
}

fn file_control(effort: &Effort) -> Result<Cost> {
    let socket = UdpSocket::bind("127.0.0.1:0").context("cannot open a UDP socket")?;
    let flags = rustix::fs::fcntl_getfl(&socket).context("fcntl(2)")? | OFlags::NONBLOCK;
    effort.repeat(RUN, || rustix::fs::fcntl_setfl(&socket, flags).context("fcntl(2)"))
}

fn pipe(effort: &Effort, raws: &mut Raws) -> Result<()> {
    let (reader, writer) = rustix::pipe::pipe().context("pipe(2)")?;
    let mut reader = std::fs::File::from(reader);
    let read_all = |reader: &mut std::fs::File| {
        let mut buffer = [0; RUN];
        reader.read_exact(&mut buffer).context("read(2)")
    };
    let write = || rustix::io::write(&writer, &[0]).map(drop).context("write(2)");
    let mut is_full = false;
    let written = effort.measure(
        RUN,
        || {
            let was_full = std::mem::replace(&mut is_full, true);
            if was_full { read_all(&mut reader) } else { Ok(()) }
        },
        write,
    );
    raws.note("write", written)?;
    read_all(&mut reader)?;
    let fill = || rustix::io::write(&writer, &[0; RUN]).map(drop).context("write(2)");
    let read = effort.measure(RUN, fill, || reader.read_exact(&mut [0]).context("read(2)"));
    raws.note("read", read)
}

/// Adds a socket to an instance and removes it: two calls.
fn epoll_control(effort: &Effort) -> Result<Cost> {
    let instance = epoll::create(CreateFlags::CLOEXEC).context("epoll_create1(2)")?;
    let socket = UdpSocket::bind("127.0.0.1:0").context("cannot open a UDP socket")?;
    let pair = effort.repeat(RUN, || {
        epoll::add(&instance, &socket, EventData::new_u64(0), EventFlags::IN)
            .and_then(|()| epoll::delete(&instance, &socket))
            .context("epoll_ctl(2)")
    })?;
    Ok(pair * 0.5)
}

/// Waits for sockets of which `ready` can be read.
fn epoll_wait(effort: &Effort, ready: usize) -> Result<Cost> {
    let instance = epoll::create(CreateFlags::CLOEXEC).context("epoll_create1(2)")?;
    let mut sockets = Vec::with_capacity(ready);
    for number in 0..ready {
        let socket = UdpSocket::bind("127.0.0.1:0").context("cannot open a UDP socket")?;
        let own = socket.local_addr().context("a socket without an address")?;
        socket.send_to(&[0], own).context("cannot send to loopback")?;
        epoll::add(&instance, &socket, EventData::new_u64(number as u64), EventFlags::IN)
            .context("epoll_ctl(2)")?;
        sockets.push(socket);
    }
    let mut events = Vec::with_capacity(READY);
    effort.repeat(RUN, || {
        events.clear();
        let buffer = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&instance, buffer, None).map(drop).context("epoll_wait(2)")
    })
}
