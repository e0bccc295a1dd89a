//! Signals that end the holding of grants.

use std::sync::mpsc::Sender;
use std::thread::JoinHandle;

use anyhow::Context;
use signal_hook::consts::signal::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals as Caught};

use super::Heard;

/// Forwards signals as messages until it is dropped.
pub struct Signals {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    /// Starts catching signals.
    pub fn catch(tell: Sender<Heard>) -> anyhow::Result<Self> {
        let mut caught = Caught::new([SIGHUP, SIGINT, SIGTERM]).context("catching signals")?;
        let handle = caught.handle();
        let thread = std::thread::spawn(move || {
            for _ in caught.forever() {
                if tell.send(Heard::Stop).is_err() {
                    return;
                }
            }
        });
        Ok(Self { handle, thread: Some(thread) })
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
