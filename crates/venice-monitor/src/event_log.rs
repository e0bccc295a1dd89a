//! The newest events, kept for those who watch the rack.

use crate::clock::wall_ms;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use venice_control::{EventBatch, EventKind, EventPosition, EventRow};

/// Events kept of each class; the oldest makes room. Some hundred bytes each.
const KEPT: usize = 4096;
/// Most events of one batch.
const BATCH: usize = 256;
/// A program that repeats a refused request within this time of the last attempt is counted once:
/// repairs and growing arrays try again every few seconds.
const REPEATED_WITHIN_MS: u64 = 60_000;

/// Reasons of refusals that are counted from 0 on, so that the first refusal is an increase.
const USUAL_REASONS: [&str; 5] =
    ["no-room", "no-device", "no-bandwidth", "over-quota", "handshake-failed"];

/// The list of events of one process. It outlives sessions.
#[derive(Debug)]
pub(crate) struct EventLog {
    /// The list's number: the time of its beginning, so that each start has another.
    list: u64,
    events: Mutex<Events>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Events {
    /// Events without an owner (of nodes, of all users), and events with one: a user whose requests
    /// are refused in a loop does not push out the others.
    kept: [VecDeque<EventRow>; 2],
    /// Number of the newest event.
    newest: u64,
    by_kind: BTreeMap<String, u64>,
    /// Refused requests by reason, without their repetitions.
    refused: BTreeMap<String, u64>,
}

impl Events {
    /// True if the same program was refused the same request for the same reason shortly before.
    fn is_repeated(&self, refused: &EventRow, now_ms: u64) -> bool {
        let refused = repeated_parts(refused);
        let of_owners = self.kept[1].iter().rev();
        let mut recent =
            of_owners.take_while(|row| row.time_ms.saturating_add(REPEATED_WITHIN_MS) > now_ms);
        recent.any(|row| repeated_parts(row) == refused)
    }
}

/// Returns the parts of an event that a repetition of the same request has too.
fn repeated_parts(row: &EventRow) -> impl PartialEq + '_ {
    let EventRow { kind, owner_user, owner_node, recipient, purpose, bytes, reason, .. } = row;
    (kind, owner_user, owner_node, recipient, purpose, bytes, reason)
}

impl EventLog {
    /// Begins a list with its first event.
    pub(crate) fn new() -> Self {
        let log = Self { list: wall_ms(), events: Mutex::default(), newest: watch::Sender::new(0) };
        log.push(EventRow::of(EventKind::MonitorStarted));
        log
    }

    /// Adds an event, with number and time.
    pub(crate) fn push(&self, row: EventRow) {
        let mut events = self.lock();
        events.newest += 1;
        *events.by_kind.entry(row.kind.clone()).or_default() += 1;
        let time_ms = wall_ms();
        if row.kind == EventKind::Refused.name() && !events.is_repeated(&row, time_ms) {
            *events.refused.entry(row.reason.clone()).or_default() += 1;
        }
        let number = events.newest;
        let kept = &mut events.kept[usize::from(!row.owner_user.is_empty())];
        if kept.len() == KEPT {
            kept.pop_front();
        }
        kept.push_back(EventRow { number, time_ms, ..row });
        drop(events);
        self.newest.send_replace(number);
    }

    /// Returns the position after the newest event.
    pub(crate) fn end(&self) -> EventPosition {
        EventPosition { list: self.list, number: self.lock().newest }
    }

    /// Returns the next events after a position; of another list, from the oldest kept on.
    pub(crate) fn after(&self, position: EventPosition) -> EventBatch {
        let events = self.lock();
        let read = if position.list == self.list { position.number.min(events.newest) } else { 0 };
        let [of_nobody, of_owners] = events.kept.each_ref().map(|kept| {
            let from = kept.partition_point(|row| row.number <= read);
            kept.range(from..).take(BATCH)
        });
        let mut rows: Vec<_> = of_nobody.chain(of_owners).collect();
        rows.sort_unstable_by_key(|row| row.number);
        rows.truncate(BATCH);
        let number = rows.last().map_or(events.newest, |row| row.number);
        let missed = number - read - rows.len() as u64;
        let rows = rows.into_iter().cloned().collect();
        EventBatch { rows, position: EventPosition { list: self.list, number }, missed }
    }

    /// Waits for an event after a position of this list.
    pub(crate) async fn wait_after(&self, position: EventPosition) {
        let mut newest = self.newest.subscribe();
        // The sender lives as long as this.
        let _ = newest.wait_for(|newest| *newest > position.number).await;
    }

    /// Returns the numbers of events by kind; no kind is missing.
    pub(crate) fn by_kind(&self) -> Vec<(String, u64)> {
        let events = self.lock();
        let count = |name: &str| events.by_kind.get(name).copied().unwrap_or(0);
        EventKind::ALL.map(|kind| (kind.name().to_owned(), count(kind.name()))).into()
    }

    /// Returns the numbers of refused requests by reason, without repetitions; the usual reasons are
    /// never missing.
    pub(crate) fn refused(&self) -> Vec<(String, u64)> {
        let mut refused = self.lock().refused.clone();
        for reason in USUAL_REASONS {
            refused.entry(reason.to_owned()).or_default();
        }
        refused.into_iter().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Events> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(kind: EventKind, reason: &str) -> EventRow {
        EventRow { reason: reason.to_owned(), ..EventRow::of(kind) }
    }

    #[test]
    fn batches_join_without_gap() {
        let log = EventLog::new();
        (0..2 * BATCH).for_each(|_| log.push(event(EventKind::NodeDown, "")));
        let (mut position, mut numbers) = (EventPosition::default(), Vec::new());
        loop {
            let batch = log.after(position);
            assert!(batch.rows.len() <= BATCH && batch.missed == 0);
            if batch.rows.is_empty() {
                break;
            }
            numbers.extend(batch.rows.iter().map(|row| row.number));
            position = batch.position;
        }
        assert!(numbers.into_iter().eq(1..=2 * BATCH as u64 + 1));
        assert_eq!(position, log.end());
    }

    #[test]
    fn slow_reader_learns_what_it_missed() {
        let log = EventLog::new();
        let read = log.after(EventPosition::default()).position;
        (0..KEPT + 10).for_each(|_| log.push(event(EventKind::NodeDown, "")));
        let batch = log.after(read);
        assert_eq!((batch.missed, batch.rows[0].number), (10, 12));
        assert_eq!(log.after(batch.position).missed, 0);
        // A position of an earlier process says nothing of this list.
        let other = EventPosition { list: 1, number: 3 };
        assert_eq!(log.after(other).missed, 11);
    }

    #[test]
    fn flood_of_owner_keeps_nodes() {
        let log = EventLog::new();
        log.push(event(EventKind::NodeDown, ""));
        let of_ada = EventRow { owner_user: "ada".into(), ..event(EventKind::Refused, "no-room") };
        (0..2 * KEPT).for_each(|_| log.push(of_ada.clone()));
        let batch = log.after(EventPosition::default());
        let kinds: Vec<_> = batch.rows.iter().take(3).map(|row| row.kind.as_str()).collect();
        assert_eq!(kinds, ["monitor-started", "node-down", "refused"]);
        assert_eq!(batch.missed, KEPT as u64);
        let (mut position, mut count) = (batch.position, batch.rows.len());
        while position != log.end() {
            let batch = log.after(position);
            assert_eq!(batch.missed, 0);
            (position, count) = (batch.position, count + batch.rows.len());
        }
        assert_eq!(count, KEPT + 2);
    }

    #[test]
    fn refusals_are_counted_by_reason() {
        let log = EventLog::new();
        let of = |recipient: &str, reason| {
            let owner_user = "ada".to_owned();
            EventRow {
                owner_user,
                recipient: recipient.to_owned(),
                ..event(EventKind::Refused, reason)
            }
        };
        // The first program tries again, with another event between.
        let refused = [("h/1", "no-room"), ("h/2", "no-room"), ("h/1", "no-room")];
        for (recipient, reason) in refused.into_iter().chain([("h/1", "over-quota")]) {
            log.push(of(recipient, reason));
        }
        let refused: BTreeMap<_, _> = log.refused().into_iter().collect();
        let of = |reason: &str| refused.get(reason).copied();
        assert_eq!((of("no-room"), of("over-quota"), of("no-device")), (Some(2), Some(1), Some(0)));
        let kinds = log.by_kind();
        assert_eq!(kinds.len(), EventKind::ALL.len());
        assert!(kinds.contains(&("refused".to_owned(), 4)));
    }

    #[tokio::test]
    async fn waiter_wakes_with_next_event() {
        let log = std::sync::Arc::new(EventLog::new());
        let end = log.end();
        let waiting = tokio::spawn({
            let log = std::sync::Arc::clone(&log);
            async move { log.wait_after(end).await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        log.push(event(EventKind::NodeBack, ""));
        waiting.await.unwrap();
    }
}
