//! Replacement of returned slabs by fresh ones: from this machine's memory, or from a device once
//! no process has the range mapped.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use venice_memory::donor::{DonorError, Slab};
use venice_rack::pressure::PressureLevel;

use crate::lender::Lender;

/// Pause between two attempts to make slabs without enough memory.
const REPLENISH_PAUSE: Duration = Duration::from_secs(1);
/// Interval between two checks of device memory that is still mapped.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Lender {
    /// Replaces these slabs, retrying while there is no memory for them; a machine under pressure
    /// keeps the memory instead. Returns how many slabs it keeps.
    pub(crate) fn replace(&self, slabs: Vec<Slab>) -> u32 {
        let count = slabs.len();
        let mut mine = self.replacing();
        self.pool.take_in(slabs);
        loop {
            if self.pressure().level != PressureLevel::None {
                return self.pool.give_up_missing(count) as u32;
            }
            let error = match self.pool.replenish() {
                Ok(()) => return 0,
                Err(error @ DonorError::StillMapped { .. }) => {
                    tracing::info!("{error}: lent again when it is unmapped");
                    return self.pool.give_up_missing(count) as u32;
                }
                Err(error) => error,
            };
            tracing::warn!(%error, "no memory for fresh slabs; trying again");
            drop(mine);
            std::thread::sleep(REPLENISH_PAUSE);
            mine = self.replacing();
        }
    }

    /// Makes slabs from withheld ones, as far as possible; returns their number.
    pub(crate) fn remake(&self, slabs: u32) -> u32 {
        if slabs == 0 {
            return 0;
        }
        let made = {
            let _mine = self.replacing();
            self.pool.grow(slabs as usize) as u32
        };
        self.state().node.core_mut().handle_offer(made);
        made
    }

    pub(crate) fn replacing(&self) -> MutexGuard<'_, ()> {
        self.replacing.lock().expect("no task panics while it replaces slabs")
    }
}

/// Lends device memory again once no process has it mapped; runs until dropped.
pub(crate) async fn watch_devices(lender: Arc<Lender>) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let held = lender.state().node.core().withheld_slabs();
        if held == 0 {
            continue;
        }
        // Wiping a slab takes milliseconds.
        let lending = Arc::clone(&lender);
        let made = tokio::task::spawn_blocking(move || lending.remake(held));
        match made.await {
            Ok(0) => {}
            Ok(slabs) => {
                tracing::info!(slabs, "unmapped: lent again");
                lender.notify_change();
            }
            // The agent is ending, and its thread pool accepts no more work.
            Err(ended) if ended.is_cancelled() => return,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }
}
