//! Unix sockets between users of a machine: descriptors that come by them.
//!
//! A peer sends descriptors by `SCM_RIGHTS` (unix(7)), asked or not. The last close of some sleeps in
//! the thread that makes it, for as long as their sender likes: a TCP socket with unsent bytes and
//! `SO_LINGER`, a file of a FUSE server. So a socket refuses them ([`refuse_descriptors`]) until its
//! owner wants one ([`take_descriptors`]), and closes what came in threads of their own ([`Closings`]).
//!
//! Linux refuses from version 6.16 on. Before, the kernel closes descriptors that nobody received in
//! the thread that closes the socket.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::setsockopt;

/// `SO_PASSRIGHTS` (`asm-generic/socket.h`).
const SO_PASSRIGHTS: libc::c_int = 83;
/// Stack of a thread that closes.
const STACK_BYTES: usize = 128 << 10;

#[derive(Clone, Copy)]
struct PassRights;
nix::setsockopt_impl!(
    PassRights,
    libc::SOL_SOCKET,
    SO_PASSRIGHTS,
    bool,
    nix::sys::socket::sockopt::SetBool
);

/// Has the kernel refuse the descriptors that peers of a unix socket send (`EPERM`): of a connection,
/// or of all that a listener accepts from now on. Returns false before Linux 6.16, where it does not.
///
/// # Errors
/// The kernel's, of a socket that is no unix socket.
pub fn refuse_descriptors(socket: &impl AsFd) -> io::Result<bool> {
    pass(socket, false)
}

/// Has the kernel let the peer of a unix socket send descriptors, as it does by default.
///
/// # Errors
/// The kernel's, of a socket that is no unix socket.
pub fn take_descriptors(socket: &impl AsFd) -> io::Result<()> {
    pass(socket, true).map(drop)
}

fn pass(socket: &impl AsFd, does: bool) -> io::Result<bool> {
    match setsockopt(socket, PassRights, &does) {
        Ok(()) => Ok(true),
        Err(Errno::ENOPROTOOPT) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// True if this kernel can [refuse](refuse_descriptors).
#[must_use]
pub fn can_refuse_descriptors() -> bool {
    UnixStream::pair().is_ok_and(|(one, _)| refuse_descriptors(&one).unwrap_or(false))
}

/// Closings of what a peer has sent, each in a thread of its own, for it may sleep.
#[derive(Debug, Default)]
pub struct Closings(Arc<()>);

impl Closings {
    /// Drops `what` in a thread; in this one if the system has no other.
    pub fn close(&self, what: impl Send + 'static) {
        let counted = Arc::clone(&self.0);
        let thread = std::thread::Builder::new().name("close".into()).stack_size(STACK_BYTES);
        let _ = thread.spawn(move || {
            drop(what);
            drop(counted);
        });
    }

    /// Returns how many have not ended.
    #[must_use]
    pub fn unfinished(&self) -> usize {
        Arc::strong_count(&self.0) - 1
    }
}
