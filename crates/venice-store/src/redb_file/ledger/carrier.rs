//! Moves the log's entries into the tables, many at a time, in a thread of its own.

use crate::error::StoreError;
use crate::redb_file::log::Entry;
use crate::redb_file::tables::Tables;
use crate::store::Revision;
use std::mem::take;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longest time that entries gather before they are written to the tables. During these writes the
/// log waits longer for the same disk, which is why they happen only as often as the log's room
/// requires.
const GATHER: Duration = Duration::from_secs(10);

/// The tables, and the entries on their way there.
#[derive(Debug)]
pub(super) struct Carrier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Locked before the backlog is taken, which keeps its parts in order.
    tables: Mutex<Tables>,
    backlog: Mutex<Backlog>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Backlog {
    /// Entries in the log that are not yet being written to the tables.
    entries: Vec<Entry>,
    in_tables: Revision,
    /// Error of the tables: after a failed write they must be opened anew.
    failure: Option<StoreError>,
    /// True if the log needs their room soon.
    is_due: bool,
    is_closing: bool,
}

impl Carrier {
    pub(super) fn start(tables: Tables) -> Self {
        let in_tables = tables.revision();
        let backlog = Backlog { in_tables, ..Backlog::default() };
        let (tables, backlog) = (Mutex::new(tables), Mutex::new(backlog));
        let shared = Arc::new(Shared { tables, backlog, changed: Condvar::new() });
        let carried = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("store".to_owned());
        // Without a thread, the entries move to the tables when the log is full.
        let thread = thread.spawn(move || carried.run());
        let thread =
            thread.inspect_err(|error| tracing::warn!(%error, "cannot start the store's thread"));
        Self { shared, thread: thread.ok() }
    }

    /// Returns the revision up to which the tables are complete.
    ///
    /// # Errors
    /// The error of the tables, if they could not be written.
    pub(super) fn in_tables(&self) -> Result<Revision, StoreError> {
        let backlog = lock(&self.shared.backlog);
        match &backlog.failure {
            Some(failure) => Err(failure.again()),
            None => Ok(backlog.in_tables),
        }
    }

    /// Takes an entry that is in the log.
    pub(super) fn take(&self, entry: Entry) {
        let mut backlog = lock(&self.shared.backlog);
        backlog.entries.push(entry);
        if backlog.entries.len() == 1 {
            self.shared.changed.notify_one();
        }
    }

    /// Requests a write soon: the log has begun its other half, and before that is full, this one
    /// must be in the tables.
    pub(super) fn request_write(&self) {
        lock(&self.shared.backlog).is_due = true;
        self.shared.changed.notify_one();
    }

    /// Writes everything to the tables, with one more entry that is not in the log.
    pub(super) fn carry_now(&self, more: Option<Entry>) -> Result<Revision, StoreError> {
        self.shared.carry(more)?;
        self.in_tables()
    }

    /// Writes everything to the tables, and marks the log as unnecessary.
    pub(super) fn close(&mut self) -> Result<(), StoreError> {
        lock(&self.shared.backlog).is_closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has left the log intact and the tables incomplete.
            let _ = thread.join();
        }
        self.in_tables()?;
        let mut tables = lock(&self.shared.tables);
        let entries = take(&mut lock(&self.shared.backlog).entries);
        tables.close(&entries)
    }
}

impl Shared {
    fn run(&self) {
        while self.wait_for_entries() {
            if let Err(error) = self.carry(None) {
                return tracing::error!(%error, "cannot write the store's log to its tables");
            }
        }
    }

    /// Waits for entries; returns false at the close.
    fn wait_for_entries(&self) -> bool {
        let backlog = lock(&self.backlog);
        let is_idle = |backlog: &mut Backlog| backlog.entries.is_empty() && !backlog.is_closing;
        let waited = self.changed.wait_while(backlog, is_idle);
        let backlog = waited.unwrap_or_else(PoisonError::into_inner);
        let gathers = |backlog: &mut Backlog| !backlog.is_due && !backlog.is_closing;
        let gathered = self.changed.wait_timeout_while(backlog, GATHER, gathers);
        !gathered.unwrap_or_else(PoisonError::into_inner).0.is_closing
    }

    fn carry(&self, more: Option<Entry>) -> Result<(), StoreError> {
        let mut tables = lock(&self.tables);
        let mut entries = {
            let mut backlog = lock(&self.backlog);
            backlog.is_due = false;
            take(&mut backlog.entries)
        };
        entries.extend(more);
        let carried = tables.carry(&entries);
        let mut backlog = lock(&self.backlog);
        backlog.in_tables = tables.revision();
        if let Err(error) = &carried {
            backlog.failure = Some(error.again());
        }
        carried
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Changes to the tables that a panic interrupted were not committed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Carrier {
    /// Runs `work` while nothing is written to the tables.
    pub(super) fn with_idle_tables(&self, work: impl FnOnce()) {
        let _tables = lock(&self.shared.tables);
        work();
    }
}
