//! Memory that will be needed soon, fetched into the processor's caches while it does something else.

/// Bytes of a cache line.
const LINE: usize = 64;

/// The number of events before one whose memory is fetched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ahead {
    /// Several: what is found from its number alone.
    Far,
    /// One: what the former points to, which is in the caches by now.
    Near,
}

/// Fetches the first bytes of a value, up to `lines` cache lines. Nothing waits for them.
#[inline]
pub fn prefetch<T>(value: &T, lines: usize) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    let lines = size_of::<T>().div_ceil(LINE).min(lines);
    (0..lines).for_each(|line| fetch(start.wrapping_add(line * LINE)));
}

/// Fetches the first bytes of the first value of a list.
#[inline]
pub fn prefetch_first<T>(values: &[T], lines: usize) {
    if let [first, ..] = values {
        prefetch(first, lines);
    }
}

#[cfg(target_arch = "x86_64")]
#[inline]
#[allow(unsafe_code, reason = "an intrinsic of the processor")]
fn fetch(address: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a hint reads nothing, and faults at no address (Intel, SDM volume 2, PREFETCHh).
    unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
}

#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn fetch(_: *const u8) {}
