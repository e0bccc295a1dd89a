//! Checks of the queue's order, by the prepares sent to donors.

use super::World;
use crate::model::{MS, PREEMPT_NOTICE_MS, REQUEST_TIMEOUT_MS};
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::caller::Owner;
use venice_rack::monitor::Action;
use venice_rack::monitor_node::DonorCall;
use venice_rack::queueing::{Preempt, Queueing};
use venice_rack::rows::QueueRow;
use venice_rack::types::{CalledBack, PrepareRequest, ResourceKind};

/// The longest time to an answer, unless a handshake under way fails.
const ANSWER_WITHIN_NS: u64 = (1_000 + REQUEST_TIMEOUT_MS) * MS;

/// The queue in this life of the Monitor Node, as the checker sees it.
#[derive(Default)]
pub(super) struct QueueChecker {
    /// Calls without an answer, with their time.
    asking: BTreeMap<u128, u64>,
    /// The position of each request: twice its number in the queue.
    places: BTreeMap<u128, u64>,
    newest_id: u64,
    /// Numbers of the requests in the queue at the last look.
    standing: BTreeSet<u64>,
    /// Amounts that passed each queued request, by its number and the kind.
    passed: BTreeMap<(u64, ResourceKind), u64>,
    /// Requests ever queued, and backfills.
    pub(super) waited: usize,
    pub(super) passes: usize,
    /// Preemptions sent to donors.
    pub(super) calls: usize,
    /// Requests that waited for a free device at the last check: life of the Monitor Node, and
    /// number there.
    pub(super) unserved: BTreeSet<(u64, u64)>,
}

impl QueueChecker {
    pub(super) fn note_call(&mut self, client_id: u128, now_ns: u64) {
        self.asking.insert(client_id, now_ns);
        // Behind all queued requests; it may be granted at once and never be queued.
        let behind = 2 * self.newest_id + 1;
        self.places.entry(client_id).or_insert(behind);
    }

    pub(super) fn answered(&mut self, client_id: u128) {
        self.asking.remove(&client_id);
    }

    pub(super) fn crash(&mut self) {
        let (waited, passes, calls) = (self.waited, self.passes, self.calls);
        *self = Self { waited, passes, calls, ..Self::default() };
    }
}

impl World {
    /// Collects the Monitor Node's actions, and checks them against the queue of that moment.
    pub(super) fn collect_actions(&mut self) {
        if self.monitors.len() > 1 {
            // Each Monitor Node has its own queue.
            return;
        }
        let rows = self.monitors[0].core.queue_rows(self.now_ns);
        self.check_order(&rows);
        let actions: Vec<Action> =
            std::iter::from_fn(|| self.monitors[0].core.poll_action()).collect();
        let rows = self.standing_rows(rows, &actions);
        for action in actions {
            match &action {
                // It was recorded before a crash, and is no backfill now.
                Action::Call { call: DonorCall::Prepare(request), .. }
                    if self.etcd.has_grant(request.grant) =>
                {
                    self.asked_again.insert(request.grant);
                }
                Action::Call { donor, call: DonorCall::Prepare(request), .. } => {
                    self.check_backfill(&rows, donor.node.0 as usize - 1, request);
                }
                Action::ReplyStanding { client_id, standing } => {
                    assert!(standing.rank >= 1);
                    assert!(standing.wants.iter().all(|want| want.wanted > 0), "{standing:?}");
                    self.queue.asking.remove(client_id);
                }
                Action::ReplyRequest { client_id, .. } => {
                    self.queue.asking.remove(client_id);
                }
                _ => {}
            }
            self.actions.push_back(action);
        }
    }

    /// Returns the requests that were in the queue since the last look: in the meantime others were
    /// not in it yet, or in a handshake, and not passed by what was granted then.
    fn standing_rows(&mut self, rows: Vec<QueueRow>, actions: &[Action]) -> Vec<QueueRow> {
        let now: BTreeSet<u64> = rows.iter().map(|row| row.id).collect();
        let before = std::mem::replace(&mut self.queue.standing, now);
        let is_tried = |row: &QueueRow| {
            actions.iter().any(|action| {
                matches!(action, Action::Call { call: DonorCall::Prepare(request), .. } if request.recipient == row.recipient)
            })
        };
        rows.into_iter().filter(|row| before.contains(&row.id) && !is_tried(row)).collect()
    }

    /// Checks the order: higher priorities first, then earlier arrivals.
    fn check_order(&mut self, rows: &[QueueRow]) {
        let order = |row: &QueueRow| (255 - row.priority, row.id);
        assert!(rows.is_sorted_by_key(order), "out of order: {rows:?}");
        for row in rows {
            let client_id = self.client_of(&row.recipient);
            self.queue.places.insert(client_id, 2 * row.id);
            self.queue.waited += usize::from(self.queue.newest_id < row.id);
            self.queue.newest_id = self.queue.newest_id.max(row.id);
        }
    }

    /// Checks that backfill past a queued request never exceeds that request's own amount.
    fn check_backfill(&mut self, rows: &[QueueRow], donor: usize, request: &PrepareRequest) {
        let client_id = self.client_of(&request.recipient);
        let (_, queueing) = self.asker(client_id);
        let place = (255 - u32::from(queueing.priority), self.queue.places[&client_id]);
        let donor = super::name_of(donor);
        let (kind, amount) = (request.share.kind, request.share.amount());
        for row in rows.iter().filter(|row| row.needs != "quota") {
            let Some(want) = row.wants.iter().find(|want| want.kind == kind) else { continue };
            let is_before = (255 - row.priority, 2 * row.id) < place;
            let may_use = row.donors.is_empty() || row.donors.contains(&donor);
            if is_before && may_use {
                let passed = self.queue.passed.entry((row.id, kind)).or_default();
                *passed += amount;
                self.queue.passes += 1;
                assert!(*passed <= want.wanted, "{passed} of {kind} went past {row:?}");
            }
        }
    }

    /// Checks that a preempted grant has a lower priority than a queued request that may preempt
    /// it.
    pub(super) fn check_preemptions(&mut self, index: usize, called_back: &[CalledBack]) {
        let rows = self.monitors[self.at].core.queue_rows(self.now_ns);
        for called in called_back {
            assert_eq!(called.within_ms, PREEMPT_NOTICE_MS);
            self.queue.calls += 1;
            let Some(view) = self.donors[index]
                .core
                .report()
                .held
                .into_iter()
                .find(|held| held.id == called.grant)
            else {
                continue;
            };
            let (victim_owner, victim) = self.asker(self.client_of(&view.recipient));
            let kind = view.share.kind;
            let grants = self.monitors[self.at].core.grant_rows(self.now_ns);
            let record = grants.iter().find(|row| row.id == called.grant.0);
            let priority = victim.priority;
            let known = record.map_or(priority, |row| row.priority as u8);
            assert_eq!(known, priority, "{called:?}");
            let may = |row: &QueueRow| {
                let (caller, queueing) = self.asker(self.client_of(&row.recipient));
                let Queueing { preempt, priority: caller_priority, .. } = queueing;
                let is_of_same = caller.user == victim_owner.user;
                let may_call = preempt == Preempt::All || preempt == Preempt::Own && is_of_same;
                let wants = row.wants.iter().any(|want| want.kind == kind);
                wants && may_call && caller_priority > priority
            };
            let in_handshake = grants.iter().any(|row| row.state == "prepared");
            assert!(
                rows.iter().any(may) || in_handshake,
                "{} is preempted without a request",
                view.recipient
            );
        }
    }

    /// Checks that no request waits past its limit, or without an answer.
    pub(super) fn check_line(&mut self) {
        if self.monitors.len() > 1 {
            return;
        }
        self.collect_actions();
        for row in self.monitors[0].core.queue_rows(self.now_ns) {
            assert!(row.left_s > 0.0, "late without an answer: {row:?}");
        }
        for (client_id, asked_ns) in &self.queue.asking {
            assert!(
                self.now_ns <= asked_ns + ANSWER_WITHIN_NS + 2_500 * MS,
                "request {client_id} has no answer"
            );
        }
    }

    pub(super) fn leave(&mut self, pick: usize) {
        let waits =
            |recipient: &&mut super::Recipient| recipient.alive && recipient.answer.is_none();
        let mut waiting: Vec<_> = self.recipients.iter_mut().filter(waits).collect();
        let count = waiting.len();
        if count > 0 {
            let recipient = &mut waiting[pick % count];
            recipient.alive = false;
            let (owner, client_id) = (recipient.owner.clone(), recipient.request.client_id);
            self.queue.asking.remove(&client_id);
            let now_ns = self.now_ns;
            self.core().handle_leave(now_ns, &owner, client_id).unwrap();
        }
    }

    /// Returns the numbers of queued requests and of backfills.
    pub fn waited(&self) -> (usize, usize) {
        (self.queue.waited, self.queue.passes)
    }

    /// Returns the number of preemptions sent to donors.
    pub fn called_back(&self) -> usize {
        self.queue.calls
    }

    /// Returns owner and queueing options of a request.
    fn asker(&self, client_id: u128) -> (&Owner, Queueing) {
        let recipient = &self.recipients[client_id as usize - 1];
        (&recipient.owner, recipient.request.queueing)
    }

    fn client_of(&self, recipient: &str) -> u128 {
        let number: u128 = recipient.trim_start_matches("recipient").parse().unwrap();
        number + 1
    }
}
