//! One queue of the FUSE device: a thread that takes a request, carries it out and answers.

use std::fs::File;
use std::io::{Read, Write};

use crate::backing::Backing;
use crate::fuse::protocol::{
    ANSWER_HEADER_BYTES, Answer, Call, MAX_TRANSFER_BYTES, Request, WRITE_HEADER_BYTES,
};
use crate::outside::monotonic_ns;
use crate::store::Store;

/// A queue and its buffers. Nothing is allocated once it serves.
pub(super) struct Queue {
    device: File,
    store: Store,
    backing: Box<dyn Backing>,
    incoming: Box<[u8]>,
    outgoing: Box<[u8]>,
}

impl Queue {
    pub(super) fn new(device: File, store: Store, backing: Box<dyn Backing>) -> Self {
        let incoming = vec![0; WRITE_HEADER_BYTES + MAX_TRANSFER_BYTES].into();
        let outgoing = vec![0; ANSWER_HEADER_BYTES + MAX_TRANSFER_BYTES].into();
        Self { device, store, backing, incoming, outgoing }
    }

    /// Answers the first request of a connection.
    pub(super) fn greet(&mut self) -> std::io::Result<()> {
        self.serve_one().map(drop)
    }

    /// Serves until the file system is gone.
    pub(super) fn serve(mut self) {
        while self.serve_one().is_ok_and(|served| served) {}
    }

    /// Whether there will be more.
    fn serve_one(&mut self) -> std::io::Result<bool> {
        let len = match self.device.read(&mut self.incoming) {
            Ok(len) => len,
            // A request that was taken back, or a signal.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::EINTR)) => {
                return Ok(true);
            }
            // The last user of the file system is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENODEV) => return Ok(false),
            Err(error) => return Err(error),
        };
        let started_ns = monotonic_ns();
        let Some(request) = Request::parse(&self.incoming[..len]) else { return Ok(true) };
        if request.call == Call::Silent {
            return Ok(true);
        }
        let is_transfer = matches!(request.call, Call::Read { .. } | Call::Write { .. });
        let answer = Answer::new(&mut self.outgoing, request.unique);
        let len = carry_out(&self.store, &mut *self.backing, request.call, answer);
        match self.device.write(&self.outgoing[..len]) {
            Ok(_) => {}
            // The one who asked is gone.
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {}
            Err(error) => return Err(error),
        }
        if is_transfer {
            self.store.answered(started_ns, monotonic_ns());
        }
        Ok(true)
    }
}

/// Does what is asked for and writes the answer; its length.
fn carry_out(
    store: &Store,
    backing: &mut dyn Backing,
    call: Call<'_>,
    answer: Answer<'_>,
) -> usize {
    match call {
        Call::Init { max_readahead, flags, .. } => answer.init(max_readahead, flags),
        Call::GetAttr => answer.attributes(store.len_bytes()),
        Call::Open => answer.open(),
        Call::Read { offset, len } => read(store, backing, (offset, len), answer),
        Call::Write { offset, bytes } => {
            if store.check(offset, bytes.len() as u64).is_err() {
                return answer.error(libc::EINVAL);
            }
            match store.write(backing, offset, bytes) {
                Ok(()) => answer.written(bytes.len()),
                Err(_) => answer.error(libc::EIO),
            }
        }
        Call::Punch { offset, len_bytes } => {
            if store.check(offset, len_bytes).is_err() {
                return answer.error(libc::EINVAL);
            }
            store.discard(offset, len_bytes);
            answer.ok(0)
        }
        Call::StatFs => answer.file_system(store.len_bytes()),
        Call::Done => answer.ok(0),
        Call::Silent => 0,
        Call::Unknown => answer.error(libc::ENOSYS),
        Call::Malformed => answer.error(libc::EINVAL),
    }
}

fn read(
    store: &Store,
    backing: &mut dyn Backing,
    (offset, len): (u64, usize),
    mut answer: Answer<'_>,
) -> usize {
    if store.check(offset, len as u64).is_err() {
        return answer.error(libc::EINVAL);
    }
    match store.read(backing, offset, answer.body(len)) {
        Ok(()) => answer.ok(len),
        Err(_) => answer.error(libc::EIO),
    }
}
