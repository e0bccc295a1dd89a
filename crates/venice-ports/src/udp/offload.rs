//! Offloads of the kernel and limits of the path to a peer.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::syscall::{SOL_UDP, UDP_GRO, UDP_SEGMENT, path_mtu, set_option};
use super::unspecified_like;
use crate::PortError;

/// MTU of every Ethernet: assumed if the path MTU is unavailable.
const COMMON_MTU: usize = 1500;
const IPV4_UDP_HEADER_BYTES: usize = 28;
const IPV6_UDP_HEADER_BYTES: usize = 48;

/// Offloads of this kernel for trains of datagrams: fewer, larger trips through its network stack.
/// Without them everything works, with one trip for each datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOffloads {
    /// True if the kernel cuts outgoing trains into datagrams (`UDP_SEGMENT`, Linux 4.18).
    pub segmentation: bool,
    /// True if the kernel keeps incoming trains together (`UDP_GRO`, Linux 5.0).
    pub coalescing: bool,
}

impl UdpOffloads {
    /// Detects the kernel's offloads.
    ///
    /// # Errors
    /// Fails if no socket can be made.
    pub fn detect() -> Result<Self, PortError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
            .map_err(PortError::at("making a UDP socket"))?;
        Ok(Self::turn_on(socket.as_fd()))
    }

    /// Enables the kernel's offloads on a socket.
    pub(super) fn turn_on(socket: BorrowedFd<'_>) -> Self {
        Self {
            // No segment size for the socket: each message that is a train carries its own.
            segmentation: set_option(socket, SOL_UDP, UDP_SEGMENT, 0).is_ok(),
            coalescing: set_option(socket, SOL_UDP, UDP_GRO, 1).is_ok(),
        }
    }
}

/// Returns the longest datagram, in bytes of UDP payload, that reaches `peer` without
/// fragmentation, as far as this machine can tell.
pub(super) fn datagram_limit(peer: SocketAddr) -> usize {
    let headers = if peer.is_ipv4() { IPV4_UDP_HEADER_BYTES } else { IPV6_UDP_HEADER_BYTES };
    mtu_to(peer).unwrap_or(COMMON_MTU).max(headers + 512) - headers
}

fn mtu_to(peer: SocketAddr) -> rustix::io::Result<usize> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &unspecified_like(peer))?;
    // A connect sends nothing: it only looks up the route.
    connect(&socket, &peer)?;
    path_mtu(socket.as_fd(), peer.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_allows_large_datagrams() {
        let limit = datagram_limit("127.0.0.1:9".parse().unwrap());
        assert!((1472..=65_507).contains(&limit), "{limit}");
        assert!(UdpOffloads::detect().is_ok());
    }
}
