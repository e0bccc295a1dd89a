//! Loads and attaches the program by the bpf(2) system call.

use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::io::Errno;

use super::super::syscall;
use super::XdpMode;

// Constants of <linux/bpf.h> and <linux/if_link.h>.
const MAP_CREATE: usize = 0;
const MAP_UPDATE: usize = 2;
const PROG_LOAD: usize = 5;
const LINK_CREATE: usize = 28;
const MAP_OF_XSKS: u32 = 17;
const PROGRAM_FOR_XDP: u32 = 6;
const ATTACH_TO_XDP: u32 = 37;
const FLAG_GENERIC: u32 = 1 << 1;
const FLAG_NATIVE: u32 = 1 << 2;
/// Flag: packets may lie in more than one buffer.
const FLAG_FRAGMENTS: u32 = 1 << 5;
/// Licence of the program, which uses no function reserved for the GPL.
const LICENCE: &std::ffi::CStr = c"Apache-2.0 OR MIT";
const NAME: &[u8; 16] = b"venice\0\0\0\0\0\0\0\0\0\0";

/// Map of AF_XDP sockets by receive queue.
#[derive(Debug)]
pub(super) struct SocketMap(OwnedFd);

impl SocketMap {
    pub(super) fn new(queues: u32) -> rustix::io::Result<Self> {
        bpf(MAP_CREATE, &[MAP_OF_XSKS, 4, 4, queues]).map(Self)
    }

    pub(super) fn put(&self, queue: u32, socket: BorrowedFd<'_>) -> rustix::io::Result<()> {
        let value = socket.as_raw_fd();
        let [key_low, key_high] = halves(&raw const queue);
        let [value_low, value_high] = halves(&raw const value);
        let map = self.0.as_raw_fd() as u32;
        let entry = [map, 0, key_low, key_high, value_low, value_high, 0, 0];
        call(MAP_UPDATE, &entry).map(drop)
    }

    pub(super) fn as_fd(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.0)
    }
}

/// A program attached to an interface. The kernel detaches it with the last descriptor, also when
/// this process is killed.
#[derive(Debug)]
pub(super) struct Attached {
    _link: OwnedFd,
}

/// A program that the kernel has checked, not attached yet.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Program {
    pub(super) fn load(code: &[u64]) -> rustix::io::Result<Self> {
        let [code_low, code_high] = halves(code.as_ptr());
        let [licence_low, licence_high] = halves(LICENCE.as_ptr());
        let name = NAME.as_chunks().0.iter().map(|word| u32::from_ne_bytes(*word));
        let first =
            [PROGRAM_FOR_XDP, code.len() as u32, code_low, code_high, licence_low, licence_high];
        // No log and no kernel version.
        let all: Vec<u32> =
            first.into_iter().chain([0; 5]).chain([FLAG_FRAGMENTS]).chain(name).collect();
        bpf(PROG_LOAD, &all).map(Self)
    }

    pub(super) fn attach(&self, interface: u32, mode: XdpMode) -> rustix::io::Result<Attached> {
        let flag = match mode {
            XdpMode::Generic => FLAG_GENERIC,
            XdpMode::Native => FLAG_NATIVE,
        };
        let program = self.0.as_raw_fd() as u32;
        let link = bpf(LINK_CREATE, &[program, interface, ATTACH_TO_XDP, flag])?;
        Ok(Attached { _link: link })
    }
}

fn halves<T>(pointer: *const T) -> [u32; 2] {
    let address = pointer as u64;
    [address as u32, (address >> 32) as u32]
}

/// Makes a bpf call that returns a descriptor.
fn bpf(command: usize, attributes: &[u32]) -> rustix::io::Result<OwnedFd> {
    let fd = call(command, attributes)?;
    let fd = i32::try_from(fd).map_err(|_| Errno::BADF)?;
    // SAFETY: fresh from the kernel, and owned by nothing else. These descriptors are closed on
    // exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn call(command: usize, attributes: &[u32]) -> rustix::io::Result<usize> {
    // Aligned as the kernel's union is, and zero beyond the given attributes.
    let mut union = [0u64; 16];
    for (at, pair) in attributes.chunks(2).enumerate() {
        let high = pair.get(1).copied().unwrap_or(0);
        union[at] = u64::from(pair[0]) | u64::from(high) << 32;
    }
    // SAFETY: what the attributes point to belongs to the caller and lives until the call is over;
    // of these commands none writes there.
    unsafe { syscall::bpf(command, &union) }
}
