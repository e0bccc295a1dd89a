//! What the kernel and the way to a peer can do for datagrams.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};

use super::syscall::{SOL_UDP, UDP_GRO, UDP_SEGMENT, path_mtu, set_option};
use super::unspecified_like;
use crate::PortError;

/// Datagrams up to here pass every Ethernet: assumed where the way's MTU cannot be had.
const COMMON_MTU: usize = 1500;
const IPV4_UDP_HEADER_BYTES: usize = 28;
const IPV6_UDP_HEADER_BYTES: usize = 48;

/// What this kernel offers for trains of datagrams: fewer, larger trips through its network
/// stack. Without it everything works, with one trip for each datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdpOffloads {
    /// Trains are cut up on the way out (`UDP_SEGMENT`, Linux 4.18).
    pub segmentation: bool,
    /// Trains are kept together on the way in (`UDP_GRO`, Linux 5.0).
    pub coalescing: bool,
}

impl UdpOffloads {
    /// Asks the kernel.
    ///
    /// # Errors
    /// When no socket can be made.
    pub fn detect() -> Result<Self, PortError> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, flags, None)
            .map_err(PortError::at("making a UDP socket"))?;
        Ok(Self::turn_on(socket.as_fd()))
    }

    /// Turns on for a socket what the kernel offers.
    pub(super) fn turn_on(socket: BorrowedFd<'_>) -> Self {
        Self {
            // No segment size for all: each message that is a train says its own.
            segmentation: set_option(socket, SOL_UDP, UDP_SEGMENT, 0).is_ok(),
            coalescing: set_option(socket, SOL_UDP, UDP_GRO, 1).is_ok(),
        }
    }
}

/// The longest datagram, in bytes of UDP payload, that gets to `peer` without being fragmented,
/// as far as this machine knows.
pub(super) fn datagram_limit(peer: SocketAddr) -> usize {
    let headers = if peer.is_ipv4() { IPV4_UDP_HEADER_BYTES } else { IPV6_UDP_HEADER_BYTES };
    mtu_to(peer).unwrap_or(COMMON_MTU).max(headers + 512) - headers
}

fn mtu_to(peer: SocketAddr) -> rustix::io::Result<usize> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    rustix::net::bind(&socket, &unspecified_like(peer))?;
    // Sends nothing: it only looks the route up.
    connect(&socket, &peer)?;
    path_mtu(socket.as_fd(), peer.is_ipv6())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_takes_large_datagrams() {
        let limit = datagram_limit("127.0.0.1:9".parse().unwrap());
        assert!((1472..=65_507).contains(&limit), "{limit}");
        assert!(UdpOffloads::detect().is_ok());
    }
}
