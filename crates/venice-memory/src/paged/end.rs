//! The end of a process by its pager: the message goes to `venice run`, which prints it.
//!
//! Nothing here allocates, locks or uses thread-local storage: it runs in threads without a C
//! library under them, in signal handlers, and where an invariant is broken.

use std::fmt::{self, Write};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use super::run_block::{EndMessages, MESSAGE_BYTES, RunBlockMap};
use super::sys::{self, nr};

/// Identity of standard error when the pager started; a daemon may have put a file in its place.
static STANDARD_ERROR: AtomicU64 = AtomicU64::new(0);
/// The run block's messages. Null: this process is not a program under `venice run`.
static MESSAGES: AtomicPtr<EndMessages> = AtomicPtr::new(std::ptr::null_mut());

/// Remembers the identity of standard error, for [`die`].
pub(super) fn remember_standard_error() {
    STANDARD_ERROR.store(standard_error(), Ordering::Relaxed);
}

/// Lets `venice run` print the message with which this process ends. `block` must stay mapped as
/// long as the process lives.
pub(super) fn report_in(block: &RunBlockMap) {
    remember_standard_error();
    let messages = std::ptr::from_ref(&block.end_messages).cast_mut();
    MESSAGES.store(messages, Ordering::Release);
}

/// Device and inode of the file behind descriptor 2, folded; 0: none.
fn standard_error() -> u64 {
    // SAFETY: borrowed for this call only.
    let fd = unsafe { std::os::fd::BorrowedFd::borrow_raw(2) };
    rustix::fs::fstat(fd).map_or(0, |stat| stat.st_dev.rotate_left(32) ^ stat.st_ino)
}

/// Ends the process with `SIGKILL`: an invariant of the pager is broken, or memory is lost, and no
/// program may go on with wrong bytes. `venice run` prints `text`; without one, this process prints
/// it.
pub fn die(text: &str) -> ! {
    die_with(format_args!("{text}"))
}

/// Does the same as [`die`] with a message that is yet to be formatted.
pub fn die_with(message: fmt::Arguments<'_>) -> ! {
    let mut text = Text::default();
    let _ = text.write_fmt(message);
    // SAFETY: null, or in a run block that stays mapped.
    let messages = unsafe { MESSAGES.load(Ordering::Acquire).as_ref() };
    if !messages.is_some_and(|messages| messages.put(sys::getpid(), text.bytes())) {
        print(text.bytes());
    }
    kill()
}

/// Ends the process as [`die`] does, where the supervisor is gone: this process prints the text.
pub(super) fn die_unsupervised(text: &str) -> ! {
    print(text.as_bytes());
    kill()
}

/// Writes to standard error, if that is still the same file.
fn print(text: &[u8]) {
    if standard_error() == STANDARD_ERROR.load(Ordering::Relaxed) {
        for part in [&b"venice: "[..], text, b"\n"] {
            let _ = sys::write(2, part);
        }
    }
}

fn kill() -> ! {
    const SIGKILL: usize = 9;
    // SAFETY: ends this process; nothing after it matters.
    let _ = unsafe { sys::syscall(nr::KILL, [sys::getpid() as usize, SIGKILL, 0, 0, 0, 0]) };
    // The first process of a PID namespace cannot kill itself (`pid_namespaces(7)`).
    sys::exit(128 + SIGKILL)
}

/// A message of a bounded length; what exceeds it is cut off.
struct Text {
    bytes: [u8; MESSAGE_BYTES],
    len: usize,
}

impl Default for Text {
    fn default() -> Self {
        Text { bytes: [0; MESSAGE_BYTES], len: 0 }
    }
}

impl Text {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl Write for Text {
    fn write_str(&mut self, more: &str) -> fmt::Result {
        for byte in more.bytes() {
            let Some(room) = self.bytes.get_mut(self.len) else { return Err(fmt::Error) };
            *room = if byte == b'\n' { b' ' } else { byte };
            self.len += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_message_is_cut() {
        let mut text = Text::default();
        assert!(text.write_fmt(format_args!("a\n{}", "b".repeat(MESSAGE_BYTES))).is_err());
        assert_eq!(text.bytes().len(), MESSAGE_BYTES);
        assert!(text.bytes().starts_with(b"a b"));
    }
}
