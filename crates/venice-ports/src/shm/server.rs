//! The donor's side: a thread of the agent that hands out the slabs of grants.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::PeerCredentials;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    SocketFlags, accept_with, recvmsg, sendmsg,
};
use venice_fabric::LinkModel;
use venice_wire::{GrantId, GrantKey};

use super::listener::Listener;
use super::message::{HEADER_LEN, Reply, Request, SLABS_PER_MESSAGE};
use super::slab_file::SlabFile;
use crate::{PortError, monotonic_ns};

/// Most connections served at once; more wait in the backlog.
const MAX_CONNECTIONS: usize = 4096;
/// Most connections without a grant of a server that is open to every user.
const MAX_STRANGERS: usize = 16;
/// Longest time of a connection without a request, in nanoseconds; it is then closed.
const REQUEST_TIMEOUT_NS: u64 = 5_000_000_000;
/// Reason of the refusal of a device's slabs to other users.
const ONLY_ROOT: &str = "the grant's memory is a device (DAX), which only root and the agent's user may \
                         map: run as one of them, or use --port udp";

/// Some slabs of a grant.
#[derive(Debug)]
pub struct SlabBatch {
    /// Number of slabs in the whole grant.
    pub total: usize,
    /// Memory of the requested slabs, in slab order.
    pub files: Vec<SlabFile>,
}

/// Source of the slabs of a grant.
pub trait SlabSource: Send {
    /// Returns the slabs `first..first + count` of a grant.
    ///
    /// # Errors
    /// The text of the refusal for the recipient: no such grant, wrong key, no such slabs.
    fn slabs(
        &self,
        id: GrantId,
        key: GrantKey,
        first: usize,
        count: usize,
    ) -> Result<SlabBatch, String>;
}

/// Hands out slabs on a unix socket, on a thread of its own, until dropped.
#[derive(Debug)]
pub struct ShmServer {
    shared: Arc<Shared>,
    path: PathBuf,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the owner and the server's thread.
#[derive(Debug)]
struct Shared {
    wake: OwnedFd,
    orders: Mutex<Orders>,
    /// Grants that a recipient has mapped.
    mapped: Mutex<Vec<GrantId>>,
}

#[derive(Debug, Default)]
struct Orders {
    revoked: Vec<GrantId>,
    stop: bool,
}

impl ShmServer {
    /// Listens on `path` and starts to serve. Replaces a socket that a dead agent left behind.
    ///
    /// # Errors
    /// Fails if the path is too long, in use by another agent, not a socket, or cannot be made.
    pub fn start(path: &Path, source: impl SlabSource + 'static) -> Result<Self, PortError> {
        Self::start_behind(path, source, None)
    }

    /// Starts like [`ShmServer::start`]; recipients must behave as if this donor were at the end of
    /// `link`.
    ///
    /// # Errors
    /// Same as [`ShmServer::start`].
    pub fn start_behind(
        path: &Path,
        source: impl SlabSource + 'static,
        link: Option<LinkModel>,
    ) -> Result<Self, PortError> {
        Self::serve(Listener::bind(path)?, source, link, MAX_CONNECTIONS)
    }

    /// Starts like [`ShmServer::start`], open to every user of the machine: the key admits, not the
    /// file's mode. At most 16 connections are without a grant at a time; a further one takes the
    /// place of the oldest.
    ///
    /// # Errors
    /// Same as [`ShmServer::start`].
    pub fn start_for_all(
        path: &Path,
        source: impl SlabSource + 'static,
    ) -> Result<Self, PortError> {
        let listener = Listener::bind(path)?;
        let path = listener.path().to_path_buf();
        let open = chmod(&path, Mode::from_raw_mode(0o666));
        open.map_err(|source| PortError::Listen { path, source })?;
        Self::serve(listener, source, None, MAX_STRANGERS)
    }

    fn serve(
        listener: Listener,
        source: impl SlabSource + 'static,
        link: Option<LinkModel>,
        max_strangers: usize,
    ) -> Result<Self, PortError> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(PortError::at("making an eventfd"))?;
        let shared = Arc::new(Shared { wake, orders: Mutex::default(), mapped: Mutex::default() });
        let path = listener.path().to_path_buf();
        let service = Service {
            listener,
            shared: Arc::clone(&shared),
            source,
            link,
            connections: Vec::new(),
            max_strangers,
        };
        let thread = std::thread::Builder::new()
            .name("venice-shm".into())
            .spawn(move || service.run())
            .map_err(|_| PortError::System { step: "starting a thread", source: Errno::AGAIN })?;
        Ok(Self { shared, path, thread: Some(thread) })
    }

    /// Closes the connections of a grant, which tells its recipient that the grant has ended. The
    /// source must refuse the grant already.
    pub fn revoke(&self, id: GrantId) {
        self.order(|orders| orders.revoked.push(id));
    }

    /// Returns the grants whose recipients have fetched slabs and are still connected, in order.
    pub fn mapped(&self) -> Vec<GrantId> {
        self.shared.mapped.lock().expect("no thread panics under this lock").clone()
    }

    /// Returns the socket's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn order(&self, give: impl FnOnce(&mut Orders)) {
        give(&mut self.shared.orders.lock().expect("no thread panics under this lock"));
        // A write fails only when the counter is full; the thread is awake then.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }
}

impl Drop for ShmServer {
    fn drop(&mut self) {
        self.order(|orders| orders.stop = true);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// State of the server's thread.
struct Service<S> {
    listener: Listener,
    shared: Arc<Shared>,
    source: S,
    link: Option<LinkModel>,
    /// In the order of their beginnings.
    connections: Vec<Connection>,
    /// Most connections without a grant.
    max_strangers: usize,
}

struct Connection {
    socket: OwnedFd,
    opened_ns: u64,
    /// The one grant of this connection, once its slabs have been handed out.
    grant: Option<GrantId>,
    closed: bool,
}

impl<S: SlabSource> Service<S> {
    fn run(mut self) {
        loop {
            let ready = self.wait();
            if self.take_orders() {
                return;
            }
            for (connection, ready) in self.connections.iter_mut().zip(&ready.connections) {
                if *ready {
                    connection.serve(&self.source, self.link.as_ref());
                }
            }
            if ready.listener {
                self.accept();
            }
            let now_ns = monotonic_ns();
            self.connections.retain(|connection| !connection.is_over(now_ns));
            self.publish_mapped();
        }
    }

    /// Publishes the list of mapped grants to the owner.
    fn publish_mapped(&self) {
        let mut mapped = self.shared.mapped.lock().expect("no thread panics under this lock");
        mapped.clear();
        mapped.extend(self.connections.iter().filter_map(|connection| connection.grant));
        mapped.sort_unstable();
        mapped.dedup();
    }

    fn wait(&self) -> Ready {
        let mut fds = vec![PollFd::new(&self.shared.wake, PollFlags::IN)];
        let accepting = self.connections.len() < MAX_CONNECTIONS;
        let listening = if accepting { PollFlags::IN } else { PollFlags::empty() };
        fds.push(PollFd::new(&self.listener, listening));
        fds.extend(self.connections.iter().map(|each| PollFd::new(&each.socket, PollFlags::IN)));
        let second = Timespec { tv_sec: 1, tv_nsec: 0 };
        match poll(&mut fds, Some(&second)) {
            Ok(_) | Err(Errno::INTR) => {}
            // The kernel is out of memory for a moment: retry later rather than spin.
            Err(_) => std::thread::sleep(std::time::Duration::from_millis(10)),
        }
        Ready {
            listener: !fds[1].revents().is_empty(),
            connections: fds[2..].iter().map(|fd| !fd.revents().is_empty()).collect(),
        }
    }

    /// Executes the owner's orders; returns true for the stop order.
    fn take_orders(&mut self) -> bool {
        let _ = rustix::io::read(&self.shared.wake, &mut [0u8; 8]);
        let mut orders = self.shared.orders.lock().expect("no thread panics under this lock");
        for revoked in orders.revoked.drain(..) {
            for connection in &mut self.connections {
                connection.closed |= connection.grant == Some(revoked);
            }
        }
        orders.stop
    }

    /// Closes the oldest connection without a grant if there are too many for a further one.
    fn make_room(&mut self) {
        let is_stranger = |connection: &Connection| connection.grant.is_none();
        if self.connections.iter().filter(|it| is_stranger(it)).count() >= self.max_strangers
            && let Some(oldest) = self.connections.iter().position(is_stranger)
        {
            self.connections.remove(oldest);
        }
    }

    fn accept(&mut self) {
        while self.connections.len() < MAX_CONNECTIONS {
            match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => {
                    self.make_room();
                    self.connections.push(Connection {
                        socket,
                        opened_ns: monotonic_ns(),
                        grant: None,
                        closed: false,
                    });
                }
                Err(Errno::INTR | Errno::CONNABORTED) => {}
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    // The socket stays readable: do not spin on it.
                    std::thread::sleep(std::time::Duration::from_millis(10));
                    return;
                }
                Err(_) => return,
            }
        }
    }
}

struct Ready {
    listener: bool,
    connections: Vec<bool>,
}

impl Connection {
    fn is_over(&self, now_ns: u64) -> bool {
        let is_late = self.grant.is_none() && now_ns > self.opened_ns + REQUEST_TIMEOUT_NS;
        self.closed || is_late
    }

    /// Answers one request.
    fn serve(&mut self, source: &impl SlabSource, link: Option<&LinkModel>) {
        if self.closed {
            return;
        }
        let mut bytes = [0; HEADER_LEN + 1];
        let mut no_control = RecvAncillaryBuffer::default();
        let mut into = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let len = match recvmsg(&self.socket, &mut into, &mut no_control, flags) {
            Ok(received) if received.bytes > 0 => received.bytes,
            Err(Errno::AGAIN | Errno::INTR) => return,
            Ok(_) | Err(_) => {
                self.closed = true;
                return;
            }
        };
        let (reply, fds) = match self.answer(&bytes[..len], source, link) {
            Ok(answer) => answer,
            Err(reason) => (Reply::Refused { reason }, Vec::new()),
        };
        // Seqpacket: a message is sent whole or not at all. A recipient that does not read its
        // replies is cut off; a refused one is closed.
        let sent = send_reply(self.socket.as_fd(), &reply, &fds);
        self.closed = !sent || matches!(reply, Reply::Refused { .. });
    }

    fn answer(
        &mut self,
        bytes: &[u8],
        source: &impl SlabSource,
        link: Option<&LinkModel>,
    ) -> Result<(Reply, Vec<SlabFile>), String> {
        let request = Request::decode(bytes)?;
        if self.grant.is_some_and(|grant| grant != request.grant) {
            return Err("one connection is for one grant".into());
        }
        let (first, count) = (request.first as usize, request.count as usize);
        let batch = source.slabs(request.grant, request.key, first, count)?;
        if batch.files.iter().any(SlabFile::is_in_device) && !self.may_have_device() {
            return Err(ONLY_ROOT.into());
        }
        self.grant = Some(request.grant);
        let offsets: Vec<u64> = batch.files.iter().map(SlabFile::offset_bytes).collect();
        let is_any_inside = offsets.iter().any(|offset| *offset > 0);
        let reply = Reply::Slabs {
            total: batch.total as u64,
            first: first as u64,
            count: batch.files.len() as u32,
            link: link.map(LinkModel::to_string).unwrap_or_default(),
            offsets: if is_any_inside { offsets } else { Vec::new() },
        };
        Ok((reply, batch.files))
    }

    /// True if the recipient may have a device's slabs. The descriptor of one slab reaches the
    /// whole device: only users that could open the device anyway get it.
    fn may_have_device(&self) -> bool {
        let peer = getsockopt(&self.socket, PeerCredentials).map(|peer| peer.uid());
        peer.is_ok_and(|uid| uid == 0 || uid == rustix::process::geteuid().as_raw())
    }
}

/// Sends a reply and its descriptors; returns false if that failed.
pub(crate) fn send_reply(socket: BorrowedFd<'_>, reply: &Reply, fds: &[impl AsFd]) -> bool {
    let bytes = reply.encode();
    let fds: Vec<_> = fds.iter().map(AsFd::as_fd).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SLABS_PER_MESSAGE))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(&fds)) {
        return false; // The source returned more than was requested.
    }
    loop {
        let from = [IoSlice::new(&bytes)];
        match sendmsg(socket, &from, &mut control, SendFlags::NOSIGNAL) {
            Err(Errno::INTR) => {}
            result => return result.is_ok(),
        }
    }
}
