//! The budget of a run: the watermarks of eviction, and changes while the program runs.

use std::sync::atomic::Ordering;

use super::page_size::PageSize;
use super::run_block::RunBlockMap;
use super::slots;

/// An error of a change of the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BudgetError {
    /// Far memory has no room for the pages to evict.
    #[error("{excess_pages} pages must be evicted, and far memory has room for {free_pages}")]
    NoRoomFar {
        /// Resident pages beyond the new budget.
        excess_pages: u64,
        /// Free far slots.
        free_pages: u64,
    },
    /// The slabs are mapped, and pages placed on this machine stay.
    #[error("{local_pages} pages are mapped on this machine already, and mapped pages stay")]
    Placed {
        /// Pages placed here.
        local_pages: u64,
    },
}

/// Gives the run a new budget, `limit_pages` for all its processes together. Pagers adapt by
/// themselves, within some tens of milliseconds and the time that eviction takes. If the slabs
/// are mapped, the budget is for pages placed from then on.
///
/// # Errors
/// [`BudgetError`]; the budget is unchanged.
pub fn change(block: &RunBlockMap, limit_pages: u64) -> Result<(), BudgetError> {
    check(block, limit_pages)?;
    block.limit_pages.store(limit_pages, Ordering::Relaxed);
    Ok(())
}

/// Checks that [`change`] would succeed.
///
/// # Errors
/// [`BudgetError`].
pub fn check(block: &RunBlockMap, limit_pages: u64) -> Result<(), BudgetError> {
    let charges = || block.pagers().map(|(_, process)| process.charge());
    let resident_pages = charges().map(|charge| charge.resident_pages).sum::<u64>();
    if block.is_window() && resident_pages > limit_pages {
        return Err(BudgetError::Placed { local_pages: resident_pages });
    }
    let overhead_pages = charges().map(|charge| charge.overhead_pages).sum();
    let excess_pages = resident_pages.saturating_sub(managed_pages(limit_pages, overhead_pages));
    let shrinks = limit_pages < block.limit_pages.load(Ordering::Relaxed);
    let free_pages = slots::free(block);
    if shrinks && excess_pages > free_pages {
        return Err(BudgetError::NoRoomFar { excess_pages, free_pages });
    }
    Ok(())
}

/// Returns how many managed pages may be resident, of `allowance_pages`, in a process with
/// `overhead_pages` of unmanaged memory.
pub(super) fn managed_pages(allowance_pages: u64, overhead_pages: u64) -> u64 {
    // The kernel's own count lags by some pages a processor; stay on the safe side of it.
    let safe = allowance_pages - allowance_pages / 128;
    safe.saturating_sub(overhead_pages).max(least_managed_pages(allowance_pages))
}

/// Returns how many managed pages may be resident at least, whatever the overhead.
pub(super) fn least_managed_pages(allowance_pages: u64) -> u64 {
    allowance_pages / 4
}

/// Pages at which the evictor starts, where at most `most` come at once.
pub(super) fn high_watermark(limit_pages: u64, most: PageSize) -> u64 {
    limit_pages.saturating_sub(slack(limit_pages, most))
}

/// Pages at which the evictor stops.
pub(super) fn low_watermark(limit_pages: u64, most: PageSize) -> u64 {
    limit_pages.saturating_sub(2 * slack(limit_pages, most))
}

/// Pages between the watermarks, and between the upper one and the budget.
pub(super) fn slack(limit_pages: u64, most: PageSize) -> u64 {
    let least = 64.max(most.pages() as u64);
    (limit_pages / 32).clamp(least, 4096).min(limit_pages / 4)
}

#[cfg(test)]
mod tests {
    use super::super::run_block::{Fate, PortKind, ReplicaAt};
    use super::*;

    #[test]
    fn watermarks_are_ordered() {
        for most in [PageSize::Small, PageSize::Large, PageSize::Huge] {
            for limit in [1024, 65_536, 1 << 24] {
                assert!(low_watermark(limit, most) < high_watermark(limit, most));
                assert!(high_watermark(limit, most) < limit);
                assert!(low_watermark(limit, most) > limit / 3);
            }
            assert!(slack(8192, most) >= most.pages() as u64);
        }
    }

    /// Makes a run of one slab (4096 pages) and a budget of 8000, all of it resident.
    fn run() -> RunBlockMap {
        let (_fd, block) = RunBlockMap::create(PortKind::Shm, 1, 1).unwrap();
        let donor = block.add_donor("node1", 1, "").unwrap();
        block.add_slab(ReplicaAt { donor, remote_addr: 0, grant: 1, key: 2 }).unwrap();
        block.limit_pages.store(8000, Ordering::Relaxed);
        let process = block.enter_process(std::process::id()).unwrap();
        block.processes[process].resident_pages.store(8000, Ordering::Relaxed);
        block
    }

    #[test]
    fn budget_shrinks_within_far_room() {
        let block = run();
        change(&block, 5000).unwrap();
        assert_eq!(block.limit_pages.load(Ordering::Relaxed), 5000);
        let no_room = BudgetError::NoRoomFar { excess_pages: 5023, free_pages: 4096 };
        assert_eq!(change(&block, 3000), Err(no_room));
        assert_eq!(block.limit_pages.load(Ordering::Relaxed), 5000, "the budget is unchanged");
        slots::Slots::new(0).take_run(&block, 2000).unwrap();
        let no_room = BudgetError::NoRoomFar { excess_pages: 4031, free_pages: 2096 };
        assert_eq!(change(&block, 4000), Err(no_room));
        block.donors()[0].lose(Fate::Died);
        assert!(change(&block, 4999).is_err(), "the donor's room went with it");
        change(&block, 6000).unwrap();
    }

    /// Evicted pages are counted as the pager counts them, less the unmanaged heap.
    #[test]
    fn overhead_counts_as_excess() {
        let block = run();
        let process = &block.processes[0];
        process.overhead_pages.store(800, Ordering::Relaxed);
        assert!(change(&block, 4600).is_err());
        let (most, least) = (managed_pages(4800, 800), 8000 - 4096);
        assert!(most >= least, "{most} of {least}");
        change(&block, 4800).unwrap();
    }

    #[test]
    fn window_budget_keeps_placed_pages() {
        let block = run();
        block.set_window();
        assert_eq!(change(&block, 7000), Err(BudgetError::Placed { local_pages: 8000 }));
        change(&block, 9000).unwrap();
        change(&block, 8000).unwrap();
    }
}
