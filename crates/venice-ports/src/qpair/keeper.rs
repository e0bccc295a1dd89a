//! The keeper: one thread for all QPair sockets of the process. It wakes tasks, and serves links
//! while their program is busy: it acknowledges frames and sends what is queued.

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};

use rustix::event::Timespec;
use rustix::event::epoll::{self, Event, EventData, EventFlags};
use rustix::io::Errno;

use crate::process::Process;
use crate::{PortError, monotonic_ns};

/// Interval at which links that no thread drives are served, in nanoseconds. The other side takes
/// frames for lost after 2 ms at the earliest, and a link for dead after two seconds.
const TICK_NS: u64 = 5_000_000;

/// Object that the keeper serves: an end, with its sockets.
pub(super) trait ServedEnd: std::fmt::Debug + Send + Sync {
    /// Returns a descriptor that is readable when something may have come in.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Returns the number under which the keeper lists it.
    fn number(&self) -> u64;

    /// Sets the number that the keeper assigned.
    fn set_number(&self, number: u64);

    /// Wakes the waiting tasks: something has come in.
    fn attend_tasks(&self);

    /// Acknowledges, replays and continues to send, unless its program did so less than `quiet_ns`
    /// ago.
    fn serve(&self, quiet_ns: u64);

    /// True if it can be dropped without loss of sent bytes.
    fn is_settled(&self) -> bool;
}

#[derive(Debug)]
struct Keeper {
    epoll: OwnedFd,
    sockets: Mutex<Sockets>,
}

#[derive(Debug, Default)]
struct Sockets {
    by_number: BTreeMap<u64, Weak<dyn ServedEnd>>,
    /// Ends without sockets whose sent bytes have not all arrived, each with the deadline for that.
    held: Vec<(Arc<dyn ServedEnd>, u64)>,
    next: u64,
}

/// The keeper of one process. A forked child inherits its parent's without the thread: for its own
/// sockets it needs a new one.
struct ProcessKeeper {
    process: Process,
    keeper: OnceLock<Option<Keeper>>,
}

/// Null, or a `ProcessKeeper` that is never freed.
static PROCESS_KEEPER: AtomicPtr<ProcessKeeper> = AtomicPtr::new(null_mut());

fn keeper() -> Result<&'static Keeper, PortError> {
    let process_keeper = process_keeper()?;
    let started = process_keeper.keeper.get_or_init(|| {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let name = String::from("venice-qpair");
        std::thread::Builder::new().name(name).spawn(|| run(process_keeper)).ok()?;
        Some(Keeper { epoll, sockets: Mutex::default() })
    });
    let none = PortError::System { step: "starting a thread", source: Errno::AGAIN };
    started.as_ref().ok_or(none)
}

fn process_keeper() -> Result<&'static ProcessKeeper, PortError> {
    let found = PROCESS_KEEPER.load(Ordering::Acquire);
    // SAFETY: null, or leaked below.
    if let Some(known) = unsafe { found.as_ref() }.filter(|known| known.process.is_current()) {
        return Ok(known);
    }
    let process_keeper =
        Box::new(ProcessKeeper { process: Process::current()?, keeper: OnceLock::new() });
    let process_keeper = Box::into_raw(process_keeper);
    match PROCESS_KEEPER.compare_exchange(
        found,
        process_keeper,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        // SAFETY: it is the box above, which is never freed any more.
        Ok(_) => Ok(unsafe { &*process_keeper }),
        Err(other) => {
            // SAFETY: no other thread has seen the box.
            drop(unsafe { Box::from_raw(process_keeper) });
            // SAFETY: another thread of this process has leaked it.
            Ok(unsafe { &*other })
        }
    }
}

/// Serves `kept` until it is dropped.
pub(super) fn keep(kept: &Arc<dyn ServedEnd>) -> Result<(), PortError> {
    let keeper = keeper()?;
    let mut sockets = keeper.lock();
    let number = sockets.next;
    sockets.next += 1;
    // ONESHOT: its events are requested one at a time; the kernel drops the entry when the
    // descriptor is closed.
    epoll::add(&keeper.epoll, kept.fd(), EventData::new_u64(number), EventFlags::ONESHOT)
        .map_err(PortError::at("watching a socket"))?;
    kept.set_number(number);
    sockets.by_number.insert(number, Arc::downgrade(kept));
    Ok(())
}

/// Serves `kept` once it is readable.
pub(super) fn watch(kept: &impl ServedEnd) -> Result<(), PortError> {
    let flags = EventFlags::IN | EventFlags::ONESHOT;
    epoll::modify(&keeper()?.epoll, kept.fd(), EventData::new_u64(kept.number()), flags)
        .map_err(PortError::at("watching a socket"))
}

/// Keeps `kept` until all sent bytes have arrived, at the latest until `until_ns`.
pub(super) fn hold(kept: Arc<dyn ServedEnd>, until_ns: u64) {
    if let Ok(keeper) = keeper() {
        keeper.lock().held.push((kept, until_ns));
    }
}

fn run(process_keeper: &ProcessKeeper) {
    // The thread that started this one is still setting the keeper.
    let Some(keeper) = process_keeper.keeper.wait() else { return };
    let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
    let (mut all, mut served_ns) = (Vec::new(), 0);
    loop {
        let has_none = keeper.lock().by_number.is_empty();
        let nap_ns = if has_none { 50 * TICK_NS } else { TICK_NS };
        let timeout = Timespec { tv_sec: 0, tv_nsec: nap_ns as i64 };
        let count = epoll::wait(&keeper.epoll, &mut events[..], Some(&timeout)).unwrap_or(0);
        for event in &events[..count] {
            let kept = keeper.lock().by_number.get(&event.data.u64()).and_then(Weak::upgrade);
            if let Some(kept) = kept {
                kept.attend_tasks();
            }
        }
        // Runs the timers even under a flood of events.
        let now_ns = monotonic_ns();
        if now_ns.saturating_sub(served_ns) >= TICK_NS {
            served_ns = now_ns;
            keeper.all(&mut all);
            all.iter().for_each(|kept| kept.serve(TICK_NS));
            keeper.release_settled(now_ns);
            // Ends whose last socket was dropped meanwhile are freed here.
            all.clear();
        }
    }
}

impl Keeper {
    fn lock(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().expect("no thread panics under this lock")
    }

    /// Collects the living sockets and drops the entries of the others.
    fn all(&self, all: &mut Vec<Arc<dyn ServedEnd>>) {
        self.lock().by_number.retain(|_, kept| {
            let kept = kept.upgrade();
            let is_alive = kept.is_some();
            all.extend(kept);
            is_alive
        });
    }

    /// Drops the retained ends that have nothing left to send.
    fn release_settled(&self, now_ns: u64) {
        self.lock().held.retain(|(kept, until_ns)| now_ns < *until_ns && !kept.is_settled());
    }
}
