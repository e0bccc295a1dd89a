//! The recipient's side: requests the slabs of a grant from the donor's agent.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
};
use venice_fabric::LinkModel;
use venice_wire::{GrantId, GrantKey};

use super::message::{REPLY_LEN, Reply, Request, SLABS_PER_MESSAGE};
use super::slab_file::SlabFile;
use crate::PortError;

/// Longest time of a living agent to answer.
pub(crate) const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(1);
const LONGEST_TIMEOUT: Duration = Duration::from_secs(1_000_000);

/// The slabs of a grant, and the connection whose end reveals the donor's death or a revocation.
#[derive(Debug)]
pub struct ShmConnection {
    /// Memory of the slabs, in their order: memfds, each [`SLAB_BYTES`](venice_wire::SLAB_BYTES)
    /// long and sealed, or places in a memory device. They may be taken out, mapped and closed; the
    /// connection must be kept.
    pub slabs: Vec<SlabFile>,
    /// Link that the rack emulates to this donor: accesses must take as long as over it.
    pub link: Option<LinkModel>,
    socket: OwnedFd,
}

impl ShmConnection {
    /// Returns the descriptor to poll for input or hang-up: either means that the donor is gone or
    /// has revoked the grant.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// True if the donor is gone or has revoked the grant. Does not wait.
    pub fn is_closed(&self) -> bool {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut fds = [PollFd::new(&self.socket, PollFlags::IN)];
        loop {
            match poll(&mut fds, Some(&now)) {
                // The donor sends nothing unrequested: any input is the end.
                Ok(ready) => return ready > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => return true,
            }
        }
    }
}

/// Requests all `slabs` of a grant from the agent behind `socket`.
///
/// # Errors
/// Fails if no agent answers within five seconds, if it refuses (unknown grant, wrong key), or if
/// its reply is invalid: it must contain, for each slab, a memfd of its length, sealed against
/// resizing, or a place in a memory device.
pub fn fetch_slabs(
    socket: &Path,
    id: GrantId,
    key: GrantKey,
    slabs: usize,
) -> Result<ShmConnection, PortError> {
    fetch_slabs_within(socket, id, key, slabs, ANSWER_TIMEOUT)
}

/// Fetches slabs like [`fetch_slabs`], but within `timeout`.
pub(crate) fn fetch_slabs_within(
    socket: &Path,
    id: GrantId,
    key: GrantKey,
    slabs: usize,
    timeout: Duration,
) -> Result<ShmConnection, PortError> {
    let start = Instant::now();
    let connection = connect_to(socket, timeout)?;
    let (mut files, mut link) = (Vec::with_capacity(slabs), None);
    while files.len() < slabs {
        let request = Request {
            grant: id,
            key,
            first: files.len() as u32,
            count: (slabs - files.len()).min(SLABS_PER_MESSAGE) as u32,
        };
        set_timeouts(&connection, timeout.saturating_sub(start.elapsed()))?;
        send(&connection, &request)?;
        let mut fds = Vec::with_capacity(request.count as usize);
        let reply = receive(&connection, &mut fds)?;
        check_reply(&reply, &request, slabs, fds.len())?;
        if let Reply::Slabs { link: text, offsets, .. } = &reply {
            link = parse_link(text)?;
            let offsets = offsets.iter().copied().chain(std::iter::repeat(0));
            files.extend(fds.into_iter().zip(offsets).map(|(fd, at)| SlabFile::at(fd, at)));
        }
    }
    files.iter().try_for_each(SlabFile::check)?;
    Ok(ShmConnection { slabs: files, link, socket: connection })
}

/// Connects within `timeout`, which holds for each later send and receive too.
pub(crate) fn connect_to(path: &Path, timeout: Duration) -> Result<OwnedFd, PortError> {
    let address = SocketAddrUnix::new(path)
        .map_err(|_| PortError::SocketPath { path: path.to_path_buf() })?;
    let socket =
        socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .map_err(PortError::at("making a unix socket"))?;
    set_timeouts(&socket, timeout)?;
    match retry_interrupted(|| connect(&socket, &address)) {
        Ok(()) => Ok(socket),
        Err(source) => Err(PortError::NoAgent { path: path.to_path_buf(), source }),
    }
}

fn set_timeouts(socket: &OwnedFd, timeout: Duration) -> Result<(), PortError> {
    // The kernel takes zero for no limit, and no more than its clock counts.
    let timeout = timeout.clamp(SHORTEST_TIMEOUT, LONGEST_TIMEOUT);
    [Timeout::Recv, Timeout::Send].into_iter().try_for_each(|direction| {
        set_socket_timeout(socket, direction, Some(timeout))
            .map_err(PortError::at("setting a socket's time-out"))
    })
}

fn send(socket: &OwnedFd, request: &Request) -> Result<(), PortError> {
    let bytes = request.encode();
    let mut no_fds = SendAncillaryBuffer::default();
    retry_interrupted(|| {
        sendmsg(socket, &[IoSlice::new(&bytes)], &mut no_fds, SendFlags::NOSIGNAL)
    })
    .map_err(|errno| match errno {
        rustix::io::Errno::PIPE | rustix::io::Errno::CONNRESET => PortError::Closed,
        source => PortError::System { step: "requesting slabs from the donor", source },
    })?;
    Ok(())
}

/// Receives one reply; appends its descriptors to `fds`.
pub(crate) fn receive(socket: &OwnedFd, fds: &mut Vec<OwnedFd>) -> Result<Reply, PortError> {
    let mut bytes = [0; REPLY_LEN];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SLABS_PER_MESSAGE))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = retry_interrupted(|| {
        let mut into = [IoSliceMut::new(&mut bytes)];
        recvmsg(socket, &mut into, &mut control, RecvFlags::CMSG_CLOEXEC)
    })
    .map_err(|errno| match errno {
        rustix::io::Errno::CONNRESET => PortError::Closed,
        source => PortError::System { step: "waiting for the donor's slabs", source },
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(received_fds) = message {
            fds.extend(received_fds);
        }
    }
    if received.bytes == 0 {
        return Err(PortError::Closed);
    }
    Reply::decode(&bytes[..received.bytes]).map_err(|what| PortError::Protocol { what })
}

/// Parses the emulated link of a reply: none, or one.
pub(crate) fn parse_link(text: &str) -> Result<Option<LinkModel>, PortError> {
    match text {
        "" => Ok(None),
        text => {
            text.parse().map(Some).map_err(|_| PortError::Protocol { what: "unknown kind of link" })
        }
    }
}

fn check_reply(
    reply: &Reply,
    request: &Request,
    slabs: usize,
    fds: usize,
) -> Result<(), PortError> {
    let what = match reply {
        Reply::Refused { reason } => return Err(PortError::Refused { reason: reason.clone() }),
        Reply::Slabs { total, .. } if *total != slabs as u64 => "wrong number of slabs",
        Reply::Slabs { first, .. } if *first != u64::from(request.first) => "slabs out of order",
        Reply::Slabs { count, .. } if *count != request.count || fds != *count as usize => {
            "descriptors missing (is the limit on open files too low?)"
        }
        Reply::Slabs { .. } => return Ok(()),
        Reply::Ring { .. } => return Err(PortError::LendsNothing),
    };
    Err(PortError::Protocol { what })
}

fn retry_interrupted<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(rustix::io::Errno::INTR) => {}
            result => return result,
        }
    }
}
