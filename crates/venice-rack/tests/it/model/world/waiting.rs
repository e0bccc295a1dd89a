//! The order of those who wait, judged by what the donors are asked for.

use super::World;
use crate::model::{MS, PREEMPT_NOTICE_MS, REQUEST_TIMEOUT_MS};
use std::collections::{BTreeMap, BTreeSet};
use venice_rack::caller::Owner;
use venice_rack::monitor::Action;
use venice_rack::queueing::{Preempt, Queueing};
use venice_rack::rows::QueueRow;
use venice_rack::types::{CalledBack, PrepareRequest};
use venice_wire::SLAB_BYTES;

/// A call is answered after so long at most, or when a handshake that is under way has failed.
const ANSWER_WITHIN_NS: u64 = (1_000 + REQUEST_TIMEOUT_MS) * MS;

/// What the world knows of the line of this life of the Monitor Node.
#[derive(Default)]
pub(super) struct LineJudge {
    /// Who asked when and was not answered.
    asking: BTreeMap<u128, u64>,
    /// Where a request stands: twice the number it has in the line, or had.
    places: BTreeMap<u128, u64>,
    newest_id: u64,
    /// Slabs that went past each of those in line, by its number.
    passed: BTreeMap<u64, u64>,
    /// How many were ever in line, and were let pass.
    pub(super) waited: usize,
    pub(super) passes: usize,
    /// Notices that donors were to give.
    pub(super) calls: usize,
    /// Who waited for a device that was free when it was last looked: of which life of a Monitor
    /// Node, and its number there.
    pub(super) unserved: BTreeSet<(u64, u64)>,
}

impl LineJudge {
    pub(super) fn asks(&mut self, client_id: u128, now_ns: u64) {
        self.asking.insert(client_id, now_ns);
        // Behind all that are in line; it may be granted at once and never be seen there.
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
    /// Takes what the Monitor Node wants done, and judges it while the line is as it was then.
    pub(super) fn hear_monitor(&mut self) {
        if self.monitors.len() > 1 {
            // Each has a line of its own.
            return;
        }
        let rows = self.monitors[0].core.queue_rows(self.now_ns);
        self.look_at(&rows);
        while let Some(action) = self.monitors[0].core.poll_action() {
            match &action {
                // It was recorded before a crash, and passes nobody now.
                Action::SendPrepare { request, .. } if self.etcd.has_grant(request.grant) => {
                    self.asked_again.insert(request.grant);
                }
                Action::SendPrepare { donor, request, .. } => {
                    self.judge_passing(&rows, donor.node.0 as usize - 1, request);
                }
                Action::ReplyStanding { client_id, standing } => {
                    let is_whole = !standing.device.is_empty();
                    assert!(standing.rank >= 1 && (standing.asked_bytes > 0 || is_whole));
                    self.line.asking.remove(client_id);
                }
                Action::ReplyRequest { client_id, .. } => {
                    self.line.asking.remove(client_id);
                }
                _ => {}
            }
            self.actions.push_back(action);
        }
    }

    /// Higher priorities first, then who came first.
    fn look_at(&mut self, rows: &[QueueRow]) {
        let order = |row: &QueueRow| (255 - row.priority, row.id);
        assert!(rows.is_sorted_by_key(order), "out of order: {rows:?}");
        for row in rows {
            let client_id = self.client_of(&row.recipient);
            self.line.places.insert(client_id, 2 * row.id);
            self.line.waited += usize::from(self.line.newest_id < row.id);
            self.line.newest_id = self.line.newest_id.max(row.id);
        }
    }

    /// What goes past somebody in line that it might use is never more than that one's own.
    fn judge_passing(&mut self, rows: &[QueueRow], donor: usize, request: &PrepareRequest) {
        let client_id = self.client_of(&request.recipient);
        let (_, queueing) = self.asker(client_id);
        let place = (255 - u32::from(queueing.priority), self.line.places[&client_id]);
        let donor = super::name_of(donor);
        // Bytes, or one device that is lent whole.
        let (kind, amount) = match &request.device {
            None => ("memory", u64::from(request.slabs) * SLAB_BYTES),
            Some(share) if share.bytes == 0 => (share.kind.name(), 1),
            Some(share) => (share.kind.name(), share.bytes),
        };
        for row in rows.iter().filter(|row| row.needs != "quota" && row.kind == kind) {
            let is_before = (255 - row.priority, 2 * row.id) < place;
            let may_use = row.donors.is_empty() || row.donors.contains(&donor);
            if is_before && may_use {
                let passed = self.line.passed.entry(row.id).or_default();
                *passed += amount;
                self.line.passes += 1;
                assert!(*passed <= row.bytes.max(1), "{passed} went past {row:?}");
            }
        }
    }

    /// What is called back is of a lower priority than somebody who waits, and may be.
    pub(super) fn judge_calls(&mut self, index: usize, called_back: &[CalledBack]) {
        let rows = self.monitors[self.at].core.queue_rows(self.now_ns);
        for called in called_back {
            assert_eq!(called.within_ms, PREEMPT_NOTICE_MS);
            self.line.calls += 1;
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
            let kind = view.device.as_ref().map_or("memory", |share| share.kind.name());
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
                row.kind == kind && may_call && caller_priority > priority
            };
            let in_handshake = grants.iter().any(|row| row.state == "prepared");
            assert!(
                rows.iter().any(may) || in_handshake,
                "{} is called back for nobody",
                view.recipient
            );
        }
    }

    /// Nobody waits longer than it wanted to, or for an answer.
    pub(super) fn check_line(&mut self) {
        if self.monitors.len() > 1 {
            return;
        }
        self.hear_monitor();
        for row in self.monitors[0].core.queue_rows(self.now_ns) {
            assert!(row.left_s > 0.0, "late and not told: {row:?}");
        }
        for (client_id, asked_ns) in &self.line.asking {
            assert!(
                self.now_ns <= asked_ns + ANSWER_WITHIN_NS + 2_500 * MS,
                "request {client_id} hears nothing"
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
            self.line.asking.remove(&client_id);
            let now_ns = self.now_ns;
            self.core().handle_leave(now_ns, &owner, client_id).unwrap();
        }
    }

    /// How many waited, and how often somebody was let pass.
    pub fn waited(&self) -> (usize, usize) {
        (self.line.waited, self.line.passes)
    }

    /// How often donors were to give notice.
    pub fn called_back(&self) -> usize {
        self.line.calls
    }

    /// Whose a request is, and how it waits.
    fn asker(&self, client_id: u128) -> (&Owner, Queueing) {
        self.taker(client_id).unwrap_or_else(|| {
            let recipient = &self.recipients[client_id as usize - 1];
            (&recipient.owner, recipient.request.queueing)
        })
    }

    fn client_of(&self, recipient: &str) -> u128 {
        if let Some(client_id) = Self::client_of_taker(recipient) {
            return client_id;
        }
        let number: u128 = recipient.trim_start_matches("recipient").parse().unwrap();
        number + 1
    }
}
