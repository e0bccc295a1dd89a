//! Maps socket addresses to the fabric's small handles, and back.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};

use venice_fabric::PeerAddr;

/// Most IPv6 peers remembered at once.
const MAX_V6: usize = 4096;
const V6_FLAG: u64 = 1 << 63;

/// Book of addresses: turns each into a [`PeerAddr`]. An IPv4 address and port fit into the handle
/// itself. Of IPv6 addresses the latest [`MAX_V6`] are kept in a ring, and each handle contains the
/// lap of the ring in which it was made, which reveals a handle whose entry was overwritten.
#[derive(Debug, Default)]
pub(super) struct AddressBook {
    ring: Vec<(SocketAddr, u64)>,
    handles: BTreeMap<SocketAddr, u64>,
    next: u64,
}

impl AddressBook {
    pub(super) fn handle(&mut self, address: SocketAddr) -> PeerAddr {
        match address {
            SocketAddr::V4(v4) => {
                PeerAddr(u64::from(v4.ip().to_bits()) << 16 | u64::from(v4.port()))
            }
            SocketAddr::V6(_) => PeerAddr(self.v6_handle(address)),
        }
    }

    /// Returns the address behind a handle; `None` if it was forgotten.
    pub(super) fn address(&self, handle: PeerAddr) -> Option<SocketAddr> {
        if handle.0 & V6_FLAG == 0 {
            let ip = Ipv4Addr::from_bits((handle.0 >> 16) as u32);
            return Some(SocketAddrV4::new(ip, handle.0 as u16).into());
        }
        let serial = handle.0 & !V6_FLAG;
        let (address, kept) = self.ring.get(serial as usize % MAX_V6)?;
        (*kept == handle.0).then_some(*address)
    }

    fn v6_handle(&mut self, address: SocketAddr) -> u64 {
        if let Some(handle) = self.handles.get(&address) {
            return *handle;
        }
        let handle = self.next | V6_FLAG;
        let slot = self.next as usize % MAX_V6;
        self.next += 1;
        if let Some(entry) = self.ring.get_mut(slot) {
            self.handles.remove(&entry.0);
            *entry = (address, handle);
        } else {
            self.ring.push((address, handle));
        }
        self.handles.insert(address, handle);
        handle
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    fn v6(number: u16) -> SocketAddr {
        (Ipv6Addr::LOCALHOST, number).into()
    }

    #[test]
    fn addresses_roundtrip() {
        let mut book = AddressBook::default();
        for address in ["0.0.0.0:0", "255.255.255.255:65535", "10.1.2.3:7470", "[::1]:5"] {
            let address = address.parse().unwrap();
            let handle = book.handle(address);
            assert_eq!(book.handle(address), handle);
            assert_eq!(book.address(handle), Some(address));
        }
    }

    #[test]
    fn stale_v6_handle_finds_nothing() {
        let mut book = AddressBook::default();
        let first = book.handle(v6(1));
        for number in 2..=MAX_V6 as u16 {
            book.handle(v6(number));
        }
        assert_eq!(book.address(first), Some(v6(1)));
        let newest = book.handle(v6(60_000));
        assert_eq!(book.address(first), None);
        assert_eq!(book.address(newest), Some(v6(60_000)));
        assert_ne!(book.handle(v6(1)), first);
        assert!(book.handles.len() <= MAX_V6 && book.ring.len() <= MAX_V6);
    }
}
