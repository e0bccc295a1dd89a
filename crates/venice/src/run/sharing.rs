//! The thread that measures the memory which the processes of a run share since a `fork`.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::Context;
use venice_memory::paged::run_block::RunBlockMap;
use venice_memory::paged::sharing::SharingMeter;

/// Interval between two looks. A look costs some microseconds where nothing is to be measured.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// The same before the first `fork`.
const LOOK_EVERY_UNFORKED: Duration = Duration::from_millis(50);

/// The measuring thread; dropping it ends it.
pub struct SharingWatch {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl SharingWatch {
    /// Starts to look at a run.
    ///
    /// # Errors
    /// The kernel's, when there can be no further thread.
    pub fn start(block: Arc<RunBlockMap>) -> anyhow::Result<SharingWatch> {
        let (end, ended) = channel();
        let thread = std::thread::Builder::new().name("venice-sharing".into());
        let work = move || {
            let mut meter = SharingMeter::default();
            let pause = |has_forked| if has_forked { LOOK_EVERY } else { LOOK_EVERY_UNFORKED };
            while ended.recv_timeout(pause(block.shares_contents()))
                == Err(RecvTimeoutError::Timeout)
            {
                meter.look(&block);
            }
        };
        let thread = thread.spawn(work).context("starting a thread")?;
        Ok(SharingWatch { end: Some(end), thread: Some(thread) })
    }
}

impl Drop for SharingWatch {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
