//! Output of kernels, on the standard output of the program.

use std::ffi::c_void;

unsafe extern "C" {
    /// Standard output of the C library: `stdio.h`.
    static mut stdout: *mut libc::FILE;
}

/// Prints bytes in the order of the program's own output.
pub fn print(bytes: &[u8]) {
    // SAFETY: the C library's own stream, which has a lock of its own.
    unsafe { libc::fwrite(bytes.as_ptr().cast::<c_void>(), 1, bytes.len(), stdout) };
}
