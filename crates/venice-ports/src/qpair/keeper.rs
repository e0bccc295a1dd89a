//! One thread for all QPair sockets of the process. It wakes tasks, and keeps links going whose
//! program is busy elsewhere: frames are acknowledged and what is queued is sent.

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

/// How often links that nobody drives are looked after. The other side takes frames for lost after
/// 2 ms at the earliest, and a link for dead after two seconds.
const TICK_NS: u64 = 5_000_000;

/// What the keeper looks after: an end, with its sockets.
pub(super) trait Kept: std::fmt::Debug + Send + Sync {
    /// Readable when something may have come.
    fn fd(&self) -> BorrowedFd<'_>;

    /// By which the keeper knows it.
    fn number(&self) -> u64;

    /// The keeper has given it this number.
    fn set_number(&self, number: u64);

    /// Wakes the tasks that wait: something has come.
    fn attend_tasks(&self);

    /// Acknowledges, replays and goes on sending, unless its program has done so just now.
    fn tend(&self, quiet_ns: u64);

    /// Whether it can be dropped without losing what was sent.
    fn is_settled(&self) -> bool;
}

#[derive(Debug)]
struct Keeper {
    epoll: OwnedFd,
    sockets: Mutex<Sockets>,
}

#[derive(Debug, Default)]
struct Sockets {
    by_number: BTreeMap<u64, Weak<dyn Kept>>,
    /// Without sockets, but not all that they sent has arrived; and until when to wait for that.
    held: Vec<(Arc<dyn Kept>, u64)>,
    next: u64,
}

/// The keeper of one process. A forked child has its parent's, and not the thread: for what the
/// child makes itself it needs one of its own.
struct Home {
    process: Process,
    keeper: OnceLock<Option<Keeper>>,
}

/// Null, or a `Home` that is never freed.
static HOME: AtomicPtr<Home> = AtomicPtr::new(null_mut());

fn keeper() -> Result<&'static Keeper, PortError> {
    let home = home()?;
    let started = home.keeper.get_or_init(|| {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).ok()?;
        let name = String::from("venice-qpair");
        std::thread::Builder::new().name(name).spawn(|| run(home)).ok()?;
        Some(Keeper { epoll, sockets: Mutex::default() })
    });
    let none = PortError::System { step: "starting a thread", source: Errno::AGAIN };
    started.as_ref().ok_or(none)
}

fn home() -> Result<&'static Home, PortError> {
    let found = HOME.load(Ordering::Acquire);
    // SAFETY: null, or leaked below.
    if let Some(home) = unsafe { found.as_ref() }.filter(|home| home.process.is_current()) {
        return Ok(home);
    }
    let home = Box::new(Home { process: Process::current()?, keeper: OnceLock::new() });
    let home = Box::into_raw(home);
    match HOME.compare_exchange(found, home, Ordering::AcqRel, Ordering::Acquire) {
        // SAFETY: it is the box above, which nobody frees any more.
        Ok(_) => Ok(unsafe { &*home }),
        Err(other) => {
            // SAFETY: nobody else has seen the box.
            drop(unsafe { Box::from_raw(home) });
            // SAFETY: another thread of this process has leaked it.
            Ok(unsafe { &*other })
        }
    }
}

/// Looks after `kept` until it is dropped.
pub(super) fn keep(kept: &Arc<dyn Kept>) -> Result<(), PortError> {
    let keeper = keeper()?;
    let mut sockets = keeper.lock();
    let number = sockets.next;
    sockets.next += 1;
    // Its events are asked for one at a time; the kernel forgets it when it is closed.
    epoll::add(&keeper.epoll, kept.fd(), EventData::new_u64(number), EventFlags::ONESHOT)
        .map_err(PortError::at("watching a socket"))?;
    kept.set_number(number);
    sockets.by_number.insert(number, Arc::downgrade(kept));
    Ok(())
}

/// Attends to `kept` once it is readable.
pub(super) fn watch(kept: &impl Kept) -> Result<(), PortError> {
    let flags = EventFlags::IN | EventFlags::ONESHOT;
    epoll::modify(&keeper()?.epoll, kept.fd(), EventData::new_u64(kept.number()), flags)
        .map_err(PortError::at("watching a socket"))
}

/// Keeps `kept` until all that was sent has arrived, at the latest until `until_ns`.
pub(super) fn hold(kept: Arc<dyn Kept>, until_ns: u64) {
    if let Ok(keeper) = keeper() {
        keeper.lock().held.push((kept, until_ns));
    }
}

fn run(home: &Home) {
    // It is being made by the thread that started this one.
    let Some(keeper) = home.keeper.wait() else { return };
    let mut events = [Event { flags: EventFlags::empty(), data: EventData::new_u64(0) }; 64];
    let (mut all, mut tended_ns) = (Vec::new(), 0);
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
        // However much comes for some, the others are looked after.
        let now_ns = monotonic_ns();
        if now_ns.saturating_sub(tended_ns) >= TICK_NS {
            tended_ns = now_ns;
            keeper.all(&mut all);
            all.iter().for_each(|kept| kept.tend(TICK_NS));
            keeper.let_go(now_ns);
            // Those that have lost their last socket meanwhile end here.
            all.clear();
        }
    }
}

impl Keeper {
    fn lock(&self) -> MutexGuard<'_, Sockets> {
        self.sockets.lock().expect("no thread panics with the sockets")
    }

    /// The sockets that still are; those that are no more are forgotten.
    fn all(&self, all: &mut Vec<Arc<dyn Kept>>) {
        self.lock().by_number.retain(|_, kept| {
            let kept = kept.upgrade();
            let is_alive = kept.is_some();
            all.extend(kept);
            is_alive
        });
    }

    /// Drops those held of which nothing is on its way any more.
    fn let_go(&self, now_ns: u64) {
        self.lock().held.retain(|(kept, until_ns)| now_ns < *until_ns && !kept.is_settled());
    }
}
