//! Limits concurrent handshakes, which cost time and a descriptor each: in all, and by address, so
//! that one address cannot starve the others.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Concurrent handshakes in all. A part is reserved for networks with few connections: some
/// addresses with many connections cannot take all permits.
const ALL: Room = Room { common: 128, kept: 128 };
/// Concurrent handshakes of one network.
const OF_NETWORK: Room = Room { common: 64, kept: 4 };
/// Concurrent handshakes of one site.
const OF_SITE: Room = Room { common: 96, kept: 32 };
/// Connections of one network in or waiting for their handshake; more are closed.
const PRESENT_OF_NETWORK: usize = 512;
/// Connections of one site in or waiting for their handshake.
const PRESENT_OF_SITE: usize = 2048;
/// Connections in or waiting for their handshake in all.
const PRESENT: usize = 4096;

/// Returns the network of an address: an IPv4 address itself, an IPv6 /64. A /64 is the least that
/// a host has, and it may take any address in it. A shorter prefix would make a rack's nodes,
/// neighbours within their site's /48, share one limit, so that one node could starve the others.
pub(super) fn network_of(ip: IpAddr) -> IpAddr {
    prefix_of(ip, 64)
}

/// Returns the site of an address: an IPv6 /48, the usual allocation of one customer, with 65536
/// networks.
pub(super) fn site_of(ip: IpAddr) -> IpAddr {
    prefix_of(ip, 48)
}

fn prefix_of(ip: IpAddr, bits: u32) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> (128 - bits) << (128 - bits)).into(),
        v4 => v4,
    }
}

/// Number of permits.
#[derive(Debug, Clone, Copy)]
struct Room {
    common: usize,
    /// Reserved for networks with few connections.
    kept: usize,
}

/// Semaphores of one share.
#[derive(Debug, Clone)]
struct Share {
    common: Arc<Semaphore>,
    kept: Arc<Semaphore>,
}

impl Share {
    fn of(room: Room) -> Self {
        let turns = |count| Arc::new(Semaphore::new(count));
        Self { common: turns(room.common), kept: turns(room.kept) }
    }
}

/// Limiter of a listener's handshakes.
#[derive(Debug)]
pub(super) struct Turns {
    all: Share,
    /// Connections by network and by site.
    present: Mutex<BTreeMap<Group, Present>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Network(IpAddr),
    Site(IpAddr),
}

#[derive(Debug)]
struct Present {
    connections: usize,
    share: Share,
}

impl Group {
    /// Returns the groups of an address, the narrowest first.
    fn all_of(ip: IpAddr) -> [Self; 2] {
        [Self::Network(network_of(ip)), Self::Site(site_of(ip))]
    }

    fn room(self) -> (Room, usize) {
        match self {
            Self::Site(_) => (OF_SITE, PRESENT_OF_SITE),
            Self::Network(_) => (OF_NETWORK, PRESENT_OF_NETWORK),
        }
    }
}

impl Turns {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { all: Share::of(ALL), present: Mutex::default() })
    }

    /// Registers a connection from `ip`; `None` if there are too many.
    pub(super) fn come(self: &Arc<Self>, ip: IpAddr) -> Option<Visit> {
        let groups = Group::all_of(ip);
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let networks = present.iter().filter(|(group, _)| matches!(group, Group::Network(_)));
        let together: usize = networks.map(|(_, it)| it.connections).sum();
        let is_full =
            |group: &Group| present.get(group).is_some_and(|it| it.connections >= group.room().1);
        if together >= PRESENT || groups.iter().any(is_full) {
            return None;
        }
        let shares = groups.map(|group| {
            let new = || Present { connections: 0, share: Share::of(group.room().0) };
            let it = present.entry(group).or_insert_with(new);
            it.connections += 1;
            it.share.clone()
        });
        Some(Visit { turns: Arc::clone(self), groups, shares })
    }

    fn go(&self, groups: [Group; 2]) {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        for group in groups {
            let Some(it) = present.get_mut(&group) else { continue };
            it.connections -= 1;
            if it.connections == 0 {
                present.remove(&group);
            }
        }
    }
}

/// A connection before its handshake.
#[derive(Debug)]
pub(super) struct Visit {
    turns: Arc<Turns>,
    groups: [Group; 2],
    shares: [Share; 2],
}

/// A permit of the network, of the site, and of all; held until dropped.
pub(super) type Turn = [OwnedSemaphorePermit; 3];

impl Visit {
    /// Waits for a permit: a common one, or one reserved for networks with few connections.
    pub(super) async fn turn(&self) -> Turn {
        let [network, site] = &self.shares;
        let all = &self.turns.all;
        tokio::select! {
            biased;
            turn = take([&network.common, &site.common, &all.common]) => turn,
            turn = take([&network.kept, &site.kept, &all.kept]) => turn,
        }
    }
}

/// Acquires the network's permit first, then the site's, then the global one.
async fn take([network, site, all]: [&Arc<Semaphore>; 3]) -> Turn {
    const OPEN: &str = "the semaphore is never closed";
    let network = Arc::clone(network).acquire_owned().await.expect(OPEN);
    let site = Arc::clone(site).acquire_owned().await.expect(OPEN);
    [network, site, Arc::clone(all).acquire_owned().await.expect(OPEN)]
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.turns.go(self.groups);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    /// Opens as many connections as one address may have; returns the permits they get at once.
    fn crowd(turns: &Arc<Turns>, ip: IpAddr) -> (Vec<Visit>, Vec<Turn>) {
        let visits: Vec<Visit> = (0..).map_while(|_| turns.come(ip)).collect();
        let under_way = visits.iter().map_while(|visit| at_once(visit.turn())).collect();
        (visits, under_way)
    }

    #[test]
    fn one_address_leaves_permits_for_others() {
        let turns = Turns::new();
        let (noisy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (visits, under_way) = crowd(&turns, noisy);
        assert_eq!(visits.len(), PRESENT_OF_NETWORK);
        assert_eq!(under_way.len(), OF_NETWORK.common + OF_NETWORK.kept);
        let visit = turns.come(other).unwrap();
        assert!(at_once(visit.turn()).is_some(), "starved");
        let next = under_way.len();
        drop(under_way);
        assert!(at_once(visits[next].turn()).is_some(), "a released permit is reused");
        drop(visits);
        assert!(turns.come(noisy).is_some());
        drop(visit);
        assert!(turns.present.lock().unwrap().is_empty(), "closed connections are forgotten");
    }

    #[test]
    fn several_addresses_leave_permits_for_others() {
        let turns = Turns::new();
        let crowds: Vec<_> = (1..8).map(|n| crowd(&turns, IpAddr::from([10, 0, 0, n]))).collect();
        let other = turns.come(IpAddr::from([10, 0, 1, 1])).unwrap();
        assert!(at_once(other.turn()).is_some(), "starved");
        drop(crowds);
        // A /48 has many networks.
        let net = |site: u16, net: u16| IpAddr::from([0x2001, 0xdb8, site, net, 0, 0, 0, 1]);
        let crowds: Vec<_> = (0..200).map(|n| crowd(&turns, net(0, n))).collect();
        let there: usize = crowds.iter().map(|(visits, _)| visits.len()).sum();
        assert_eq!(there, PRESENT_OF_SITE);
        let others: Vec<_> = (1..9).map(|site| turns.come(net(site, 0)).unwrap()).collect();
        let taken: Vec<_> = others.iter().filter_map(|other| at_once(other.turn())).collect();
        assert_eq!(taken.len(), others.len(), "starved");
    }

    #[test]
    fn network_is_ipv4_or_ipv6_64() {
        let net = |ip: &str| network_of(ip.parse().unwrap());
        assert_eq!(net("2001:db8:0:1::5"), net("2001:db8:0:1:ffff::7"));
        assert_ne!(net("2001:db8:0:1::5"), net("2001:db8:0:2::5"));
        assert_eq!(net("::ffff:10.0.0.1"), net("10.0.0.1"));
        assert_ne!(net("10.0.0.1"), net("10.0.0.2"));
        let site = |ip: &str| site_of(ip.parse().unwrap());
        assert_eq!(site("2001:db8:0:1::5"), site("2001:db8:0:2::5"));
        assert_ne!(site("2001:db8:0:1::5"), site("2001:db8:1:1::5"));
        assert_ne!(site("10.0.0.1"), site("10.0.0.2"));
    }
}
