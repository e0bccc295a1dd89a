//! Programs that do not outlive their starter.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Makes the kernel kill the program when the thread that starts it ends, however it ends.
pub fn kill_with_starter(command: &mut Command) {
    let starter = getpid();
    let bind = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // The starter may have ended before the signal was set.
        match getppid() == Some(starter) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls: it neither allocates nor
    // locks.
    unsafe { command.pre_exec(bind) };
}
