//! QPair messages over the wire, by the socket API of programs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use venice_fabric::MAX_MESSAGE_BYTES;
use venice_ports::qpair::{
    QPairAddress, QPairListener, QPairMessages, QPairOptions, QPairSeal, QPairSocketError,
};
use venice_ports::seal::{SealedAs, node_key};
use venice_wire::KeyName;

use super::half;
use super::lent::GRANT;
use super::messages::Setting;
use super::talk::SERVICE;
use super::udp::{Protection, SECRET};
use crate::channels::measure::{Effort, Ends, on_cpu};
use crate::channels::path::{FarEnd, Path};
use crate::channels::raw::Waiting;
use crate::channels::series::{Medium, Operation, Point, Series, System};
use venice_measure::interrupt;

/// Period of a waiting end's checks of its stop flag.
const POLL: Duration = Duration::from_millis(50);
/// Time without an answer after which the far end counts as dead.
const PATIENCE: Duration = Duration::from_secs(10);
/// Polls without a message between two checks for Ctrl-C.
const LOOKS: u32 = 1 << 12;

/// Task of the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Far {
    SendBack,
    Count,
}

/// Measures messages by size, up to the largest possible. The near end waits as `waiting` requests,
/// the far end in its sockets' way.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(in crate::channels) fn socket_messages(
    effort: &Effort,
    ends: Ends,
    path: &Path,
    protection: Protection,
    waiting: Waiting,
    sizes: &[u64],
    mut done: impl FnMut(),
) -> Result<Series> {
    let variant = waiting.variant(protection);
    let mut series = Series::new(System::Venice, Medium::Udp, Operation::Message, &variant);
    for &size_bytes in sizes {
        let len = size_bytes as usize;
        if len > MAX_MESSAGE_BYTES {
            series.absent = Some("messages have at most 1 MiB".to_owned());
            continue;
        }
        let wire = Wire { ends, path, protection, waiting, len };
        series.points.push(Point {
            size_bytes,
            latency: Some(half(wire.there_and_back(effort)?)),
            bandwidth_bytes_per_s: Some(wire.one_way(effort)?),
        });
        done();
    }
    Ok(series)
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
struct Wire<'a> {
    ends: Ends,
    path: &'a Path,
    protection: Protection,
    waiting: Waiting,
    len: usize,
}

impl Wire<'_> {
    fn there_and_back(&self, effort: &Effort) -> Result<crate::channels::series::Latency> {
        on_cpu(self.ends.near_cpu, || {
            let (mut near, _far, _) = self.join(Far::SendBack)?;
            let (message, mut answer) = (vec![0x56; self.len], vec![0; self.len]);
            effort.latency(|| {
                self.go_on(|| near.try_send(&message))?;
                match self.waiting {
                    Waiting::Spin => self.go_on(|| near.try_recv(&mut answer)).map(drop),
                    Waiting::Sleep => near.recv(&mut answer).map(drop).context("no answer"),
                }
            })
        })
    }

    fn one_way(&self, effort: &Effort) -> Result<f64> {
        on_cpu(self.ends.near_cpu, || {
            let (mut near, _far, arrived) = self.join(Far::Count)?;
            let message = vec![0x56; self.len];
            let mut before = 0;
            effort.bandwidth(|| {
                near.send(&message).context("a message was not accepted")?;
                let now = arrived.load(Ordering::Relaxed);
                Ok(now - std::mem::replace(&mut before, now))
            })
        })
    }

    /// Repeats a call while it would block.
    fn go_on<T>(&self, mut call: impl FnMut() -> Result<T, QPairSocketError>) -> Result<T> {
        let mut looks = 0u32;
        loop {
            match call() {
                Err(QPairSocketError::WouldBlock) => {}
                answer => return answer.context("the QPair failed"),
            }
            looks = looks.wrapping_add(1);
            if looks.is_multiple_of(LOOKS) {
                interrupt::check()?;
            }
            std::hint::spin_loop();
        }
    }

    /// Joins both ends; returns them and the bytes that have arrived at the far one.
    fn join(&self, far: Far) -> Result<(QPairMessages, FarEnd, Arc<AtomicU64>)> {
        let arrived = Arc::new(AtomicU64::new(0));
        let (counter, len) = (Arc::clone(&arrived), self.len);
        let setting = Setting::roomy(len);
        let seal =
            (self.protection == Protection::Sealed).then(|| QPairSeal::Keys(Arc::new(SECRET)));
        let address = QPairAddress::Udp { address: (self.path.far(), 0).into(), seal };
        let prepare = move || {
            let mut listener = QPairListener::bind(&address, SERVICE)?;
            listener.set_end(setting.end);
            let local = listener.local_addr().context("the UDP listener has no address")?;
            Ok((local, listener))
        };
        let serve = move |listener: QPairListener, stop: &AtomicBool| {
            // A failure of this end is detected at the other.
            let _ = serve(listener, far, len, &counter, stop);
        };
        let (far, local) = FarEnd::start(Some(self.path), self.ends.far_cpu, prepare, serve)?;
        let name = KeyName::Grant(GRANT);
        let seal = (self.protection == Protection::Sealed)
            .then(|| QPairSeal::As(SealedAs { name, key: node_key(&SECRET, name) }));
        let address = QPairAddress::Udp { address: local, seal };
        let options = QPairOptions { end: setting.end, credit: setting.credit, ..QPairOptions::default() };
        let mut near = QPairMessages::connect(&address, SERVICE, &options)?;
        near.set_timeout(Some(PATIENCE));
        Ok((near, far, arrived))
    }
}

fn serve(
    mut listener: QPairListener,
    far: Far,
    len: usize,
    counter: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    let go_on = || !stop.load(Ordering::Relaxed);
    let mut socket = loop {
        match listener.accept_messages(Some(POLL)) {
            Err(QPairSocketError::TimedOut) if go_on() => {}
            accepted => break accepted?,
        }
    };
    socket.set_timeout(Some(POLL));
    let mut buffer = vec![0; len];
    while go_on() {
        let len = match socket.recv(&mut buffer) {
            Err(QPairSocketError::TimedOut) => continue,
            Ok(0) => return Ok(()),
            received => received?,
        };
        match far {
            Far::Count => drop(counter.fetch_add(len as u64, Ordering::Relaxed)),
            Far::SendBack => socket.send(&buffer[..len])?,
        }
    }
    bail!("the end is stopping")
}
