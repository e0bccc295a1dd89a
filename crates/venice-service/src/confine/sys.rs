//! System calls without a safe form. The only unsafe code of the crate.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::process::Pid;
use rustix::thread::UnshareFlags;

/// Closes all descriptors from `first` on (close_range(2)).
pub(crate) fn close_from(first: u32) -> io::Result<()> {
    // SAFETY: called at the start of a program, before anything here owns one of them.
    let done = unsafe { libc::syscall(libc::SYS_close_range, first, u32::MAX, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Side of a fork.
pub(crate) enum Fork {
    /// The new process.
    Child,
    /// The old process, with the id of the new one in its PID namespace.
    Parent(Pid),
}

/// Forks. The caller has one thread, which [`check_single_thread`] makes sure of.
pub(crate) fn fork() -> io::Result<Fork> {
    // SAFETY: with a single thread no lock is held by a thread that the child lacks.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        id if id > 0 => Ok(Fork::Parent(Pid::from_raw(id).expect("a process id is positive"))),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Leaves namespaces (unshare(2)).
pub(crate) fn unshare(flags: UnshareFlags) -> rustix::io::Result<()> {
    assert!(!flags.contains(UnshareFlags::FILES), "descriptors stay shared");
    // SAFETY: the table of descriptors stays shared, so that every owned descriptor stays valid.
    unsafe { rustix::thread::unshare_unsafe(flags) }
}

/// Attributes that a mount gets, and keeps (mount_setattr(2)).
#[derive(Clone, Copy)]
pub(crate) enum MountAttributes {
    /// No devices, no set-user-id programs; read-only.
    ReadOnly,
    /// No devices, no set-user-id programs, no execution.
    Writable,
    /// Devices; no set-user-id programs, no execution.
    Device,
}

/// Adds attributes to the mount at `path` and all below it.
pub(crate) fn add_mount_attributes(path: &Path, attributes: MountAttributes) -> io::Result<()> {
    const RDONLY: u64 = 0x1;
    const NOSUID: u64 = 0x2;
    const NODEV: u64 = 0x4;
    const NOEXEC: u64 = 0x8;
    /// `struct mount_attr` of version 0.
    #[repr(C)]
    struct MountAttr {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let attr_set = match attributes {
        MountAttributes::ReadOnly => RDONLY | NOSUID | NODEV,
        MountAttributes::Writable => NOSUID | NODEV | NOEXEC,
        MountAttributes::Device => NOSUID | NOEXEC,
    };
    let attr = MountAttr { attr_set, attr_clr: 0, propagation: 0, userns_fd: 0 };
    let path = CString::new(path.as_os_str().as_bytes()).map_err(io::Error::other)?;
    // SAFETY: `path` is a string with its end, `attr` a structure of the size passed.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            libc::AT_FDCWD,
            path.as_ptr(),
            libc::AT_RECURSIVE,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Checks that this process has one thread.
///
/// # Errors
/// Fails if it has several, or if the kernel does not tell.
pub(crate) fn check_single_thread() -> io::Result<()> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads == 1 {
        return Ok(());
    }
    Err(io::Error::other(format!("{threads} threads before the first fork: expected one")))
}
