//! The lifeline from the processes of a window to their supervisor: a pipe that nothing is written
//! to while the run lasts, whose write end only the supervisor has. If it closes without a byte,
//! the supervisor was killed; then leases are no longer renewed, and the mapped memory may soon
//! belong to another. So the process ends at once.
//!
//! A separate thread waits for that, with its own descriptor table, which the program does not
//! reach. A forked child, whose memory is all local, is watched too: a run that is killed leaves no
//! process running. For it the pipe stays open in the program's table, where the shim keeps it from
//! being closed. (A pager's evictor checks the connection to the supervisor instead.)

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::descriptors::Descriptors;
use super::end::die_unsupervised;
use super::sys::{self, PollFd, SysResult};
use super::thread::{self, ThreadCount};

/// Interval between two checks of the program's threads.
const LOOK_EVERY_MS: i32 = 200;

/// The supervisor's half.
#[derive(Debug)]
pub struct Lifeline {
    held: OwnedFd,
    for_processes: OwnedFd,
}

impl Lifeline {
    /// Makes a lifeline.
    ///
    /// # Errors
    /// The kernel's: there are too many descriptors.
    pub fn new() -> Result<Lifeline, Errno> {
        let (for_processes, held) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Lifeline { held, for_processes })
    }

    /// The end that each process gets.
    pub fn for_processes(&self) -> BorrowedFd<'_> {
        self.for_processes.as_fd()
    }

    /// Releases the processes: the run is over and nothing of it is borrowed, so they may go on.
    pub fn release(&self) {
        // The byte stays in the pipe for all processes.
        let _ = rustix::io::write(&self.held, b".");
    }
}

/// A process's half. It lives as long as the process.
#[derive(Debug)]
pub struct Tether {
    fd: i32,
    descriptors: Descriptors,
}

impl Tether {
    /// Takes the end that the supervisor sent, and keeps it at or above `lowest_fd` where there is
    /// room.
    pub fn new(lifeline: OwnedFd, lowest_fd: i32) -> &'static Tether {
        let descriptors = Descriptors::new(lowest_fd);
        let fd = descriptors.keep(lifeline.into_raw_fd());
        Box::leak(Box::new(Tether { fd, descriptors }))
    }

    /// The descriptors that the program must not close.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Starts the thread that ends this process with its supervisor. To be called again in a forked
    /// child.
    ///
    /// # Errors
    /// The kernel's: no memory, or too many threads.
    pub fn watch(&'static self) -> SysResult<()> {
        thread::spawn(watch, self.fd as usize).map(drop)
    }
}

extern "C" fn watch(fd: usize) -> ! {
    let fd = fd as i32;
    if thread::keep_only(fd).is_err() {
        sys::die("watching `venice run` failed: no descriptor table of its own");
    }
    let stat = sys::open_readonly(thread::PROCESS_STAT).unwrap_or(-1);
    loop {
        // A program may end thread by thread: then only those of the window are left.
        if let Some(code) = ThreadCount::read(stat).and_then(ThreadCount::exit_code) {
            sys::exit(code);
        }
        match wait_for_end(fd) {
            Some(SupervisorEnd::Released) => thread::exit(),
            Some(SupervisorEnd::Killed) => {
                die_unsupervised("`venice run` has ended: this program's far memory is lost");
            }
            None => {}
        }
    }
}

/// The end of a supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SupervisorEnd {
    Released,
    Killed,
}

/// Waits for the end of the supervisor; `None`: nothing has happened yet.
fn wait_for_end(fd: i32) -> Option<SupervisorEnd> {
    let mut end = [PollFd { fd, events: sys::POLLIN, revents: 0 }];
    if sys::poll(&mut end, LOOK_EVERY_MS) == 0 {
        return None;
    }
    let is_released = end[0].revents & sys::POLLIN != 0;
    Some(if is_released { SupervisorEnd::Released } else { SupervisorEnd::Killed })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn killed_supervisor_differs_from_release() {
        for releases in [false, true] {
            let lifeline = Lifeline::new().unwrap();
            let process = lifeline.for_processes().try_clone_to_owned().unwrap();
            if releases {
                lifeline.release();
            }
            drop(lifeline);
            let expected = if releases { SupervisorEnd::Released } else { SupervisorEnd::Killed };
            // Once for each of several processes.
            for _ in 0..3 {
                assert_eq!(wait_for_end(process.as_raw_fd()), Some(expected));
            }
        }
    }
}
