//! Threads that sleep on a word of moved memory with a shared futex.
//!
//! The kernel identifies such a word by its file and offset (`futex(2)`), which the move has
//! changed: a later wake goes to the new ones. The threads found asleep are therefore woken through
//! the old ones and check their word again, as every user of a futex must. Threads that sleep on a
//! private word (`FUTEX_PRIVATE_FLAG`, used by the C library's locks) are identified by its
//! address, and need nothing.

use std::ops::Range;
use std::sync::atomic::AtomicU32;

use super::super::sys::{self, nr};
use super::proc_numbers::{self, ProcPath};

/// Delay before the second look, for threads that were just about to sleep, nanoseconds.
const ONCE_MORE_AFTER_NS: u64 = 1_000_000;

/// Wakes the threads that sleep on words of the moved ranges. Each range comes with the address of
/// its old mapping.
///
/// # Safety
/// The old mappings must stay mapped meanwhile.
pub(super) unsafe fn wake(moved: &[(Range<usize>, usize)]) {
    for is_first in [true, false] {
        let _ = proc_numbers::each(b"/proc/self/task\0", |thread| {
            let mut text = [0; 256];
            let syscall = ProcPath::new("/proc/self/task/", thread, "/syscall").read(&mut text);
            if let Some(word) = syscall.ok().and_then(slept_on)
                && let Some((range, old)) = moved.iter().find(|(range, _)| range.contains(&word))
            {
                let word = (old + (word - range.start)) as *const AtomicU32;
                // SAFETY: an aligned word of memory that the caller keeps mapped.
                sys::futex_wake(unsafe { &*word }, u32::MAX >> 1, true);
            }
            false
        });
        if is_first {
            sys::futex_wait(&AtomicU32::new(0), 0, Some(ONCE_MORE_AFTER_NS), false);
        }
    }
}

/// The word that a thread sleeps on, if it is in `futex(2)` (`proc_pid_syscall(5)`).
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
    fn recognises_futex_waiters() {
        let asleep = b"202 0x7f0000001000 0x0 0x1 0x0 0x0 0x0 0x7ffd00 0x7f11\n";
        assert_eq!(slept_on(asleep), Some(0x7f00_0000_1000));
        assert_eq!(slept_on(b"0 0x3 0x7f0000001000 0x1 0x0 0x0 0x0 0x7ffd00 0x7f11\n"), None);
        assert_eq!(slept_on(b"running\n"), None);
    }
}
