//! Counters of dropped datagrams, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// Reason for which a datagram was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It came before, or is older than the replay window.
    Replayed,
    /// Its sender is known and its tag does not match: it was changed, or damaged on the way; or its
    /// header is invalid.
    Forged,
    /// It is not sealed.
    Unsealed,
    /// It is under a key that does not exist, or no longer exists: the key's name is unknown, or no
    /// datagram of its sender has matched the key of that name.
    UnknownKey,
}

/// Counters of dropped datagrams by reason. Shared by the threads of a port.
#[derive(Debug, Default)]
pub struct SealCounters {
    replayed: AtomicU64,
    forged: AtomicU64,
    unsealed: AtomicU64,
    unknown_key: AtomicU64,
}

/// Values of [`SealCounters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealCounts {
    /// Number of [`Dropped::Replayed`].
    pub replayed: u64,
    /// Number of [`Dropped::Forged`].
    pub forged: u64,
    /// Number of [`Dropped::Unsealed`].
    pub unsealed: u64,
    /// Number of [`Dropped::UnknownKey`].
    pub unknown_key: u64,
}

impl SealCounters {
    /// Counts one dropped datagram.
    pub fn count(&self, dropped: Dropped) {
        let counter = match dropped {
            Dropped::Replayed => &self.replayed,
            Dropped::Forged => &self.forged,
            Dropped::Unsealed => &self.unsealed,
            Dropped::UnknownKey => &self.unknown_key,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns all counters.
    pub fn counts(&self) -> SealCounts {
        SealCounts {
            replayed: self.replayed.load(Ordering::Relaxed),
            forged: self.forged.load(Ordering::Relaxed),
            unsealed: self.unsealed.load(Ordering::Relaxed),
            unknown_key: self.unknown_key.load(Ordering::Relaxed),
        }
    }
}
