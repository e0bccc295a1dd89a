//! The shared files of a run: its memfds and its POSIX shared memory, as files of a FUSE mount.
//!
//! The program gets a descriptor of such a file. Whatever system call reads or writes it, from
//! whatever process, comes to this server, which accesses the object as any user does. To map it, the
//! shim asks for the memory behind it ([`Request::File`](super::Request)); the kernel refuses to map
//! the file itself shared (`ENODEV`), so no process has a mapping that the pager does not know. A
//! private mapping that it does not know is one of FUSE's, filled by reads. A process outside of the
//! run gets the memory itself, of which no page leaves from then on.
//!
//! The supervisor has no file of the mount open, and waits for none: a killed server that does hangs
//! in the kernel. Its death closes the last `/dev/fuse`, and all requests fail (`ENOTCONN`).

mod memory;
mod mount;
#[cfg(test)]
mod tests;
mod tree;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use venice_fuse::{Attributes, Call, Features, MAX_TRANSFER_BYTES, REPLY_HEADER_BYTES, Reply};

use super::super::sys;
use super::super::uffd::Uffd;
use super::messages::Request;
use super::objects::UserId;
use super::service::Service;
use memory::OwnUser;
pub use mount::FilesError;
use tree::Tree;

/// Threads of the server: while one waits for a far page, another goes on.
const THREADS: usize = 2;
/// Requests outstanding at a time.
const MOST_OUTSTANDING: u16 = 64;
/// Room for what comes before the bytes of a write.
const HEADERS_BYTES: usize = 4096;

/// The shared files of a run, and their server.
#[derive(Debug)]
pub struct SharedFiles {
    tree: Arc<Tree>,
    mount: OwnedFd,
    device_number: u64,
    /// Readable once the threads are to end.
    stop: Arc<OwnedFd>,
    threads: Vec<JoinHandle<()>>,
}

impl SharedFiles {
    /// Mounts them, and starts their server.
    ///
    /// # Errors
    /// [`FilesError`].
    pub fn start(service: Service) -> Result<SharedFiles, FilesError> {
        let device = Arc::new(mount::open_device()?);
        let mount = mount::mount(&device)?;
        let own = Arc::new(own_user(service)?);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let device_number = mount::device_number(&mount)?;
        let tree = Arc::new(Tree::new(own));
        let mut this = SharedFiles { tree, mount, device_number, stop, threads: Vec::new() };
        for _ in 0..THREADS {
            let (tree, device, stop) = (this.tree.clone(), device.clone(), this.stop.clone());
            let body = move || {
                sys::block_signals();
                serve(&tree, &device, &stop);
            };
            let thread = std::thread::Builder::new().name("venice-files".into()).spawn(body)?;
            this.threads.push(thread);
        }
        Ok(this)
    }

    /// The device of the files, major number above minor.
    pub fn device_number(&self) -> u64 {
        self.device_number
    }

    /// The user that the server is.
    pub fn user(&self) -> UserId {
        self.tree.own.user
    }

    /// Returns the mount, for a process that makes or opens a file.
    pub fn mount(&self) -> Option<(u64, OwnedFd)> {
        Some((1, rustix::io::fcntl_dupfd_cloexec(&self.mount, 3).ok()?))
    }

    /// Returns the number of the first page of a file, and its memory, for a user that is about to
    /// map it.
    pub fn file(&self, user: UserId, inode: u64) -> Option<(u64, OwnedFd)> {
        self.tree.open(inode, user).ok()
    }

    /// Brings in the memory of a file for good, and returns it, for a process outside of the run.
    pub fn release(&self, inode: u64, is_writable: bool) -> Option<(u64, OwnedFd)> {
        Some((1, self.tree.release(inode, is_writable).ok()?))
    }
}

impl Drop for SharedFiles {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        let own = &self.tree.own;
        own.service.home.remove_user(own.user);
    }
}

fn own_user(service: Service) -> Result<OwnUser, FilesError> {
    let uffd = Uffd::open_shared(-1).map_err(|errno| Errno::from_raw_os_error(errno.0))?;
    // SAFETY: opened above, and owned by nothing else.
    let uffd = unsafe { OwnedFd::from_raw_fd(uffd.fd) };
    let theirs = rustix::io::fcntl_dupfd_cloexec(&uffd, 3)?;
    match service.serve(Request::User, Some(theirs)) {
        (0, _) => Err(Errno::NOMEM.into()),
        (user, _) => Ok(OwnUser { service, user: user as UserId, uffd }),
    }
}

/// Serves requests until `stop` is readable, or the mount and its files are gone.
fn serve(tree: &Tree, device: &OwnedFd, stop: &OwnedFd) {
    let mut incoming = vec![0; HEADERS_BYTES + MAX_TRANSFER_BYTES];
    let mut outgoing = vec![0; REPLY_HEADER_BYTES + MAX_TRANSFER_BYTES];
    loop {
        let of = |fd| PollFd::new(fd, PollFlags::IN);
        let mut fds = [of(device), of(stop)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return,
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        match sys::read(device.as_raw_fd(), &mut incoming) {
            Ok(len) => {
                if let Some(len) = carry_out(tree, &incoming[..len], &mut outgoing) {
                    // A requester that is gone needs no reply.
                    let _ = rustix::io::write(device, &outgoing[..len]);
                }
            }
            // Another thread has taken the request, or it was withdrawn.
            Err(sys::Errno::EAGAIN | sys::Errno::EINTR | sys::Errno::ENOENT) => {}
            Err(_) => return,
        }
    }
}

/// Performs a request. Returns the length of its reply; `None`: it has none.
fn carry_out(tree: &Tree, incoming: &[u8], outgoing: &mut [u8]) -> Option<usize> {
    let (request, data) = venice_fuse::Request::parse_whole(incoming)?;
    let inode = request.inode;
    let (header, body) = outgoing.split_at_mut(REPLY_HEADER_BYTES);
    let mut reply = Reply::new(header, body, request.unique);
    let len = match request.call {
        Call::Forget { lookups } => {
            tree.forget(inode, lookups);
            return None;
        }
        Call::ForgetAll(forgotten) => {
            forgotten.iter().for_each(|(inode, lookups)| tree.forget(inode, lookups));
            return None;
        }
        Call::Silent => return None,
        Call::Init { max_readahead, flags, .. } => {
            let features = Features { most_outstanding: MOST_OUTSTANDING, by_ring: false };
            reply.init(max_readahead, flags, features)
        }
        Call::Lookup { name } => give(reply, tree.look_up(name), Reply::entry),
        Call::GetAttributes => give(reply, tree.attributes(inode), Reply::attributes),
        Call::SetAttributes(changes) => {
            give(reply, tree.change(inode, &changes), Reply::attributes)
        }
        Call::Create { name, mode } => {
            give(reply, tree.create(name, mode, request.owner), Reply::created)
        }
        Call::Unlink { name } => done(reply, tree.unlink(name).map(|()| 0)),
        Call::Open => reply.open(),
        Call::Read { offset, len } => {
            let read = tree.read(inode, offset, reply.body(len));
            done(reply, read)
        }
        Call::Write { offset, len } => match tree.write(inode, offset, &data[..len]) {
            Ok(()) => reply.written(len),
            Err(errno) => reply.error(errno.raw_os_error()),
        },
        Call::Allocate { offset, len, mode } => {
            done(reply, tree.allocate(inode, (offset, len), mode).map(|()| 0))
        }
        Call::StatFs => reply.file_system(0),
        Call::Done => reply.ok(0),
        Call::Unknown => reply.error(Errno::NOSYS.raw_os_error()),
        Call::Malformed => reply.error(Errno::INVAL.raw_os_error()),
    };
    Some(REPLY_HEADER_BYTES + len)
}

/// Replies with the attributes of a file, or the error.
fn give<'a>(
    reply: Reply<'a>,
    found: Result<Attributes, Errno>,
    as_what: fn(Reply<'a>, &Attributes) -> usize,
) -> usize {
    match found {
        Ok(attributes) => as_what(reply, &attributes),
        Err(errno) => reply.error(errno.raw_os_error()),
    }
}

/// Replies with as many bytes of the body, or the error.
fn done(reply: Reply<'_>, outcome: Result<usize, Errno>) -> usize {
    match outcome {
        Ok(len) => reply.ok(len),
        Err(errno) => reply.error(errno.raw_os_error()),
    }
}
