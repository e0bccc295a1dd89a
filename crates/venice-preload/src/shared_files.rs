//! Replacements of the C library's calls that make files of shared memory: `memfd_create`,
//! `shm_open` and `shm_unlink`. What they make is a shared file of the run, which the run's shared
//! pager serves.
//!
//! A memfd that can be sealed or has huge pages stays the kernel's. Names in `/dev/shm` that the run
//! has not made are the kernel's too, and the run's own names are not there.

use std::ffi::{CStr, c_char, c_int, c_uint};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use venice_memory::paged::Pager;
use venice_memory::paged::sys::{self, Errno, SysResult, nr};

use crate::mappings::int_answer;
use crate::pager_instance::pager;
use crate::{patch, program_memory};

const O_RDWR: usize = 2;
const O_CREAT: usize = 0o100;
const O_EXCL: usize = 0o200;
const O_CLOEXEC: usize = 0o2000000;
const O_NOFOLLOW: usize = 0o400000;
const MFD_CLOEXEC: c_uint = 1;
const MFD_EXEC: c_uint = 0x10;

/// Longest name (`NAME_MAX`).
const MOST_NAME_BYTES: usize = 255;
/// Longest name of a memfd (`memfd_create(2)`).
const MOST_MEMFD_BYTES: usize = 249;
const EISDIR: Errno = Errno(21);
const ENOSPC: Errno = Errno(28);
const MEMFD: &[u8] = b"memfd:";
const KERNELS: &[u8] = b"/dev/shm/";
/// Room for a prefix, a name, and its end.
const ROOM: usize = 16 + MOST_NAME_BYTES;

/// Installs the functions of this file.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install() -> Result<(), (&'static str, patch::PatchError)> {
    let calls = [
        (c"memfd_create", "memfd_create", memfd_create as *const () as usize),
        // Since version 2.34 of the C library; before that they were in another.
        (c"shm_open", "shm_open", shm_open as *const () as usize),
        (c"shm_unlink", "shm_unlink", shm_unlink as *const () as usize),
    ];
    for (name, text, replacement) in calls {
        // SAFETY: each takes and returns the same as the function that it replaces.
        match unsafe { patch::replace(name, replacement) } {
            Ok(()) | Err(patch::PatchError::Missing) => {}
            Err(why) => return Err((text, why)),
        }
    }
    Ok(())
}

/// A path as the kernel takes it.
struct Path([u8; ROOM]);

impl Path {
    fn new(prefix: &[u8], name: &[u8]) -> Path {
        let mut path = [0; ROOM];
        path[..prefix.len()].copy_from_slice(prefix);
        path[prefix.len()..prefix.len() + name.len()].copy_from_slice(name);
        Path(path)
    }

    fn address(&self) -> usize {
        self.0.as_ptr() as usize
    }
}

pub extern "C" fn memfd_create(name: *const c_char, flags: c_uint) -> c_int {
    let made = make_nameless(name, flags);
    // SAFETY: what the program asked for.
    let ask = || unsafe {
        sys::program_syscall(nr::MEMFD_CREATE, [name as usize, flags as usize, 0, 0, 0, 0])
    };
    int_answer(made.map_or_else(ask, Ok))
}

/// Makes a shared file without a name. `None`: it is to be the kernel's.
fn make_nameless(name: *const c_char, flags: c_uint) -> Option<usize> {
    let pager = pager().filter(|_| flags & !(MFD_CLOEXEC | MFD_EXEC) == 0)?;
    let mut room = [0; MOST_MEMFD_BYTES + 1];
    // The kernel has the error for a bad pointer, and for a name that is too long.
    let name = program_memory::read_string(name as usize, &mut room).ok()?;
    if name.len() > MOST_MEMFD_BYTES {
        return None;
    }
    let mut path = Path::new(MEMFD, name);
    path.0.iter_mut().filter(|byte| **byte == b'/').for_each(|byte| *byte = b'_');
    let closes = if flags & MFD_CLOEXEC != 0 { O_CLOEXEC } else { 0 };
    in_mount(pager, |mount| open_at(mount, &path, O_RDWR | O_CREAT | O_EXCL | closes, 0o777))?.ok()
}

extern "C" fn shm_open(name: *const c_char, flags: c_int, mode: c_uint) -> c_int {
    // SAFETY: what the program gave as a string.
    let outcome = object_name(unsafe { CStr::from_ptr(name) }).and_then(|name| {
        let flags = flags as usize | O_CLOEXEC | O_NOFOLLOW;
        let of_run = open_object(name, flags, mode as usize);
        of_run.unwrap_or_else(|| open_at(None, &Path::new(KERNELS, name), flags, mode as usize))
    });
    // `.` and `..` are directories.
    let outcome = outcome.map_err(|errno| if errno == EISDIR { Errno::EINVAL } else { errno });
    int_answer(outcome)
}

/// Opens an object of the run, or makes it. `None`: the name is the kernel's.
fn open_object(name: &[u8], flags: usize, mode: usize) -> Option<SysResult<usize>> {
    let pager = pager().filter(|_| !name.starts_with(MEMFD))?;
    if flags & O_CREAT == 0 && !has_files(pager) {
        return None;
    }
    let path = Path::new(b"", name);
    in_mount(pager, |mount| {
        match open_at(mount, &path, flags & !(O_CREAT | O_EXCL), 0) {
            Err(Errno::ENOENT) => {}
            Ok(fd) if flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL => {
                sys::close(fd as i32);
                return Some(Err(Errno::EEXIST));
            }
            found => return Some(found),
        }
        let is_kernels = exists(&Path::new(KERNELS, name));
        let is_to_be_made = flags & O_CREAT != 0 && !is_kernels;
        let made = is_to_be_made.then(|| open_at(mount, &path, flags, mode));
        // Where there is no room for one more, it is the kernel's.
        made.filter(|made| *made != Err(ENOSPC))
    })?
}

extern "C" fn shm_unlink(name: *const c_char) -> c_int {
    // SAFETY: what the program gave as a string.
    let outcome = object_name(unsafe { CStr::from_ptr(name) }).and_then(|name| {
        let pager = pager().filter(|pager| has_files(pager) && !name.starts_with(MEMFD));
        let of_run =
            pager.and_then(|it| in_mount(it, |mount| unlink_at(mount, &Path::new(b"", name))));
        match of_run {
            None | Some(Err(Errno::ENOENT)) => unlink_at(None, &Path::new(KERNELS, name)),
            Some(outcome) => outcome,
        }
    });
    int_answer(outcome)
}

/// Returns the name of an object without its slashes in front (`shm_open(3)`).
fn object_name(name: &CStr) -> SysResult<&[u8]> {
    let name = name.to_bytes();
    let start = name.iter().position(|byte| *byte != b'/').unwrap_or(name.len());
    match &name[start..] {
        [] => Err(Errno::EINVAL),
        name if name.contains(&b'/') || name.len() > MOST_NAME_BYTES => Err(Errno::EINVAL),
        name => Ok(name),
    }
}

/// True if the run has made any shared file.
fn has_files(pager: &Pager) -> bool {
    pager.block().shared_files_device.load(Ordering::Acquire) != 0
}

/// Calls `with` with the mount of the run's shared files. A fork meanwhile would inherit it.
fn in_mount<T>(pager: &'static Pager, with: impl FnOnce(Option<&OwnedFd>) -> T) -> Option<T> {
    let mut structure = pager.hold_structure();
    let mount = structure.shared_files()?;
    let outcome = with(Some(&mount));
    sys::close(std::os::fd::IntoRawFd::into_raw_fd(mount));
    Some(outcome)
}

/// Opens a path below the mount, as the pager does, or an absolute one, as the program does.
fn open_at(dir: Option<&OwnedFd>, path: &Path, flags: usize, mode: usize) -> SysResult<usize> {
    let arguments = [number(dir), path.address(), flags, mode, 0, 0];
    // SAFETY: the path ends with a zero.
    unsafe { call(dir, nr::OPENAT, arguments) }
}

fn unlink_at(dir: Option<&OwnedFd>, path: &Path) -> SysResult<usize> {
    // SAFETY: the path ends with a zero.
    unsafe { call(dir, nr::UNLINKAT, [number(dir), path.address(), 0, 0, 0, 0]) }
}

/// Calls the kernel. A filter of the program's (`seccomp(2)`) judges what the C library would do, not
/// what happens in the mount.
///
/// # Safety
/// The duties of [`sys::syscall`].
unsafe fn call(dir: Option<&OwnedFd>, number: usize, arguments: [usize; 6]) -> SysResult<usize> {
    match dir {
        // SAFETY: forwarded to the caller.
        Some(_) => unsafe { sys::syscall(number, arguments) },
        // SAFETY: as above.
        None => unsafe { sys::program_syscall(number, arguments) },
    }
}

fn exists(path: &Path) -> bool {
    // SAFETY: the path ends with a zero.
    unsafe { sys::syscall(nr::FACCESSAT2, [number(None), path.address(), 0, 0, 0, 0]).is_ok() }
}

/// The number of a directory's descriptor; `AT_FDCWD` for none.
fn number(dir: Option<&OwnedFd>) -> usize {
    const AT_FDCWD: isize = -100;
    dir.map_or(AT_FDCWD as usize, |dir| dir.as_raw_fd() as usize)
}
