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
pub(super) struct TrafficTable(Mutex<BTreeMap<Option<KeyName>, Traffic>>);

impl TrafficTable {
    pub(super) fn add(&self, more: Traffic) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.len() >= MAX_NAMES && !table.contains_key(&more.name) {
            table.pop_first();
        }
        let sum = table.entry(more.name).or_insert(Traffic { name: more.name, ..more.none() });
        sum.received_bytes += more.received_bytes;
        sum.sent_bytes += more.sent_bytes;
    }

    pub(super) fn all(&self) -> Vec<Traffic> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).values().copied().collect()
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
