//! Durable writes, and degraded service while the store is full.
//!
//! A store without disk space accepts no changes. Ending is no way out, since the next start
//! fails too; going on would make grants that a restart loses. Started work waits, and its callers
//! learn that. Queries are answered, changes are refused with the reason, and the data plane is not
//! affected.

use super::Driver;
use crate::error::MonitorError;
use crate::inputs::{Input, Listing};
use crate::records::Applied;
use std::mem::replace;
use std::time::{Duration, Instant};
use tokio::time::sleep;
use venice_control::RackError;
use venice_rack::monitor::Change;

/// Interval between two tries to write.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Yields to other tasks before a blocking write, so that a started call is sent first.
const YIELDS_PER_CALL: usize = 8;

impl Driver {
    /// Makes the changes durable, however long that takes, or handles a conflict.
    pub(super) async fn write(&mut self, mut changes: Vec<Change>) -> Result<(), MonitorError> {
        yield_to_tasks(!self.calls.is_empty()).await;
        let (mut has_waited, mut are_told) = (false, false);
        loop {
            let began = Instant::now();
            let applied = self.store.apply(changes).await?;
            self.counters.note_write(began.elapsed());
            match applied {
                Applied::NoRoom { unmade, why } => {
                    if !replace(&mut has_waited, true) {
                        tracing::error!("{why}: no grants or changes until there is room");
                    } else if !replace(&mut are_told, true) {
                        self.answer_without_room(&why);
                    }
                    changes = unmade;
                    self.serve_without_room(&why).await;
                    continue;
                }
                Applied::Conflict { failed, news } => self.handle_conflict(failed, news),
                Applied::Made => {}
            }
            if has_waited {
                tracing::info!("the store has room again; the Monitor Node continues");
            }
            return Ok(());
        }
    }

    /// Answers the calls whose changes wait for room. They are kept: a conflict repeats them.
    fn answer_without_room(&mut self, why: &str) {
        let begun = || {
            let said = format!("{why}; what was begun is completed once there is room");
            RackError::StoreFull(said)
        };
        for call in self.registrations.values_mut() {
            let _ = call.take_reply().send(Err(begun()));
        }
        for call in self.orders.values_mut() {
            let _ = call.take_reply().send(Err(begun()));
        }
        for call in self.transfers.values_mut() {
            let _ = call.take_reply().send(Err(begun()));
        }
        for call in self.claims.values_mut() {
            let _ = call.take_reply().send(Err(begun()));
        }
        for reply in self.requests.values_mut().flat_map(|asking| asking.replies.drain(..)) {
            let _ = reply.send(Err(begun()));
        }
    }

    /// Serves inputs until the next try.
    async fn serve_without_room(&mut self, why: &str) {
        let mut again = std::pin::pin!(sleep(RETRY_INTERVAL));
        loop {
            tokio::select! {
                () = &mut again => return,
                Some(heard) = self.heard.recv() => self.handle_heard(heard),
                Some(input) = self.inputs.recv() => self.handle_without_room(input, why),
            }
        }
    }

    /// Answers those who read all records: with all changes so far, and no part of one.
    pub(super) async fn answer_record_readers(&mut self) {
        for reply in std::mem::take(&mut self.record_readers) {
            let read = self.store.entries().await.map_err(|error| {
                tracing::warn!(%error, "cannot read the records for a backup");
                RackError::StoreFull(error.to_string())
            });
            let _ = reply.send(read);
        }
    }

    /// Handles an input while the store is full. Releases, deregistrations and revocations are
    /// started all the same.
    fn handle_without_room(&mut self, input: Input, why: &str) {
        let refused = || RackError::StoreFull(why.to_owned());
        match input {
            Input::Register(_, reply) => drop(reply.send(Err(refused()))),
            Input::Request(_, _, reply) => drop(reply.send(Err(refused()))),
            Input::Transfer(_, _, reply) => drop(reply.send(Err(refused()))),
            Input::Claim(_, _, reply) => drop(reply.send(Err(refused()))),
            Input::Records(reply) => drop(reply.send(Err(refused()))),
            Input::Order(order, reply) if !order.is_rack_wide() => drop(reply.send(Err(refused()))),
            Input::List(Listing::Obstacle(reply)) => drop(reply.send(Some(why.to_owned()))),
            input => self.handle_input(input),
        }
    }
}

/// Yields to other tasks before a file store blocks this thread, so that ready answers and started
/// calls go out first and donors work meanwhile. A call passes through several tasks until it is
/// sent.
async fn yield_to_tasks(has_calls: bool) {
    for _ in 0..if has_calls { YIELDS_PER_CALL } else { 1 } {
        tokio::task::yield_now().await;
    }
}
