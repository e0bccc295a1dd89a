//! The write-behind ([`venice_memory::paged::write_behind`]): its file on this machine's disk, and
//! the thread that fills it.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use venice_memory::paged::run_block::{BEHIND_FRAMES, RunBlockMap};
use venice_memory::paged::write_behind::{Drain, DrainFailure};
use venice_wire::{PAGE_BYTES, SLAB_BYTES};

use crate::error::RecipientError;
use crate::local_fallback::{check_file_limit, unnamed_file};
use crate::news::News;

/// Most bytes of this machine's memory for data on its way to the disk, beside the program's.
pub const BEHIND_BYTES: u64 = BEHIND_FRAMES as u64 * PAGE_BYTES;

/// Pause of the thread while there is work ...
const LEAST_REST: Duration = Duration::from_millis(1);
/// ... and while there is none: less than it takes to fill the memory for it.
const MOST_REST: Duration = Duration::from_millis(20);
/// Time before a failed write is retried.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// A disk counts as slow when the program has waited for it in this many seconds in a row.
const SLOW_AFTER_S: u32 = 5;

/// A file on this machine's disk for far data. It has no name, is sparse, and ends with its process
/// and the program, however they end.
#[derive(Clone, Debug)]
pub struct WriteBehind {
    dir: PathBuf,
    file: Arc<OwnedFd>,
}

impl WriteBehind {
    /// Creates a file in a directory, for this much memory at most.
    ///
    /// # Errors
    /// [`RecipientError::NoWriteBehind`]: the directory is invalid, or the file cannot be created.
    pub fn open(dir: &Path, most_bytes: u64) -> Result<WriteBehind, RecipientError> {
        let most_bytes = most_bytes.div_ceil(SLAB_BYTES).saturating_mul(SLAB_BYTES);
        let file = check_file_limit(most_bytes).and_then(|()| {
            unnamed_file(dir)
                .map_err(|why| format!("{why}: use a directory of another file system"))
        });
        let file = file.map_err(|why| RecipientError::NoWriteBehind { why })?;
        Ok(WriteBehind { dir: dir.to_owned(), file: Arc::new(file) })
    }

    /// Returns the free bytes of the disk.
    ///
    /// # Errors
    /// The kernel's.
    pub fn free_bytes(&self) -> Result<u64, Errno> {
        let disk = rustix::fs::fstatvfs(&self.file)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    pub(crate) fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Returns the writer of pages to the file.
    pub(crate) fn drain(&self, block: &Arc<RunBlockMap>) -> Result<Drain, RecipientError> {
        let drain = Drain::new(block.clone(), self.file.clone());
        drain.map_err(|errno| {
            let why = format!("a file of that size in {}: {errno}", self.dir.display());
            RecipientError::NoWriteBehind { why }
        })
    }

    /// Writes pages to the disk until stopped.
    pub(crate) fn run(
        &self,
        mut drain: Drain,
        block: &RunBlockMap,
        stop: &AtomicBool,
        news: &Sender<News>,
    ) {
        let (mut rest, mut failing, mut slow) = (LEAST_REST, Failing::default(), Slow::new());
        while !stop.load(Ordering::Acquire) {
            let (freed, trouble) = drain.turn();
            if let Some(trouble) = trouble
                && failing.is_news(&trouble)
            {
                let DrainFailure { errno, given_up, kept } = trouble;
                let (dir, why) = (self.dir.clone(), errno.to_string());
                let _ = news.send(News::WriteBehindFailed {
                    dir,
                    why,
                    slabs: given_up,
                    kept_pages: kept,
                });
            }
            if slow.is_news(block.counters.behind_waits.load(Ordering::Relaxed)) {
                let _ = news.send(News::SlowDisk { dir: self.dir.clone() });
            }
            rest = match (trouble, freed) {
                (Some(_), _) => RETRY_AFTER,
                (None, 0) => (rest * 2).min(MOST_REST),
                (None, _) => LEAST_REST,
            };
            std::thread::sleep(rest);
        }
    }
}

/// The reports on failed writes.
#[derive(Debug, Default)]
struct Failing {
    /// The last error, and whether the program waited.
    reported: Option<(Errno, bool)>,
}

impl Failing {
    /// Returns true once for each error, and once more when the program has to wait.
    fn is_news(&mut self, trouble: &DrainFailure) -> bool {
        let is_waiting = trouble.kept > 0;
        let is_news = match self.reported {
            Some((errno, has_waited)) => errno != trouble.errno || is_waiting && !has_waited,
            None => true,
        };
        if is_news {
            self.reported = Some((trouble.errno, is_waiting));
        }
        is_news
    }
}

/// The time for which the program has waited for the disk.
#[derive(Debug)]
struct Slow {
    since: Instant,
    waits: u64,
    seconds: u32,
    is_reported: bool,
}

impl Slow {
    fn new() -> Slow {
        Slow { since: Instant::now(), waits: 0, seconds: 0, is_reported: false }
    }

    /// Returns true when the wait is to be reported. `waits` counts the program's waits.
    fn is_news(&mut self, waits: u64) -> bool {
        if self.since.elapsed() < Duration::from_secs(1) {
            return false;
        }
        self.since = Instant::now();
        let has_waited = std::mem::replace(&mut self.waits, waits) < waits;
        self.seconds = if has_waited { self.seconds + 1 } else { 0 };
        self.seconds >= SLOW_AFTER_S && !std::mem::replace(&mut self.is_reported, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_reported_once_per_reason() {
        let mut failing = Failing::default();
        let trouble = |errno, kept| DrainFailure { errno, given_up: 1, kept };
        let reported = [(Errno::NOSPC, 0), (Errno::NOSPC, 0), (Errno::NOSPC, 3), (Errno::NOSPC, 4)];
        let reported = reported.map(|(errno, kept)| failing.is_news(&trouble(errno, kept)));
        assert_eq!(reported, [true, false, true, false]);
        assert!(failing.is_news(&trouble(Errno::IO, 0)));
    }

    #[test]
    fn invalid_directory_is_reported() {
        let error = WriteBehind::open(Path::new("/proc/self"), 1).unwrap_err().to_string();
        assert!(error.contains("/proc/self"), "{error}");
    }
}
