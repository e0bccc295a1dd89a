//! The operations of the file, independent of the transport of requests.

use crate::backing::Backing;
use crate::fuse::protocol::{Answer, Call, Request};
use crate::store::Store;

/// The buffers of a request and its answer.
pub(super) trait Exchange {
    /// Returns the first `len` bytes after the request; there are as many.
    fn bytes(&self, len: usize) -> &[u8];

    /// Returns the buffer of the answer. The request's bytes may be overwritten by it.
    fn answer(&mut self, unique: u64) -> Answer<'_>;
}

/// Performs the request and writes the answer; returns the length of its body.
pub(super) fn carry_out(
    store: &Store,
    backing: &mut dyn Backing,
    request: Request,
    exchange: &mut impl Exchange,
) -> usize {
    let unique = request.unique;
    if let Call::Write { offset, len } = request.call {
        let written = write(store, backing, offset, exchange.bytes(len));
        let answer = exchange.answer(unique);
        return match written {
            Ok(()) => answer.written(len),
            Err(errno) => answer.error(errno),
        };
    }
    let answer = exchange.answer(unique);
    match request.call {
        Call::GetAttr => answer.attributes(store.len_bytes()),
        Call::Open => answer.open(),
        Call::Read { offset, len } => read(store, backing, (offset, len), answer),
        Call::Punch { offset, len_bytes } => {
            if store.check(offset, len_bytes).is_err() {
                return answer.error(libc::EINVAL);
            }
            store.discard(offset, len_bytes);
            answer.ok(0)
        }
        Call::StatFs => answer.file_system(store.len_bytes()),
        Call::Done | Call::Silent => answer.ok(0),
        Call::Unknown => answer.error(libc::ENOSYS),
        // Valid only as the first request of a connection.
        Call::Init { .. } | Call::Write { .. } | Call::Malformed => answer.error(libc::EINVAL),
    }
}

/// Writes; returns the error number on failure.
fn write(
    store: &Store,
    backing: &mut dyn Backing,
    offset: u64,
    bytes: &[u8],
) -> Result<(), libc::c_int> {
    store.check(offset, bytes.len() as u64).map_err(|_| libc::EINVAL)?;
    store.write(backing, offset, bytes).map_err(|_| libc::EIO)
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
