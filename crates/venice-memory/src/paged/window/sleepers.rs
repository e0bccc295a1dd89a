//! Threads that sleep on a word of memory that has moved, as on one that processes share.
//!
//! The kernel knows such a word by the file and the place in it (`futex(2)`), which are others now:
//! whoever wakes them means the new ones. So those that are found asleep are woken by the old ones
//! and look again, as who sleeps so must be ready to. Those that sleep on a word of their process's
//! own (`FUTEX_PRIVATE_FLAG`, what the C library's locks do) are known by its address, and need nothing.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use super::super::sys::{self, nr};
use super::proc_numbers::{self, ProcPath};

/// How long after those that are asleep those are looked for that were about to be.
const ONCE_MORE_AFTER_NS: u64 = 1_000_000;

/// Wakes who sleeps on words of ranges, each with where what it was mapped from is mapped too.
///
/// # Safety
/// That is mapped, and stays so meanwhile.
pub(super) unsafe fn wake(moved: &[(Range<usize>, usize)]) {
    for is_first in [true, false] {
        let _ = proc_numbers::each(b"/proc/self/task\0", |thread| {
            let mut text = [0; 256];
            let told = ProcPath::new("/proc/self/task/", thread, "/syscall").read(&mut text);
            if let Some(word) = told.ok().and_then(slept_on)
                && let Some((range, old)) = moved.iter().find(|(range, _)| range.contains(&word))
            {
                let word = (old + (word - range.start)) as *const AtomicU32;
                // SAFETY: an aligned word of what the caller says is mapped.
                sys::futex_wake(unsafe { &*word }, u32::MAX >> 1, true);
            }
            false
        });
        if is_first {
            sys::futex_wait(&AtomicU32::new(0), 0, Some(ONCE_MORE_AFTER_NS), false);
        }
    }
}

/// The word that a thread waits for, if that is what it does (`proc_pid_syscall(5)`).
fn slept_on(syscall: &[u8]) -> Option<usize> {
    let mut words = std::str::from_utf8(syscall).ok()?.split_ascii_whitespace();
    let is_futex = words.next()?.parse() == Ok(nr::FUTEX);
    let word = usize::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()?;
    (is_futex && word.is_multiple_of(4)).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sleeps_is_told_from_who_does_something_else() {
        let asleep = b"202 0x7f0000001000 0x0 0x1 0x0 0x0 0x0 0x7ffd00 0x7f11\n";
        assert_eq!(slept_on(asleep), Some(0x7f00_0000_1000));
        assert_eq!(slept_on(b"0 0x3 0x7f0000001000 0x1 0x0 0x0 0x0 0x7ffd00 0x7f11\n"), None);
        assert_eq!(slept_on(b"running\n"), None);
    }
}
