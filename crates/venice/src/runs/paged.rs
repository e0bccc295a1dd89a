//! A run whose memory a pager moves, or whose slabs are mapped; all its state is in its run block.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use venice_memory::paged::budget::{self, BudgetError};
use venice_memory::paged::run_block::Process;
use venice_recipient::Holding;
use venice_recipient::runs::{CoreView, Look, Sample, Watched};
use venice_wire::{ByteSize, PAGE_BYTES};

use crate::run::{RunPages, SharedMemory, UnmanagedView};

/// A paged or window run.
pub struct Paged {
    /// Its far memory.
    pub holding: Arc<Holding>,
    /// The memory that its processes share.
    pub shared: Arc<SharedMemory>,
    /// Its unmanaged memory.
    pub unmanaged: UnmanagedView,
    /// The reason for its mode.
    pub mode_reason: String,
}

impl Watched for Paged {
    fn mode(&self) -> &'static str {
        if self.holding.block().is_window() { "window" } else { "paged" }
    }

    fn look(&self) -> Look {
        let block = self.holding.block();
        let live = || block.live_processes().map(|(_, process)| process);
        let private_bytes: u64 = live().map(charged_bytes).sum();
        Look {
            resident_bytes: private_bytes + block.shared_pages() * PAGE_BYTES,
            processes: live().map(|process| process.pid.load(Ordering::Acquire)).collect(),
            unmanaged: self.unmanaged.now(),
            mode_reason: self.mode_reason.clone(),
            ..Look::of(&self.holding)
        }
    }

    fn sample(&self) -> Sample {
        Sample::of(&self.holding)
    }

    fn core(&self, pid: u32) -> Result<CoreView, String> {
        let block = self.holding.block();
        let mut processes = block.live_processes().map(|(_, process)| process);
        let process = processes.find(|it| it.pid.load(Ordering::Acquire) == pid);
        let process = process.ok_or("it is in a run, but has not begun to page: try again")?;
        match process.image_address.load(Ordering::Acquire) {
            // Memory of a window is mapped; gcore would do.
            0 => Ok(CoreView::default()),
            header => {
                let pages = RunPages::open(&self.holding, self.shared.clone());
                let pages = pages.map_err(|error| error.to_string())?;
                Ok(CoreView { image: Some(header), pages: Some(Box::new(pages)) })
            }
        }
    }

    fn limit(&self, local_bytes: u64) -> Result<(), String> {
        let size = |pages: u64| ByteSize(pages * PAGE_BYTES);
        budget::change(self.holding.block(), local_bytes / PAGE_BYTES).map_err(|error| match error {
            BudgetError::NoRoomFar { excess_pages, free_pages } => format!(
                "{} would have to be evicted, and of its far memory {} is free: use a larger --local, \
                 or run it with a larger --remote",
                size(excess_pages),
                size(free_pages)
            ),
            BudgetError::Placed { local_pages } => format!(
                "it has {} mapped here, and in a window what is mapped stays where it is: use a --local of \
                 that much at least",
                size(local_pages)
            ),
        })
    }
}

/// Returns the anonymous memory of a process in bytes, less what it shares with others since a
/// `fork` and they are charged for.
fn charged_bytes(process: &Process) -> u64 {
    let all = anonymous_bytes(process.pid.load(Ordering::Acquire));
    all.saturating_sub(process.shared_pages.load(Ordering::Relaxed) * PAGE_BYTES)
}

/// Returns the anonymous memory of a process in bytes (proc(5): statm, resident less shared), which
/// the budget limits.
fn anonymous_bytes(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
    let mut pages = text.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0u64));
    let (resident, shared) = (pages.next().unwrap_or(0), pages.next().unwrap_or(0));
    resident.saturating_sub(shared) * PAGE_BYTES
}
