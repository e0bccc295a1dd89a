//! Offloads of the kernel and limits of the path to a peer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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
    mtu_to(peer).map_or_else(|_| limit_by(peer, COMMON_MTU), |mtu| limit_by(peer, mtu))
}

/// The same for the peers of a socket once this process may make no others, as a confined host:
/// then `near` stands for what cannot be found out, the limit of the socket's [neighbours](near_limit).
pub(super) fn datagram_limit_or(peer: SocketAddr, near: usize) -> usize {
    mtu_to(peer).map_or(near, |mtu| limit_by(peer, mtu))
}

/// Returns the limit of peers in the subnet of a local address.
pub(super) fn near_limit(local: SocketAddr) -> usize {
    // In all subnets but those of one address the next address is a neighbour's.
    let neighbour: IpAddr = match local.ip() {
        IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() ^ 1).into(),
        IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() ^ 1).into(),
    };
    match local.ip().is_unspecified() {
        true => limit_by(local, COMMON_MTU),
        false => datagram_limit(SocketAddr::new(neighbour, local.port())),
    }
}

fn limit_by(peer: SocketAddr, mtu: usize) -> usize {
    let headers = if peer.is_ipv4() { IPV4_UDP_HEADER_BYTES } else { IPV6_UDP_HEADER_BYTES };
    mtu.max(headers + 512) - headers
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

    #[test]
    fn neighbours_share_limit() {
        let local: SocketAddr = "127.0.0.1:9".parse().unwrap();
        assert_eq!(near_limit(local), datagram_limit("127.0.0.2:9".parse().unwrap()));
        assert_eq!(near_limit("0.0.0.0:9".parse().unwrap()), 1472);
        let unreachable = "[2001:db8::1]:9".parse().unwrap();
        if mtu_to(unreachable).is_err() {
            assert_eq!(datagram_limit_or(unreachable, 8952), 8952);
        }
    }
}
