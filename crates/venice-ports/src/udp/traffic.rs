//! How much goes to and fro, for those who look at links.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use venice_wire::KeyName;

/// A thread tells what it has moved no more often than this.
pub(super) const TELL_NS: u64 = 100_000_000;
/// Names remembered: beyond, the least is forgotten.
const MAX_NAMES: usize = 8192;

/// What has gone to and fro under one key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The key; `None`: without protection.
    pub name: Option<KeyName>,
    /// UDP payload received and taken, in bytes.
    pub received_bytes: u64,
    /// UDP payload sent, in bytes.
    pub sent_bytes: u64,
}

/// The sums of all threads.
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

    /// What has been counted since the last time, if anything.
    pub(super) fn take(&mut self) -> Option<Self> {
        let none = self.none();
        let taken = std::mem::replace(self, none);
        (taken != none).then_some(taken)
    }
}
