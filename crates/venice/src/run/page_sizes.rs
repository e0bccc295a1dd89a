//! `--page-size`: its values, and the requirements of huge pages.

use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use venice_memory::paged::run_block::RunBlock;
use venice_memory::paged::{LEAST_LOCAL_BYTES_HUGE, PageSize, huge_pages};
use venice_wire::ByteSize;

use venice_cli::failure::Usage;
use venice_cli::terminal::remark;

/// The page size by which a program's memory is paged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PageSizes {
    /// 4 KiB
    #[default]
    #[value(name = "4k")]
    Small,
    /// 64 KiB where the program advises MADV_HUGEPAGE (numpy does for large arrays), else 4 KiB
    Advised,
    /// 64 KiB, except where it advises MADV_NOHUGEPAGE: for programs with sequential access
    #[value(name = "64k")]
    Large,
    /// 2 MiB where the program advises MADV_HUGEPAGE, else 4 KiB
    #[value(name = "advised-2m")]
    AdvisedHuge,
    /// 2 MiB, one TLB entry, except where it advises MADV_NOHUGEPAGE: for programs with much memory
    /// in few regions (port shm; `venice doctor` lists what the machine needs)
    #[value(name = "2m")]
    Huge,
}

impl PageSizes {
    /// Sets the page sizes of the processes of a run.
    pub fn put_into(self, block: &RunBlock) {
        let (size, advised) = match self {
            PageSizes::Small => (PageSize::Small, PageSize::Small),
            PageSizes::Advised => (PageSize::Small, PageSize::Large),
            PageSizes::Large => (PageSize::Large, PageSize::Large),
            PageSizes::AdvisedHuge => (PageSize::Small, PageSize::Huge),
            PageSizes::Huge => (PageSize::Huge, PageSize::Huge),
        };
        block.set_page_size(size, advised);
    }

    /// True if it uses pages of 2 MiB.
    pub fn has_huge(self) -> bool {
        matches!(self, PageSizes::AdvisedHuge | PageSizes::Huge)
    }

    /// Refuses what the budget or the machine does not allow, before any allocation.
    pub fn check(self, local_bytes: u64, in_thread: bool) -> Result<(), Usage> {
        if !self.has_huge() {
            return Ok(());
        }
        let least = LEAST_LOCAL_BYTES_HUGE;
        let why = if in_thread {
            "huge pages are brought in by the pager's handler: use --faults handler, or --page-size \
             64k with --faults in-thread"
                .into()
        } else if local_bytes < least {
            format!(
                "pages of 2 MiB need a --local of {} or more, not {}",
                ByteSize(least),
                ByteSize(local_bytes)
            )
        } else if let Err(none) = huge_pages::check_available() {
            format!("no pages of 2 MiB: {none}")
        } else {
            return Ok(());
        };
        Err(Usage(why))
    }
}

/// Warns at the end if the machine had no huge pages for some.
pub fn tell(block: &RunBlock) {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &block.counters;
    let refused = get(&counters.huge_refused);
    if refused > 0 {
        let all = get(&counters.huge_in) + get(&counters.huge_in_small);
        remark(format!(
            "venice: {refused} of {all} huge pages came as small ones: no free 2 MiB of contiguous \
             memory (`echo 1 > /proc/sys/vm/compact_memory` as root makes some)"
        ));
    }
}
