//! Checker of the queue at the only Monitor Node: higher priorities first, then first come, first
//! served; no request is passed by more of a kind than it wants itself.

use std::collections::BTreeMap;

use venice_rack::rows::QueueRow;
use venice_rack::types::{Identity, PrepareRequest, ResourceKind};

use super::{Checker, Judge, Scene};
use crate::control::agent::name_of;

/// State of the queue since the Monitor Node began.
#[derive(Default)]
pub(super) struct Line {
    rows: Vec<QueueRow>,
    newest_id: u64,
    /// Positions of requests by recipient: the inverted priority, then twice the queue number, or
    /// an odd number for a position between two such.
    places: BTreeMap<String, (u32, u64)>,
    /// Amounts that passed each queued request, by its number and the kind.
    passed: BTreeMap<(u64, ResourceKind), u64>,
    /// Requests outside the queue, with the newest queue number at the time of their decision.
    /// Donors learn of a decision only after it is written; requests that came meanwhile do not
    /// count as passed.
    decided: BTreeMap<String, u64>,
}

impl Line {
    pub(super) fn wants(&mut self, recipient: String, priority: u8) {
        // The position behind all queued requests; the request may be granted at once and never be
        // queued.
        let place = (255 - u32::from(priority), 2 * self.newest_id + 1);
        self.places.entry(recipient.clone()).or_insert(place);
        if !self.rows.iter().any(|row| row.recipient == recipient) {
            self.decided.entry(recipient).or_insert(self.newest_id);
        }
    }

    /// Records which requests are queued, and which are not any more.
    fn note_decided(&mut self, rows: &[QueueRow]) {
        for row in &self.rows {
            self.decided.insert(row.recipient.clone(), self.newest_id);
        }
        for row in rows {
            self.decided.remove(&row.recipient);
        }
    }
}

impl Judge {
    pub(super) fn shows_line(&mut self, now_ns: u64, rows: Vec<QueueRow>) {
        let order = |row: &QueueRow| (255 - row.priority, row.id);
        let is_in_order = rows.is_sorted_by_key(order);
        self.findings
            .check(Checker::Line, now_ns, is_in_order, || format!("out of order: {rows:?}"));
        self.line.note_decided(&rows);
        for row in &rows {
            let place = (255 - row.priority, 2 * row.id);
            self.line.places.insert(row.recipient.clone(), place);
            self.line.newest_id = self.line.newest_id.max(row.id);
        }
        self.line.rows = rows;
    }

    /// Checks a placement: it may pass queued requests that could use the same.
    pub(super) fn check_passing(
        &mut self,
        scene: &Scene<'_>,
        donor: Identity,
        request: &PrepareRequest,
    ) {
        let is_its = |identity: Option<Identity>| identity.is_some_and(|it| it.node == donor.node);
        let donor = scene.agents.iter().position(|agent| is_its(agent.identity()));
        let (Some(donor), Some(place)) = (donor, self.line.places.get(&request.recipient)) else {
            return;
        };
        let (donor, place) = (name_of(donor as u16), *place);
        let decided = self.line.decided.get(&request.recipient).copied().unwrap_or(u64::MAX);
        for row in self.line.rows.iter().filter(|row| row.needs != "quota") {
            let is_before = (255 - row.priority, 2 * row.id) < place && row.id <= decided;
            if !is_before || !(row.donors.is_empty() || row.donors.contains(&donor)) {
                continue;
            }
            let kind = request.share.kind;
            let Some(want) = row.wants.iter().find(|want| want.kind == kind) else { continue };
            self.counts.passes += 1;
            let passed = self.line.passed.entry((row.id, kind)).or_default();
            *passed += request.share.amount();
            self.findings.check(Checker::Line, scene.now_ns, *passed <= want.wanted, || {
                format!("{passed} of {kind} went past {} with {want:?}", row.recipient)
            });
        }
    }
}
