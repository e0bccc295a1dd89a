//! System calls of the udp port, and the structures that the kernel reads and writes for them.
//!
//! They are made directly: libc would write to a thread-local errno, and rustix has neither
//! `recvmmsg` nor the options for trains of datagrams.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use rustix::io::Errno;

use super::raw_address::RawAddress;

/// The kernel's `struct iovec`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct IoVec {
    pub(super) base: *mut c_void,
    pub(super) len: usize,
}

impl IoVec {
    pub(super) const EMPTY: Self = Self { base: ptr::null_mut(), len: 0 };
}

/// The kernel's `struct mmsghdr` with its `struct user_msghdr` unfolded, in the layout of 64-bit
/// machines.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct MMsgHdr {
    pub(super) name: *mut c_void,
    pub(super) name_len: u32,
    pub(super) iov: *mut IoVec,
    pub(super) iov_len: usize,
    pub(super) control: *mut c_void,
    pub(super) control_len: usize,
    pub(super) flags: u32,
    pub(super) _padding: u32,
    pub(super) len: u32,
}

const _: () = assert!(size_of::<MMsgHdr>() == 64, "Venice needs a 64-bit machine");

impl MMsgHdr {
    pub(super) const EMPTY: Self = Self {
        name: ptr::null_mut(),
        name_len: 0,
        iov: ptr::null_mut(),
        iov_len: 0,
        control: ptr::null_mut(),
        control_len: 0,
        flags: 0,
        _padding: 0,
        len: 0,
    };
}

/// A control message with one small value: the segment size of a train of datagrams.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(super) struct Control {
    len: usize,
    level: i32,
    kind: i32,
    value: [u8; 8],
}

impl Control {
    pub(super) const EMPTY: Self = Self { len: 0, level: 0, kind: 0, value: [0; 8] };
    /// Room for the value and its padding.
    pub(super) const SPACE: usize = size_of::<Self>();
    const HEADER: usize = 16;

    /// Returns the message that makes the kernel cut a payload into datagrams of this many bytes.
    pub(super) fn segment(len_bytes: u16) -> Self {
        let mut value = [0; 8];
        value[..2].copy_from_slice(&len_bytes.to_ne_bytes());
        Self { len: Self::HEADER + 2, level: SOL_UDP, kind: UDP_SEGMENT, value }
    }

    /// Returns the message with which the kernel reports joined datagrams of this many bytes.
    pub(super) fn coalesced(len_bytes: u16) -> Self {
        let mut value = [0; 8];
        value[..4].copy_from_slice(&i32::from(len_bytes).to_ne_bytes());
        Self { len: Self::HEADER + 4, level: SOL_UDP, kind: UDP_GRO, value }
    }

    /// Returns the length of the datagrams that the kernel joined, if it reported one.
    pub(super) fn segment_bytes(&self) -> Option<usize> {
        let is_gro = (self.level, self.kind) == (SOL_UDP, UDP_GRO) && self.len >= Self::HEADER + 4;
        let value =
            i32::from_ne_bytes([self.value[0], self.value[1], self.value[2], self.value[3]]);
        (is_gro && value > 0).then_some(value as usize)
    }
}

pub(super) const SOL_UDP: i32 = 17;
/// Option of udp(7), since Linux 4.18.
pub(super) const UDP_SEGMENT: i32 = 103;
/// Option of udp(7), since Linux 5.0.
pub(super) const UDP_GRO: i32 = 104;
const IPPROTO_IP: i32 = 0;
const IP_MTU: i32 = 14;
const IPPROTO_IPV6: i32 = 41;
const IPV6_MTU: i32 = 24;

const MSG_DONTWAIT: usize = 0x40;
const MSG_WHOLE_LEN: usize = MSG_TRUNC as usize;
const MSG_NOSIGNAL: usize = 0x4000;
pub(super) const MSG_TRUNC: u32 = 0x20;

#[cfg(target_arch = "x86_64")]
mod number {
    pub(super) const RECVFROM: usize = 45;
    pub(super) const SENDTO: usize = 44;
    pub(super) const RECVMMSG: usize = 299;
    pub(super) const SENDMMSG: usize = 307;
    pub(super) const SETSOCKOPT: usize = 54;
    pub(super) const GETSOCKOPT: usize = 55;
    pub(super) const BPF: usize = 321;
}

#[cfg(target_arch = "aarch64")]
mod number {
    pub(super) const RECVFROM: usize = 207;
    pub(super) const SENDTO: usize = 206;
    pub(super) const RECVMMSG: usize = 243;
    pub(super) const SENDMMSG: usize = 269;
    pub(super) const SETSOCKOPT: usize = 208;
    pub(super) const GETSOCKOPT: usize = 209;
    pub(super) const BPF: usize = 280;
}

/// Receives one message, without waiting; returns its length, which is more than `into` has room
/// for if it was cut off.
pub(super) fn recvfrom(
    socket: BorrowedFd<'_>,
    into: &mut [u8],
    from: &mut RawAddress,
) -> rustix::io::Result<usize> {
    let (fd, flags) = (socket.as_raw_fd() as usize, MSG_DONTWAIT | MSG_WHOLE_LEN);
    from.len = RawAddress::LEN;
    let (name, name_len) = ((&raw mut from.bytes) as usize, (&raw mut from.len) as usize);
    let arguments = [fd, into.as_mut_ptr() as usize, into.len(), flags, name, name_len];
    // SAFETY: the kernel writes a message into the slice, an address of at most the given length,
    // and its length, all of which live until the call returns.
    unsafe { system_call(number::RECVFROM, arguments) }
}

/// Sends one datagram, without waiting.
pub(super) fn sendto(
    socket: BorrowedFd<'_>,
    datagram: &[u8],
    to: &RawAddress,
) -> rustix::io::Result<()> {
    let (fd, flags) = (socket.as_raw_fd() as usize, MSG_DONTWAIT | MSG_NOSIGNAL);
    let (name, name_len) = ((&raw const to.bytes) as usize, to.len as usize);
    let arguments = [fd, datagram.as_ptr() as usize, datagram.len(), flags, name, name_len];
    // SAFETY: the kernel reads the datagram and the address, which live until the call returns.
    unsafe { system_call(number::SENDTO, arguments) }.map(drop)
}

/// Receives up to `count` messages, without waiting; returns how many.
///
/// # Safety
/// `headers` points to `count` initialised headers, each good for receiving into.
pub(super) unsafe fn recvmmsg(
    socket: BorrowedFd<'_>,
    headers: *mut MMsgHdr,
    count: usize,
) -> rustix::io::Result<usize> {
    let fd = socket.as_raw_fd() as usize;
    // SAFETY: as promised by the caller; a null time-out is allowed.
    unsafe { system_call(number::RECVMMSG, [fd, headers as usize, count, MSG_DONTWAIT, 0, 0]) }
}

/// Sends up to `count` messages, without waiting; returns how many.
///
/// # Safety
/// `headers` points to `count` initialised headers, each good for sending from.
pub(super) unsafe fn sendmmsg(
    socket: BorrowedFd<'_>,
    headers: *mut MMsgHdr,
    count: usize,
) -> rustix::io::Result<usize> {
    let fd = socket.as_raw_fd() as usize;
    let flags = MSG_DONTWAIT | MSG_NOSIGNAL;
    // SAFETY: as promised by the caller.
    unsafe { system_call(number::SENDMMSG, [fd, headers as usize, count, flags, 0, 0]) }
}

/// Sets an option whose value is an `int`.
pub(super) fn set_option(
    socket: BorrowedFd<'_>,
    level: i32,
    name: i32,
    value: i32,
) -> rustix::io::Result<()> {
    let (fd, pointer) = (socket.as_raw_fd() as usize, (&raw const value) as usize);
    let arguments = [fd, level as usize, name as usize, pointer, size_of::<i32>(), 0];
    // SAFETY: the kernel reads one `int` that lives until the call is over.
    unsafe { system_call(number::SETSOCKOPT, arguments) }.map(drop)
}

/// Returns the path MTU of a connected socket in bytes, IP header included.
pub(super) fn path_mtu(socket: BorrowedFd<'_>, is_v6: bool) -> rustix::io::Result<usize> {
    let (level, name) = if is_v6 { (IPPROTO_IPV6, IPV6_MTU) } else { (IPPROTO_IP, IP_MTU) };
    let (mut value, mut len) = (0i32, size_of::<i32>() as u32);
    let fd = socket.as_raw_fd() as usize;
    let (value_at, len_at) = ((&raw mut value) as usize, (&raw mut len) as usize);
    let arguments = [fd, level as usize, name as usize, value_at, len_at, 0];
    // SAFETY: the kernel writes one `int` and its length, which live until the call is over.
    unsafe { system_call(number::GETSOCKOPT, arguments) }?;
    Ok(value.max(0) as usize)
}

/// Calls bpf(2) with its union of attributes.
///
/// # Safety
/// The targets of the attributes must suit the command and live until the call returns.
pub(super) unsafe fn bpf(command: usize, attributes: &[u64; 16]) -> rustix::io::Result<usize> {
    let arguments = [command, attributes.as_ptr() as usize, size_of_val(attributes), 0, 0, 0];
    // SAFETY: the kernel reads the attributes, which live until the call is over; the rest is as
    // promised by the caller.
    unsafe { system_call(number::BPF, arguments) }
}

/// Makes a system call.
///
/// # Safety
/// The arguments suit the system call, which must be one that upholds Rust's rules.
#[cfg(target_arch = "x86_64")]
unsafe fn system_call(number: usize, arguments: [usize; 6]) -> rustix::io::Result<usize> {
    let result: isize;
    // SAFETY: the kernel's calling convention; rcx and r11 are clobbered, memory may be written.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") arguments[0],
            in("rsi") arguments[1],
            in("rdx") arguments[2],
            in("r10") arguments[3],
            in("r8") arguments[4],
            in("r9") arguments[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    to_result(result)
}

/// Makes a system call.
///
/// # Safety
/// The arguments suit the system call, which must be one that upholds Rust's rules.
#[cfg(target_arch = "aarch64")]
unsafe fn system_call(number: usize, arguments: [usize; 6]) -> rustix::io::Result<usize> {
    let result: isize;
    // SAFETY: the kernel's calling convention; memory may be written.
    unsafe {
        std::arch::asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") arguments[0] => result,
            in("x1") arguments[1],
            in("x2") arguments[2],
            in("x3") arguments[3],
            in("x4") arguments[4],
            in("x5") arguments[5],
            options(nostack),
        );
    }
    to_result(result)
}

fn to_result(result: isize) -> rustix::io::Result<usize> {
    match result {
        0.. => Ok(result as usize),
        _ => Err(Errno::from_raw_os_error(-result as i32)),
    }
}
