//! The paging helper of a machine: a privileged process that makes userfaultfds for the programs of
//! ordinary users.
//!
//! The kernel gives a userfaultfd that serves the kernel's own accesses to those who may open
//! `/dev/userfaultfd`, and fork events to `CAP_SYS_PTRACE` alone (`userfaultfd(2)`). The helper hands
//! out a descriptor of that device, and negotiates the features of a userfaultfd that it is sent. It
//! keeps neither. Whoever may connect to its socket may page; nothing else follows from it: fork
//! events install a descriptor in the process that reads them, which is the program's own.
//!
//! A client connects for one request, in the messages of [`attach`].

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{Gid, Uid, chown};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::attach;
use super::sys::{self, SysResult};
use super::uffd::Uffd;

/// Most connections at a time, and most of one user.
const MOST: usize = 256;
const MOST_OF_USER: usize = 32;
/// Time that a connection has for its request.
const PATIENCE: Duration = Duration::from_secs(2);

/// The helper of this process.
static SOCKET: OnceLock<PathBuf> = OnceLock::new();

/// Has this process open its userfaultfds by the helper that listens at `path`, where its own
/// privileges do not suffice. The first call counts.
pub fn use_at(path: PathBuf) {
    let _ = SOCKET.set(path);
}

/// Connects to the helper of this process. `None`: it has none, or may not connect.
pub(super) fn connect() -> Option<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let address = SocketAddrUnix::new(SOCKET.get()?).ok()?;
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    Some(socket)
}

/// Checks that this process may do for others what a helper does.
///
/// # Errors
/// The kernel's: `EPERM` without `CAP_SYS_PTRACE` or `/dev/userfaultfd`.
pub fn check_privileges() -> SysResult<()> {
    let uffd = Uffd::open_by_device()?;
    sys::close(uffd.fd);
    Ok(())
}

/// The socket at which a helper of this machine listens. Dropping it removes it.
#[derive(Debug)]
pub struct HelperSocket {
    listener: OwnedFd,
    path: PathBuf,
}

impl HelperSocket {
    /// Listens at `path`, in place of a helper that has ended, for this process's user and `group`.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(path: &Path, group: Option<Gid>) -> io::Result<HelperSocket> {
        if std::fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            std::fs::remove_file(path)?;
        }
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        rustix::net::bind(&listener, &SocketAddrUnix::new(path)?)?;
        let socket = HelperSocket { listener, path: path.to_owned() };
        let open_to = |mode| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode));
        open_to(0o600)?;
        if let Some(group) = group {
            chown(path, None::<Uid>, Some(group))?;
            open_to(0o660)?;
        }
        rustix::net::listen(&socket.listener, 64)?;
        Ok(socket)
    }
}

impl AsFd for HelperSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

impl Drop for HelperSocket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A helper that listens.
#[derive(Debug)]
pub struct Helper(HelperSocket);

impl Helper {
    /// Listens at `path`, as [`HelperSocket::bind`] does.
    ///
    /// # Errors
    /// The system's.
    pub fn bind(path: &Path, group: Option<Gid>) -> io::Result<Helper> {
        HelperSocket::bind(path, group).map(Helper)
    }

    /// Serves requests until `stop` is readable.
    ///
    /// # Errors
    /// The system's, when it cannot wait or accept.
    pub fn serve(&self, stop: BorrowedFd<'_>) -> io::Result<()> {
        let mut waiting: Vec<Waiting> = Vec::new();
        loop {
            let mut watched = vec![PollFd::new(&stop, PollFlags::IN)];
            watched.push(PollFd::new(&self.0, PollFlags::IN));
            watched.extend(waiting.iter().map(|it| PollFd::new(&it.socket, PollFlags::IN)));
            match poll(&mut watched, patience(&waiting).as_ref()) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            let ready: Vec<bool> = watched.iter().map(|it| !it.revents().is_empty()).collect();
            if ready[0] {
                return Ok(());
            }
            let now = Instant::now();
            let mut at = 2;
            waiting.retain(|it| {
                let is_ready = ready[at];
                at += 1;
                if is_ready {
                    attach::serve_privileges(it.socket.as_fd());
                }
                !is_ready && now < it.until
            });
            if ready[1] {
                self.accept(&mut waiting)?;
            }
        }
    }

    /// Accepts a connection, unless there are too many: then it is closed.
    fn accept(&self, waiting: &mut Vec<Waiting>) -> io::Result<()> {
        let socket = match rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC) {
            // It is gone already.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(()),
            socket => socket?,
        };
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else { return Ok(()) };
        let of_user = waiting.iter().filter(|it| it.user == peer.uid()).count();
        if waiting.len() < MOST && of_user < MOST_OF_USER {
            let until = Instant::now() + PATIENCE;
            waiting.push(Waiting { socket, user: peer.uid(), until });
        }
        Ok(())
    }
}

/// A connection without a request so far.
struct Waiting {
    socket: OwnedFd,
    user: u32,
    until: Instant,
}

/// Time until the oldest connection has to be closed; `None`: there is none.
fn patience(waiting: &[Waiting]) -> Option<Timespec> {
    let first = waiting.iter().map(|it| it.until).min()?;
    let left = first.saturating_duration_since(Instant::now());
    Some(left.try_into().expect("it is short"))
}
