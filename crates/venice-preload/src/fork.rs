//! What the shim does around the C library's `fork`.
//!
//! It registers first, so it comes last before the fork and first after it.

use std::cell::UnsafeCell;

use venice_memory::paged::{ForkedChild, sys};

use crate::c;
use crate::the_pager::pager;

/// The fork under way. The structure lock, held from `prepare` on, keeps it to one thread.
struct UnderWay(UnsafeCell<Option<ForkedChild>>);

// SAFETY: only the thread that holds the structure lock looks at it.
unsafe impl Sync for UnderWay {}

static UNDER_WAY: UnderWay = UnderWay(UnsafeCell::new(None));

/// Asks to be called around forks.
pub fn install() -> bool {
    c::at_fork(prepare, in_parent, in_child)
}

extern "C" fn prepare() {
    if let Some(pager) = pager() {
        let fork = pager.before_fork();
        // SAFETY: the structure lock is held by `fork`.
        unsafe { *UNDER_WAY.0.get() = Some(fork) };
    }
}

/// Takes the fork under way off its place.
fn take() -> Option<ForkedChild> {
    // SAFETY: called by the thread that prepared; it holds the structure lock if there is one.
    unsafe { (*UNDER_WAY.0.get()).take() }
}

extern "C" fn in_parent() {
    if let Some(fork) = pager().and_then(|_| take()) {
        fork.in_parent();
    }
}

extern "C" fn in_child() {
    if let Some(fork) = pager().and_then(|_| take())
        && let Err(error) = fork.in_child()
    {
        sys::die(&format!("a forked child cannot go on: {error}"));
    }
}
