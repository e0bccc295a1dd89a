//! Handshakes cost time and hold a descriptor: so many at a time, and of one address not so many that
//! others get none.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Handshakes under way; more have to wait for their turn.
const ALL: usize = 256;
/// Of one address.
const OF_ONE: usize = 64;
/// Connections of one address that are in their handshake or wait for it; more are closed.
const PRESENT_OF_ONE: usize = 512;
/// Of all addresses together.
const PRESENT: usize = 4096;

/// Whom an address belongs to, as far as can be told: of IPv6 everybody has a /64.
pub(super) fn network_of(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 => v4,
    }
}

/// The turns of a listener.
#[derive(Debug)]
pub(super) struct Turns {
    all: Arc<Semaphore>,
    present: Mutex<BTreeMap<IpAddr, Present>>,
}

#[derive(Debug)]
struct Present {
    connections: usize,
    turns: Arc<Semaphore>,
}

impl Turns {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self { all: Arc::new(Semaphore::new(ALL)), present: Mutex::default() })
    }

    /// Somebody has come from there; `None` where too many have.
    pub(super) fn come(self: &Arc<Self>, ip: IpAddr) -> Option<Visit> {
        let network = network_of(ip);
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let together: usize = present.values().map(|it| it.connections).sum();
        let of_it = present.get(&network).map_or(0, |it| it.connections);
        if together >= PRESENT || of_it >= PRESENT_OF_ONE {
            return None;
        }
        let new = || Present { connections: 0, turns: Arc::new(Semaphore::new(OF_ONE)) };
        let it = present.entry(network).or_insert_with(new);
        it.connections += 1;
        Some(Visit { turns: Arc::clone(self), network, own: Arc::clone(&it.turns) })
    }

    fn go(&self, network: IpAddr) {
        let mut present = self.present.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(it) = present.get_mut(&network) else { return };
        it.connections -= 1;
        if it.connections == 0 {
            present.remove(&network);
        }
    }
}

/// A connection that is not let in yet.
#[derive(Debug)]
pub(super) struct Visit {
    turns: Arc<Turns>,
    network: IpAddr,
    own: Arc<Semaphore>,
}

impl Visit {
    /// Waits for its turn, which lasts until what comes is dropped: first among those of its
    /// address, then among all.
    pub(super) async fn turn(&self) -> (OwnedSemaphorePermit, OwnedSemaphorePermit) {
        const OPEN: &str = "nobody closes it";
        let own = Arc::clone(&self.own).acquire_owned().await.expect(OPEN);
        (own, Arc::clone(&self.turns.all).acquire_owned().await.expect(OPEN))
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.turns.go(self.network);
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

    #[test]
    fn one_address_leaves_turns_for_others() {
        let turns = Turns::new();
        let (noisy, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let visits: Vec<Visit> = (0..).map_while(|_| turns.come(noisy)).collect();
        assert_eq!(visits.len(), PRESENT_OF_ONE);
        let under_way: Vec<_> = visits.iter().map_while(|visit| at_once(visit.turn())).collect();
        assert_eq!(under_way.len(), OF_ONE);
        let visit = turns.come(other).unwrap();
        assert!(at_once(visit.turn()).is_some(), "starved");
        drop(under_way);
        assert!(at_once(visits[OF_ONE].turn()).is_some(), "its turn has come");
        drop(visits);
        assert!(turns.come(noisy).is_some());
        drop(visit);
        assert!(turns.present.lock().unwrap().is_empty(), "who is gone is forgotten");
    }

    #[test]
    fn an_address_is_a_net_of_its_own() {
        let net = |ip: &str| network_of(ip.parse().unwrap());
        assert_eq!(net("2001:db8:0:1::5"), net("2001:db8:0:1:ffff::7"));
        assert_ne!(net("2001:db8:0:1::5"), net("2001:db8:0:2::5"));
        assert_eq!(net("::ffff:10.0.0.1"), net("10.0.0.1"));
        assert_ne!(net("10.0.0.1"), net("10.0.0.2"));
    }
}
