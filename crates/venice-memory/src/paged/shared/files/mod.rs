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
mod protocol;
#[cfg(test)]
mod tests;
mod tree;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;

use super::super::sys;
use super::super::uffd::Uffd;
use super::messages::Request;
use super::objects::UserId;
use super::service::Service;
use memory::OwnUser;
pub use mount::FilesError;
use protocol::{Call, MOST_BYTES, REPLY_HEADER_BYTES, Reply};
use tree::Tree;

/// Threads of the server: while one waits for a far page, another goes on.
const THREADS: usize = 2;
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
    let mut incoming = vec![0; HEADERS_BYTES + MOST_BYTES];
    let mut outgoing = vec![0; REPLY_HEADER_BYTES + MOST_BYTES];
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
    let request = protocol::Request::parse(incoming)?;
    let inode = request.inode;
    let mut reply = Reply::new(outgoing);
    let outcome = match request.call {
        Call::Forget { lookups } => {
            tree.forget(inode, lookups);
            return None;
        }
        Call::ForgetAll { pairs } => {
            for pair in pairs.chunks_exact(16) {
                let [inode, lookups] = [0, 8].map(|at| protocol::u64_at(pair, at).unwrap_or(0));
                tree.forget(inode, lookups);
            }
            return None;
        }
        Call::Silent => return None,
        Call::Init { max_readahead, flags } => Ok(reply.init(max_readahead, flags)),
        Call::Lookup { name } => tree.look_up(name).map(|found| reply.entry(&found)),
        Call::GetAttributes => tree.attributes(inode).map(|found| reply.attributes(&found)),
        Call::SetAttributes(changes) => {
            tree.change(inode, &changes).map(|found| reply.attributes(&found))
        }
        Call::Create { name, mode } => {
            tree.create(name, mode, request.owner).map(|made| reply.created(&made))
        }
        Call::Unlink { name } => tree.unlink(name).map(|()| 0),
        Call::Open => Ok(reply.open()),
        Call::Read { offset, len } => tree.read(inode, offset, reply.body(len)),
        Call::Write { offset, bytes } => {
            tree.write(inode, offset, bytes).map(|()| reply.written(bytes.len()))
        }
        Call::Allocate { offset, len, mode } => {
            tree.allocate(inode, (offset, len), mode).map(|()| 0)
        }
        Call::StatFs => Ok(reply.file_system()),
        Call::Done => Ok(0),
        Call::Unknown => Err(Errno::NOSYS),
        Call::Malformed => Err(Errno::INVAL),
    };
    Some(reply.finish(request.unique, outcome.map_err(Errno::raw_os_error)))
}
