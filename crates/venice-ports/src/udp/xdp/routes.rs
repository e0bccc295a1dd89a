//! Routes back to peers that have sent something.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;

use super::super::raw_address::RawAddress;
use super::headers::Headers;

/// Most peers remembered.
const MAX_ROUTES: usize = 4096;
/// Silence of a peer after which its route is dropped, in nanoseconds: it may have moved to another
/// machine of the network. The kernel's stack, which discovers neighbours, finds it again.
const TRUSTED_NS: u64 = 1_000_000_000;

/// Headers of datagrams to each peer, learned from received ones, without neighbour discovery.
#[derive(Debug, Default)]
pub(super) struct Routes {
    all: BTreeMap<SocketAddrV4, Route>,
    /// Route used last.
    last: Option<(RawAddress, Route)>,
}

#[derive(Clone, Copy, Debug)]
struct Route {
    headers: Headers,
    /// True if the peer sends by AF_XDP, and therefore receives by it.
    has_xdp: bool,
    learned_ns: u64,
}

impl Routes {
    /// Learns the headers of a genuine datagram.
    pub(super) fn learn(&mut self, now_ns: u64, from: &RawAddress, came: &Headers) {
        if let Some((last, route)) = &mut self.last
            && last == from
            && came.reversed_is(&route.headers)
        {
            (route.learned_ns, route.has_xdp) = (now_ns, came.is_by_xdp());
            return;
        }
        self.put_away();
        let (headers, has_xdp) = (came.reversed(), came.is_by_xdp());
        let route = Route { headers, has_xdp, learned_ns: now_ns };
        self.last = Some((*from, route));
    }

    /// Returns the headers for datagrams to `to`, if known, and whether the peer has AF_XDP too.
    pub(super) fn to(&mut self, now_ns: u64, to: &RawAddress) -> Option<(Headers, bool)> {
        let is_last = |last: &(RawAddress, Route)| last.0 == *to;
        if !self.last.as_ref().is_some_and(is_last) {
            let address = v4(to)?;
            let route = *self.all.get(&address)?;
            self.put_away();
            self.last = Some((*to, route));
        }
        let (_, route) = self.last.as_ref()?;
        let is_fresh = now_ns.saturating_sub(route.learned_ns) < TRUSTED_NS;
        is_fresh.then_some((route.headers, route.has_xdp))
    }

    fn put_away(&mut self) {
        let Some((address, route)) = self.last.take() else { return };
        let Some(address) = v4(&address) else { return };
        if self.all.len() >= MAX_ROUTES && !self.all.contains_key(&address) {
            // The evicted peer is reached by the kernel's stack until it sends again.
            self.all.pop_first();
        }
        self.all.insert(address, route);
    }
}

fn v4(address: &RawAddress) -> Option<SocketAddrV4> {
    match address.decode()? {
        std::net::SocketAddr::V4(v4) => Some(v4),
        std::net::SocketAddr::V6(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::udp::xdp::headers::HEADER_BYTES;

    fn came_from(last_octet: u8, neighbour: u8) -> (RawAddress, Headers) {
        let mut headers = Headers([0; HEADER_BYTES]);
        headers.0[11] = neighbour;
        headers.0[26..30].copy_from_slice(&[10, 0, 0, last_octet]);
        headers.0[34..36].copy_from_slice(&7u16.to_be_bytes());
        (RawAddress::encode(headers.source().into()), headers)
    }

    #[test]
    fn routes_expire_after_silence() {
        let mut routes = Routes::default();
        let (one, from_one) = came_from(1, 1);
        let (two, from_two) = came_from(2, 2);
        assert_eq!(routes.to(0, &one), None);
        routes.learn(0, &one, &from_one);
        routes.learn(5, &two, &from_two);
        assert_eq!(routes.to(6, &one), Some((from_one.reversed(), true)));
        assert_eq!(routes.to(6, &two), Some((from_two.reversed(), true)));
        let (_, from_elsewhere) = came_from(1, 9);
        routes.learn(7, &one, &from_elsewhere);
        assert_eq!(
            routes.to(8, &one),
            Some((from_elsewhere.reversed(), true)),
            "the peer has moved"
        );
        assert_eq!(routes.to(TRUSTED_NS + 5, &two), None);
        assert_eq!(routes.to(TRUSTED_NS + 6, &one), Some((from_elsewhere.reversed(), true)));
    }

    #[test]
    fn route_count_is_bounded() {
        let mut routes = Routes::default();
        for number in 0..2 * MAX_ROUTES as u32 {
            let (_, mut headers) = came_from(1, 1);
            headers.0[26..30].copy_from_slice(&(0x0a00_0000 + number).to_be_bytes());
            routes.learn(0, &RawAddress::encode(headers.source().into()), &headers);
        }
        assert!(routes.all.len() <= MAX_ROUTES);
    }
}
