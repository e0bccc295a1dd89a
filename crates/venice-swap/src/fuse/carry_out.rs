//! The operations of the file, independent of the transport of requests.

use venice_fuse::Reply;

use crate::backing::Backing;
use crate::fuse::protocol::{Call, Request, attributes};
use crate::store::Store;

/// The buffers of a request and its reply.
pub(super) trait Exchange {
    /// Returns the first `len` bytes after the request; there are as many.
    fn bytes(&self, len: usize) -> &[u8];

    /// Returns the buffer of the reply. The request's bytes may be overwritten by it.
    fn reply(&mut self, unique: u64) -> Reply<'_>;
}

/// Performs the request and writes the reply; returns the length of its body.
pub(super) fn carry_out(
    store: &Store,
    backing: &mut dyn Backing,
    request: Request,
    exchange: &mut impl Exchange,
) -> usize {
    let unique = request.unique;
    if let Call::Write { offset, len } = request.call {
        let written = write(store, backing, offset, exchange.bytes(len));
        let reply = exchange.reply(unique);
        return match written {
            Ok(()) => reply.written(len),
            Err(errno) => reply.error(errno),
        };
    }
    let reply = exchange.reply(unique);
    match request.call {
        Call::GetAttributes => reply.attributes(&attributes(store.len_bytes())),
        Call::Open => reply.open(),
        Call::Read { offset, len } => read(store, backing, (offset, len), reply),
        Call::Punch { offset, len_bytes } => {
            if store.check(offset, len_bytes).is_err() {
                return reply.error(libc::EINVAL);
            }
            store.discard(offset, len_bytes);
            reply.ok(0)
        }
        Call::StatFs => reply.file_system(store.len_bytes()),
        Call::Done | Call::Silent => reply.ok(0),
        Call::Unknown => reply.error(libc::ENOSYS),
        // Valid only as the first request of a connection.
        Call::Init { .. } | Call::Write { .. } | Call::Malformed => reply.error(libc::EINVAL),
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
    mut reply: Reply<'_>,
) -> usize {
    if store.check(offset, len as u64).is_err() {
        return reply.error(libc::EINVAL);
    }
    match store.read(backing, offset, reply.body(len)) {
        Ok(()) => reply.ok(len),
        Err(_) => reply.error(libc::EIO),
    }
}
