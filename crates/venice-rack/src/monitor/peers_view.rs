//! Several Monitor Nodes with the same store that serve one rack: what one knows of its peers, and
//! leaves to them.

use super::MonitorCore;
use super::handshake::GRANT_NUMBERS_AT_ONCE;
use crate::rat::{GrantRecord, GrantState};
use crate::types::{HeldGrant, HeldState, RackError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use venice_wire::{GrantId, NodeId};

/// A Monitor Node's view of its peers.
#[derive(Debug, Default)]
pub(super) struct PeersView {
    /// Grant numbers of this Monitor Node, in order.
    own: Vec<Range<u64>>,
    /// Grants that peers are committing, with the time they were first seen.
    committing: BTreeMap<GrantId, u64>,
    /// Grants that donors report and the table lacks, with the time they were first seen.
    unknown: BTreeMap<(NodeId, GrantId), u64>,
    /// Nodes that no peer hears either; `None`: there are no peers.
    silent_at_peers: Option<BTreeSet<NodeId>>,
}

impl MonitorCore {
    /// Marks the store as shared with peers, from the beginning.
    pub(super) fn begin_with_peers(&mut self, now_ns: u64) {
        let committing = self.rat.iter().filter(|it| it.state == GrantState::Committing);
        let committing = committing.map(|grant| (grant.id, now_ns)).collect();
        self.shared = Some(PeersView { committing, ..PeersView::default() });
    }

    /// Records numbers that no peer uses.
    pub(super) fn own_numbers(&mut self, numbers: Range<u64>) {
        let Some(shared) = &mut self.shared else { return };
        match shared.own.last_mut() {
            Some(last) if last.end == numbers.start => last.end = numbers.end,
            _ => shared.own.push(numbers),
        }
    }

    /// Returns the numbers taken last, if their record was to be this limit: a peer took them.
    pub(super) fn disown_numbers(&mut self, limit: u64) {
        if self.range_end != limit {
            return;
        }
        self.next_grant = limit;
        let from = limit.saturating_sub(GRANT_NUMBERS_AT_ONCE);
        let Some(shared) = &mut self.shared else { return };
        if let Some(mut last) = shared.own.pop_if(|last| last.end == limit) {
            last.end = from;
            if !last.is_empty() {
                shared.own.push(last);
            }
        }
    }

    /// True if this Monitor Node has given that number.
    pub(super) fn is_own(&self, grant: GrantId) -> bool {
        let Some(shared) = &self.shared else { return true };
        let after = shared.own.partition_point(|numbers| numbers.start <= grant.0);
        after > 0 && shared.own[after - 1].contains(&grant.0)
    }

    /// Takes the report of the peers: the nodes that none of them hears; `None` without peers.
    pub fn handle_silent_at_peers(&mut self, silent: Option<BTreeSet<NodeId>>) {
        if let Some(shared) = &mut self.shared {
            shared.silent_at_peers = silent;
        }
    }

    /// Iterates over the nodes that this Monitor Node does not hear, for its peers.
    pub fn silent_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.rrt.iter().filter(|(_, entry)| !entry.up).map(|(node, _)| node)
    }

    /// True if a peer hears the node: only its path to this Monitor Node is broken.
    pub(super) fn is_heard_by_peer(&self, node: NodeId) -> bool {
        let silent = self.shared.as_ref().and_then(|shared| shared.silent_at_peers.as_ref());
        silent.is_some_and(|silent| !silent.contains(&node))
    }

    /// Records that a peer is committing a grant.
    pub(super) fn note_committing(&mut self, now_ns: u64, grant: &GrantRecord) {
        let belongs_to_peer = grant.state == GrantState::Committing && !self.is_own(grant.id);
        let Some(shared) = &mut self.shared else { return };
        if belongs_to_peer {
            shared.committing.entry(grant.id).or_insert(now_ns);
        } else {
            shared.committing.remove(&grant.id);
        }
    }

    /// Takes back grants whose committing peer is dead, or so slow that it finds them called off.
    pub(super) fn take_back_orphans_of_peers(&mut self, now_ns: u64) {
        let patience_ns = self.settings.request_timeout_ns.saturating_mul(2);
        let rat = &self.rat;
        let is_committing =
            |id: &GrantId| rat.get(*id).is_some_and(|it| it.state == GrantState::Committing);
        let Some(shared) = &mut self.shared else { return };
        shared.committing.retain(|id, _| is_committing(id));
        let is_orphan = |(_, since): &(_, &u64)| since.saturating_add(patience_ns) <= now_ns;
        let orphans: Vec<GrantId> =
            shared.committing.iter().filter(is_orphan).map(|(id, _)| *id).collect();
        orphans.into_iter().for_each(|id| self.take_back_grant(id));
    }

    /// Takes from peers what they were committing for this request: its client now asks here, and
    /// ignores other answers.
    pub(super) fn call_off_rivals(&mut self, client_id: u128) {
        let rivals = self
            .rat
            .of_client(client_id)
            .filter(|grant| grant.state == GrantState::Committing && !self.in_handshake(grant.id));
        let rivals: Vec<GrantId> = rivals.map(|grant| grant.id).collect();
        rivals.into_iter().for_each(|id| self.take_back_grant(id));
    }

    /// True if donors may lend for this request now, as far as the peers' requests are known; if
    /// not, the request is answered.
    pub(super) fn is_ours_to_commit(&mut self, now_ns: u64, client_id: u128) -> bool {
        let Some(pending) = self.requests.get(&client_id).filter(|_| self.shared.is_some()) else {
            return true;
        };
        if let Some(answer) = self.granted_before(&pending.checked.request).transpose() {
            self.withdraw(client_id, answer);
            return false;
        }
        if let Err(error) = self.check_quota_again(client_id) {
            self.fail(now_ns, client_id, error);
            return false;
        }
        if self.gives_back_overloading(now_ns, client_id) {
            return false;
        }
        self.call_off_rivals(client_id);
        true
    }

    /// Drops requests whose shares peers have called off: they belong to those.
    pub(super) fn yield_lost_requests(&mut self) {
        use super::pending::PartState::{Committed, Committing};
        let is_kept = |id: GrantId| {
            self.rat.get(id).is_some_and(|grant| grant.state == GrantState::Committing)
        };
        let lost = self.requests.iter().filter(|(_, pending)| {
            let mut recorded = pending
                .parts
                .iter()
                .filter(|(_, part)| matches!(part.state, Committing | Committed));
            recorded.any(|(id, _)| !is_kept(*id))
        });
        let lost: Vec<u128> = lost.map(|(client_id, _)| *client_id).collect();
        for client_id in lost {
            self.withdraw(client_id, Err(RackError::HandshakeFailed));
        }
    }

    /// True if a grant that a donor reports and the table lacks belongs to a peer, or is not yet
    /// known here.
    pub(super) fn belongs_to_peer(&mut self, now_ns: u64, donor: NodeId, held: &HeldGrant) -> bool {
        let is_own = self.is_own(held.id);
        let patience_ns = self.settings.silence_ns();
        let Some(shared) = &mut self.shared else { return false };
        if held.state == HeldState::Prepared {
            return !is_own;
        }
        let since_ns = *shared.unknown.entry((donor, held.id)).or_insert(now_ns);
        now_ns < since_ns.saturating_add(patience_ns)
    }

    /// Forgets unknown grants that the donor's report lacks or the table has by now.
    pub(super) fn forget_unknown_grants(&mut self, donor: NodeId, held: &BTreeSet<GrantId>) {
        let rat = &self.rat;
        let Some(shared) = &mut self.shared else { return };
        let is_unknown = |id: GrantId| held.contains(&id) && rat.get(id).is_none();
        shared.unknown.retain(|(of, id), _| *of != donor || is_unknown(*id));
    }
}
