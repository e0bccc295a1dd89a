//! The time at which the kernel took a packet from the sending to the receiving half of its stack.

use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd};

use anyhow::{Context, Result};
use rustix::time::{ClockId, clock_gettime};

/// Returns the time of the clock that stamps packets, in nanoseconds.
pub(super) fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Realtime);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Asks the kernel to stamp what a socket receives (socket(7), `SO_TIMESTAMPNS`).
pub(super) fn ask(socket: impl AsFd) -> Result<()> {
    let on: libc::c_int = 1;
    let length = size_of::<libc::c_int>() as libc::socklen_t;
    let fd = socket.as_fd().as_raw_fd();
    // SAFETY: the option's value is a `c_int` that lives through the call.
    let done = unsafe {
        libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, (&raw const on).cast(), length)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()).context("SO_TIMESTAMPNS") }
}

/// Receives what waits, at most 64 bytes; returns the stamp of its packet. The kernel begins to stamp a
/// while after it was asked: `None` before.
pub(super) fn receive(socket: impl AsFd) -> Result<Option<i64>> {
    let mut bytes = [0u8; 64];
    // A u64 array for the alignment of the header.
    let mut control = [0u64; 16];
    let mut part =
        libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: size_of_val(&bytes) };
    // SAFETY: zeroes are a valid header: no name, no parts, no control data.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    // SAFETY: the header points to buffers of these lengths that live through the call.
    let received = unsafe { libc::recvmsg(socket.as_fd().as_raw_fd(), &raw mut message, 0) };
    if received < 1 {
        return Err(std::io::Error::last_os_error()).context("recvmsg(2)");
    }
    // SAFETY: the kernel has filled in the header and the control data to which it points.
    let mut at = unsafe { libc::CMSG_FIRSTHDR(&raw const message) };
    while !at.is_null() {
        // SAFETY: `at` is a header inside the control data, as both macros return it.
        let head = unsafe { at.read() };
        if head.cmsg_level == libc::SOL_SOCKET && head.cmsg_type == libc::SCM_TIMESTAMPNS {
            // SAFETY: control data of this type is a `timespec`, perhaps not aligned.
            let stamp: libc::timespec =
                unsafe { libc::CMSG_DATA(at).cast::<libc::timespec>().read_unaligned() };
            return Ok(Some(stamp.tv_sec * 1_000_000_000 + stamp.tv_nsec));
        }
        // SAFETY: as above.
        at = unsafe { libc::CMSG_NXTHDR(&raw const message, at) };
    }
    Ok(None)
}
