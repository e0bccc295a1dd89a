//! Robust mutexes (`pthread_mutexattr_setrobust(3)`): when a thread ends, the kernel releases those
//! that it holds. It writes to each then, and a page that is far is not brought in for a thread that
//! ends: who waits for the mutex would wait for ever. So the pages of robust mutexes stay near.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicUsize;

use crate::c;
use crate::pager_instance::pager;

/// `PTHREAD_MUTEX_ROBUST`.
const ROBUST: c_int = 1;
/// Bytes of a `pthread_mutex_t`.
const MUTEX_BYTES: usize = 40;

static INIT: AtomicUsize = AtomicUsize::new(0);
static GET_ROBUST: AtomicUsize = AtomicUsize::new(0);

/// Replaces the C library's call: makes a mutex, and keeps a robust one near.
#[unsafe(no_mangle)]
pub extern "C" fn pthread_mutex_init(mutex: *mut c_void, attributes: *const c_void) -> c_int {
    let address = c::next_symbol_once(&INIT, c"pthread_mutex_init");
    assert!(address != 0, "the C library makes mutexes");
    // SAFETY: the next library's `pthread_mutex_init`, with what the program gave this one.
    let init: extern "C" fn(*mut c_void, *const c_void) -> c_int =
        unsafe { std::mem::transmute(address) };
    let outcome = init(mutex, attributes);
    if outcome == 0
        && is_robust(attributes)
        && let Some(pager) = pager()
    {
        pager.keep_near(mutex as usize, MUTEX_BYTES);
    }
    outcome
}

/// True if `attributes`, which were good for a mutex, make robust ones.
fn is_robust(attributes: *const c_void) -> bool {
    if attributes.is_null() {
        return false;
    }
    let address = c::next_symbol_once(&GET_ROBUST, c"pthread_mutexattr_getrobust");
    if address == 0 {
        return false;
    }
    let mut robust = 0;
    // SAFETY: the C library's function of this type; the attributes were used just now.
    let get: extern "C" fn(*const c_void, *mut c_int) -> c_int =
        unsafe { std::mem::transmute(address) };
    get(attributes, &mut robust) == 0 && robust == ROBUST
}
