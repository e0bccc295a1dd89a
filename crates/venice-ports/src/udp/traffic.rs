//! Traffic counters, for reports on links.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use venice_wire::KeyName;

/// Shortest interval between a thread's reports, in nanoseconds.
pub(super) const REPORT_INTERVAL_NS: u64 = 100_000_000;
/// Most names remembered: beyond, the one with the least traffic is forgotten.
const MAX_NAMES: usize = 8192;

/// Traffic under one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Name of the key; `None`: without protection.
    pub name: Option<KeyName>,
    /// UDP payload received and accepted, in bytes.
    pub received_bytes: u64,
    /// UDP payload sent, in bytes.
    pub sent_bytes: u64,
}

/// Sums over all threads.
#[derive(Debug, Default)]
pub(super) struct TrafficTable(Mutex<Sums>);

#[derive(Debug, Default)]
struct Sums {
    by_name: BTreeMap<Option<KeyName>, Traffic>,
    /// Sum over all names, forgotten ones included.
    total: Traffic,
}

impl TrafficTable {
    pub(super) fn add(&self, more: Traffic) {
        let mut sums = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Sums { by_name, total } = &mut *sums;
        if by_name.len() >= MAX_NAMES && !by_name.contains_key(&more.name) {
            by_name.pop_first();
        }
        let sum = by_name.entry(more.name).or_insert(Traffic { name: more.name, ..more.none() });
        for sum in [sum, total] {
            sum.received_bytes += more.received_bytes;
            sum.sent_bytes += more.sent_bytes;
        }
    }

    /// Returns the sum over all names, which only grows.
    pub(super) fn total(&self) -> Traffic {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).total
    }

    pub(super) fn all(&self) -> Vec<Traffic> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).by_name.values().copied().collect()
    }
}

impl Traffic {
    fn none(&self) -> Self {
        Self { name: self.name, received_bytes: 0, sent_bytes: 0 }
    }

    /// Returns the traffic since the last call, if there was any.
    pub(super) fn take(&mut self) -> Option<Self> {
        let none = self.none();
        let taken = std::mem::replace(self, none);
        (taken != none).then_some(taken)
    }
}
