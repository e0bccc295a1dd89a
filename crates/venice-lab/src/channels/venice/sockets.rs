//! QPair messages over shared memory and the wire, by the socket API of programs.

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

/// Place of a listener.
#[derive(Debug, Clone, Copy)]
pub(in crate::channels) enum Place<'a> {
    /// Shared memory.
    Shm,
    /// The wire.
    Wire { path: &'a Path, protection: Protection },
}

impl Place<'_> {
    /// Returns the largest measured message.
    fn most_bytes(self) -> usize {
        match self {
            Place::Shm => usize::MAX,
            Place::Wire { .. } => MAX_MESSAGE_BYTES,
        }
    }
}

/// Task of the far end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Far {
    SendBack,
    Count,
}

/// Measures messages by size, up to the largest possible. The near end waits as `waiting` requests.
/// The far end waits in its sockets' way, over shared memory like the near end, as peers' ends do.
///
/// # Errors
/// When an end fails, and on an interrupt.
pub(in crate::channels) fn socket_messages(
    effort: &Effort,
    ends: Ends,
    place: Place<'_>,
    waiting: Waiting,
    sizes: &[u64],
    mut done: impl FnMut(),
) -> Result<Series> {
    let (medium, variant) = match place {
        Place::Shm => (Medium::Shm, waiting.name().to_owned()),
        Place::Wire { protection, .. } => (Medium::Udp, waiting.variant(protection)),
    };
    let mut series = Series::new(System::Venice, medium, Operation::Message, &variant);
    if matches!(place, Place::Shm) && ends.near_cpu == ends.far_cpu {
        return Ok(series.absent("needs two processors"));
    }
    for &size_bytes in sizes {
        let len = size_bytes as usize;
        if len > place.most_bytes() {
            series.absent = Some("messages have at most 1 MiB".to_owned());
            continue;
        }
        let talk = Talk { ends, place, waiting, len };
        series.points.push(Point {
            size_bytes,
            latency: Some(half(talk.there_and_back(effort)?)),
            bandwidth_bytes_per_s: Some(talk.one_way(effort)?),
        });
        done();
    }
    Ok(series)
}

/// One measurement.
#[derive(Debug, Clone, Copy)]
struct Talk<'a> {
    ends: Ends,
    place: Place<'a>,
    waiting: Waiting,
    len: usize,
}

impl Talk<'_> {
    fn there_and_back(&self, effort: &Effort) -> Result<crate::channels::series::Latency> {
        on_cpu(self.ends.near_cpu, || {
            let (near, _far, _) = self.join(Far::SendBack)?;
            let (message, mut answer) = (vec![0x56; self.len], vec![0; self.len]);
            effort.latency(|| {
                near.send(&message).context("a message was not accepted")?;
                match self.waiting {
                    Waiting::Spin => self.go_on(|| near.try_recv(&mut answer)).map(drop),
                    Waiting::Sleep => near.recv(&mut answer).map(drop).context("no answer"),
                }
            })
        })
    }

    fn one_way(&self, effort: &Effort) -> Result<f64> {
        on_cpu(self.ends.near_cpu, || {
            let (near, _far, arrived) = self.join(Far::Count)?;
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
        let (counter, len, waiting) = (Arc::clone(&arrived), self.len, self.waiting);
        let setting = Setting::roomy(len);
        let folder = tempfile::tempdir().context("no temporary folder")?;
        let ring = QPairAddress::ring(folder.path().join("messages"));
        let (path, listening) = match self.place {
            Place::Shm => (None, ring.clone()),
            Place::Wire { path, protection } => {
                let seal =
                    (protection == Protection::Sealed).then(|| QPairSeal::Keys(Arc::new(SECRET)));
                let address = (path.far(), 0).into();
                (Some(path), QPairAddress::Udp { address, seal })
            }
        };
        let is_shm = path.is_none();
        let prepare = move || {
            let mut listener = QPairListener::bind(&listening, SERVICE)?;
            // Through shared memory messages of any length pass the default buffer.
            if !is_shm {
                listener.set_end(setting.end);
            }
            Ok((listener.local_addr(), listener))
        };
        let serve = move |listener: QPairListener, stop: &AtomicBool| {
            let waiting = if is_shm { waiting } else { Waiting::Sleep };
            // A failure of this end is detected at the other.
            let _ = serve(listener, (far, waiting), len, &counter, stop);
        };
        let (far, local) = FarEnd::start(path, self.ends.far_cpu, prepare, serve)?;
        let address = match self.place {
            Place::Shm => ring,
            Place::Wire { protection, .. } => {
                let name = KeyName::Grant(GRANT);
                let seal = (protection == Protection::Sealed)
                    .then(|| QPairSeal::As(SealedAs { name, key: node_key(&SECRET, name) }));
                let address = local.context("the UDP listener has no address")?;
                QPairAddress::Udp { address, seal }
            }
        };
        let options =
            QPairOptions { end: setting.end, credit: setting.credit, ..QPairOptions::default() };
        let near = QPairMessages::connect(&address, SERVICE, &options)?;
        near.set_timeout(Some(PATIENCE));
        Ok((near, far, arrived))
    }
}

fn serve(
    listener: QPairListener,
    (far, waiting): (Far, Waiting),
    len: usize,
    counter: &AtomicU64,
    stop: &AtomicBool,
) -> Result<()> {
    let go_on = || !stop.load(Ordering::Relaxed);
    let socket = loop {
        match listener.accept_messages(Some(POLL)) {
            Err(QPairSocketError::TimedOut) if go_on() => {}
            accepted => break accepted?,
        }
    };
    socket.set_timeout(Some(POLL));
    let mut buffer = vec![0; len];
    while go_on() {
        let received = match waiting {
            Waiting::Spin => socket.try_recv(&mut buffer),
            Waiting::Sleep => socket.recv(&mut buffer),
        };
        let len = match received {
            Err(QPairSocketError::TimedOut) => continue,
            Err(QPairSocketError::WouldBlock) => {
                std::hint::spin_loop();
                continue;
            }
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
