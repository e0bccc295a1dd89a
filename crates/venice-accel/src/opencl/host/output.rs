//! Output of kernels: what they print to standard output, for the recipient's program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::pipe::{PipeFlags, pipe_with};

/// Most bytes of a task that are kept until it has ended.
const MAX_TASK_BYTES: usize = 1 << 20;
/// Most bytes that are taken in one go.
const PIECE_BYTES: usize = 16 << 10;

/// Output of the task of a mailbox that runs.
#[derive(Debug, Default)]
pub(super) struct TaskOutput {
    /// `None`: none runs.
    bytes: Mutex<Option<Vec<u8>>>,
}

impl TaskOutput {
    /// Begins a task.
    pub(super) fn begin(&self) {
        *self.lock() = Some(Vec::new());
    }

    /// Takes what was printed as output of the task, so that the pipe does not fill up; false if none
    /// runs.
    pub(super) fn collect(&self, output: &Output) -> bool {
        let mut bytes = self.lock();
        let Some(bytes) = &mut *bytes else { return false };
        while let Some(piece) = output.next() {
            let room = MAX_TASK_BYTES - bytes.len();
            bytes.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        true
    }

    /// Ends the task; returns its output.
    pub(super) fn end(&self, output: &Output) -> Vec<u8> {
        self.collect(output);
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<u8>>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Standard output of this process, as a pipe to itself.
#[derive(Debug)]
pub(super) struct Output {
    pipe: OwnedFd,
}

impl Output {
    /// Takes standard output over.
    pub(super) fn take_over() -> io::Result<Self> {
        let (pipe, ours) = pipe_with(PipeFlags::CLOEXEC)?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        rustix::stdio::dup2_stdout(&ours)?;
        Ok(Self { pipe })
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.pipe.as_fd()
    }

    /// Takes what was printed, a piece at a time; `None`: nothing now.
    pub(super) fn next(&self) -> Option<Vec<u8>> {
        // SAFETY: flushes the streams of the C library, in which drivers keep output.
        unsafe { libc::fflush(std::ptr::null_mut()) };
        let mut piece = vec![0; PIECE_BYTES];
        match rustix::io::read(&self.pipe, &mut piece) {
            Ok(len) if len > 0 => {
                piece.truncate(len);
                Some(piece)
            }
            Ok(_) | Err(_) => None,
        }
    }
}
