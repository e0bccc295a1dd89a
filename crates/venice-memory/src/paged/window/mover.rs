//! The mover: the thread that moves the process's slabs when it is notified.
//!
//! It is independent of the program: its signals are blocked, and its descriptors are in a table of
//! its own, where the program cannot close them. A process that may not block writes has no mover.

use std::sync::atomic::{AtomicU32, Ordering};

use super::super::run_block::Mobility;
use super::super::sys::{self, Errno, SysResult};
use super::super::thread;
use super::super::uffd::Uffd;
use super::Window;
use super::mapped::Mapped;

/// Delay before the next attempt at a blocked move, nanoseconds.
const RETRY_AFTER_NS: u64 = 200_000_000;

/// The arguments of the mover's thread.
struct Start {
    window: &'static Window,
    /// The connection to the supervisor.
    socket: i32,
    /// 0: not started; 1: started; otherwise one more than the error number.
    outcome: AtomicU32,
}

/// Starts the mover, which takes over `socket`, or records the reason why slabs cannot move.
///
/// # Errors
/// The kernel's error: no memory, or too many threads.
pub(super) fn start(window: &'static Window, socket: i32) -> SysResult<()> {
    let process = &window.block.processes[window.process];
    match Uffd::open_for_writes() {
        Ok(uffd) => sys::close(uffd.fd),
        Err(error) => {
            process.set_mobility(why_never(error));
            return Ok(());
        }
    }
    let start = Box::leak(Box::new(Start { window, socket, outcome: AtomicU32::new(0) }));
    thread::spawn(run, std::ptr::from_ref(start) as usize)?;
    while start.outcome.load(Ordering::Acquire) == 0 {
        sys::futex_wait(&start.outcome, 0, None, false);
    }
    match start.outcome.load(Ordering::Acquire) {
        1 => window.count_own_thread(),
        failed => process.set_mobility(why_never(Errno(failed as i32 - 1))),
    }
    Ok(())
}

fn why_never(error: Errno) -> Mobility {
    match error {
        Errno::EPERM => Mobility::NoUserfaultfd,
        _ => Mobility::NoWriteProtection,
    }
}

extern "C" fn run(argument: usize) -> ! {
    // SAFETY: `start` passes the address of a `Start` that lives as long as the process.
    let start = unsafe { &*(argument as *const Start) };
    let window = start.window;
    let uffd = thread::keep_only(start.socket).and_then(|()| Uffd::open_for_writes());
    if uffd.is_ok() {
        window.block.processes[window.process].set_mobility(Mobility::Moves);
    }
    let outcome = uffd.err().map_or(1, |error| error.0 as u32 + 1);
    start.outcome.store(outcome, Ordering::Release);
    sys::futex_wake(&start.outcome, 1, false);
    let Ok(uffd) = uffd else { thread::exit() };
    let mut mapped = Mapped::default();
    loop {
        let seen = window.block.mover_calls();
        let mobility = window.move_slabs(uffd, &mut mapped).err().unwrap_or(Mobility::Moves);
        window.block.processes[window.process].set_mobility(mobility);
        let is_done = mobility == Mobility::Moves;
        window.block.await_mover_call(seen, (!is_done).then_some(RETRY_AFTER_NS));
    }
}

impl Window {
    /// Moves every slab to its newest location.
    ///
    /// # Errors
    /// The reason why some slabs have not moved.
    pub(super) fn move_slabs(
        &'static self,
        uffd: Uffd,
        mapped: &mut Mapped,
    ) -> Result<(), Mobility> {
        for slab in 0..self.locations.len() {
            if let Some(location) = self.block.newest_location(slab)
                && !self.block.is_location(self.process, slab, location)
            {
                self.move_slab(slab, location, uffd, mapped)?;
            }
        }
        Ok(())
    }
}
