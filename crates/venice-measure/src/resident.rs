//! Resident memory of a process, and the peak of its anonymous memory, sampled while it runs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

const INTERVAL: Duration = Duration::from_millis(20);

/// Reads `RssAnon` of a process, in bytes; `None` once the process is gone.
pub fn resident_anonymous_bytes(pid: u32) -> Option<u64> {
    of_status(pid, "RssAnon:")
}

/// Reads `VmRSS` of a process, in bytes; `None` once the process is gone.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    of_status(pid, "VmRSS:")
}

/// Reads `VmHWM`, the peak of `VmRSS`, of a process, in bytes; `None` once the process is gone.
pub fn peak_resident_bytes(pid: u32) -> Option<u64> {
    of_status(pid, "VmHWM:")
}

/// Reads `VmLck` of a process, in bytes; `None` once the process is gone.
pub fn locked_bytes(pid: u32) -> Option<u64> {
    of_status(pid, "VmLck:")
}

fn of_status(pid: u32, field: &str) -> Option<u64> {
    parse(&std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?, field)
}

fn parse(status: &str, field: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix(field))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Samples a process in the background until it is stopped or dropped.
#[derive(Debug)]
pub struct PeakSampler {
    stop: Arc<AtomicBool>,
    peak_bytes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl PeakSampler {
    /// Starts to sample process `pid`.
    pub fn start(pid: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let peak_bytes = Arc::new(AtomicU64::new(0));
        let thread = std::thread::spawn({
            let (stop, peak_bytes) = (Arc::clone(&stop), Arc::clone(&peak_bytes));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    let Some(bytes) = resident_anonymous_bytes(pid) else { return };
                    peak_bytes.fetch_max(bytes, Ordering::Relaxed);
                    std::thread::sleep(INTERVAL);
                }
            }
        });
        Self { stop, peak_bytes, thread: Some(thread) }
    }

    /// Returns the greatest sample so far, in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.peak_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for PeakSampler {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // The thread cannot panic, and a drop could not report it.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_is_parsed_in_bytes() {
        let status = "Name:\tx\nVmRSS:\t  900 kB\nRssAnon:\t     512 kB\nRssFile:\t 3 kB\n";
        assert_eq!(parse(status, "RssAnon:"), Some(512 * 1024));
        assert_eq!(parse(status, "VmRSS:"), Some(900 * 1024));
        assert_eq!(parse("Name:\tkthreadd\n", "RssAnon:"), None);
        assert_eq!(parse("RssAnon:\tmany kB\n", "RssAnon:"), None);
    }

    #[test]
    fn own_memory_is_sampled() {
        let sampler = PeakSampler::start(std::process::id());
        let touched = vec![1u8; 32 << 20];
        crate::interrupt::wait_until("a sample", Duration::from_secs(20), || {
            Ok((sampler.peak_bytes() >= touched.len() as u64).then_some(()))
        })
        .unwrap();
    }
}
