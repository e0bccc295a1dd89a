//! Time slices: set how soon a woken thread runs on a busy processor.

use rustix::io::Errno;
use std::time::Duration;

/// The first version of `struct sched_attr`, `linux/sched/types.h`.
#[repr(C)]
#[derive(Debug, Default)]
struct SchedAttr {
    len_bytes: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    /// Time slice of a thread without deadlines, in nanoseconds.
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// Sets the time slice of this thread, and of threads that it starts later, to about this length
/// (the kernel allows 0.1 to 100 ms; its default is 3 ms, mostly). The thread's share of the
/// processor stays the same; but a woken thread runs before those with longer slices. Kernels
/// before Linux 6.12 ignore it (`sched_setattr(2)`; EEVDF,
/// `Documentation/scheduler/sched-eevdf.rst`).
///
/// # Errors
/// The error of the kernel, if the call is not allowed.
pub fn set_time_slice(slice: Duration) -> Result<(), Errno> {
    let mut attr = SchedAttr { len_bytes: size_of::<SchedAttr>() as u32, ..SchedAttr::default() };
    // SAFETY: the kernel writes at most as many bytes as it receives as the length, all plain
    // numbers.
    let got = unsafe {
        libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attr, size_of::<SchedAttr>(), 0)
    };
    check(got)?;
    attr.runtime_ns = u64::try_from(slice.as_nanos()).unwrap_or(u64::MAX);
    attr.flags = 0;
    // SAFETY: the kernel reads the structure, whose length is in it.
    check(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attr, 0) })
}

fn check(result: libc::c_long) -> Result<(), Errno> {
    match result {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_slice_keeps_nice_value() {
        let thread = std::thread::spawn(|| {
            let nice = || rustix::process::getpriority_process(None).unwrap();
            let before = nice();
            set_time_slice(Duration::from_micros(100)).unwrap();
            assert_eq!(nice(), before);
        });
        thread.join().unwrap();
    }
}
