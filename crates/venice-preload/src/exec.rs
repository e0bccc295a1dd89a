//! Replacements of the C library's calls that start another program: the shim goes with it.
//!
//! Programs start others with an environment of their own (`env -i`, a server's clean environment,
//! `LD_PRELOAD` of an allocator). Without the shim's variables such a program would run outside the
//! budget, so the replaced calls put them back. All of `execv`, `execlp`, `posix_spawn`, `system`
//! and `popen` end in the C library's `execve`; `fexecve` has a system call of its own. The kernel
//! drops the variables for programs that change their user (`execve(2)`, secure execution).
//!
//! A process that has changed its root, mount namespace or user may not reach the shim's file by
//! its path: see [`ShimFile`].
//!
//! The child of a `vfork` or `posix_spawn` runs here in its parent's memory, on a stack of 32 KiB:
//! nothing is allocated on the heap, and nothing of the parent's is changed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use venice_memory::paged::attach::SOCKET_VARIABLE;
use venice_memory::paged::sys::{self, Errno, SysResult, nr};

use crate::mappings::int_answer;
use crate::shim_file::ShimFile;
use crate::{c, patch};

const PRELOAD: &[u8] = b"LD_PRELOAD=";
const AT_EMPTY_PATH: usize = 0x1000;

/// Words of stack for a new environment: its pointers, then its new strings. An environment that
/// needs more than the longer one gets a mapping of its own.
const SHORT_WORDS: usize = 160;
const LONG_WORDS: usize = 1024;

/// The variables that load the shim into a program.
struct Own {
    /// `NAME=VALUE` of the attach socket, NUL-terminated.
    socket: Vec<u8>,
    /// The shim.
    shim: ShimFile,
}

static OWN: OnceLock<Own> = OnceLock::new();

/// Returns the descriptor of the shim's file, which is to stay open.
pub fn shim_descriptor() -> Option<c_int> {
    OWN.get().map(|own| own.shim.fd()).filter(|fd| *fd >= 0)
}

/// Installs the functions of this file; `socket` is the value of the attach socket's variable. The
/// shim's descriptor is at or above `lowest_fd` where there is room.
///
/// # Errors
/// The name of the one that could not be replaced, and the reason.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn install(
    socket: &std::path::Path,
    lowest_fd: i32,
) -> Result<(), (&'static str, patch::PatchError)> {
    let missing = ("the shim", patch::PatchError::Missing);
    let shim = ShimFile::open(c::file_of(install as *const c_void).ok_or(missing)?, lowest_fd);
    let socket = [SOCKET_VARIABLE.as_bytes(), b"=", socket.as_os_str().as_bytes(), b"\0"].concat();
    OWN.get_or_init(|| Own { socket, shim });
    // SAFETY: each takes and returns the same as the function that it replaces.
    unsafe {
        patch::replace(c"execve", execve as *const () as usize).map_err(|e| ("execve", e))?;
        patch::replace(c"fexecve", fexecve as *const () as usize).map_err(|e| ("fexecve", e))?;
        // Since version 2.34 of the C library.
        match patch::replace(c"execveat", execveat as *const () as usize) {
            Ok(()) | Err(patch::PatchError::Missing) => Ok(()),
            Err(why) => Err(("execveat", why)),
        }
    }
}

extern "C" fn execve(
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    let exec = |environment: Environment| {
        // SAFETY: what the program asked for; a bad pointer of its is refused by the kernel.
        unsafe {
            let environment = environment as usize;
            sys::syscall(nr::EXECVE, [path as usize, arguments as usize, environment, 0, 0, 0])
        }
    };
    // SAFETY: `environment` is what the program gave to `execve`.
    finish(unsafe { with_own(environment, exec) })
}

extern "C" fn execveat(
    dir: c_int,
    path: *const c_char,
    arguments: *const *const c_char,
    environment: *const *const c_char,
    flags: c_int,
) -> c_int {
    let (dir, path, flags) = (dir as isize as usize, path as usize, flags as usize);
    let exec = |environment: Environment| {
        let environment = environment as usize;
        // SAFETY: as in `execve`.
        unsafe {
            sys::syscall(nr::EXECVEAT, [dir, path, arguments as usize, environment, flags, 0])
        }
    };
    // SAFETY: as in `execve`.
    finish(unsafe { with_own(environment, exec) })
}

extern "C" fn fexecve(
    fd: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) -> c_int {
    if fd < 0 || arguments.is_null() || environment.is_null() {
        const EINVAL: Errno = Errno(22);
        return finish(Err(EINVAL));
    }
    execveat(fd, c"".as_ptr(), arguments, environment, AT_EMPTY_PATH as c_int)
}

fn finish(outcome: SysResult<usize>) -> c_int {
    int_answer(outcome)
}

type Environment = *const *const c_char;

/// Calls `exec` with `environment` and the shim's variables in it. Returns only if `exec` does.
///
/// # Safety
/// `environment` must be null or a list of C strings that ends in null.
unsafe fn with_own(
    environment: Environment,
    exec: impl FnOnce(Environment) -> SysResult<usize>,
) -> SysResult<usize> {
    let Some(own) = OWN.get() else { return exec(environment) };
    let shim = own.shim.reachable_path();
    // SAFETY: forwarded to the caller.
    let found = unsafe { Found::in_environment(environment, own, shim) };
    if found.is_complete {
        return exec(environment);
    }
    let words = found.words();
    if words <= SHORT_WORDS {
        let mut room = [const { MaybeUninit::uninit() }; SHORT_WORDS];
        // SAFETY: forwarded to the caller; the room lasts until `exec` returns.
        return exec(unsafe { found.rebuild(environment, own, &mut room) });
    }
    if words <= LONG_WORDS {
        // SAFETY: as above.
        return unsafe { on_long_stack(environment, own, &found, exec) };
    }
    // In the child of a `vfork` this mapping stays with the parent after a successful `exec`.
    let len_bytes = words * size_of::<usize>();
    let room = sys::map_private(len_bytes)?;
    // SAFETY: fresh, long enough and aligned to a page; as above.
    let outcome = unsafe {
        let room = std::slice::from_raw_parts_mut(room.cast::<MaybeUninit<usize>>(), words);
        exec(found.rebuild(environment, own, room))
    };
    // SAFETY: the mapping from above.
    unsafe { sys::unmap(room.cast::<c_void>(), len_bytes) };
    outcome
}

/// Does the same as [`with_own`] for a longer environment: a short one does not take its stack.
///
/// # Safety
/// The duties of [`with_own`].
#[inline(never)]
unsafe fn on_long_stack(
    environment: Environment,
    own: &Own,
    found: &Found,
    exec: impl FnOnce(Environment) -> SysResult<usize>,
) -> SysResult<usize> {
    let mut room = [const { MaybeUninit::uninit() }; LONG_WORDS];
    // SAFETY: forwarded to the caller; the room lasts until `exec` returns.
    exec(unsafe { found.rebuild(environment, own, &mut room) })
}

/// The variables of an environment that concern the shim.
struct Found {
    /// The path by which the shim is to be loaded.
    shim: &'static [u8],
    /// Number of variables.
    count: usize,
    /// Index and value of the first `LD_PRELOAD`, which is the one that the loader reads.
    preload: Option<(usize, *const c_char, usize)>,
    /// Index of the attach socket's variable.
    socket: Option<usize>,
    /// True if the environment loads the shim as it is.
    is_complete: bool,
}

impl Found {
    /// Finds them.
    ///
    /// # Safety
    /// `environment` must be null or a list of C strings that ends in null.
    unsafe fn in_environment(environment: Environment, own: &Own, shim: &'static [u8]) -> Found {
        let mut found = Found { shim, count: 0, preload: None, socket: None, is_complete: false };
        let (mut has_shim, mut is_other_run) = (false, false);
        // SAFETY: forwarded to the caller.
        while let Some(text) = unsafe { variable(environment, found.count) } {
            if let Some(list) = text.strip_prefix(PRELOAD)
                && found.preload.is_none()
            {
                found.preload = Some((found.count, list.as_ptr().cast(), list.len()));
                has_shim = list.split(is_separator).any(|name| name == shim);
            }
            let of_socket = own.socket.split(|&byte| byte == b'=').next();
            let is_value = |rest: &[u8]| rest.first() == Some(&b'=');
            if found.socket.is_none()
                && of_socket.and_then(|name| text.strip_prefix(name)).is_some_and(is_value)
            {
                found.socket = Some(found.count);
                is_other_run = text != &own.socket[..own.socket.len() - 1];
            }
            found.count += 1;
        }
        // A `venice run` inside the program starts a run of its own.
        found.is_complete = is_other_run || has_shim && found.socket.is_some();
        found
    }

    /// Returns the words of room that [`Found::rebuild`] needs.
    fn words(&self) -> usize {
        let others = self.preload.map_or(0, |(_, _, len)| len);
        let text_bytes = PRELOAD.len() + self.shim.len() + 1 + others + 1;
        self.count + 3 + text_bytes.div_ceil(size_of::<usize>())
    }

    /// Builds the environment with the shim's variables in `room`: the shim comes first among the
    /// preloaded libraries.
    ///
    /// # Safety
    /// `environment` must be the one that was searched, and `room` as long as [`Found::words`].
    unsafe fn rebuild(
        &self,
        environment: Environment,
        own: &Own,
        room: &mut [MaybeUninit<usize>],
    ) -> Environment {
        let list_len = self.count + 3;
        let (list, text) = room.split_at_mut(list_len);
        let text = text.as_mut_ptr().cast::<u8>();
        let mut len = 0;
        let mut append = |bytes: &[u8]| {
            // SAFETY: `words` counts all that is appended.
            unsafe { text.add(len).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
            len += bytes.len();
        };
        append(PRELOAD);
        append(self.shim);
        if let Some((_, others, others_len)) = self.preload {
            // SAFETY: a string of the environment.
            let others: &[u8] = unsafe { std::slice::from_raw_parts(others.cast(), others_len) };
            let others = others.split(is_separator);
            for name in others.filter(|name| !name.is_empty() && !own.shim.is_named(name)) {
                append(b":");
                append(name);
            }
        }
        append(b"\0");
        for (index, word) in list[..self.count].iter_mut().enumerate() {
            // SAFETY: there are so many.
            word.write(unsafe { *environment.add(index) } as usize);
        }
        let mut end = self.count;
        let changed = [
            (self.preload.map(|(index, ..)| index), text as usize),
            (self.socket, own.socket.as_ptr() as usize),
        ];
        for (index, pointer) in changed {
            list[index.unwrap_or(end)].write(pointer);
            end += usize::from(index.is_none());
        }
        list[end].write(0);
        list.as_ptr().cast()
    }
}

/// True between two libraries of `LD_PRELOAD` (`ld.so(8)`).
fn is_separator(byte: &u8) -> bool {
    matches!(byte, b':' | b' ')
}

/// Returns the variable `NAME=VALUE` with this index; `None` at the end.
///
/// # Safety
/// `environment` must be null or a list of C strings that ends in null, and have so many entries.
unsafe fn variable<'a>(environment: Environment, index: usize) -> Option<&'a [u8]> {
    // SAFETY: forwarded to the caller.
    unsafe {
        let text = environment.as_ref().and_then(|_| (*environment.add(index)).as_ref())?;
        Some(CStr::from_ptr(text).to_bytes())
    }
}
