//! Attachment of a process to the supervisor of its run, once, when the shim starts: over the run's
//! [inherited socket](super::inherited_socket), or over the attach socket, whose path is in the
//! environment.
//!
//! The supervisor replies with the process's index in the run block, and the block. The connection
//! stays open, and its end means that the supervisor is gone. The process requests over it what it
//! cannot do alone: the memory of a slab (shm port), a userfaultfd (a process without privileges),
//! its own entry in the run block (a child in another PID namespace). Forked children share it, so
//! a reply comes by a socket that is sent with the request.

use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use venice_ports::shm::SlabFile;

use super::inherited_socket::ProgramEnd;
use super::run_block::RunBlockMap;
use super::shared;
use super::uffd::{self, Uffd};
use super::{helper, rlimits, slots, sys};

/// The environment variable that names the ways to the supervisor: see [`Address`].
pub const SOCKET_VARIABLE: &str = "VENICE_RUN_SOCKET";

/// The ways to a run's supervisor: the inherited socket, and the path of the attach socket for a
/// process that has closed the inherited one. Its text is `NUMBER:INODE:PATH`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    inherited: String,
    path: PathBuf,
}

impl Address {
    /// Makes the address of the supervisor that has the other end of the inherited socket with this
    /// [name](super::InheritedSocket::name), and listens at `path`.
    pub fn new(inherited: String, path: PathBuf) -> Address {
        Address { inherited, path }
    }

    /// Reads an address. `None`: the text is of another version of Venice.
    pub fn parse(text: &OsStr) -> Option<Address> {
        let bytes = text.as_bytes();
        let (second, _) = bytes.iter().enumerate().filter(|(_, byte)| **byte == b':').nth(1)?;
        let inherited = std::str::from_utf8(&bytes[..second]).ok()?.to_owned();
        let path = Path::new(OsStr::from_bytes(&bytes[second + 1..])).to_owned();
        path.is_absolute().then_some(Address { inherited, path })
    }

    /// The inherited socket, if this process still has it.
    pub fn inherited(&self) -> Option<ProgramEnd> {
        ProgramEnd::named(&self.inherited)
    }
}

impl From<&Address> for OsString {
    fn from(address: &Address) -> OsString {
        let mut text = OsString::from(&address.inherited);
        text.push(":");
        text.push(&address.path);
        text
    }
}

const HELLO: &[u8] = b"VENICE-ATTACH-5";
/// First byte of a request for a slab; its number is the replica's.
const SLAB: u8 = b'S';
/// First byte of a forked child's request for its entry; its number is the entry's index.
const FORKED: u8 = b'F';
/// First byte of a request for the device that makes userfaultfds.
const DEVICE: u8 = b'D';
/// First byte of a request to negotiate the features of the userfaultfd that comes with it.
const NEGOTIATE: u8 = b'N';
/// First byte of the announcement that this process ends; its reply is the end of its connection.
const ENDS: u8 = b'E';
/// First byte of a request to the run's shared pager ([`shared`](super::shared)).
const SHARED: u8 = b'M';
/// Length of any other request: its first byte, and a number.
const REQUEST_BYTES: usize = 9;
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
    /// True if the process ids seen here are those that the supervisor sees: both are in the same
    /// PID namespace.
    pub shares_pids: bool,
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
    /// The supervisor ended before it replied.
    #[error("`venice run` has ended: this program's far memory is lost")]
    Ended,
    /// The reply is of another version.
    #[error("the supervisor is of another version of Venice: use the shim of the same release")]
    Version,
}

/// Attaches this process to its run.
///
/// # Errors
/// [`AttachError`].
pub fn attach(address: &Address) -> Result<Attached, AttachError> {
    let socket = match address.inherited() {
        Some(socket) => socket.connect(),
        None => connect(&address.path),
    };
    let socket = socket.map_err(|errno| match errno {
        Errno::PIPE | Errno::CONNREFUSED | Errno::CONNRESET => AttachError::Ended,
        errno => AttachError::Socket(errno),
    })?;
    rustix::net::send(&socket, HELLO, SendFlags::NOSIGNAL)?;
    let mut answer = [0u8; 256];
    let (len, [block, lifeline]) = receive(socket.as_fd(), &mut answer)?;
    let (process, shares_pids) = match answer[..len] {
        [] => return Err(AttachError::Ended),
        [REFUSED, ref text @ ..] => {
            return Err(AttachError::Refused(String::from_utf8_lossy(text).into_owned()));
        }
        [WELCOME, a, b, c, d, shares_pids] => (u32::from_le_bytes([a, b, c, d]), shares_pids != 0),
        _ => return Err(AttachError::Version),
    };
    let block = block.ok_or(AttachError::Version)?;
    let process = process as usize;
    Ok(Attached { block, process, supervisor: socket, lifeline, shares_pids })
}

fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let socket = rustix::net::socket_with(kind.0, kind.1, kind.2, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
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
    let pid = peer_pid(&socket)?;
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
    text.push(u8::from(shares_pids_with(pid)));
    let fds: Vec<BorrowedFd<'_>> = [block_fd].into_iter().chain(lifeline).collect();
    send(socket, &text, &fds)?;
    Ok(pid)
}

/// The process at the other end of `socket`.
///
/// # Errors
/// `ESRCH` if it is in a PID namespace that this process does not see.
fn peer_pid(socket: &impl AsFd) -> Result<u32, Errno> {
    match getsockopt(socket, PeerCredentials).map(|peer| peer.pid()) {
        Ok(pid @ 1..) => Ok(pid as u32),
        Ok(_) => Err(Errno::SRCH),
        Err(errno) => Err(Errno::from_raw_os_error(errno as i32)),
    }
}

/// True if process `pid` is in this process's PID namespace; false too if that is unknown.
fn shares_pids_with(pid: u32) -> bool {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/pid"));
    let (its, own) = (namespace(&pid.to_string()), namespace("self"));
    matches!((its, own), (Ok(its), Ok(own)) if its == own)
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
/// it. `None`: there is none, or the supervisor is gone.
pub(super) fn request_slab(socket: i32, replica: usize) -> Option<SlabFile> {
    let (offset_bytes, slab) = request(socket, SLAB, replica as u64, None).ok()?;
    slab.map(|fd| SlabFile::at(fd, offset_bytes))
}

/// Has the supervisor enter this forked child, whose process id only the supervisor knows, at
/// `place` of the run block. False if the entry was freed, or the supervisor is gone.
pub(super) fn claim_forked(socket: i32, place: usize) -> bool {
    request(socket, FORKED, place as u64, None).is_ok_and(|(claimed, _)| claimed != 0)
}

/// Opens a userfaultfd with `features` by the privileges of the supervisor, for a process that has
/// given up its own.
///
/// # Errors
/// `EPERM` where the supervisor may not either, or has no `/dev/userfaultfd`.
pub(super) fn open_userfaultfd(socket: i32, features: u64) -> sys::SysResult<Uffd> {
    let device = request_device(socket).map_err(|_| sys::Errno::EPERM)?;
    open_negotiated(&device, |made| request(socket, NEGOTIATE, features, Some(made)))
}

/// Opens a userfaultfd with `features` by the privileges of the [`helper`].
///
/// # Errors
/// `EPERM` where this process has no helper.
pub(super) fn open_by_helper(features: u64) -> sys::SysResult<Uffd> {
    let device = device().ok_or(sys::Errno::EPERM)?;
    open_negotiated(&device, |made| {
        let helper = helper::connect().ok_or(Errno::PERM)?;
        request(helper.as_raw_fd(), NEGOTIATE, features, Some(made))
    })
}

/// Opens a userfaultfd whose features another process negotiates.
fn open_negotiated(
    device: &OwnedFd,
    negotiate: impl FnOnce(BorrowedFd<'_>) -> Result<(u64, Option<OwnedFd>), Errno>,
) -> sys::SysResult<Uffd> {
    let fd = uffd::new_of_device(device.as_raw_fd())?;
    // SAFETY: made above, and owned by nothing else.
    let made = unsafe { OwnedFd::from_raw_fd(fd) };
    match negotiate(made.as_fd()).map_err(|_| sys::Errno::EPERM)? {
        (0, _) => Ok(Uffd { fd: made.into_raw_fd() }),
        (errno, _) => Err(sys::Errno(errno as i32)),
    }
}

/// Returns a descriptor of the device that makes userfaultfds, this process's own or the helper's.
pub(super) fn device() -> Option<OwnedFd> {
    let of_helper = || request_device(helper::connect()?.as_raw_fd()).ok();
    uffd::open_device().or_else(of_helper)
}

/// Requests a descriptor of the device that makes userfaultfds.
fn request_device(socket: i32) -> Result<OwnedFd, Errno> {
    request(socket, DEVICE, 0, None)?.1.ok_or(Errno::PERM)
}

/// Announces that this process ends, and waits until the supervisor has looked at it.
pub(super) fn wait_for_last_look(socket: i32) {
    // It is answered by the end of the connection, also if the supervisor is gone.
    let _ = request(socket, ENDS, 0, None);
}

/// Sends a request, and waits for its reply: a number, and a descriptor. It works without the C
/// library, but needs descriptors: the program's limit, which may be reached, is lifted meanwhile.
fn request(
    socket: i32,
    what: u8,
    number: u64,
    with: Option<BorrowedFd<'_>>,
) -> Result<(u64, Option<OwnedFd>), Errno> {
    let mut question = [what; REQUEST_BYTES];
    question[1..].copy_from_slice(&number.to_le_bytes());
    ask(socket, &question, with)
}

/// Sends a request to the run's shared pager, as [`request`] does.
pub(super) fn ask_shared_pager(
    socket: i32,
    request: shared::Request,
    with: Option<BorrowedFd<'_>>,
) -> Result<(u64, Option<OwnedFd>), Errno> {
    let mut question = [SHARED; 1 + shared::REQUEST_BYTES];
    question[1..].copy_from_slice(&request.encode());
    ask(socket, &question, with)
}

fn ask(
    socket: i32,
    question: &[u8],
    with: Option<BorrowedFd<'_>>,
) -> Result<(u64, Option<OwnedFd>), Errno> {
    let [limit, most] = rlimits::descriptors();
    rlimits::set_descriptors(most);
    // SAFETY: the pager's own socket, open as long as the process pages.
    let answer = exchange(unsafe { BorrowedFd::borrow_raw(socket) }, question, with);
    rlimits::set_descriptors(limit);
    answer
}

fn exchange(
    socket: BorrowedFd<'_>,
    question: &[u8],
    with: Option<BorrowedFd<'_>>,
) -> Result<(u64, Option<OwnedFd>), Errno> {
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let (here, there) = rustix::net::socketpair(kind.0, kind.1, kind.2, None)?;
    match with {
        Some(fd) => send(socket, question, &[there.as_fd(), fd])?,
        None => send(socket, question, &[there.as_fd()])?,
    }
    drop(there);
    let mut answer = [0u8; 8];
    loop {
        match receive(here.as_fd(), &mut answer) {
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
            Ok((8, [fd, _])) => return Ok((u64::from_le_bytes(answer), fd)),
            Ok(_) => return Err(Errno::CONNRESET),
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

/// The services of a supervisor for attached processes.
pub trait Supervisor {
    /// Returns the memory of a replica; `None`: it has no such replica.
    fn slab(&self, replica: usize) -> Option<SlabFile>;

    /// Takes the end of a process's connection; the process ends when it is closed.
    fn before_end(&self, end: OwnedFd);

    /// Asks the shared pager. The reply is a number, 0 if it is refused, and a descriptor.
    fn shared(&self, request: shared::Request, with: Option<OwnedFd>) -> (u64, Option<OwnedFd>);
}

/// Serves a request of an attached process. To be called when the connection can be read.
pub fn serve_request(
    connection: BorrowedFd<'_>,
    block: &RunBlockMap,
    supervisor: &impl Supervisor,
) -> Served {
    let mut question = [0u8; 1 + shared::REQUEST_BYTES];
    let Ok((len, [reply, with])) = receive(connection, &mut question) else {
        return Served::Closed;
    };
    let Some(reply) = reply else {
        return if len == 0 { Served::Closed } else { Served::Request };
    };
    let (value, fd) = match (question[..len].first(), &question[..len]) {
        (Some(&SHARED), [_, request @ ..]) => match shared::Request::decode(request) {
            Some(request) => supervisor.shared(request, with),
            None => return Served::Closed,
        },
        (Some(&ENDS), _) => {
            supervisor.before_end(reply);
            return Served::Request;
        }
        (Some(&what), [_, number @ ..]) => {
            let Ok(number) = number.try_into().map(u64::from_le_bytes) else {
                return Served::Closed;
            };
            match serve_plain(what, number, with, &reply, block, supervisor) {
                Some(answer) => answer,
                None => return Served::Closed,
            }
        }
        _ => return Served::Closed,
    };
    let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
    // A process that died meanwhile needs no reply.
    let _ = send(reply.as_fd(), &value.to_le_bytes(), &fds);
    Served::Request
}

/// Returns the reply to a request that is a number; `None`: there is no such request.
fn serve_plain(
    what: u8,
    number: u64,
    with: Option<OwnedFd>,
    reply: &OwnedFd,
    block: &RunBlockMap,
    supervisor: &impl Supervisor,
) -> Option<(u64, Option<OwnedFd>)> {
    Some(match what {
        SLAB => match supervisor.slab(number as usize) {
            Some(slab) => (slab.offset_bytes(), Some(OwnedFd::from(slab))),
            None => (0, None),
        },
        FORKED => (u64::from(enter_forked(reply, block, number as usize)), None),
        DEVICE => (0, device()),
        NEGOTIATE => (negotiate_or_ask(with, number), None),
        _ => return None,
    })
}

/// Serves the one request of a connection to a [`helper`].
pub(super) fn serve_privileges(connection: BorrowedFd<'_>) {
    let mut question = [0u8; REQUEST_BYTES];
    let Ok((REQUEST_BYTES, [Some(reply), with])) = receive(connection, &mut question) else {
        return;
    };
    let [what, number @ ..] = question;
    let (value, fd) = match what {
        DEVICE => (0, uffd::open_device()),
        NEGOTIATE => (negotiate(with.as_ref(), u64::from_le_bytes(number)), None),
        _ => return,
    };
    let fds: Vec<BorrowedFd<'_>> = fd.iter().map(AsFd::as_fd).collect();
    // A process that has ended does not want it. One that does not read is not waited for.
    let _ = send_with(reply.as_fd(), &value.to_le_bytes(), &fds, SendFlags::DONTWAIT);
}

/// Enters the process that made `reply` at `place` of the run block.
fn enter_forked(reply: &OwnedFd, block: &RunBlockMap, place: usize) -> bool {
    let Ok(pid) = peer_pid(reply) else { return false };
    place < block.processes.len() && block.claim_forked(place, pid)
}

/// Negotiates the features of another process's userfaultfd, by the [`helper`] where the kernel asks
/// for more privileges than this process has. Returns 0, or the kernel's error.
fn negotiate_or_ask(uffd: Option<OwnedFd>, features: u64) -> u64 {
    let errno = negotiate(uffd.as_ref(), features);
    if errno != Errno::PERM.raw_os_error() as u64 {
        return errno;
    }
    let asked = helper::connect()
        .zip(uffd)
        .map(|(helper, uffd)| request(helper.as_raw_fd(), NEGOTIATE, features, Some(uffd.as_fd())));
    match asked {
        Some(Ok((errno, _))) => errno,
        Some(Err(_)) | None => errno,
    }
}

/// Negotiates the features of another process's userfaultfd: the kernel asks whoever does it for
/// the privileges. Returns 0, or the kernel's error.
fn negotiate(uffd: Option<&OwnedFd>, features: u64) -> u64 {
    let outcome = match uffd {
        Some(fd) if uffd::is_one(fd.as_fd()) => Uffd { fd: fd.as_raw_fd() }.negotiate(features),
        _ => Err(sys::Errno(Errno::BADF.raw_os_error())),
    };
    outcome.map_or_else(|sys::Errno(errno)| errno as u64, |()| 0)
}

pub(super) fn send(
    socket: BorrowedFd<'_>,
    text: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    send_with(socket, text, fds, SendFlags::empty())
}

fn send_with(
    socket: BorrowedFd<'_>,
    text: &[u8],
    fds: &[BorrowedFd<'_>],
    flags: SendFlags,
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(fds)), "there is room for them");
    }
    let body = [std::io::IoSlice::new(text)];
    rustix::net::sendmsg(socket, &body, &mut ancillary, flags | SendFlags::NOSIGNAL).map(drop)
}

/// Receives a message and the descriptors sent with it.
pub(super) fn receive(
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

    /// Has at most replica 7, and a shared pager with users alone.
    struct Alone {
        has_slab: bool,
    }

    impl Supervisor for Alone {
        fn slab(&self, replica: usize) -> Option<SlabFile> {
            (self.has_slab && replica == 7).then(|| SlabFile::at(slab(), 3 << 24))
        }

        fn before_end(&self, _: OwnedFd) {}

        fn shared(&self, request: shared::Request, _: Option<OwnedFd>) -> (u64, Option<OwnedFd>) {
            (u64::from(request == shared::Request::User), None)
        }
    }

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
                let served = serve_request(socket.as_fd(), &block, &Alone { has_slab: known });
                assert_eq!(served, Served::Request);
            }
            let alone = Alone { has_slab: false };
            assert_eq!(serve_request(socket.as_fd(), &block, &alone), Served::Request);
            assert_eq!(serve_request(socket.as_fd(), &block, &alone), Served::Closed);
            block
        });
        let attached = attach(&Address::new(String::from("-1:0"), path)).unwrap();
        assert!(attached.shares_pids);
        let socket = std::os::fd::AsRawFd::as_raw_fd(&attached.supervisor);
        let slab = request_slab(socket, 7).unwrap();
        assert_eq!(slab.offset_bytes(), 3 << 24);
        assert_eq!(
            rustix::fs::fstat(slab.as_fd()).unwrap().st_size as u64,
            venice_wire::SLAB_BYTES
        );
        assert!(request_slab(socket, 7).is_none(), "the supervisor has no such slab");
        let (answer, _) = ask_shared_pager(socket, shared::Request::User, None).unwrap();
        assert_eq!(answer, 1);
        assert!(attached.lifeline.is_none());
        drop(attached.supervisor);
        let block = supervisor.join().unwrap();
        let here = RunBlockMap::open(attached.block.as_fd()).unwrap();
        assert_eq!(here.live_processes().map(|(place, _)| place).collect::<Vec<_>>(), [0]);
        leave(&block, std::process::id());
        assert_eq!(here.live_processes().count(), 0);
    }

    #[test]
    fn address_survives_its_text() {
        for path in ["/tmp/x/run.sock", "/tmp/a:b/run.sock"] {
            let address = Address::new("960:77".into(), path.into());
            assert_eq!(Address::parse(&OsString::from(&address)), Some(address));
        }
        for strange in ["", "/tmp/run.sock", "960:/tmp/run.sock", "960:77:run.sock"] {
            assert_eq!(Address::parse(OsStr::new(strange)), None, "{strange}");
        }
    }

    /// A child in another PID namespace does not know the id that the supervisor sees.
    #[test]
    fn supervisor_enters_forked_child() {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 2, 1).unwrap();
        let place = block.enter_forking(1).unwrap();
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (child, supervisor) = rustix::net::socketpair(kind.0, kind.1, kind.2, None).unwrap();
        let asking = std::thread::spawn(move || {
            let claim = |place| claim_forked(child.as_raw_fd(), place);
            [claim(place), claim(place), claim(usize::MAX)]
        });
        for _ in 0..3 {
            let alone = Alone { has_slab: false };
            assert_eq!(serve_request(supervisor.as_fd(), &block, &alone), Served::Request);
        }
        assert_eq!(asking.join().unwrap(), [true, false, false]);
        let (found, process) = block.live_processes().next().unwrap();
        let pid = process.pid.load(std::sync::atomic::Ordering::Acquire);
        assert_eq!((found, pid), (place, std::process::id()));
    }

    fn slab() -> OwnedFd {
        let fd = rustix::fs::memfd_create("slab", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&fd, venice_wire::SLAB_BYTES).unwrap();
        fd
    }
}
