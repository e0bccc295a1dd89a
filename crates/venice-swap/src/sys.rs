//! System calls without a safe form elsewhere: ioctls of FUSE, loop and nbd devices, swapon(2),
//! swapoff(2), splice(2), mincore(2), sched_setscheduler(2) and the groups of a socket's peer.

use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::ptr::null_mut;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// `FUSE_DEV_IOC_CLONE`: `_IOR(229, 0, u32)`.
const FUSE_CLONE: libc::c_ulong = 0x8004_e500;
const LOOP_GET_FREE: libc::c_ulong = 0x4c82;
const LOOP_CONFIGURE: libc::c_ulong = 0x4c0a;
const LOOP_CLEAR: libc::c_ulong = 0x4c01;

/// See `LOOP_CONFIGURE` in loop(4).
const LOOP_AUTOCLEAR: u32 = 4;
const LOOP_DIRECT_IO: u32 = 16;

/// `struct loop_config` of `linux/loop.h`.
#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo,
    reserved: [u64; 8],
}

/// `struct loop_info64` of `linux/loop.h`.
#[repr(C)]
struct LoopInfo {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// Gives the calling thread precedence over all normal ones (`SCHED_RR`, lowest priority;
/// `sched(7)`). EPERM: not permitted.
pub(crate) fn schedule_in_real_time() -> Result<(), Errno> {
    // SAFETY: plain numbers: all zeros is a value.
    let mut parameters: libc::sched_param = unsafe { MaybeUninit::zeroed().assume_init() };
    parameters.sched_priority = 1;
    // SAFETY: the kernel reads the parameters, which outlive the call.
    check(unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const parameters) })?;
    Ok(())
}

fn check(result: libc::c_int) -> Result<libc::c_int, Errno> {
    if result >= 0 {
        return Ok(result);
    }
    let error = std::io::Error::last_os_error();
    Err(Errno::from_io_error(&error).unwrap_or(Errno::IO))
}

/// Attaches `clone`, a fresh `/dev/fuse`, to the connection of `device`.
pub(crate) fn fuse_clone(clone: impl AsFd, device: impl AsFd) -> Result<(), Errno> {
    let other = device.as_fd().as_raw_fd() as u32;
    // SAFETY: the kernel reads one u32 from the pointer, which outlives the call.
    check(unsafe { libc::ioctl(clone.as_fd().as_raw_fd(), FUSE_CLONE, &raw const other) })?;
    Ok(())
}

/// Returns the number of an unused loop device.
pub(crate) fn loop_free(control: impl AsFd) -> Result<u32, Errno> {
    // SAFETY: the request takes no argument.
    let number = check(unsafe { libc::ioctl(control.as_fd().as_raw_fd(), LOOP_GET_FREE) })?;
    Ok(number as u32)
}

/// Attaches `file` to a loop device, with direct I/O and blocks of a page; it is detached when the
/// last user closes the device. EBUSY: another process was faster.
pub(crate) fn loop_configure(device: impl AsFd, file: impl AsFd, name: &str) -> Result<(), Errno> {
    // SAFETY: plain numbers and bytes: all zeros is a value.
    let mut config: LoopConfig = unsafe { MaybeUninit::zeroed().assume_init() };
    config.fd = file.as_fd().as_raw_fd() as u32;
    config.block_size = 4096;
    config.info.flags = LOOP_AUTOCLEAR | LOOP_DIRECT_IO;
    let len = name.len().min(config.info.file_name.len() - 1);
    config.info.file_name[..len].copy_from_slice(&name.as_bytes()[..len]);
    // SAFETY: the kernel reads one `struct loop_config`, which outlives the call.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CONFIGURE, &raw const config) })?;
    Ok(())
}

/// Detaches the file from the loop device, once its last user has closed it.
pub(crate) fn loop_clear(device: impl AsFd) -> Result<(), Errno> {
    // SAFETY: the request takes no argument.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), LOOP_CLEAR) })?;
    Ok(())
}

/// Calls swapon(2).
pub(crate) fn swap_on(path: &CStr, flags: libc::c_int) -> Result<(), Errno> {
    // SAFETY: the path ends with a zero.
    check(unsafe { libc::swapon(path.as_ptr(), flags) })?;
    Ok(())
}

/// Calls swapoff(2).
pub(crate) fn swap_off(path: &CStr) -> Result<(), Errno> {
    // SAFETY: the path ends with a zero.
    check(unsafe { libc::swapoff(path.as_ptr()) })?;
    Ok(())
}

/// Calls splice(2): moves up to `len` bytes of `file` from `offset` on to `pipe`, which holds their
/// pages. A full pipe stays unchanged.
pub(crate) fn splice(
    file: impl AsFd,
    offset: u64,
    pipe: impl AsFd,
    len: usize,
) -> Result<(), Errno> {
    let (from, to) = (file.as_fd().as_raw_fd(), pipe.as_fd().as_raw_fd());
    let mut offset = offset.cast_signed();
    let flags = libc::SPLICE_F_NONBLOCK;
    // SAFETY: the kernel reads and writes one offset, which outlives the call.
    let moved =
        unsafe { libc::splice(from, &raw mut offset, to, std::ptr::null_mut(), len, flags) };
    match moved {
        0.. => Ok(()),
        _ => match Errno::from_io_error(&std::io::Error::last_os_error()) {
            Some(Errno::AGAIN) => Ok(()),
            error => Err(error.unwrap_or(Errno::IO)),
        },
    }
}

/// True if the page of `file` at `offset` is in memory: mincore(2).
pub(crate) fn is_cached(file: impl AsFd, offset: u64) -> Result<bool, Errno> {
    const LEN: usize = venice_wire::PAGE_BYTES as usize;
    // SAFETY: a new mapping, at an address of the kernel's choice.
    let page = unsafe { mmap(null_mut(), LEN, ProtFlags::READ, MapFlags::SHARED, file, offset)? };
    let mut is_in = 0u8;
    // SAFETY: the page is mapped; the kernel writes a byte for it, which outlives the call.
    let asked = check(unsafe { libc::mincore(page, LEN, &raw mut is_in) });
    // SAFETY: mapped above with this length; nothing refers to it.
    unsafe { munmap(page, LEN)? };
    asked.map(|_| is_in & 1 != 0)
}

/// Returns the supplementary groups of the process that connected a unix socket, at that time
/// (`SO_PEERGROUPS`).
///
/// # Errors
/// The kernel's, if it is no unix socket.
pub fn peer_groups(socket: impl AsFd) -> Result<Vec<u32>, Errno> {
    let socket = socket.as_fd().as_raw_fd();
    let mut groups: Vec<libc::gid_t> = Vec::new();
    loop {
        let mut bytes = size_of_val(&*groups) as libc::socklen_t;
        let to = groups.as_mut_ptr().cast();
        // SAFETY: the kernel writes `bytes` bytes at most, to groups that outlive the call.
        let asked = check(unsafe {
            libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERGROUPS, to, &raw mut bytes)
        });
        let count = bytes as usize / size_of::<libc::gid_t>();
        groups.resize(count, 0);
        match asked {
            // Now they have room.
            Err(Errno::RANGE) => {}
            asked => return asked.map(|_| groups),
        }
    }
}

/// Requests to an nbd device with a numeric argument, of `linux/nbd.h`.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Nbd {
    /// Sets the length of a block.
    SetBlockBytes = 0xab01,
    /// Lends the calling thread to the device until it is disconnected.
    Run = 0xab03,
    /// Clears the sockets.
    ClearSockets = 0xab04,
    /// Sets the length in blocks.
    SetBlocks = 0xab07,
    /// Disconnects it.
    Disconnect = 0xab08,
    /// Sets the feature flags.
    SetFlags = 0xab0a,
}

/// Sends a request to an nbd device.
pub(crate) fn nbd(device: impl AsFd, request: Nbd, number: u64) -> Result<(), Errno> {
    let number = number as libc::c_ulong;
    // SAFETY: these requests take a number, not a pointer.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), request as libc::c_ulong, number) })?;
    Ok(())
}

/// Adds a connection to its server to an nbd device.
pub(crate) fn nbd_socket(device: impl AsFd, socket: impl AsFd) -> Result<(), Errno> {
    const SET_SOCKET: libc::c_ulong = 0xab00;
    let number = socket.as_fd().as_raw_fd() as libc::c_ulong;
    // SAFETY: the request takes the number of a descriptor, which is open.
    check(unsafe { libc::ioctl(device.as_fd().as_raw_fd(), SET_SOCKET, number) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_has_this_processs_groups() {
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let own: Vec<u32> =
            rustix::process::getgroups().unwrap().iter().map(|gid| gid.as_raw()).collect();
        assert_eq!(peer_groups(&one).unwrap(), own);
        let file = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(peer_groups(&file), Err(Errno::NOTSOCK));
    }
}
