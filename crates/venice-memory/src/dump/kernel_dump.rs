//! Core dumps of the kernel: where they go, and whether a process left one.

use std::os::fd::{AsRawFd, BorrowedFd};

use crate::paged::sys;
use crate::process_stat::ProcessStat;

/// `struct pidfd_info` of `linux/pidfd.h`, as of Linux 6.13.
#[derive(Default)]
#[repr(C)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

const PIDFD_GET_INFO: usize = 3 << 30 | size_of::<PidfdInfo>() << 16 | 0xff << 8 | 11;
const PIDFD_INFO_EXIT: u64 = 1 << 3;
/// Bit of a wait status (`wait(2)`, `WCOREDUMP`).
const DUMPED: i32 = 0x80;

/// True if the ended process `pid` behind `pidfd` has dumped core. `None`: its parent has reaped it
/// already, and the kernel (before 6.15) does not tell.
pub fn has_dumped_core(pid: u32, pidfd: BorrowedFd<'_>) -> Option<bool> {
    let status = status_of_zombie(pid).or_else(|| status_of_reaped(pidfd))?;
    Some(status & DUMPED != 0)
}

/// Reads the wait status from `/proc/PID/stat`.
fn status_of_zombie(pid: u32) -> Option<i32> {
    ProcessStat::of(pid).filter(|stat| stat.state == 'Z').map(|stat| stat.exit_code)
}

/// Asks the kernel for the wait status of a process that is gone.
fn status_of_reaped(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the kernel fills at most the bytes whose number is part of the request.
    unsafe { sys::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &mut info) }.ok()?;
    (info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

/// Returns `kernel.core_pattern`: a path, relative ones to the directory of the program, or `|` and
/// a program that receives the core.
pub fn core_handler() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap_or_default();
    text.trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn ordinary_end_leaves_no_core() {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let pid = rustix::process::Pid::from_child(&child);
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty()).unwrap();
        let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, None).unwrap();
        assert_eq!(status_of_zombie(child.id()), Some(0));
        assert_eq!(has_dumped_core(child.id(), pidfd.as_fd()), Some(false));
        child.wait().unwrap();
        assert_ne!(has_dumped_core(child.id(), pidfd.as_fd()), Some(true));
    }
}
