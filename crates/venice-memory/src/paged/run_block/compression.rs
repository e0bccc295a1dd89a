//! How much of a run's budget its processes may fill with compressed pages.

use std::sync::atomic::Ordering;

use super::RunBlock;

impl RunBlock {
    /// Percent of what a process may have resident; 0: nothing is compressed.
    pub fn compress_percent(&self) -> u32 {
        self.compress_percent.load(Ordering::Relaxed)
    }

    /// Sets it, before any process attaches.
    pub fn set_compress_percent(&self, percent: u32) {
        self.compress_percent.store(percent, Ordering::Relaxed);
    }

    /// A process cannot go on: all far memory is in use, and its part of the budget too. What compressed
    /// pages take is wanted, in all processes.
    pub(crate) fn want_pools(&self) {
        self.pools_wanted.fetch_add(1, Ordering::Relaxed);
    }

    /// How often that was so.
    pub(crate) fn pools_wanted(&self) -> u64 {
        self.pools_wanted.load(Ordering::Relaxed)
    }

    /// Pages of memory that compressed pages take just now, in all processes.
    pub fn pool_pages(&self) -> u64 {
        self.live_processes().map(|(_, process)| process.pool_pages.load(Ordering::Relaxed)).sum()
    }
}
