//! Limits open connections: in all, of peers that are not admitted, and by user. Agents have no
//! bound of their own; they have the share of descriptors that the other classes leave.

use super::connection_limits::ConnectionLimits;
use super::handshake_limiter::network_of;
use super::peer_identity::Peer;
use super::short_lived::{Displacement, ShortLived};
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use venice_rack::caller::{Caller, Owner};
use venice_rack::counts::Counts;

/// Limiter of a listener's connections.
#[derive(Debug)]
pub(super) struct ConnectionLimiter {
    limits: ConnectionLimits,
    open: Mutex<Open>,
}

#[derive(Debug)]
struct Open {
    all: usize,
    strangers: ShortLived<IpAddr>,
    users: usize,
    of_user: Counts<Owner>,
}

/// Open connections of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ConnectionCounts {
    /// All, those in their handshake included.
    pub all: usize,
    /// Connections of peers that are not admitted.
    pub strangers: usize,
    /// Connections of users that are no administrators.
    pub users: usize,
}

/// The class of an open connection.
#[derive(Debug)]
enum Class {
    /// In its handshake, an agent's, a Monitor Node's, or an administrator's.
    Unbounded,
    /// A peer that is not admitted, with its number.
    Stranger(u64),
    User(Owner),
}

/// A user has too many connections, or users have in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TooManyOfUser;

impl ConnectionLimiter {
    pub(super) fn new(limits: ConnectionLimits) -> Arc<Self> {
        let strangers = ShortLived::new(limits.strangers, limits.strangers_of_network);
        let open = Open { all: 0, strangers, users: 0, of_user: Counts::default() };
        Arc::new(Self { limits, open: Mutex::new(open) })
    }

    /// Registers an accepted connection; `None` if there are too many in all.
    pub(super) fn open(self: &Arc<Self>) -> Option<ConnectionPermit> {
        let mut open = self.lock();
        if open.all >= self.limits.all {
            return None;
        }
        open.all += 1;
        Some(ConnectionPermit { limiter: Arc::clone(self), class: Class::Unbounded })
    }

    /// Returns the open connections.
    pub(super) fn counts(&self) -> ConnectionCounts {
        let open = self.lock();
        ConnectionCounts { all: open.all, strangers: open.strangers.len(), users: open.users }
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open connection's place within the bounds; held until it is closed.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    limiter: Arc<ConnectionLimiter>,
    class: Class,
}

impl ConnectionPermit {
    /// Moves the connection to the class of its peer after the handshake. That of a peer that is
    /// not admitted gets a displacement.
    ///
    /// # Errors
    /// [`TooManyOfUser`].
    pub(super) fn classify(&mut self, peer: &Peer) -> Result<Option<Displacement>, TooManyOfUser> {
        let limits = self.limiter.limits;
        let mut open = self.limiter.lock();
        match peer.info.as_deref().map(|info| &info.caller) {
            Err(_) => {
                let (number, displacement) = open.strangers.enter(network_of(peer.addr.ip()));
                self.class = Class::Stranger(number);
                Ok(Some(displacement))
            }
            Ok(Caller::User(user)) if !user.is_admin => {
                let owner = Owner::from(user.clone());
                if open.of_user.of(&owner) >= limits.of_user || open.users >= limits.users {
                    return Err(TooManyOfUser);
                }
                open.users += 1;
                open.of_user.add(owner.clone());
                self.class = Class::User(owner);
                Ok(None)
            }
            Ok(Caller::User(_) | Caller::Node(_) | Caller::Monitor) => Ok(None),
        }
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut open = self.limiter.lock();
        open.all -= 1;
        match &self.class {
            Class::Unbounded => {}
            Class::Stranger(number) => drop(open.strangers.leave(*number)),
            Class::User(owner) => {
                open.users -= 1;
                open.of_user.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identity::{CertificateInfo, NotAdmitted};
    use std::time::Duration;
    use venice_rack::caller::User;

    fn limits() -> ConnectionLimits {
        let second = Duration::from_secs(1);
        ConnectionLimits {
            all: 8,
            in_handshake: 8,
            strangers: 4,
            strangers_of_network: 2,
            users: 3,
            of_user: 2,
            stranger_life: second,
            idle: second,
        }
    }

    fn peer(caller: Option<Caller>) -> Peer {
        let info = |caller| CertificateInfo { caller, issued_ms: 0, begins_s: 0, expires_s: 0 };
        let info = caller.map(|caller| Arc::new(info(caller))).ok_or(NotAdmitted::NoCertificate);
        Peer::new(([10, 0, 0, 1], 1).into(), [].into(), info, 0)
    }

    fn user(name: &str, is_admin: bool) -> Option<Caller> {
        let (node, name) = ("node1".to_owned(), name.to_owned());
        Some(Caller::User(User { node, uid: 7, name, is_admin }))
    }

    #[test]
    fn users_leave_room_for_agents() {
        let limiter = ConnectionLimiter::new(limits());
        let open = |caller: Option<Caller>| {
            let mut permit = limiter.open()?;
            permit.classify(&peer(caller)).ok().map(|displacement| (permit, displacement))
        };
        let users: Vec<_> = ["ada", "ada", "ada", "bob", "eve"]
            .into_iter()
            .filter_map(|name| open(user(name, false)))
            .collect();
        assert_eq!(users.len(), 3, "two of one user, three in all");
        let admin = open(user("root", true)).expect("no bound for administrators");
        let agents: Vec<_> =
            std::iter::from_fn(|| open(Some(Caller::Node("node1".to_owned())))).collect();
        assert_eq!(agents.len(), 4, "the rest");
        drop((users, admin, agents));
        let nobody: Vec<_> = (0..3).map(|_| open(None).unwrap()).collect();
        let counts = ConnectionCounts { all: 3, strangers: 2, users: 0 };
        assert_eq!(limiter.counts(), counts, "a displaced connection counts until it is closed");
        drop(nobody);
        let open = limiter.lock();
        assert_eq!((open.all, open.users), (0, 0));
        assert!(open.of_user.is_empty() && open.strangers.is_empty());
    }
}
