//! How a process of a run meets its supervisor: over a unix socket whose path is in the
//! environment, once, when its shim starts.
//!
//! The supervisor answers with the process's place in the run block, the block, and (shm port)
//! the slabs' memfds in slot order.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use venice_wire::SLAB_BYTES;

use super::run_block::{RunBlockMap, SLAB_SLOTS};
use super::slots;

/// The environment variable that names the supervisor's socket.
pub const SOCKET_VARIABLE: &str = "VENICE_RUN_SOCKET";

const FDS_A_MESSAGE: usize = 64;
const HELLO: &[u8] = b"VENICE-ATTACH-1";
const REFUSED: u8 = 1;
const WELCOME: u8 = 0;

/// What a process got from its supervisor.
#[derive(Debug)]
pub struct Attached {
    /// The run block.
    pub block: OwnedFd,
    /// The process's place in it.
    pub process: usize,
    /// The slabs, in slot order; none with the udp port.
    pub slabs: Vec<OwnedFd>,
    /// The connection; it closes when the supervisor is gone.
    pub supervisor: OwnedFd,
}

/// Why a process could not attach.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The socket failed.
    #[error("the supervisor of this run cannot be reached ({0})")]
    Socket(#[from] Errno),
    /// It said no.
    #[error("the supervisor refused: {0}")]
    Refused(String),
    /// It said something else.
    #[error("the supervisor is of another version")]
    Version,
    /// Not all slabs' descriptors arrived.
    #[error(
        "this process may not have the {slabs} descriptors of its slabs open for a moment: raise \
         the hard limit (`ulimit -Hn`)"
    )]
    Descriptors {
        /// How many slabs there are.
        slabs: usize,
    },
    /// The slabs could not be mapped.
    #[error("{slabs} slabs could not be mapped ({source})")]
    Map {
        /// How many.
        slabs: usize,
        /// What the kernel said.
        #[source]
        source: Errno,
    },
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
    let mut fds = Vec::new();
    let mut answer = [0u8; 256];
    let len = receive(socket.as_fd(), &mut answer, &mut fds)?;
    let numbers = match answer[..len] {
        [REFUSED, ref text @ ..] => {
            return Err(AttachError::Refused(String::from_utf8_lossy(text).into_owned()));
        }
        [WELCOME, ref numbers @ ..] if numbers.len() == 8 && fds.len() == 1 => numbers,
        _ => return Err(AttachError::Version),
    };
    let number = |at: usize| u32::from_le_bytes(numbers[at..at + 4].try_into().expect("4 bytes"));
    let (process, slab_count) = (number(0) as usize, number(4) as usize);
    let block = fds.pop().ok_or(AttachError::Version)?;
    let mut slabs = Vec::with_capacity(slab_count);
    while slabs.len() < slab_count {
        let expected = slab_count.min(slabs.len() + FDS_A_MESSAGE);
        receive(socket.as_fd(), &mut answer, &mut slabs)?;
        if slabs.len() != expected {
            return Err(AttachError::Descriptors { slabs: slab_count });
        }
    }
    Ok(Attached { block, process, slabs, supervisor: socket })
}

/// Answers one process that connected to the supervisor. A process that attached before and
/// now runs another program (`exec`) gives up what it held.
///
/// # Errors
/// When the socket fails or the process does not speak this protocol; nothing has changed then
/// that [`leave`] on the process's death does not undo.
pub fn welcome(
    socket: BorrowedFd<'_>,
    block: &RunBlockMap,
    block_fd: BorrowedFd<'_>,
    slabs: &[OwnedFd],
) -> Result<u32, Errno> {
    let pid = rustix::net::sockopt::socket_peercred(socket)?.pid.as_raw_nonzero().get() as u32;
    let mut hello = [0u8; 32];
    let (_, len) = rustix::net::recv(socket, &mut hello[..], RecvFlags::empty())?;
    if &hello[..len] != HELLO {
        return Err(Errno::PROTO);
    }
    leave(block, pid);
    let Some(process) = block.enter_process(pid) else {
        let text = [&[REFUSED][..], b"64 processes of this run page already"].concat();
        rustix::net::send(socket, &text, SendFlags::NOSIGNAL)?;
        return Ok(pid);
    };
    let mut text = vec![WELCOME];
    text.extend((process as u32).to_le_bytes());
    text.extend((slabs.len() as u32).to_le_bytes());
    send(socket, &text, &[block_fd])?;
    for batch in slabs.chunks(FDS_A_MESSAGE) {
        let fds: Vec<BorrowedFd<'_>> = batch.iter().map(AsFd::as_fd).collect();
        send(socket, b"S", &fds)?;
    }
    Ok(pid)
}

/// Process `pid` is no more (or runs another program now): its holds end.
pub fn leave(block: &RunBlockMap, pid: u32) {
    use std::sync::atomic::Ordering;
    for (place, process) in block.live_processes() {
        if process.pid.load(Ordering::Acquire) == pid {
            slots::leave(block, place, pid);
        }
    }
}

/// Maps the slabs one after the other and returns the first address.
///
/// # Errors
/// [`AttachError::Map`].
pub fn map_slabs(slabs: &[OwnedFd]) -> Result<usize, AttachError> {
    let refused = |source| AttachError::Map { slabs: slabs.len(), source };
    let slab_bytes = SLAB_BYTES as usize;
    assert_eq!(slab_bytes, SLAB_SLOTS as usize * super::PAGE, "slots fill a slab");
    // SAFETY: a fresh reservation at an address of the kernel's choice; the fixed mappings
    // below lie within it.
    unsafe {
        let base = rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            slabs.len().max(1) * slab_bytes,
            ProtFlags::empty(),
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
        .map_err(refused)?;
        for (index, slab) in slabs.iter().enumerate() {
            let at = base.cast::<u8>().add(index * slab_bytes).cast();
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            rustix::mm::mmap(at, slab_bytes, protection, flags, slab, 0).map_err(refused)?;
        }
        Ok(base as usize)
    }
}

fn send(socket: BorrowedFd<'_>, text: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_A_MESSAGE))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "a batch fits");
    let body = [std::io::IoSlice::new(text)];
    rustix::net::sendmsg(socket, &body, &mut ancillary, SendFlags::NOSIGNAL).map(drop)
}

fn receive(
    socket: BorrowedFd<'_>,
    text: &mut [u8],
    fds: &mut Vec<OwnedFd>,
) -> Result<usize, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_A_MESSAGE))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut body = [std::io::IoSliceMut::new(text)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let received = rustix::net::recvmsg(socket, &mut body, &mut ancillary, flags)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            fds.extend(sent);
        }
    }
    Ok(received.bytes)
}

#[cfg(test)]
mod tests {
    use super::super::run_block::PortKind;
    use super::*;

    #[test]
    fn a_process_meets_its_supervisor_and_maps_its_slabs() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.sock");
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let listener = rustix::net::socket_with(kind.0, kind.1, kind.2, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&path).unwrap()).unwrap();
        rustix::net::listen(&listener, 4).unwrap();
        let (block_fd, block) = RunBlockMap::create(PortKind::Shm, 100).unwrap();
        let slabs: Vec<OwnedFd> = (0..100).map(|_| slab()).collect();
        let supervisor = std::thread::spawn(move || {
            let socket = rustix::net::accept(&listener).unwrap();
            welcome(socket.as_fd(), &block, block_fd.as_fd(), &slabs).unwrap();
            block
        });
        let attached = attach(&path).unwrap();
        let block = supervisor.join().unwrap();
        assert_eq!(attached.slabs.len(), 100);
        let here = RunBlockMap::open(attached.block.as_fd()).unwrap();
        assert_eq!(here.live_processes().map(|(place, _)| place).collect::<Vec<_>>(), [0]);
        assert_ne!(map_slabs(&attached.slabs).unwrap(), 0);
        leave(&block, std::process::id());
        assert_eq!(here.live_processes().count(), 0);
    }

    fn slab() -> OwnedFd {
        let fd = rustix::fs::memfd_create("slab", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, SLAB_BYTES).unwrap();
        fd
    }
}
