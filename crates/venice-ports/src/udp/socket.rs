//! A non-blocking UDP socket with buffers for bursts.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_reuseport,
    set_socket_send_buffer_size, set_socket_send_buffer_size_force, socket_recv_buffer_size,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with};

use super::offload::UdpOffloads;
use crate::PortError;

/// Socket buffer in each direction, in bytes: a burst of some hundred pages from each of many
/// recipients.
pub const UDP_BUFFER_BYTES: usize = 8 << 20;

/// A bound UDP socket.
#[derive(Debug)]
pub struct UdpSocket {
    fd: OwnedFd,
    local: SocketAddr,
    offloads: UdpOffloads,
}

impl UdpSocket {
    /// Binds to `local`; port 0 lets the system choose.
    ///
    /// # Errors
    /// Fails if the address is not of this machine or its port is taken.
    pub fn bind(local: SocketAddr) -> Result<Self, PortError> {
        Self::bind_as(local, false)
    }

    /// Binds `queues` sockets to one address. The kernel spreads senders over them by a hash of
    /// both addresses; all datagrams of one sender's address come to the same socket.
    ///
    /// # Errors
    /// Same as [`UdpSocket::bind`].
    pub fn bind_queues(local: SocketAddr, queues: usize) -> Result<Vec<Self>, PortError> {
        // A first socket without sharing: the holders of a shared address may be other programs.
        let alone = Self::bind(local)?;
        if queues <= 1 {
            return Ok(vec![alone]);
        }
        let local = alone.local;
        drop(alone);
        (0..queues).map(|_| Self::bind_as(local, true)).collect()
    }

    fn bind_as(local: SocketAddr, is_shared: bool) -> Result<Self, PortError> {
        let family = match local {
            SocketAddr::V4(_) => AddressFamily::INET,
            SocketAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let cannot_use = |source| PortError::UdpAddress { address: local, source };
        let fd = socket_with(family, SocketType::DGRAM, flags, None).map_err(cannot_use)?;
        raise_buffers(fd.as_fd());
        let offloads = UdpOffloads::turn_on(fd.as_fd());
        if is_shared {
            set_socket_reuseport(&fd, true).map_err(cannot_use)?;
        }
        bind(&fd, &local).map_err(cannot_use)?;
        let bound = getsockname(&fd).and_then(SocketAddr::try_from).map_err(cannot_use)?;
        Ok(Self { fd, local: bound, offloads })
    }

    /// Duplicates the descriptor of the socket.
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub fn try_clone(&self) -> Result<Self, PortError> {
        let fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, 0)
            .map_err(PortError::at("duplicating a socket"))?;
        Ok(Self { fd, ..*self })
    }

    /// Moves the descriptor to the lowest free number at or above `lowest`, away from those of the
    /// program whose process this is.
    ///
    /// # Errors
    /// Fails if there is no descriptor left.
    pub fn keep_fd_above(&mut self, lowest: i32) -> Result<(), PortError> {
        self.fd = rustix::io::fcntl_dupfd_cloexec(&self.fd, lowest)
            .map_err(PortError::at("duplicating a socket"))?;
        Ok(())
    }

    /// Returns the kernel's offloads for this socket's trains of datagrams.
    pub fn offloads(&self) -> UdpOffloads {
        self.offloads
    }

    /// Returns the address it is bound to, with the port the system chose.
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }
}

impl UdpSocket {
    /// Returns the size of the receive buffer in bytes: [`UDP_BUFFER_BYTES`], or less if this user
    /// may have no more (`net.core.rmem_max`).
    ///
    /// # Errors
    /// Fails if the kernel does not report it.
    pub fn receive_buffer_bytes(&self) -> Result<usize, PortError> {
        // The kernel doubles the requested size, for its own records.
        let doubled = socket_recv_buffer_size(&self.fd);
        Ok(doubled.map_err(PortError::at("reading a socket's buffer size"))? / 2)
    }
}

impl AsFd for UdpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the local address to bind to for `peer`: any address of this machine, any port, same
/// family.
pub fn unspecified_like(peer: SocketAddr) -> SocketAddr {
    match peer {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    }
}

/// Raises the buffers to the size that root may have, else to the system's limit. Small buffers
/// lose more, and are correct too.
fn raise_buffers(fd: BorrowedFd<'_>) {
    if set_socket_recv_buffer_size_force(fd, UDP_BUFFER_BYTES) == Err(Errno::PERM) {
        let _ = set_socket_recv_buffer_size(fd, UDP_BUFFER_BYTES);
    }
    if set_socket_send_buffer_size_force(fd, UDP_BUFFER_BYTES) == Err(Errno::PERM) {
        let _ = set_socket_send_buffer_size(fd, UDP_BUFFER_BYTES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_queues_share_address() {
        let queues = UdpSocket::bind_queues("127.0.0.1:0".parse().unwrap(), 3).unwrap();
        let local = queues[0].local_addr();
        assert!(queues.len() == 3 && queues.iter().all(|queue| queue.local_addr() == local));
        assert!(UdpSocket::bind(local).is_err());
        assert!(UdpSocket::bind_queues(local, 2).is_err());
    }

    #[test]
    fn bind_names_taken_port() {
        let first = UdpSocket::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        assert_ne!(first.local_addr().port(), 0);
        let error = UdpSocket::bind(first.local_addr()).unwrap_err();
        assert!(error.to_string().contains(&first.local_addr().to_string()), "{error}");
    }
}
