//! Slabs that come back, and fresh ones in their place: of this machine's memory, or of a device where
//! nobody has the place mapped any more.

use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};
use venice_memory::donor::{DonorError, Slab};
use venice_rack::pressure::PressureLevel;

use crate::lender::Lender;

/// How long to wait before another attempt at slabs for which there was no memory.
const REPLENISH_PAUSE: Duration = Duration::from_secs(1);
/// How often places of devices are looked at that somebody has mapped.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl Lender {
    /// Puts fresh slabs in the place of these, however long there is no memory for them; but a
    /// machine under pressure gets the memory. Returns how many slabs it got.
    pub(crate) fn replace(&self, slabs: Vec<Slab>) -> u32 {
        let mut mine = self.replacing();
        self.pool.take_in(slabs);
        loop {
            if self.pressure().level != PressureLevel::None {
                return self.pool.give_up_missing() as u32;
            }
            let error = match self.pool.replenish() {
                Ok(()) => return 0,
                Err(error @ DonorError::StillMapped { .. }) => {
                    tracing::info!("{error}: to lend again when that is over");
                    return self.pool.give_up_missing() as u32;
                }
                Err(error) => error,
            };
            tracing::warn!(%error, "no memory for fresh slabs; trying again");
            drop(mine);
            std::thread::sleep(REPLENISH_PAUSE);
            mine = self.replacing();
        }
    }

    /// Makes slabs of those that are withheld, as far as they can be had; how many.
    pub(crate) fn remake(&self, slabs: u32) -> u32 {
        if slabs == 0 {
            return 0;
        }
        let made = {
            let _mine = self.replacing();
            self.pool.grow(slabs as usize) as u32
        };
        self.state().core.handle_offer(made);
        made
    }

    pub(crate) fn replacing(&self) -> MutexGuard<'_, ()> {
        self.replacing.lock().expect("no task panics while it replaces slabs")
    }
}

/// Lends places of memory devices again that nobody has mapped any more, until dropped.
pub(crate) async fn watch_devices(lender: Arc<Lender>) {
    let mut ticks = interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let held = lender.state().core.withheld_slabs();
        if held == 0 {
            continue;
        }
        // A slab takes milliseconds to wipe.
        let lending = Arc::clone(&lender);
        let made = tokio::task::spawn_blocking(move || lending.remake(held));
        match made.await {
            Ok(0) => {}
            Ok(slabs) => {
                tracing::info!(slabs, "mapped by nobody any more: to lend again");
                lender.tell_change();
            }
            // The agent ends, and its threads take nothing more on.
            Err(ended) if ended.is_cancelled() => return,
            Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
        }
    }
}
