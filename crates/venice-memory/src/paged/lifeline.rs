//! What ties the processes of a window to their supervisor: a pipe that nobody writes to, whose one
//! end only the supervisor has. Where it closes unsaid the supervisor was killed; nobody renews the
//! leases then, and what is mapped may be another's any moment. So the process ends at once.
//!
//! A thread of its own waits for that, with a table of descriptors of its own that the program does
//! not reach. A forked child, whose memory is all local, is watched too: a run that is killed
//! leaves nothing that runs. For it the pipe stays open in the program's table, where the shim keeps
//! it from being closed. (A pager's evictor looks at the connection to the supervisor instead.)

use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

use super::descriptors::Descriptors;
use super::sys::{self, PollFd, SysResult};
use super::thread;

/// The supervisor's half.
#[derive(Debug)]
pub struct Lifeline {
    held: OwnedFd,
    for_processes: OwnedFd,
}

impl Lifeline {
    /// A new one.
    ///
    /// # Errors
    /// The kernel's: there are too many descriptors.
    pub fn new() -> Result<Lifeline, Errno> {
        let (for_processes, held) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Lifeline { held, for_processes })
    }

    /// What each process gets.
    pub fn for_processes(&self) -> BorrowedFd<'_> {
        self.for_processes.as_fd()
    }

    /// The run is over and nothing of it is borrowed: whatever it left behind may go on.
    pub fn let_go(&self) {
        // It stays there for all to see.
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
    /// Takes what the supervisor sent, and keeps it at or above `lowest_fd` where there is room.
    pub fn new(lifeline: OwnedFd, lowest_fd: i32) -> &'static Tether {
        let descriptors = Descriptors::new(lowest_fd);
        let fd = descriptors.keep(lifeline.into_raw_fd());
        Box::leak(Box::new(Tether { fd, descriptors }))
    }

    /// What the program must not close.
    pub fn descriptors(&self) -> &Descriptors {
        &self.descriptors
    }

    /// Starts the thread that ends this process with its supervisor. In a forked child again.
    ///
    /// # Errors
    /// The kernel's: no memory, or too many threads.
    pub fn watch(&'static self) -> SysResult<()> {
        thread::spawn(watch, self.fd as usize)
    }
}

extern "C" fn watch(fd: usize) -> ! {
    let fd = fd as i32;
    if thread::keep_only(fd).is_err() {
        sys::die("it cannot be seen whether `venice run` is still there");
    }
    loop {
        match what_became_of(fd) {
            Some(Become::LetGo) => thread::exit(),
            Some(Become::Killed) => {
                sys::die("`venice run` is gone, and with it this program's far memory");
            }
            None => {}
        }
    }
}

/// How a supervisor ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Become {
    LetGo,
    Killed,
}

/// Waits until there is something; `None`: nothing yet.
fn what_became_of(fd: i32) -> Option<Become> {
    let mut end = [PollFd { fd, events: sys::POLLIN, revents: 0 }];
    if sys::poll(&mut end, -1) == 0 {
        return None;
    }
    let is_let_go = end[0].revents & sys::POLLIN != 0;
    Some(if is_let_go { Become::LetGo } else { Become::Killed })
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn a_supervisor_that_is_killed_is_told_from_one_that_lets_go() {
        for lets_go in [false, true] {
            let lifeline = Lifeline::new().unwrap();
            let process = lifeline.for_processes().try_clone_to_owned().unwrap();
            if lets_go {
                lifeline.let_go();
            }
            drop(lifeline);
            let expected = if lets_go { Become::LetGo } else { Become::Killed };
            // As often as there are processes.
            for _ in 0..3 {
                assert_eq!(what_became_of(process.as_raw_fd()), Some(expected));
            }
        }
    }
}
