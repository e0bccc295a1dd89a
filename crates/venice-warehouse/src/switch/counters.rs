//! Counters of one output.

use serde::{Deserialize, Serialize};

use super::DropCause;

/// Counts of one output, or the sum of several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets sent.
    pub packets: u64,
    /// Bytes sent.
    pub bytes: u64,
    /// Packets that had to wait before they were sent.
    pub queued: u64,
    /// Packets marked.
    pub marked: u64,
    /// Packets dropped, by cause.
    pub drops: Drops,
    /// The most bytes that ever waited.
    pub most_queued: u64,
    /// Queued bytes times picoseconds, until the last change: its difference over a time, divided by
    /// that time, is the mean depth.
    pub queued_time: u128,
    /// The time of the last change, in picoseconds.
    pub changed_at: u64,
}

/// Packets dropped, by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// See [`DropCause::QueueFull`].
    pub queue_full: u64,
    /// See [`DropCause::PoolFull`].
    pub pool_full: u64,
    /// See [`DropCause::OverThreshold`].
    pub over_threshold: u64,
}

impl Drops {
    /// Returns the number of packets dropped.
    pub fn total(&self) -> u64 {
        self.queue_full + self.pool_full + self.over_threshold
    }
}

impl Counters {
    pub(super) fn count_sent(&mut self, bytes: u32) {
        self.packets += 1;
        self.bytes += u64::from(bytes);
    }

    pub(super) fn count_drop(&mut self, cause: DropCause) {
        match cause {
            DropCause::QueueFull => self.drops.queue_full += 1,
            DropCause::PoolFull => self.drops.pool_full += 1,
            DropCause::OverThreshold => self.drops.over_threshold += 1,
        }
    }

    /// Counts a packet that waits: `depth` bytes then wait.
    pub(super) fn count_queued(&mut self, depth: u64, marked: bool) {
        self.queued += 1;
        self.marked += u64::from(marked);
        self.most_queued = self.most_queued.max(depth);
    }

    /// Counts the time that `bytes` have waited, before they change.
    pub(super) fn advance(&mut self, now: u64, bytes: u64) {
        let waited = now.saturating_sub(self.changed_at);
        self.queued_time += u128::from(bytes) * u128::from(waited);
        self.changed_at = self.changed_at.max(now);
    }

    /// Adds another output's counts; of `most_queued` and `changed_at` it takes the larger.
    pub fn add(&mut self, other: &Self) {
        self.packets += other.packets;
        self.bytes += other.bytes;
        self.queued += other.queued;
        self.marked += other.marked;
        self.drops.queue_full += other.drops.queue_full;
        self.drops.pool_full += other.drops.pool_full;
        self.drops.over_threshold += other.drops.over_threshold;
        self.most_queued = self.most_queued.max(other.most_queued);
        self.queued_time += other.queued_time;
        self.changed_at = self.changed_at.max(other.changed_at);
    }
}
