//! The one pager of this process, for the replaced calls.

use std::sync::atomic::{AtomicPtr, Ordering};

use venice_memory::paged::Pager;

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// Sets the pager that [`pager`] returns.
pub fn set(pager: &'static Pager) {
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
}

/// The pager of this process, if it pages by itself.
pub fn pager() -> Option<&'static Pager> {
    started().filter(|pager| pager.is_paging())
}

/// The pager of this process, or the copy that a bare `clone` has left of its parent's.
pub fn started() -> Option<&'static Pager> {
    // SAFETY: null, or the argument of `set`, which lives for ever.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }
}
