//! Output of kernels: what they print to standard output, for the recipient's program.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::pipe::{PipeFlags, pipe_with};

/// Most bytes that are taken in one go.
const PIECE_BYTES: usize = 16 << 10;

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
