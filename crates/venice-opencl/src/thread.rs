//! Threads of the driver in the program's process.

use std::io;

/// Starts a thread. It takes no signals: those are the program's.
///
/// # Errors
/// The errors of the system.
pub fn start(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    // SAFETY: a mask of signals is plain data, which `sigfillset` fills.
    let (all, mut former) = unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        (all, std::mem::zeroed::<libc::sigset_t>())
    };
    // SAFETY: both point to masks. A thread inherits the mask of who starts it.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut former) };
    let started = std::thread::Builder::new().name(name.into()).spawn(run);
    // SAFETY: as above; this thread takes signals as before.
    unsafe {
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const former, std::ptr::null_mut());
    }
    started.map(drop)
}
