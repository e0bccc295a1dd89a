//! Changes by other Monitor Nodes in the store, and recovery from a conflict: a write whose records
//! had changed by then (optimistic concurrency).
//!
//! The actions queued behind a failed write were not performed: no donor was called or client
//! answered on its strength. They are dropped, the tables are reset to the store's state, and
//! requests in progress resume from there. Other calls that wait for an answer are repeated by the
//! caller of this code.

use super::pending::PartState;
use super::{Action, Change, MonitorCore, Record, RecordKey, View};
use crate::monitor_node::DonorCall;
use crate::rat::{GrantRecord, GrantState};
use crate::rrt::{NodeEntry, NodeRecord};
use crate::types::RackError;
use std::collections::BTreeSet;
use venice_wire::GrantId;

impl MonitorCore {
    /// Takes changes by peers to the store, in order. To be called only when no action waits.
    ///
    /// # Panics
    /// If an action waits.
    pub fn handle_stored(&mut self, now_ns: u64, news: Vec<Change>) {
        assert!(self.actions.is_empty(), "actions wait that were decided without these changes");
        self.take_in(now_ns, news);
        self.yield_lost_requests();
        self.answer_queue(now_ns);
        self.note_room(now_ns, true);
    }

    /// Handles an [`Action::Store`] that failed because a record had changed. `view` is the state
    /// of the store by now, `news` the part of it not yet applied here, `failed` the changes that
    /// were to be made. Requests in their handshake go on; other waiting calls must be repeated.
    pub fn handle_conflict(
        &mut self,
        now_ns: u64,
        failed: Vec<Change>,
        view: &View,
        news: Vec<Change>,
    ) {
        let mut undone: BTreeSet<RecordKey> = BTreeSet::new();
        let mut release = Vec::new();
        self.undo(&mut undone, failed);
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Store(changes) => self.undo(&mut undone, changes),
                Action::Call { call: DonorCall::Prepare(request), .. } => {
                    self.settle_prepare(request.grant);
                    self.take_part(request.grant);
                }
                Action::Call { call: DonorCall::Commit { grant, .. }, .. } => {
                    if let Some(part) = self.part_mut(grant) {
                        part.state = PartState::Prepared;
                    }
                }
                Action::Call { call: DonorCall::Release(grants), .. } => {
                    self.sent_releases.retain(|id| !grants.contains(id));
                    release.extend(grants);
                }
                Action::Call { call: DonorCall::CommitTransfer(step), .. } => {
                    self.sent_transfers.remove(&step.grant);
                }
                // These are right whatever the records are. A client without an answer about a
                // handshake that peers called off would ask again, call off theirs, and they this
                // one, in a circle.
                Action::Note(event) if event.follows_record() => {}
                Action::Call {
                    call: DonorCall::Abort(_) | DonorCall::AbortTransfer { .. },
                    ..
                }
                | Action::ReplyStanding { .. }
                | Action::ReplyRequest { result: Err(RackError::HandshakeFailed), .. }
                | Action::Note(_) => self.actions.push_back(action),
                Action::Call { call: DonorCall::Ping | DonorCall::PrepareTransfer(_), .. }
                | Action::ReplyRequest { .. }
                | Action::Reply(..) => {}
            }
        }
        self.call_off_transfers();
        self.release_waiters.clear();
        self.waiting_registrations.clear();
        self.tried.clear();
        self.take_up_finished();
        self.drop_unrecorded_nodes(&undone, view);
        for key in &undone {
            match (view.get(key).cloned(), key) {
                (Some(record), _) => self.enter_again(now_ns, record),
                (None, key) => self.enter_absence(key),
            }
        }
        self.take_in(now_ns, news);
        self.yield_lost_requests();
        self.answer_queue(now_ns);
        self.take_back_orphans(&undone);
        self.send_releases_again(release);
        let all: Vec<u128> = self.requests.keys().copied().collect();
        all.into_iter().for_each(|client_id| self.advance(now_ns, client_id));
    }

    fn undo(&mut self, undone: &mut BTreeSet<RecordKey>, changes: Vec<Change>) {
        for change in &changes {
            if let Change::PutGrantLimit(limit) = change {
                self.disown_numbers(*limit);
            }
        }
        undone.extend(changes.iter().map(Change::key));
    }

    /// Drops new nodes whose numbers a peer gave to others, or that were not recorded: all of them
    /// before any record is entered, which may be one of them under another number.
    fn drop_unrecorded_nodes(&mut self, undone: &BTreeSet<RecordKey>, view: &View) {
        for key in undone {
            let RecordKey::Node(node) = key else { continue };
            let Some(entry) = self.rrt.get(*node) else { continue };
            let is_same = |record: &Record| matches!(record, Record::Node(there) if there.name == entry.record.name);
            if !view.get(key).is_some_and(is_same) {
                self.rrt.remove(*node);
            }
        }
    }

    /// Puts requests whose answer was not sent back into their handshake.
    fn take_up_finished(&mut self) {
        for (client_id, pending) in std::mem::take(&mut self.finished) {
            self.parts.extend(pending.parts.keys().map(|id| (*id, client_id)));
            self.requests.insert(client_id, pending);
        }
    }

    /// Resets a record to the store's state.
    fn enter_again(&mut self, now_ns: u64, record: Record) {
        match record {
            Record::Node(node) => self.enter_node(now_ns, node),
            Record::Grant(grant) => {
                self.note_committing(now_ns, &grant);
                self.rat.put(grant);
            }
            Record::GrantLimit(limit) => self.grant_limit = limit,
            Record::Revocation(revocation) => {
                self.revoked.forget(&revocation.node);
                self.revoked.put(revocation);
            }
            other => self.enter(&Change::from(other)),
        }
    }

    fn enter_absence(&mut self, key: &RecordKey) {
        match key {
            RecordKey::Node(node) => self.rrt.remove(*node),
            RecordKey::Grant(id) => drop(self.rat.remove(*id)),
            RecordKey::GrantLimit => self.grant_limit = 1,
            RecordKey::Token(id) => drop(self.tokens.remove(id)),
            RecordKey::Revocation(node) => self.revoked.forget(node),
            RecordKey::CertificateLife => self.retention.certificate_life_ms = 0,
            RecordKey::Quota(of) => self.quotas.remove(of),
            RecordKey::Newcomer | RecordKey::LastRequest(_) | RecordKey::LastPromise => {}
        }
    }

    /// Applies changes by peers.
    fn take_in(&mut self, now_ns: u64, news: Vec<Change>) {
        for change in news {
            match change {
                Change::PutNode(node) => self.enter_node(now_ns, node),
                Change::PutGrant(grant) => {
                    self.note_committing(now_ns, &grant);
                    if self.rat.get(grant.id).is_none() {
                        self.learnt_ns.insert(grant.id, now_ns);
                    }
                    self.count_as_lent(&grant);
                    self.rat.put(grant);
                }
                Change::PutToken(token) => {
                    let is_used_now = self.tokens.get(&token.id).is_some_and(|before| {
                        before.used_by.is_empty() && !token.used_by.is_empty()
                    });
                    if is_used_now {
                        self.retention.admitted.insert(token.used_by.clone());
                    }
                    self.tokens.insert(token.id, token);
                }
                Change::PutRevocation(revocation) => {
                    self.retention.admitted.remove(&revocation.node);
                    self.revoked.put(revocation);
                }
                other => self.enter(&other),
            }
        }
    }

    fn enter_node(&mut self, now_ns: u64, node: NodeRecord) {
        let (identity, is_revoked) = (node.identity, node.is_revoked);
        let (name, is_stopped) = (node.name.clone(), node.is_stopped);
        // Of two agents with the same epoch one was not registered.
        let is_same =
            |before: &NodeRecord| before.identity == identity && before.instance == node.instance;
        let mut is_news = false;
        match self.rrt.get(identity.node) {
            Some(entry) if is_same(&entry.record) => {
                is_news = is_stopped && !entry.record.is_stopped;
                self.rrt.change_record(identity.node, |record| *record = node);
            }
            _ => self.rrt.insert(NodeEntry::new(node, now_ns)),
        }
        if is_news {
            self.note_stopped(now_ns, identity, name);
        }
        if is_revoked {
            self.mark_down(now_ns, identity);
        }
    }

    /// Counts slabs lent by peers as gone, until their donor reports.
    fn count_as_lent(&mut self, grant: &GrantRecord) {
        if grant.state == GrantState::Committed
            && let Some(mut entry) = self.rrt.get_mut(grant.donor)
            && entry.record.identity.epoch == grant.donor_epoch
            && entry.status.revision < grant.confirmed_revision
        {
            entry.status.revision = grant.confirmed_revision;
            // The slabs of a transferred grant were lent before.
            let slabs = if grant.from.is_none() { grant.share.slabs() } else { 0 };
            entry.status.free_slabs = entry.status.free_slabs.saturating_sub(slabs);
        }
    }

    /// Takes back own grants that donors lend, or will, for requests that are gone.
    fn take_back_orphans(&mut self, undone: &BTreeSet<RecordKey>) {
        let is_orphan = |id: &GrantId| {
            self.rat.get(*id).is_some_and(|grant| grant.state == GrantState::Committing)
                && self.is_own(*id)
                && !self.in_handshake(*id)
        };
        let grants = undone.iter().filter_map(|key| match key {
            RecordKey::Grant(id) => Some(*id),
            _ => None,
        });
        let orphans: Vec<GrantId> = grants.filter(is_orphan).collect();
        orphans.into_iter().for_each(|id| self.take_back_grant(id));
    }

    fn send_releases_again(&mut self, ids: Vec<GrantId>) {
        let is_releasing =
            |id: &GrantId| self.rat.get(*id).is_some_and(|it| it.state == GrantState::Releasing);
        let ids = ids.into_iter().filter(is_releasing).collect();
        self.send_releases(ids);
    }
}
