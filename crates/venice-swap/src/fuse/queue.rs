//! One queue of `/dev/fuse`: a thread that reads a request, performs it and writes the reply.

use std::fs::File;
use std::io::{Read, Write};

use venice_fuse::{
    MAX_TRANSFER_BYTES, REPLY_HEADER_BYTES, REQUEST_HEADER_BYTES, Reply, WRITE_ARGUMENT_BYTES,
};

use super::carry_out::{Exchange, carry_out};
use super::protocol::{Call, Request};
use crate::backing::Backing;
use crate::clock::monotonic_ns;
use crate::store::Store;

/// Length of what precedes the bytes of a write.
const WRITE_HEADER_BYTES: usize = REQUEST_HEADER_BYTES + WRITE_ARGUMENT_BYTES;

/// A queue and its buffers. Nothing is allocated while it serves.
pub(super) struct Queue {
    device: File,
    store: Store,
    backing: Box<dyn Backing>,
    buffers: Buffers,
}

/// One buffer for reads from the device, one for writes to it.
pub(super) struct Buffers {
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
}

impl Queue {
    pub(super) fn new(device: File, store: Store, backing: Box<dyn Backing>) -> Self {
        Self { device, store, backing, buffers: Buffers::new() }
    }

    /// Serves until the file system is gone.
    pub(super) fn serve(mut self) {
        while self.serve_one().is_ok_and(|served| served) {}
    }

    /// Serves one request; returns whether more may come.
    fn serve_one(&mut self) -> std::io::Result<bool> {
        let request = match self.buffers.take(&mut self.device) {
            Ok(request) => request,
            // The request was withdrawn, or a signal came.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                return Ok(true);
            }
            // The last user of the file system is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(false),
            Err(error) => return Err(error),
        };
        let started_ns = monotonic_ns();
        let Some(request) = request.filter(|request| request.call != Call::Silent) else {
            return Ok(true);
        };
        let len = carry_out(&self.store, &mut *self.backing, request, &mut self.buffers);
        match self.buffers.give(&mut self.device, len) {
            Ok(()) => {}
            // The requester is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
        if matches!(request.call, Call::Read { .. } | Call::Write { .. }) {
            self.store.answered(started_ns, monotonic_ns());
        }
        Ok(true)
    }
}

impl Buffers {
    pub(super) fn new() -> Self {
        let incoming = vec![0; WRITE_HEADER_BYTES + MAX_TRANSFER_BYTES].into();
        let outgoing = vec![0; REPLY_HEADER_BYTES + MAX_TRANSFER_BYTES].into();
        Self { incoming, outgoing }
    }

    /// Waits for a request; `None` if the data is not a request.
    pub(super) fn take(&mut self, device: &mut File) -> std::io::Result<Option<Request>> {
        let len = device.read(&mut self.incoming)?;
        let request = venice_fuse::Request::parse_whole(&self.incoming[..len]);
        Ok(request.map(|(request, _)| request.into()))
    }

    /// Sends the reply to the kernel; its body has `len` bytes.
    pub(super) fn give(&mut self, device: &mut File, len: usize) -> std::io::Result<()> {
        device.write(&self.outgoing[..REPLY_HEADER_BYTES + len]).map(drop)
    }
}

impl Exchange for Buffers {
    fn bytes(&self, len: usize) -> &[u8] {
        &self.incoming[WRITE_HEADER_BYTES..WRITE_HEADER_BYTES + len]
    }

    fn reply(&mut self, unique: u64) -> Reply<'_> {
        let (header, body) = self.outgoing.split_at_mut(REPLY_HEADER_BYTES);
        Reply::new(header, body, unique)
    }
}
