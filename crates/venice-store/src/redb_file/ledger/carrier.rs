//! Carries what is in the log over into the tables, many entries at a time, in a thread of its own.

use crate::error::StoreError;
use crate::redb_file::log::Entry;
use crate::redb_file::tables::Tables;
use crate::store::Revision;
use std::mem::take;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The longest that entries gather before they go to the tables. While these are written the log waits longer
/// for the same disk, so it is not done more often than the log's room wants it.
const GATHER: Duration = Duration::from_secs(10);

/// The tables, and what is on its way there.
#[derive(Debug)]
pub(super) struct Carrier {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Locked before the backlog is taken, so that its parts come in order.
    tables: Mutex<Tables>,
    backlog: Mutex<Backlog>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Backlog {
    /// In the log, and not yet on the way to the tables.
    entries: Vec<Entry>,
    in_tables: Revision,
    /// Tables that could not be written once are to be opened anew.
    failure: Option<StoreError>,
    /// The log needs their room soon.
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
        // Without one, what is in the log goes to the tables when the log is full.
        let thread = thread.spawn(move || carried.carry_on());
        let thread = thread.inspect_err(|error| tracing::warn!(%error, "no thread for the store"));
        Self { shared, thread: thread.ok() }
    }

    /// Up to where the tables have everything.
    ///
    /// # Errors
    /// Why they could not be written.
    pub(super) fn in_tables(&self) -> Result<Revision, StoreError> {
        let backlog = lock(&self.shared.backlog);
        match &backlog.failure {
            Some(failure) => Err(failure.again()),
            None => Ok(backlog.in_tables),
        }
    }

    /// An entry that is in the log.
    pub(super) fn take(&self, entry: Entry) {
        let mut backlog = lock(&self.shared.backlog);
        backlog.entries.push(entry);
        if backlog.entries.len() == 1 {
            self.shared.changed.notify_one();
        }
    }

    /// The log has begun its other half: by the time that is full, this one has to be in the tables.
    pub(super) fn make_haste(&self) {
        lock(&self.shared.backlog).is_due = true;
        self.shared.changed.notify_one();
    }

    /// Has everything in the tables once it returns, with one more entry that is not in the log.
    pub(super) fn carry_now(&self, more: Option<Entry>) -> Result<Revision, StoreError> {
        self.shared.carry(more)?;
        self.in_tables()
    }

    /// Has everything in the tables, and has them say that no log is needed.
    pub(super) fn close(&mut self) -> Result<(), StoreError> {
        lock(&self.shared.backlog).is_closing = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // One that panicked has left the log as it was, and the tables without.
            let _ = thread.join();
        }
        self.in_tables()?;
        let mut tables = lock(&self.shared.tables);
        let entries = take(&mut lock(&self.shared.backlog).entries);
        tables.close(&entries)
    }
}

impl Shared {
    fn carry_on(&self) {
        while self.wait_for_entries() {
            if let Err(error) = self.carry(None) {
                return tracing::error!(%error, "the store's log cannot be carried over into its tables");
            }
        }
    }

    /// False when it is time to close.
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
    // What a panic left half done in the tables was not committed there.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
impl Carrier {
    /// Does something while nothing is written to the tables.
    pub(super) fn while_tables_rest(&self, work: impl FnOnce()) {
        let _tables = lock(&self.shared.tables);
        work();
    }
}
