//! Standard output of the recipient's program.
#![allow(unsafe_code)]

unsafe extern "C" {
    /// Standard output of the C library: `stdio.h`.
    static mut stdout: *mut libc::FILE;
}

/// Prints bytes at once, in the order of the program's own output as far as that goes through the C
/// library.
pub(super) fn print(bytes: &[u8]) {
    // SAFETY: the C library's own stream, which has a lock of its own.
    unsafe {
        libc::fwrite(bytes.as_ptr().cast(), 1, bytes.len(), stdout);
        libc::fflush(stdout);
    }
}
