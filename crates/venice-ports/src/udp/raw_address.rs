//! Socket addresses in the kernel's format.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV4, SocketAddrV6};

/// A `sockaddr_in` or `sockaddr_in6`, as the kernel reads and writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RawAddress {
    pub(super) bytes: AlignedBytes,
    pub(super) len: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C, align(8))]
pub(super) struct AlignedBytes([u8; RawAddress::LEN as usize]);

impl RawAddress {
    /// Length of a `sockaddr_in6`, the longer of the two, in bytes.
    pub(super) const LEN: u32 = 28;
    const V4_LEN: u32 = 16;
    pub(super) const EMPTY: Self =
        Self { bytes: AlignedBytes([0; Self::LEN as usize]), len: Self::LEN };
    const INET: u16 = 2;
    const INET6: u16 = 10;

    pub(super) fn encode(address: SocketAddr) -> Self {
        let mut raw = Self::EMPTY;
        let bytes = &mut raw.bytes.0;
        bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
        match address {
            SocketAddr::V4(v4) => {
                bytes[0..2].copy_from_slice(&Self::INET.to_ne_bytes());
                bytes[4..8].copy_from_slice(&v4.ip().octets());
                raw.len = Self::V4_LEN;
            }
            SocketAddr::V6(v6) => {
                bytes[0..2].copy_from_slice(&Self::INET6.to_ne_bytes());
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_ne_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
                bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
            }
        }
        raw
    }

    pub(super) fn decode(&self) -> Option<SocketAddr> {
        let bytes = &self.bytes.0;
        let port = u16::from_be_bytes([bytes[2], bytes[3]]);
        let word = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        match u16::from_ne_bytes([bytes[0], bytes[1]]) {
            Self::INET => {
                let ip: [u8; 4] = bytes[4..8].try_into().expect("4 bytes");
                Some(SocketAddrV4::new(Ipv4Addr::from(ip), port).into())
            }
            Self::INET6 => {
                let ip: [u8; 16] = bytes[8..24].try_into().expect("16 bytes");
                // The flow label of a received datagram is no part of the peer's identity.
                Some(SocketAddrV6::new(Ipv6Addr::from(ip), port, 0, word(24)).into())
            }
            _ => None,
        }
    }
}
