//! Splits of the pages that this process shares since a `fork`.
//!
//! A process that writes to a shared page makes its own copy, and the kernel tells no pager of it.
//! But it counts a minor fault. Minor faults that no pager has served are counted as splits; there
//! are fewer, if any. The next measurement ([`sharing`](super::super::sharing)) corrects the count.

use std::sync::atomic::Ordering;

use super::super::pager::Pager;
use super::super::sys;

/// The count of the splits.
pub(super) struct Splits {
    /// Splits of this process's life until the last look.
    seen: u64,
    are_many: bool,
}

impl Splits {
    /// Begins with those to come.
    pub(super) fn new(pager: &Pager) -> Splits {
        Splits { seen: unserved_faults(pager), are_many: false }
    }

    /// True if the process made own copies of shared pages before the last look.
    pub(super) fn are_many(&self) -> bool {
        self.are_many
    }

    /// Charges this process for the copies made since the last look; the evictor has charged it for
    /// `copied` itself.
    pub(super) fn count(&mut self, pager: &Pager, copied: u64) {
        if pager.forks.load(Ordering::Relaxed) == 0 {
            return;
        }
        let process = pager.own_process();
        let faults = unserved_faults(pager).saturating_sub(copied);
        let splits = faults.saturating_sub(self.seen);
        self.seen = self.seen.max(faults);
        self.are_many = splits > 0 && process.shared_pages.load(Ordering::Relaxed) > 0;
        let is_alone = pager.block.live_processes().nth(1).is_none();
        process.unshare(if is_alone { u64::MAX } else { splits });
    }
}

/// Minor faults of this process that its pager has not served.
fn unserved_faults(pager: &Pager) -> u64 {
    let served = pager.faults_read.load(Ordering::Relaxed);
    sys::minor_faults().saturating_sub(served)
}
