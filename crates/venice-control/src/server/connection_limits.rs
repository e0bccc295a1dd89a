//! Bounds on the connections of a TLS server, by the file descriptors of its process.

use rustix::process::{Resource, getrlimit};
use std::time::Duration;

/// Descriptors kept for other uses than TLS connections: a quarter of those that are free, within
/// these bounds. The local socket, calls to donors, and the kernel's files need some.
const MIN_RESERVE: usize = 8;
const MAX_RESERVE: usize = 1024;
/// Connections in or before their handshake, in all; a quarter of all connections at most. The least
/// is for processes with very few descriptors.
const IN_HANDSHAKE: usize = 4096;
const MIN_IN_HANDSHAKE: usize = 32;
/// Connections of peers that are not admitted, in all and of one network.
const STRANGERS: usize = 1024;
const MIN_STRANGERS: usize = 16;
const STRANGERS_OF_NETWORK: usize = 64;
/// Connections of one user.
const OF_USER: usize = 1024;
/// Life of a connection after its handshake if its peer is not admitted: a machine that joins needs
/// one call.
const STRANGER_LIFE: Duration = Duration::from_secs(10);
/// Longest time without a byte from the peer. A living one answers the HTTP/2 pings.
const IDLE: Duration = Duration::from_secs(120);
/// Interval of HTTP/2 pings, and the time for their answer.
pub(super) const PING_INTERVAL: Duration = Duration::from_secs(60);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Calls in flight on one connection; its client holds back the others.
pub(super) const CALLS_OF_CONNECTION: u32 = 512;

/// Bounds on the connections of one listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ConnectionLimits {
    /// Connections in all.
    pub(super) all: usize,
    /// Connections in or before their handshake.
    pub(super) in_handshake: usize,
    /// Connections of peers that are not admitted.
    pub(super) strangers: usize,
    /// Connections of such peers from one network.
    pub(super) strangers_of_network: usize,
    /// Connections of users that are no administrators.
    pub(super) users: usize,
    /// Connections of one user.
    pub(super) of_user: usize,
    /// Life of a connection whose peer is not admitted.
    pub(super) stranger_life: Duration,
    /// Longest silence of a peer.
    pub(super) idle: Duration,
}

impl ConnectionLimits {
    /// Returns the bounds for this process, by its limit on descriptors and those in use.
    pub(super) fn of_process() -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
        let in_use = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
        Self::within(limit.saturating_sub(in_use))
    }

    /// Returns the bounds for this many free descriptors. From some hundred on, agents and the
    /// Monitor Node have a share that neither strangers nor users can take.
    fn within(descriptors: usize) -> Self {
        let reserve = (descriptors / 4).clamp(MIN_RESERVE, MAX_RESERVE);
        let all = descriptors.saturating_sub(reserve).max(2 * MIN_IN_HANDSHAKE);
        let strangers = (all / 8).clamp(MIN_STRANGERS, STRANGERS);
        Self {
            all,
            in_handshake: (all / 4).clamp(MIN_IN_HANDSHAKE, IN_HANDSHAKE),
            strangers,
            strangers_of_network: (strangers / 2).min(STRANGERS_OF_NETWORK),
            users: all / 2,
            of_user: (all / 4).min(OF_USER),
            stranger_life: STRANGER_LIFE,
            idle: IDLE,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_bound_connections() {
        let many = ConnectionLimits::within(1 << 20);
        assert_eq!((many.strangers, many.strangers_of_network), (1024, 64));
        assert_eq!((many.in_handshake, many.of_user), (4096, 1024));
        for descriptors in [256, 600, 1024, 20_000, usize::MAX] {
            let limits = ConnectionLimits::within(descriptors);
            let shared = limits.in_handshake + limits.strangers + limits.users;
            assert!(limits.all + MIN_RESERVE <= descriptors, "{limits:?}");
            assert!(shared < limits.all, "agents have no share: {limits:?}");
        }
        let few = ConnectionLimits::within(8);
        assert!(
            few.all >= 64 && few.in_handshake >= 32 && few.strangers_of_network >= 8,
            "{few:?}"
        );
    }
}
