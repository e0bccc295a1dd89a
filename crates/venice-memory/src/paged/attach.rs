//! Attachment of a process to the supervisor of its run: over a unix socket whose path is in the
//! environment, once, when the shim starts.
//!
//! The supervisor replies with the process's index in the run block, and the block. The connection
//! stays open: the process requests the memory of a slab over it (shm port) on first use, and its
//! end means that the supervisor is gone. Forked children share it, so a reply comes by a socket
//! that is sent with the request.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use venice_ports::shm::SlabFile;

use super::run_block::RunBlockMap;
use super::{rlimits, slots};

/// The environment variable that names the supervisor's socket.
pub const SOCKET_VARIABLE: &str = "VENICE_RUN_SOCKET";

const HELLO: &[u8] = b"VENICE-ATTACH-4";
/// First byte of a request for a slab.
const SLAB: u8 = b'S';
const REFUSED: u8 = 1;
const WELCOME: u8 = 0;

/// Most descriptors in a message.
const MOST_FDS: usize = 2;

/// The supervisor's reply to a process.
#[derive(Debug)]
pub struct Attached {
    /// The run block.
    pub block: OwnedFd,
    /// Index of the process in it.
    pub process: usize,
    /// The connection; it closes when the supervisor is gone.
    pub supervisor: OwnedFd,
    /// The process's half of the run's [`Lifeline`](super::Lifeline), where it has one.
    pub lifeline: Option<OwnedFd>,
}

/// An error of an attachment.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The socket failed.
    #[error("attaching to the supervisor of this run failed: {0}")]
    Socket(#[from] Errno),
    /// The supervisor refused.
    #[error("the supervisor refused to attach this process: {0}")]
    Refused(String),
    /// The reply is of another version.
    #[error("the supervisor is of another version of Venice: use the shim of the same release")]
    Version,
}

/// Attaches this process to the run whose supervisor listens at `path`.
///
/// # Errors
/// [`AttachError`].
pub fn attach(path: &Path) -> Result<Attached, AttachError> {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    rustix::net::send(&socket, HELLO, SendFlags::NOSIGNAL)?;
    let mut answer = [0u8; 256];
    let (len, [block, lifeline]) = receive(socket.as_fd(), &mut answer)?;
    let process = match answer[..len] {
        [REFUSED, ref text @ ..] => {
            return Err(AttachError::Refused(String::from_utf8_lossy(text).into_owned()));
        }
        [WELCOME, a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
        _ => return Err(AttachError::Version),
    };
    let block = block.ok_or(AttachError::Version)?;
    Ok(Attached { block, process: process as usize, supervisor: socket, lifeline })
}

/// Serves one process that connected to the supervisor. Returns its process id. A process that
/// attached before and now runs another program (`exec`) gives up its entry and slots.
///
/// # Errors
/// When the socket fails or the process does not speak this protocol. Nothing has changed then that
/// [`leave`] on the process's death does not undo.
pub fn welcome(
    socket: BorrowedFd<'_>,
    block: &RunBlockMap,
    block_fd: BorrowedFd<'_>,
    lifeline: Option<BorrowedFd<'_>>,
) -> Result<u32, Errno> {
    let pid = rustix::net::sockopt::socket_peercred(socket)?.pid.as_raw_nonzero().get() as u32;
    let mut hello = [0u8; 32];
    let (_, len) = rustix::net::recv(socket, &mut hello[..], RecvFlags::empty())?;
    if &hello[..len] != HELLO {
        return Err(Errno::PROTO);
    }
    leave(block, pid);
    let Some(process) = block.enter_process(pid) else {
        let text = [&[REFUSED][..], b"a run can have 64 paged processes at most"].concat();
        rustix::net::send(socket, &text, SendFlags::NOSIGNAL)?;
        return Ok(pid);
    };
    let mut text = vec![WELCOME];
    text.extend((process as u32).to_le_bytes());
    let fds: Vec<BorrowedFd<'_>> = [block_fd].into_iter().chain(lifeline).collect();
    send(socket, &text, &fds)?;
    Ok(pid)
}

/// Frees the entry and slots of process `pid`, which has ended (or runs another program now).
pub fn leave(block: &RunBlockMap, pid: u32) {
    use std::sync::atomic::Ordering;
    for (place, process) in block.live_processes() {
        if process.pid.load(Ordering::Acquire) == pid {
            slots::leave(block, place, pid);
        }
    }
}

/// Requests the slab of a replica from the supervisor at the other end of `socket`, and waits for
/// it. `None`: there is none, or the supervisor is gone. It works without the C library, but needs
/// descriptors: the program's limit, which may be reached, is lifted meanwhile.
pub(super) fn request_slab(socket: i32, replica: usize) -> Option<SlabFile> {
    let [limit, most] = rlimits::descriptors();
    rlimits::set_descriptors(most);
    // SAFETY: the pager's own socket, open as long as the process pages.
    let answer = request(unsafe { BorrowedFd::borrow_raw(socket) }, replica);
    rlimits::set_descriptors(limit);
    answer.ok()?
}

fn request(socket: BorrowedFd<'_>, replica: usize) -> Result<Option<SlabFile>, Errno> {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (here, there) = rustix::net::socketpair(kind.0, kind.1, kind.2, None)?;
    let mut question = [SLAB, 0, 0, 0, 0];
    question[1..].copy_from_slice(&(replica as u32).to_le_bytes());
    send(socket, &question, &[there.as_fd()])?;
    drop(there);
    let mut answer = [0u8; 8];
    loop {
        match receive(here.as_fd(), &mut answer) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok((_, [slab, _])) => {
                let offset_bytes = u64::from_le_bytes(answer);
                return Ok(slab.map(|fd| SlabFile::at(fd, offset_bytes)));
            }
        }
    }
}

/// The result of a readable connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Served {
    /// A request, which was served.
    Request,
    /// Its process, and all that share it, are gone.
    Closed,
}

/// Serves a request of an attached process: `slab` returns the memory of a replica. To be called
/// when the connection can be read.
pub fn serve_request(
    connection: BorrowedFd<'_>,
    slab: impl FnOnce(usize) -> Option<SlabFile>,
) -> Served {
    let mut question = [0u8; 5];
    let Ok((len, [reply, _])) = receive(connection, &mut question) else { return Served::Closed };
    let ([SLAB, a, b, c, d], 5) = (question, len) else { return Served::Closed };
    let slab = slab(u32::from_le_bytes([a, b, c, d]) as usize);
    if let Some(reply) = reply {
        let fds: Vec<BorrowedFd<'_>> = slab.iter().map(AsFd::as_fd).collect();
        let offset_bytes = slab.as_ref().map_or(0, SlabFile::offset_bytes);
        // A process that died meanwhile needs no reply.
        let _ = send(reply.as_fd(), &offset_bytes.to_le_bytes(), &fds);
    }
    Served::Request
}

fn send(socket: BorrowedFd<'_>, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "there is room for them");
    }
    let body = [std::io::IoSlice::new(text)];
    rustix::net::sendmsg(socket, &body, &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

/// Receives a message and the descriptors sent with it.
fn receive(
    socket: BorrowedFd<'_>,
    text: &mut [u8],
) -> Result<(usize, [Option<OwnedFd>; MOST_FDS]), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut body = [std::io::IoSliceMut::new(text)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut body, &mut ancillary, flags)?;
    let sent = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(sent) => Some(sent),
        _ => None,
    });
    let mut fds = sent.flatten();
    Ok((received.bytes, [fds.next(), fds.next()]))
}

#[cfg(test)]
mod tests {
    use super::super::run_block::PortKind;
    use super::*;

    #[test]
    fn process_attaches_and_maps_slabs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.sock");
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let listener = rustix::net::socket_with(kind.0, kind.1, kind.2, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        let (block_fd, block) = RunBlockMap::create(PortKind::Shm, 2, 1).unwrap();
        let supervisor = std::thread::spawn(move || {
            let socket = rustix::net::accept(&listener).unwrap();
            welcome(socket.as_fd(), &block, block_fd.as_fd(), None).unwrap();
            for known in [true, false] {
                let served = serve_request(socket.as_fd(), |replica| {
                    (known && replica == 7).then(|| SlabFile::at(slab(), 3 << 24))
                });
                assert_eq!(served, Served::Request);
            }
            assert_eq!(serve_request(socket.as_fd(), |_| None), Served::Closed);
            block
        });
        let attached = attach(&path).unwrap();
        let socket = std::os::fd::AsRawFd::as_raw_fd(&attached.supervisor);
        let slab = request_slab(socket, 7).unwrap();
        assert_eq!(slab.offset_bytes(), 3 << 24);
        assert_eq!(
            rustix::fs::fstat(slab.as_fd()).unwrap().st_size as u64,
            venice_wire::SLAB_BYTES
        );
        assert!(request_slab(socket, 7).is_none(), "the supervisor has no such slab");
        assert!(attached.lifeline.is_none());
        drop(attached.supervisor);
        let block = supervisor.join().unwrap();
        let here = RunBlockMap::open(attached.block.as_fd()).unwrap();
        assert_eq!(here.live_processes().map(|(place, _)| place).collect::<Vec<_>>(), [0]);
        leave(&block, std::process::id());
        assert_eq!(here.live_processes().count(), 0);
    }

    fn slab() -> OwnedFd {
        let fd = rustix::fs::memfd_create("slab", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, venice_wire::SLAB_BYTES).unwrap();
        fd
    }
}
