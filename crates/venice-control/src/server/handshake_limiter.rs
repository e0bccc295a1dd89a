//! Limits concurrent handshakes, which cost time and a descriptor each: in all, and by address, so
//! that one address cannot starve the others. Where too many connections are silent, the oldest
//! makes room for the newest, so that they do not lock out other programs of their address either.

use super::short_lived::{Displacement, ShortLived};
use std::collections::BTreeMap;
use std::future::Future;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Concurrent handshakes in all. A part is reserved for networks with few connections: some
/// addresses with many connections cannot take all permits.
const ALL: Limit = Limit { common: 128, reserved: 128 };
/// Concurrent handshakes of one network.
const OF_NETWORK: Limit = Limit { common: 64, reserved: 4 };
/// Concurrent handshakes of one site.
const OF_SITE: Limit = Limit { common: 96, reserved: 32 };
/// Connections of one network in or waiting for their handshake.
const PRESENT_OF_NETWORK: usize = 512;
/// Connections of one site in or waiting for their handshake.
const PRESENT_OF_SITE: usize = 2048;

/// Least such connections of a network or site, where descriptors are few.
const MIN_PRESENT: usize = 16;

/// Bounds on the connections in or waiting for their handshake.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    all: usize,
    of_site: usize,
    of_network: usize,
}

impl Bounds {
    fn within(all: usize) -> Self {
        let of_site = (all / 2).clamp(MIN_PRESENT, PRESENT_OF_SITE);
        let of_network = (all / 4).clamp(MIN_PRESENT, PRESENT_OF_NETWORK);
        Self { all, of_site, of_network }
    }
}

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
struct Limit {
    common: usize,
    /// Reserved for networks with few connections.
    reserved: usize,
}

/// Semaphores of one share.
#[derive(Debug, Clone)]
struct Permits {
    common: Arc<Semaphore>,
    reserved: Arc<Semaphore>,
}

impl Permits {
    fn of(room: Limit) -> Self {
        let limiter = |count| Arc::new(Semaphore::new(count));
        Self { common: limiter(room.common), reserved: limiter(room.reserved) }
    }
}

/// Limiter of a listener's handshakes.
#[derive(Debug)]
pub(super) struct HandshakeLimiter {
    all: Permits,
    bounds: Bounds,
    present: Mutex<AllPresent>,
}

/// The connections before or in their handshake.
#[derive(Debug)]
struct AllPresent {
    count: usize,
    /// Connections by network and by site.
    groups: BTreeMap<Group, Present>,
    /// Connections before their ClientHello, by network.
    silent: ShortLived<IpAddr>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Group {
    Network(IpAddr),
    Site(IpAddr),
}

#[derive(Debug)]
struct Present {
    connections: usize,
    share: Permits,
}

impl Group {
    /// Returns the groups of an address, the narrowest first.
    fn all_of(ip: IpAddr) -> [Self; 2] {
        [Self::Network(network_of(ip)), Self::Site(site_of(ip))]
    }

    fn permits(self) -> Limit {
        match self {
            Self::Site(_) => OF_SITE,
            Self::Network(_) => OF_NETWORK,
        }
    }

    fn most(self, bounds: Bounds) -> usize {
        match self {
            Self::Site(_) => bounds.of_site,
            Self::Network(_) => bounds.of_network,
        }
    }
}

impl HandshakeLimiter {
    /// Creates a limiter of `most` connections in all.
    pub(super) fn within(most: usize) -> Arc<Self> {
        let bounds = Bounds::within(most);
        let silent = ShortLived::new(usize::MAX, usize::MAX);
        let present = AllPresent { count: 0, groups: BTreeMap::new(), silent };
        Arc::new(Self { all: Permits::of(ALL), bounds, present: Mutex::new(present) })
    }

    /// Registers a connection from `ip`. If there are too many, the oldest silent one of its
    /// network is displaced for it, else the oldest silent one of all; `None` if none is silent.
    pub(super) fn register(self: &Arc<Self>, ip: IpAddr) -> Option<PendingHandshake> {
        let groups = Group::all_of(ip);
        let mut present = self.lock();
        let network = network_of(ip);
        if let Some(full) = present.full(&groups, self.bounds) {
            let has_displaced = match full {
                Full::Group => present.silent.displace_oldest_of(&network),
                Full::All => {
                    present.silent.displace_oldest_of(&network) || present.silent.displace_oldest()
                }
            };
            if !has_displaced {
                return None;
            }
        }
        let shares = groups.map(|group| {
            let new = || Present { connections: 0, share: Permits::of(group.permits()) };
            let it = present.groups.entry(group).or_insert_with(new);
            it.connections += 1;
            it.share.clone()
        });
        present.count += 1;
        let (silent, displacement) = present.silent.enter(network);
        let limiter = Arc::clone(self);
        Some(PendingHandshake { limiter, groups, shares, silent, displacement: Some(displacement) })
    }

    fn unregister(&self, groups: [Group; 2], silent: u64) {
        let mut present = self.lock();
        present.silent.leave(silent);
        present.count -= 1;
        for group in groups {
            let Some(it) = present.groups.get_mut(&group) else { continue };
            it.connections -= 1;
            if it.connections == 0 {
                present.groups.remove(&group);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, AllPresent> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The bound that is reached.
enum Full {
    /// That of a network or a site.
    Group,
    All,
}

impl AllPresent {
    /// Returns the bound that another connection of these groups would exceed. A displaced
    /// connection counts until it is closed, and closes at once.
    fn full(&self, groups: &[Group; 2], bounds: Bounds) -> Option<Full> {
        let is_full = |group: &Group| {
            let connections = self.groups.get(group).map_or(0, |it| it.connections);
            connections >= group.most(bounds)
        };
        match () {
            () if groups.iter().any(is_full) => Some(Full::Group),
            () if self.count >= bounds.all => Some(Full::All),
            () => None,
        }
    }
}

/// A connection before its handshake.
#[derive(Debug)]
pub(super) struct PendingHandshake {
    limiter: Arc<HandshakeLimiter>,
    groups: [Group; 2],
    shares: [Permits; 2],
    /// Its number among the silent connections.
    silent: u64,
    /// Taken when it is silent no more.
    displacement: Option<Displacement>,
}

impl PendingHandshake {
    /// Awaits the peer's first message. Returns `None` if the connection is displaced before.
    pub(super) async fn until_heard<T>(&mut self, heard: impl Future<Output = T>) -> Option<T> {
        let displacement = self.displacement.take()?;
        let heard = tokio::select! {
            heard = heard => Some(heard),
            _ = displacement => None,
        };
        self.limiter.lock().silent.leave(self.silent);
        heard
    }

    /// True if its network has half of the connections it may have: handshakes get less time.
    pub(super) fn is_crowded(&self) -> bool {
        let present = self.limiter.lock();
        let theirs = self.groups.iter().find(|group| matches!(group, Group::Network(_)));
        let theirs = theirs.and_then(|group| present.groups.get(group));
        theirs.is_some_and(|it| it.connections > self.limiter.bounds.of_network / 2)
    }
}

/// A permit of the network, of the site, and of all; held until dropped.
pub(super) type Permit = [OwnedSemaphorePermit; 3];

impl PendingHandshake {
    /// Waits for a permit: a common one, or one reserved for networks with few connections.
    pub(super) async fn permit(&self) -> Permit {
        let [network, site] = &self.shares;
        let all = &self.limiter.all;
        tokio::select! {
            biased;
            permit = take([&network.common, &site.common, &all.common]) => permit,
            permit = take([&network.reserved, &site.reserved, &all.reserved]) => permit,
        }
    }
}

/// Acquires the network's permit first, then the site's, then the global one.
async fn take([network, site, all]: [&Arc<Semaphore>; 3]) -> Permit {
    const OPEN: &str = "the semaphore is never closed";
    let network = Arc::clone(network).acquire_owned().await.expect(OPEN);
    let site = Arc::clone(site).acquire_owned().await.expect(OPEN);
    [network, site, Arc::clone(all).acquire_owned().await.expect(OPEN)]
}

impl Drop for PendingHandshake {
    fn drop(&mut self) {
        self.limiter.unregister(self.groups, self.silent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(done) => Some(done),
            Poll::Pending => None,
        }
    }

    fn limiter() -> Arc<HandshakeLimiter> {
        HandshakeLimiter::within(4096)
    }

    /// Opens as many connections as one address may have, none of them silent; returns the permits
    /// they get at once.
    fn flood(limiter: &Arc<HandshakeLimiter>, ip: IpAddr) -> (Vec<PendingHandshake>, Vec<Permit>) {
        let talking = |_| {
            let mut pending = limiter.register(ip)?;
            at_once(pending.until_heard(async {})).flatten()?;
            Some(pending)
        };
        let pending: Vec<PendingHandshake> = (0..).map_while(talking).collect();
        let permits = pending.iter().map_while(|pending| at_once(pending.permit())).collect();
        (pending, permits)
    }

    #[test]
    fn one_address_leaves_permits_for_others() {
        let limiter = limiter();
        let (noisy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let (pending, permits) = flood(&limiter, noisy);
        assert_eq!(pending.len(), PRESENT_OF_NETWORK);
        assert_eq!(permits.len(), OF_NETWORK.common + OF_NETWORK.reserved);
        let one = limiter.register(other).unwrap();
        assert!(at_once(one.permit()).is_some(), "starved");
        let next = permits.len();
        drop(permits);
        assert!(at_once(pending[next].permit()).is_some(), "a released permit is reused");
        drop(pending);
        assert!(limiter.register(noisy).is_some());
        drop(one);
        let present = limiter.lock();
        assert!(
            present.groups.is_empty() && present.silent.is_empty(),
            "closed ones are forgotten"
        );
    }

    #[test]
    fn silent_connections_lock_out_nobody() {
        let limiter = limiter();
        let noisy = IpAddr::from([10, 0, 0, 1]);
        let mut silent: Vec<_> =
            (0..PRESENT_OF_NETWORK).map(|_| limiter.register(noisy).unwrap()).collect();
        let mut honest = limiter.register(noisy).expect("the oldest silent one makes room");
        let never = std::future::pending::<()>;
        assert_eq!(at_once(silent[0].until_heard(never())), Some(None), "it is displaced");
        assert_eq!(at_once(silent[1].until_heard(never())), None);
        let more: Vec<_> = (0..PRESENT_OF_NETWORK / 2).map(|_| limiter.register(noisy)).collect();
        assert!(at_once(honest.until_heard(async {})).flatten().is_some(), "not the oldest");
        assert!(honest.is_crowded());
        assert!(at_once(honest.permit()).is_some());
        drop((more, silent, honest));
        assert!(limiter.lock().silent.is_empty());
    }

    #[test]
    fn several_addresses_leave_permits_for_others() {
        let limiter = limiter();
        let floods: Vec<_> = (1..8).map(|n| flood(&limiter, IpAddr::from([10, 0, 0, n]))).collect();
        let other = limiter.register(IpAddr::from([10, 0, 1, 1])).unwrap();
        assert!(at_once(other.permit()).is_some(), "starved");
        drop(floods);
        // A /48 has many networks.
        let net = |site: u16, net: u16| IpAddr::from([0x2001, 0xdb8, site, net, 0, 0, 0, 1]);
        let floods: Vec<_> = (0..200).map(|n| flood(&limiter, net(0, n))).collect();
        let there: usize = floods.iter().map(|(pending, _)| pending.len()).sum();
        assert_eq!(there, PRESENT_OF_SITE);
        let others: Vec<_> = (1..9).map(|site| limiter.register(net(site, 0)).unwrap()).collect();
        let taken: Vec<_> = others.iter().filter_map(|other| at_once(other.permit())).collect();
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
