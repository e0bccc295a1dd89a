//! What other Monitor Nodes have changed in the store, and what becomes of changes that were to be made
//! when the records were others by then.
//!
//! Of the actions that were waiting behind a change that was not made none has been performed: nobody
//! has been called or answered on the strength of it. So they are dropped, the tables are brought back
//! to what the store has, and what goes on goes on from there. Calls that were waiting for an answer
//! then the caller of this code makes again.

use super::pending::PartState;
use super::{Action, Change, MonitorCore, Record, RecordKey, View};
use crate::rat::{GrantRecord, GrantState};
use crate::rrt::{NodeEntry, NodeRecord};
use crate::types::RackError;
use std::collections::BTreeSet;
use venice_wire::GrantId;

impl MonitorCore {
    /// Others have changed the store, in this order. To be told only when no action waits.
    pub fn handle_stored(&mut self, now_ns: u64, news: Vec<Change>) {
        assert!(self.actions.is_empty(), "what waits was decided without the news");
        self.take_in(now_ns, news);
        self.yield_lost_requests();
        self.yield_lost_devices();
        self.tell_line(now_ns);
        self.note_room(now_ns, true);
    }

    /// The last [`Action::Store`] was not made, since a record was not as it was thought to be. `view`
    /// is what the store has by now, `news` what of that is news, `failed` what was to be made. The
    /// requests that are in their handshake go on; whoever waits for another answer has to ask again.
    pub fn handle_conflict(
        &mut self,
        now_ns: u64,
        failed: Vec<Change>,
        view: &View,
        news: Vec<Change>,
    ) {
        let mut undone: BTreeSet<RecordKey> = BTreeSet::new();
        let (mut release, mut prepared) = (Vec::new(), Vec::new());
        self.undo(&mut undone, failed);
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::Store(changes) => self.undo(&mut undone, changes),
                Action::SendPrepare { request, .. } => {
                    self.settle_prepare(request.grant);
                    self.take_part(request.grant);
                    self.forget_device_prepare(request.grant);
                }
                Action::SendCommit { grant, .. } => {
                    if let Some(part) = self.part_mut(grant) {
                        part.state = PartState::Prepared;
                    }
                    self.forget_device_commit(grant);
                    prepared.push(grant);
                }
                Action::SendRelease { grants, .. } => {
                    self.sent_releases.retain(|id| !grants.contains(id));
                    release.extend(grants);
                }
                // These are right whatever the records are. Whoever was told nothing of a handshake that others
                // broke off, and so asked anew, would break off theirs, and they this one, in a circle.
                Action::SendAbort { .. }
                | Action::ReplyStanding { .. }
                | Action::ReplyRequest { result: Err(RackError::HandshakeFailed), .. }
                | Action::Note(_) => self.actions.push_back(action),
                Action::SendPing { .. }
                | Action::ReplyRequest { .. }
                | Action::ReplyRelease { .. }
                | Action::ReplyDone { .. }
                | Action::ReplyRegister { .. } => {}
            }
        }
        self.release_waiters.clear();
        self.waiting_registrations.clear();
        self.take_up_finished();
        let finished_devices = self.take_up_finished_devices();
        self.turn_away(&undone, view);
        for key in &undone {
            match (view.get(key).cloned(), key) {
                (Some(record), _) => self.enter_again(now_ns, record),
                (None, key) => self.enter_absence(key),
            }
        }
        self.take_in(now_ns, news);
        self.yield_lost_requests();
        self.yield_lost_devices();
        self.tell_line(now_ns);
        self.give_up_orphans(&undone);
        self.send_releases_again(release);
        let all: Vec<u128> = self.requests.keys().copied().collect();
        all.into_iter().for_each(|client_id| self.advance(now_ns, client_id));
        self.advance_devices(now_ns, &prepared, finished_devices);
    }

    fn undo(&mut self, undone: &mut BTreeSet<RecordKey>, changes: Vec<Change>) {
        for change in &changes {
            if let Change::PutGrantLimit(limit) = change {
                self.disown_numbers(*limit);
            }
        }
        undone.extend(changes.iter().map(Change::key));
    }

    /// Newcomers whose numbers others were given first, or nobody was: all of them, before anybody is
    /// entered, who may be one of them under another number.
    fn turn_away(&mut self, undone: &BTreeSet<RecordKey>, view: &View) {
        for key in undone {
            let RecordKey::Node(node) = key else { continue };
            let Some(entry) = self.rrt.get(*node) else { continue };
            let is_same = |record: &Record| matches!(record, Record::Node(there) if there.name == entry.record.name);
            if !view.get(key).is_some_and(is_same) {
                self.rrt.remove(*node);
            }
        }
    }

    /// Requests whose answer was not given are in their handshake still.
    fn take_up_finished(&mut self) {
        for (client_id, pending) in std::mem::take(&mut self.finished) {
            self.parts.extend(pending.parts.keys().map(|id| (*id, client_id)));
            self.requests.insert(client_id, pending);
        }
    }

    /// A record is as the store has it, not as it was to be.
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
            RecordKey::CertificateLife => self.memory.certificate_life_ms = 0,
            RecordKey::Quota(of) => self.quotas.remove(of),
            RecordKey::Newcomer | RecordKey::LastRequest(_) | RecordKey::LastPromise => {}
        }
    }

    /// Enters what others have changed.
    fn take_in(&mut self, now_ns: u64, news: Vec<Change>) {
        for change in news {
            match change {
                Change::PutNode(node) => self.enter_node(now_ns, node),
                Change::PutGrant(grant) => {
                    self.note_committing(now_ns, &grant);
                    self.count_as_lent(&grant);
                    self.rat.put(grant);
                }
                Change::PutToken(token) => {
                    let is_used_now = self.tokens.get(&token.id).is_some_and(|before| {
                        before.used_by.is_empty() && !token.used_by.is_empty()
                    });
                    if is_used_now {
                        self.memory.let_in.insert(token.used_by.clone());
                    }
                    self.tokens.insert(token.id, token);
                }
                Change::PutRevocation(revocation) => {
                    self.memory.let_in.remove(&revocation.node);
                    self.revoked.put(revocation);
                }
                other => self.enter(&other),
            }
        }
    }

    fn enter_node(&mut self, now_ns: u64, node: NodeRecord) {
        let (identity, is_turned_out) = (node.identity, node.is_turned_out);
        let (name, is_stopped) = (node.name.clone(), node.is_stopped);
        // Of two agents that were given the same epoch one was not.
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
        if is_turned_out {
            self.mark_down(now_ns, identity);
        }
    }

    /// Until its donor reports, what others have had lent is taken to be gone.
    fn count_as_lent(&mut self, grant: &GrantRecord) {
        if grant.state == GrantState::Committed
            && let Some(mut entry) = self.rrt.get_mut(grant.donor)
            && entry.record.identity.epoch == grant.donor_epoch
            && entry.status.revision < grant.confirmed_revision
        {
            entry.status.revision = grant.confirmed_revision;
            entry.status.free_slabs = entry.status.free_slabs.saturating_sub(grant.slabs);
        }
    }

    /// Grants of this Monitor Node that donors lend, or will, for no request that it has any more.
    fn give_up_orphans(&mut self, undone: &BTreeSet<RecordKey>) {
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
        orphans.into_iter().for_each(|id| self.give_up(id));
    }

    fn send_releases_again(&mut self, ids: Vec<GrantId>) {
        let is_releasing =
            |id: &GrantId| self.rat.get(*id).is_some_and(|it| it.state == GrantState::Releasing);
        let ids = ids.into_iter().filter(is_releasing).collect();
        self.send_releases(ids);
    }
}
