//! Handshakes cost time and hold a descriptor: so many at a time, and of one address not so many that
//! others get none.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Handshakes under way, for everybody. A part is kept for those of whom few are there: whoever comes
/// from some addresses with many connections leaves turns for others.
const ALL: Room = Room { common: 128, kept: 128 };
/// Of one network.
const OF_NETWORK: Room = Room { common: 64, kept: 4 };
/// Of one site.
const OF_SITE: Room = Room { common: 96, kept: 32 };
/// Connections of one network that are in their handshake or wait for it; more are closed.
const PRESENT_OF_NETWORK: usize = 512;
/// Of one site.
const PRESENT_OF_SITE: usize = 2048;
/// Of all together.
const PRESENT: usize = 4096;

/// Whom an address belongs to, as far as can be told. Of IPv6 that is a /64, the least that a host
/// has: it may take any address in it. It is no more either: a rack's nodes are neighbours within
/// their site's /48, and one of them could starve the others if they had one share together.
pub(super) fn network_of(ip: IpAddr) -> IpAddr {
    prefix_of(ip, 64)
}

/// What is commonly given to one customer altogether: a /48. Who has it has 65536 networks.
pub(super) fn site_of(ip: IpAddr) -> IpAddr {
    prefix_of(ip, 48)
}

fn prefix_of(ip: IpAddr, bits: u32) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> (128 - bits) << (128 - bits)).into(),
        v4 => v4,
    }
}

/// How many turns there are.
#[derive(Debug, Clone, Copy)]
struct Room {
    common: usize,
    /// Kept for those of whom few are there.
    kept: usize,
}

/// Turns that are taken and given back.
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

/// The turns of a listener.
#[derive(Debug)]
pub(super) struct Turns {
    all: Share,
    /// Networks and sites, by how many bits of an address they are.
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
    /// Those of an address, the narrowest first.
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

    /// Somebody has come from there; `None` where too many have.
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

/// A connection that is not let in yet.
#[derive(Debug)]
pub(super) struct Visit {
    turns: Arc<Turns>,
    groups: [Group; 2],
    shares: [Share; 2],
}

/// A turn: of the network, of the site, and of all. It lasts until it is dropped.
pub(super) type Turn = [OwnedSemaphorePermit; 3];

impl Visit {
    /// Waits for its turn: one of everybody's, or one of those that are kept for who has few.
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

/// First among those of its network, then of its site, then among all.
async fn take([network, site, all]: [&Arc<Semaphore>; 3]) -> Turn {
    const OPEN: &str = "nobody closes it";
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

    /// As many as it can have from there at once, and their turns.
    fn crowd(turns: &Arc<Turns>, ip: IpAddr) -> (Vec<Visit>, Vec<Turn>) {
        let visits: Vec<Visit> = (0..).map_while(|_| turns.come(ip)).collect();
        let under_way = visits.iter().map_while(|visit| at_once(visit.turn())).collect();
        (visits, under_way)
    }

    #[test]
    fn one_address_leaves_turns_for_others() {
        let turns = Turns::new();
        let (noisy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (visits, under_way) = crowd(&turns, noisy);
        assert_eq!(visits.len(), PRESENT_OF_NETWORK);
        assert_eq!(under_way.len(), OF_NETWORK.common + OF_NETWORK.kept);
        let visit = turns.come(other).unwrap();
        assert!(at_once(visit.turn()).is_some(), "starved");
        let next = under_way.len();
        drop(under_way);
        assert!(at_once(visits[next].turn()).is_some(), "its turn has come");
        drop(visits);
        assert!(turns.come(noisy).is_some());
        drop(visit);
        assert!(turns.present.lock().unwrap().is_empty(), "who is gone is forgotten");
    }

    #[test]
    fn some_addresses_together_leave_turns_for_others() {
        let turns = Turns::new();
        let crowds: Vec<_> = (1..8).map(|n| crowd(&turns, IpAddr::from([10, 0, 0, n]))).collect();
        let other = turns.come(IpAddr::from([10, 0, 1, 1])).unwrap();
        assert!(at_once(other.turn()).is_some(), "starved");
        drop(crowds);
        // A /48 has as many networks as it likes.
        let net = |site: u16, net: u16| IpAddr::from([0x2001, 0xdb8, site, net, 0, 0, 0, 1]);
        let crowds: Vec<_> = (0..200).map(|n| crowd(&turns, net(0, n))).collect();
        let there: usize = crowds.iter().map(|(visits, _)| visits.len()).sum();
        assert_eq!(there, PRESENT_OF_SITE);
        let others: Vec<_> = (1..9).map(|site| turns.come(net(site, 0)).unwrap()).collect();
        let taken: Vec<_> = others.iter().filter_map(|other| at_once(other.turn())).collect();
        assert_eq!(taken.len(), others.len(), "starved");
    }

    #[test]
    fn an_address_is_a_net_of_its_own() {
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
