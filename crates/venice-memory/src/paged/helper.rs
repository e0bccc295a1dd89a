//! The paging helper of a machine: a privileged process that makes userfaultfds for the programs of
//! ordinary users.
//!
//! The kernel gives a userfaultfd that serves the kernel's own accesses to those who may open
//! `/dev/userfaultfd`, and fork events to `CAP_SYS_PTRACE` alone (`userfaultfd(2)`). The helper hands
//! out a descriptor of that device, and negotiates the features of a userfaultfd that it is sent. It
//! keeps neither. Whoever may connect to its socket may page; nothing else follows from it: fork
//! events install a descriptor in the process that reads them, which is the program's own.
//!
//! A client connects for one request, in the messages of [`attach`]. It waits for the helper's
//! welcome: only then does the connection take descriptors. It has a thread of its own, since the
//! last close of a descriptor may sleep, and counts to its user's bound until that thread has ended.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::unistd::{Gid, Uid, chown};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use venice_sockets::{refuse_descriptors, take_descriptors};

use super::attach;
use super::sys::{self, SysResult};
use super::uffd::Uffd;

/// Most connections at a time, and most of one user.
const MOST: usize = 256;
const MOST_OF_USER: usize = 32;
/// Time that a connection has for its request.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time that a helper has for its welcome.
const WELCOME_WITHIN: Duration = Duration::from_secs(10);
/// First message of a helper: from now on the connection takes descriptors.
const WELCOME: [u8; 1] = *b"W";
/// Pause after a connection that no descriptor was left for.
const PAUSE: Duration = Duration::from_millis(100);
/// Stack of the thread of a connection.
const STACK_BYTES: usize = 128 << 10;

/// The helper of this process.
static SOCKET: OnceLock<PathBuf> = OnceLock::new();

/// Has this process open its userfaultfds by the helper that listens at `path`, where its own
/// privileges do not suffice. The first call counts.
pub fn use_at(path: PathBuf) {
    let _ = SOCKET.set(path);
}

/// Connects to the helper of this process. `None`: it has none, may not connect, or has too many
/// connections; or the helper is of another version.
pub(super) fn connect() -> Option<OwnedFd> {
    let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
    let address = SocketAddrUnix::new(SOCKET.get()?).ok()?;
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
    rustix::net::connect(&socket, &address).ok()?;
    // The kernel refuses the descriptors of a request that comes before the welcome.
    set_socket_timeout(&socket, Timeout::Recv, Some(WELCOME_WITHIN)).ok()?;
    let mut heard = [0];
    let heard_all = retry_on_intr(|| rustix::net::recv(&socket, &mut heard, RecvFlags::empty()));
    (heard_all.ok()?.1 == 1 && heard == WELCOME).then_some(socket)
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
        // A connection takes them once its user is known to be within his bounds.
        refuse_descriptors(&socket.listener)?;
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
        let mut visits: Vec<Visit> = Vec::new();
        loop {
            let mut watched =
                [PollFd::new(&stop, PollFlags::IN), PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut watched, None) {
                Err(Errno::INTR) => continue,
                result => result?,
            };
            let [is_over, has_connection] = watched.map(|it| !it.revents().is_empty());
            if is_over {
                return Ok(());
            }
            if has_connection {
                visits.retain(|it| it.thread.strong_count() > 0);
                visits.extend(self.accept(&visits)?);
            }
        }
    }

    /// Accepts a connection and serves it in a thread, unless there are too many: then it is closed.
    fn accept(&self, visits: &[Visit]) -> io::Result<Option<Visit>> {
        let socket = match rustix::net::accept_with(&self.0, SocketFlags::CLOEXEC) {
            // It is gone already.
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => return Ok(None),
            Err(Errno::MFILE | Errno::NFILE) => {
                std::thread::sleep(PAUSE);
                return Ok(None);
            }
            socket => socket?,
        };
        let Ok(peer) = getsockopt(&socket, PeerCredentials) else { return Ok(None) };
        let (user, now) = (peer.uid(), Instant::now());
        let of_user = visits.iter().filter(|it| it.user == user).count();
        if of_user >= MOST_OF_USER || visits.iter().filter(|it| now < it.until).count() >= MOST {
            return Ok(None);
        }
        let visit = Arc::new(());
        let (thread, until) = (Arc::downgrade(&visit), now + PATIENCE);
        let builder = std::thread::Builder::new().name("visit".into()).stack_size(STACK_BYTES);
        // Without a thread the connection is closed.
        let started = builder.spawn(move || {
            serve_visit(socket);
            drop(visit);
        });
        Ok(started.is_ok().then_some(Visit { user, until, thread }))
    }
}

/// Serves the one request of a connection, and closes all that came. That may take as long as the
/// peer likes, as may the closing: nobody waits for this thread.
fn serve_visit(socket: OwnedFd) {
    let welcome = || {
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        take_descriptors(&socket)?;
        rustix::net::send(&socket, &WELCOME, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        io::Result::Ok(())
    };
    if welcome().is_ok() {
        attach::serve_privileges(socket.as_fd());
    }
}

/// A connection that is served.
struct Visit {
    user: u32,
    /// End of the time that it counts among all; among its user's it counts as long as its thread is.
    until: Instant,
    thread: Weak<()>,
}
