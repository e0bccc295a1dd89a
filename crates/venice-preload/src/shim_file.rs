//! The shim's own file, and the paths by which the loader of a further program finds it.
//!
//! A process that has changed its root or mount namespace does not see the path that it was loaded
//! by, and one that has changed its user may not be allowed to search a directory on it. So the
//! file stays open, and such a process names it by its descriptor: `/proc/self/fd/NUMBER` is a link
//! to the file itself, for which the file's permissions alone count (`proc_pid_fd(5)`).

use std::ffi::{CStr, CString, c_int};

use venice_memory::paged::sys::{self, nr};

const AT_FDCWD: isize = -100;

/// The file of the shim.
pub struct ShimFile {
    path: CString,
    /// -1: it could not be opened.
    fd: c_int,
    /// The path by its descriptor.
    path_by_fd: CString,
}

impl ShimFile {
    /// Opens the file at `path`, with a descriptor at or above `lowest_fd` where there is room.
    pub fn open(path: &CStr, lowest_fd: c_int) -> ShimFile {
        let fd = sys::open_readonly(path.to_bytes_with_nul());
        let fd = fd.map_or(-1, |fd| sys::move_fd(fd, lowest_fd).unwrap_or(fd));
        let by_fd = format!("/proc/self/fd/{fd}");
        let path_by_fd = CString::new(by_fd).expect("a number contains no NUL");
        ShimFile { path: path.to_owned(), fd, path_by_fd }
    }

    /// The descriptor; -1: there is none.
    pub fn fd(&self) -> c_int {
        self.fd
    }

    /// True if `name` is one of its paths.
    pub fn is_named(&self, name: &[u8]) -> bool {
        name == self.path.to_bytes() || name == self.path_by_fd.to_bytes()
    }

    /// Returns a path by which a program that this thread executes now can load it: its own, or
    /// that of its descriptor, which then stays open. Where neither can be read, the loader reports
    /// the first.
    pub fn reachable_path(&self) -> &[u8] {
        let by_fd = || can_read(&self.path_by_fd) && keep_on_exec(self.fd);
        let path = if can_read(&self.path) || !by_fd() { &self.path } else { &self.path_by_fd };
        path.to_bytes()
    }
}

/// True if this process may read the file at `path`, by its effective user.
fn can_read(path: &CStr) -> bool {
    const READ: usize = 4;
    const AT_EACCESS: usize = 0x200;
    let arguments = [AT_FDCWD as usize, path.as_ptr() as usize, READ, AT_EACCESS, 0, 0];
    // SAFETY: the path is NUL-terminated.
    unsafe { sys::syscall(nr::FACCESSAT2, arguments) }.is_ok()
}

fn keep_on_exec(fd: c_int) -> bool {
    const F_SETFD: usize = 2;
    // SAFETY: changing a descriptor's flags touches no memory.
    unsafe { sys::syscall(nr::FCNTL, [fd as usize, F_SETFD, 0, 0, 0, 0]) }.is_ok()
}
