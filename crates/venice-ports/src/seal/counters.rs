//! Datagrams dropped, by reason.

use std::sync::atomic::{AtomicU64, Ordering};

/// Why a datagram was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    /// It came before, or so long ago that nobody remembers.
    Replayed,
    /// Its tag does not fit: made or changed by somebody without the key, or damaged on the way;
    /// or its header makes no sense.
    Forged,
    /// It is not sealed.
    Unsealed,
    /// It names a key that does not exist (any more).
    UnknownKey,
}

/// How many datagrams were dropped for which reason. Shared by the threads of a port.
#[derive(Debug, Default)]
pub struct SealCounters {
    replayed: AtomicU64,
    forged: AtomicU64,
    unsealed: AtomicU64,
    unknown_key: AtomicU64,
}

/// [`SealCounters`] at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealCounts {
    /// See [`Dropped::Replayed`].
    pub replayed: u64,
    /// See [`Dropped::Forged`].
    pub forged: u64,
    /// See [`Dropped::Unsealed`].
    pub unsealed: u64,
    /// See [`Dropped::UnknownKey`].
    pub unknown_key: u64,
}

impl SealCounters {
    /// Counts one.
    pub fn count(&self, dropped: Dropped) {
        let counter = match dropped {
            Dropped::Replayed => &self.replayed,
            Dropped::Forged => &self.forged,
            Dropped::Unsealed => &self.unsealed,
            Dropped::UnknownKey => &self.unknown_key,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// All of them.
    pub fn counts(&self) -> SealCounts {
        SealCounts {
            replayed: self.replayed.load(Ordering::Relaxed),
            forged: self.forged.load(Ordering::Relaxed),
            unsealed: self.unsealed.load(Ordering::Relaxed),
            unknown_key: self.unknown_key.load(Ordering::Relaxed),
        }
    }
}
