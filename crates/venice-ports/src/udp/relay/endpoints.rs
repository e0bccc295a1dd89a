//! Programs for which a relay carries packets: each socket address has a number on this node.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use venice_wire::Endpoint;

/// Most programs remembered at once; the one that has been silent longest makes room.
const MAX_ENDPOINTS: usize = 4096;

/// Table of endpoints. Numbers are never reused, which keeps a late answer from another program.
#[derive(Debug)]
pub(super) struct Endpoints {
    by_address: BTreeMap<SocketAddr, u32>,
    by_number: BTreeMap<u32, Known>,
    next: u32,
}

#[derive(Debug)]
struct Known {
    address: SocketAddr,
    heard_ns: u64,
}

impl Endpoints {
    pub(super) fn new() -> Self {
        let next = Endpoint::AGENT.0 + 1;
        Self { by_address: BTreeMap::new(), by_number: BTreeMap::new(), next }
    }

    pub(super) fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Returns the number of a program that has just sent something.
    pub(super) fn touch(&mut self, now_ns: u64, address: SocketAddr) -> Endpoint {
        if let Some(number) = self.by_address.get(&address) {
            if let Some(known) = self.by_number.get_mut(number) {
                known.heard_ns = now_ns;
            }
            return Endpoint(*number);
        }
        if self.by_number.len() >= MAX_ENDPOINTS {
            self.forget_one();
        }
        let number = self.next;
        self.next = number.checked_add(1).unwrap_or(Endpoint::AGENT.0 + 1);
        self.by_address.insert(address, number);
        self.by_number.insert(number, Known { address, heard_ns: now_ns });
        Endpoint(number)
    }

    pub(super) fn address(&self, endpoint: Endpoint) -> Option<SocketAddr> {
        self.by_number.get(&endpoint.0).map(|known| known.address)
    }

    fn forget_one(&mut self) {
        let oldest = self.by_number.iter().min_by_key(|(_, known)| known.heard_ns);
        if let Some(number) = oldest.map(|(number, _)| *number)
            && let Some(known) = self.by_number.remove(&number)
        {
            self.by_address.remove(&known.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        ([127, 0, 0, 1], port).into()
    }

    #[test]
    fn evicts_idle_endpoint_without_number_reuse() {
        let mut endpoints = Endpoints::new();
        let first = endpoints.touch(0, address(1));
        let second = endpoints.touch(1, address(2));
        assert_eq!(endpoints.touch(2, address(1)), first);
        assert_ne!(first, Endpoint::AGENT);
        for port in 0..MAX_ENDPOINTS as u16 - 1 {
            endpoints.touch(3, address(10 + port));
        }
        assert_eq!(endpoints.len(), MAX_ENDPOINTS);
        assert_eq!(endpoints.address(second), None, "the idle one is evicted");
        assert_eq!(endpoints.address(first), Some(address(1)));
        assert_ne!(endpoints.touch(4, address(2)), second);
    }
}
