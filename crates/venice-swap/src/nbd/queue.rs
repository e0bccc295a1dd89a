//! One queue of an nbd device: a thread at the other end of one of its sockets.

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::protocol::{Call, REPLY_BYTES, REQUEST_BYTES, Request, reply};
use crate::backing::Backing;
use crate::clock::monotonic_ns;
use crate::store::Store;

/// The most bytes of one request; the device is configured with it.
pub(super) const MAX_TRANSFER_BYTES: usize = 256 << 10;

/// The most bytes sent at a time. The kernel puts a longer rest into pages of their own, and looks
/// for these until it finds some, if need be for ever; for less it gives up and returns ENOBUFS.
/// With the kernel's own record of the bytes they fill a page (`SKB_MAX_HEAD`).
const PIECE_BYTES: usize = 3584;
/// The pause for the kernel to free memory before the next attempt.
const ASK_AGAIN: Duration = Duration::from_millis(1);

/// A queue and its buffer. Nothing is allocated while it serves.
pub(super) struct Queue {
    socket: UnixStream,
    store: Store,
    backing: Box<dyn Backing>,
    /// A reply's header, and the bytes of a read or a write.
    buffer: Box<[u8]>,
}

impl Queue {
    pub(super) fn new(socket: UnixStream, store: Store, backing: Box<dyn Backing>) -> Self {
        let buffer = vec![0; REPLY_BYTES + MAX_TRANSFER_BYTES].into();
        Self { socket, store, backing, buffer }
    }

    /// Serves until the device is disconnected.
    pub(super) fn serve(mut self) {
        while self.serve_one().is_ok_and(|served| served) {}
    }

    /// Serves one request; returns whether more may come.
    fn serve_one(&mut self) -> std::io::Result<bool> {
        let mut head = [0; REQUEST_BYTES];
        self.socket.read_exact(&mut head)?;
        let started_ns = monotonic_ns();
        let Some(request) = Request::parse(&head) else { return Ok(false) };
        let is_transfer = matches!(request.call, Call::Read | Call::Write);
        if is_transfer && request.len as usize > MAX_TRANSFER_BYTES {
            // Impossible, because the device is configured. Its bytes would be taken for a request.
            return Ok(false);
        }
        if request.call == Call::Write {
            self.socket.read_exact(&mut self.buffer[REPLY_BYTES..][..request.len as usize])?;
        }
        let Some(outcome) = self.carry_out(request) else { return Ok(false) };
        let errno = outcome.err().unwrap_or(0);
        reply(&mut self.buffer, request.cookie, errno);
        let carries = request.call == Call::Read && errno == 0;
        let len = REPLY_BYTES + if carries { request.len as usize } else { 0 };
        self.send(&self.buffer[..len])?;
        if is_transfer {
            self.store.answered(started_ns, monotonic_ns());
        }
        Ok(true)
    }

    /// Sends bytes for which the kernel waits while it looks for memory, and which need some memory
    /// themselves. The thread runs in real time so that it may use the last reserve, and must sleep
    /// when that is used up: others then free some.
    fn send(&self, mut bytes: &[u8]) -> std::io::Result<()> {
        while !bytes.is_empty() {
            let piece = &bytes[..bytes.len().min(PIECE_BYTES)];
            match send(&self.socket, piece, SendFlags::NOSIGNAL) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(Errno::NOBUFS | Errno::NOMEM) => std::thread::sleep(ASK_AGAIN),
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(())
    }

    /// Performs a request. Errors are the kernel's numbers; `None` after the last request.
    fn carry_out(&mut self, request: Request) -> Option<Result<(), i32>> {
        let Request { call, offset, len, .. } = request;
        let bytes = &mut self.buffer[REPLY_BYTES..];
        let in_device = self.store.check(offset, u64::from(len)).map_err(|_| libc::EINVAL);
        Some(match call {
            Call::Read => in_device.and_then(|()| {
                let read = self.store.read(&mut *self.backing, offset, &mut bytes[..len as usize]);
                read.map_err(|_| libc::EIO)
            }),
            Call::Write => in_device.and_then(|()| {
                let written = self.store.write(&mut *self.backing, offset, &bytes[..len as usize]);
                written.map_err(|_| libc::EIO)
            }),
            Call::Trim => in_device.map(|()| self.store.discard(offset, u64::from(len))),
            // A write is answered when it is stored.
            Call::Flush => Ok(()),
            Call::Unknown => Err(libc::EINVAL),
            Call::Disconnect => return None,
        })
    }
}
