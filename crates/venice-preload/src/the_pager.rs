//! The one pager of this process, where everything that catches a call finds it.

use std::sync::atomic::{AtomicPtr, Ordering};

use venice_memory::paged::Pager;

static PAGER: AtomicPtr<Pager> = AtomicPtr::new(std::ptr::null_mut());

/// From here on [`pager`] has it.
pub fn set(pager: &'static Pager) {
    PAGER.store(std::ptr::from_ref(pager).cast_mut(), Ordering::Release);
}

/// The pager of this process, if it pages by itself.
pub fn pager() -> Option<&'static Pager> {
    // SAFETY: null, or what `set` was given, which lives for ever.
    unsafe { PAGER.load(Ordering::Acquire).as_ref() }.filter(|pager| pager.is_paging())
}
