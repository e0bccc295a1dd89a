//! `--page-size`: which there are, and what the machine must have for huge ones.

use std::sync::atomic::{AtomicU64, Ordering};

use clap::ValueEnum;
use venice_memory::paged::run_block::RunBlock;
use venice_memory::paged::{LEAST_LOCAL_BYTES_HUGE, PageSize, huge_pages};
use venice_wire::ByteSize;

use crate::failure::Usage;
use crate::rack::PortKind;
use crate::terminal::remark;

/// By pages of which size a program's memory is paged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PageSizes {
    /// 4 KiB
    #[default]
    #[value(name = "4k")]
    Small,
    /// 64 KiB where the program says MADV_HUGEPAGE (numpy does, of large arrays), else 4 KiB
    Advised,
    /// 64 KiB, but where it says MADV_NOHUGEPAGE: for programs that use memory by runs of pages
    #[value(name = "64k")]
    Large,
    /// 2 MiB where the program says MADV_HUGEPAGE, else 4 KiB
    #[value(name = "advised-2m")]
    AdvisedHuge,
    /// 2 MiB, which the processor translates as one, but where it says MADV_NOHUGEPAGE: for programs
    /// that use much memory of few regions (port shm; see `venice doctor` for what the machine needs)
    #[value(name = "2m")]
    Huge,
}

impl PageSizes {
    /// Has the processes of a run page so.
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

    /// Are there pages of 2 MiB?
    pub fn has_huge(self) -> bool {
        matches!(self, PageSizes::AdvisedHuge | PageSizes::Huge)
    }

    /// What cannot be is said before anything is borrowed.
    pub fn check(self, port: PortKind, local_bytes: u64, in_thread: bool) -> Result<(), Usage> {
        if !self.has_huge() {
            return Ok(());
        }
        let least = LEAST_LOCAL_BYTES_HUGE;
        let why = if port != PortKind::Shm {
            format!(
                "huge pages are put together from mapped memory, which --port {port} cannot: they \
                 need --port shm, on the donors' own host (elsewhere take --page-size 64k)"
            )
        } else if in_thread {
            "huge pages are brought in by the pager's handler: take --faults handler, or \
             --page-size 64k with --faults in-thread"
                .into()
        } else if local_bytes < least {
            format!(
                "pages of 2 MiB come and go by 2 MiB: they need a --local of {} or more, not {}",
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

/// Says at the end where the machine did not give what was asked for.
pub fn tell(block: &RunBlock) {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let counters = &block.counters;
    let refused = get(&counters.huge_refused);
    if refused > 0 {
        let all = get(&counters.huge_in) + get(&counters.huge_in_small);
        remark(format!(
            "venice: {refused} of {all} huge pages came as small ones: the machine had no 2 MiB in a \
             row for them (`echo 1 > /proc/sys/vm/compact_memory` as root makes some)"
        ));
    }
}
