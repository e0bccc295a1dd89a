//! The program's inheritance from `venice run`: what a command starts with beside its environment.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::FdFlags;

use super::sys::{self, nr};

/// Variables of a service manager that count only in the process with this id: sockets that it has
/// opened for the service, and its watchdog (`sd_listen_fds(3)`, `sd_watchdog_enabled(3)`).
const PID_VARIABLES: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];
/// Their value for a program that is not started yet.
const PROGRAM: &str = "program of venice run";

/// Passes what a service manager gave to this process on to the program of `command`.
pub fn pass_service(command: &mut Command) {
    let own = std::process::id().to_string();
    for name in PID_VARIABLES {
        if std::env::var_os(name).is_some_and(|value| value == *own) {
            command.env(name, PROGRAM);
        }
    }
}

/// Takes over what [`pass_service`] passed to this process.
///
/// # Safety
/// No other thread may be running.
pub unsafe fn take_service() {
    let own = std::process::id().to_string();
    for name in PID_VARIABLES {
        if std::env::var_os(name).is_some_and(|value| value == *PROGRAM) {
            // SAFETY: forwarded to the caller.
            unsafe { std::env::set_var(name, &own) };
        }
    }
}

/// Makes the program of `command` inherit `descriptor`, under the same number. The descriptor must
/// stay open until the program has started.
pub fn pass_descriptor(command: &mut Command, descriptor: BorrowedFd<'_>) {
    let number = descriptor.as_raw_fd();
    let pass = move || {
        // SAFETY: open in the starter, as the caller promises, so open in its child.
        let descriptor = unsafe { BorrowedFd::borrow_raw(number) };
        Ok(rustix::io::fcntl_setfd(descriptor, FdFlags::empty())?)
    };
    // SAFETY: between fork and exec the closure makes one system call: it neither allocates nor
    // locks.
    unsafe { command.pre_exec(pass) };
}

/// Makes the program of `command` ignore `signals`: those that its starter ignored before it began
/// to catch them, for `nohup(1)` and for jobs in the background of a script.
pub fn pass_ignored(command: &mut Command, signals: Vec<i32>) {
    let ignore = move || signals.iter().try_for_each(|signal| ignore(*signal));
    // SAFETY: between fork and exec the closure makes system calls: it neither allocates nor locks.
    unsafe { command.pre_exec(ignore) };
}

fn ignore(signal: i32) -> io::Result<()> {
    /// `struct kernel_sigaction` (`rt_sigaction(2)`): handler, flags, restorer, mask.
    const SIG_IGN: [usize; 4] = [1, 0, 0, 0];
    const MASK_BYTES: usize = 8;
    let arguments = [signal as usize, SIG_IGN.as_ptr() as usize, 0, MASK_BYTES, 0, 0];
    // SAFETY: the kernel reads the structure; no handler is installed.
    let done = unsafe { sys::syscall(nr::RT_SIGACTION, arguments) };
    done.map(drop).map_err(|sys::Errno(errno)| io::Error::from_raw_os_error(errno))
}

/// Signals that this process ignores (`proc_pid_status(5)`, `SigIgn`).
pub fn ignored_signals() -> Vec<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    (1..=64).filter(|signal| mask & 1 << (signal - 1) != 0).collect()
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn ignored_signals_reach_program() {
        const SIGUSR2: i32 = 12;
        let mut command = Command::new("grep");
        command.args(["SigIgn", "/proc/self/status"]);
        pass_ignored(&mut command, vec![SIGUSR2]);
        let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
        let mask = u64::from_str_radix(text.split_whitespace().nth(1).unwrap(), 16).unwrap();
        assert_ne!(mask & 1 << (SIGUSR2 - 1), 0, "{text}");
    }

    #[test]
    fn descriptor_reaches_program() {
        let (reader, writer) = std::io::pipe().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!("echo here >&{}", writer.as_raw_fd())]);
        pass_descriptor(&mut command, writer.as_fd());
        assert!(command.status().unwrap().success());
        drop(writer);
        assert_eq!(std::io::read_to_string(reader).unwrap(), "here\n");
    }
}
