//! Handlers around the C library's `fork`.
//!
//! They are registered first, so they run last before the fork and first after it.

use std::cell::UnsafeCell;

use venice_memory::paged::{ForkedChild, Tether, Window, WindowFork, sys};

use crate::heap::heap;
use crate::pager_instance::pager;
use crate::window_calls::{tether, window};
use crate::{c, exit};

/// The fork under way. The structure lock, held from `prepare` on, limits it to one thread.
struct PendingFork(UnsafeCell<Option<Fork>>);

/// A fork under a pager, or under a window.
enum Fork {
    Paged(ForkedChild),
    Window(WindowFork),
}

// SAFETY: only the thread that holds the structure lock accesses it.
unsafe impl Sync for PendingFork {}

static PENDING_FORK: PendingFork = PendingFork(UnsafeCell::new(None));

/// Registers the handlers around forks. False if the C library has no room for them.
pub fn install() -> bool {
    c::at_fork(prepare, in_parent, in_child)
}

extern "C" fn prepare() {
    match (pager(), window()) {
        (Some(pager), _) => begin(Fork::Paged(pager.before_fork())),
        (None, Some(window)) => begin(Fork::Window(prepare_window(window))),
        (None, None) => drop_foreign_fork(),
    }
    if let Err(errno) = heap().before_fork() {
        sys::die(&format!("fork failed: {errno}"));
    }
}

fn begin(fork: Fork) {
    // SAFETY: the structure lock is held by `fork`.
    unsafe { *PENDING_FORK.0.get() = Some(fork) };
}

/// Drops a fork that is not this process's own: a process that is no longer served may have been
/// made by a bare `clone` while its parent forked.
fn drop_foreign_fork() {
    // SAFETY: in a process that is not served nothing is stored there.
    let pending = unsafe { &mut *PENDING_FORK.0.get() };
    if pending.is_some() {
        std::mem::forget(pending.take());
    }
}

fn prepare_window(window: &'static Window) -> WindowFork {
    // The C library itself forks (`daemon`, `forkpty`) without a call of `fork`.
    if !window.begin_fork() {
        sys::die("a program of several threads may not fork in --mode window: use --mode paged");
    }
    window.before_fork().unwrap_or_else(|error| sys::die(&format!("fork failed: {error}")))
}

/// Takes the fork under way.
fn take() -> Option<Fork> {
    // SAFETY: called by the thread that prepared; it holds the structure lock if there is one.
    unsafe { (*PENDING_FORK.0.get()).take() }
}

extern "C" fn in_parent() {
    match is_served().then(take).flatten() {
        Some(Fork::Paged(fork)) => fork.in_parent(),
        Some(Fork::Window(fork)) => fork.in_parent(),
        None => {}
    }
}

extern "C" fn in_child() {
    sys::forget_own_threads();
    exit::remember_process();
    // SAFETY: its pager is not its own yet, and there is no other thread.
    if unsafe { heap().take_over_in_child() }.is_err() {
        sys::die("fork failed: there is no memory for the pager's heap in the child");
    }
    let done = match take() {
        Some(Fork::Paged(fork)) => fork.in_child().map(Some).map_err(|error| error.to_string()),
        Some(Fork::Window(fork)) => {
            fork.in_child().map(|()| None).map_err(|error| error.to_string())
        }
        None => Ok(None),
    };
    // Released once the threads have their stacks.
    let _holes =
        done.unwrap_or_else(|error| sys::die(&format!("fork failed in the child: {error}")));
    if let Some(Err(error)) = tether().map(Tether::watch) {
        sys::die(&format!("fork failed: the lifeline of the child could not start: {error}"));
    }
}

fn is_served() -> bool {
    pager().is_some() || window().is_some()
}
