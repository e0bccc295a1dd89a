//! Programs that do not outlive who started them.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Has the program killed when the thread that starts it ends, however it ends.
pub fn kill_with_starter(command: &mut Command) {
    let starter = getpid();
    let bind = move || {
        set_parent_process_death_signal(Some(Signal::KILL))?;
        // It may have ended before that was said.
        match getppid() == Some(starter) {
            true => Ok(()),
            false => Err(io::ErrorKind::BrokenPipe.into()),
        }
    };
    // SAFETY: between fork and exec the closure makes two system calls: it neither allocates nor
    // locks.
    unsafe { command.pre_exec(bind) };
}
