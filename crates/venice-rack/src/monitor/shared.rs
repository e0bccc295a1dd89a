//! One of several Monitor Nodes with the same store, all of which serve the rack: what it has to know of
//! the others, and leaves to them.

use super::MonitorCore;
use super::handshake::GRANT_NUMBERS_AT_ONCE;
use crate::rat::{GrantRecord, GrantState};
use crate::types::{HeldGrant, HeldState, RackError};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use venice_wire::{GrantId, NodeId};

/// What a Monitor Node knows of the others.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Grant numbers that are this one's, in order.
    own: Vec<Range<u64>>,
    /// Grants that others are having committed, and since when that is known.
    committing: BTreeMap<GrantId, u64>,
    /// Grants that donors report and the table does not have, and since when.
    strange: BTreeMap<(NodeId, GrantId), u64>,
    /// Nodes that none of the others hears either; `None`: there are no others.
    silent_elsewhere: Option<BTreeSet<NodeId>>,
}

impl MonitorCore {
    /// There are others with the same store, from the beginning.
    pub(super) fn begin_among_others(&mut self, now_ns: u64) {
        let committing = self.rat.iter().filter(|it| it.state == GrantState::Committing);
        let committing = committing.map(|grant| (grant.id, now_ns)).collect();
        self.shared = Some(Shared { committing, ..Shared::default() });
    }

    /// Numbers that nobody else gives.
    pub(super) fn own_numbers(&mut self, numbers: Range<u64>) {
        let Some(shared) = &mut self.shared else { return };
        match shared.own.last_mut() {
            Some(last) if last.end == numbers.start => last.end = numbers.end,
            _ => shared.own.push(numbers),
        }
    }

    /// The numbers that were taken last are another's, if that was to be the limit with them.
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

    /// This Monitor Node has given that number.
    pub(super) fn is_own(&self, grant: GrantId) -> bool {
        let Some(shared) = &self.shared else { return true };
        let after = shared.own.partition_point(|numbers| numbers.start <= grant.0);
        after > 0 && shared.own[after - 1].contains(&grant.0)
    }

    /// What the other Monitor Nodes say: the nodes that none of them hears; `None` where there are no
    /// others.
    pub fn handle_silent_elsewhere(&mut self, silent: Option<BTreeSet<NodeId>>) {
        if let Some(shared) = &mut self.shared {
            shared.silent_elsewhere = silent;
        }
    }

    /// The nodes that this one does not hear, to tell the others.
    pub fn silent_nodes(&self) -> impl Iterator<Item = NodeId> {
        self.rrt.iter().filter(|(_, entry)| !entry.up).map(|(node, _)| node)
    }

    /// Another Monitor Node hears it: only the way from there to here is broken.
    pub(super) fn is_heard_elsewhere(&self, node: NodeId) -> bool {
        let silent = self.shared.as_ref().and_then(|shared| shared.silent_elsewhere.as_ref());
        silent.is_some_and(|silent| !silent.contains(&node))
    }

    /// Keeps in mind which grants are in somebody else's hands.
    pub(super) fn note_committing(&mut self, now_ns: u64, grant: &GrantRecord) {
        let is_anothers = grant.state == GrantState::Committing && !self.is_own(grant.id);
        let Some(shared) = &mut self.shared else { return };
        if is_anothers {
            shared.committing.entry(grant.id).or_insert(now_ns);
        } else {
            shared.committing.remove(&grant.id);
        }
    }

    /// Who was having them committed is dead, or so slow that it finds them called off.
    pub(super) fn call_off_forsaken(&mut self, now_ns: u64) {
        let patience_ns = self.settings.request_timeout_ns.saturating_mul(2);
        let rat = &self.rat;
        let is_committing =
            |id: &GrantId| rat.get(*id).is_some_and(|it| it.state == GrantState::Committing);
        let Some(shared) = &mut self.shared else { return };
        shared.committing.retain(|id, _| is_committing(id));
        let is_forsaken = |(_, since): &(_, &u64)| since.saturating_add(patience_ns) <= now_ns;
        let forsaken: Vec<GrantId> =
            shared.committing.iter().filter(is_forsaken).map(|(id, _)| *id).collect();
        forsaken.into_iter().for_each(|id| self.give_up(id));
    }

    /// Takes from other Monitor Nodes what they were having committed for this request: its client asks
    /// here now, and hears no other answer.
    pub(super) fn call_off_rivals(&mut self, client_id: u128) {
        let rivals = self
            .rat
            .of_client(client_id)
            .filter(|grant| grant.state == GrantState::Committing && !self.in_handshake(grant.id));
        let rivals: Vec<GrantId> = rivals.map(|grant| grant.id).collect();
        rivals.into_iter().for_each(|id| self.give_up(id));
    }

    /// Whether donors may lend for this request now, as far as the other Monitor Nodes' requests are
    /// known; if not, it is answered.
    pub(super) fn is_ours_to_commit(&mut self, now_ns: u64, client_id: u128) -> bool {
        let Some(pending) = self.requests.get(&client_id).filter(|_| self.shared.is_some()) else {
            return true;
        };
        if let Some(answer) = self.granted_before(client_id, pending.slabs) {
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

    /// Requests whose shares others have called off are theirs.
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

    /// A donor holds a grant that the table does not know: is it another Monitor Node's business, or not
    /// yet told?
    pub(super) fn is_anothers(&mut self, now_ns: u64, donor: NodeId, held: &HeldGrant) -> bool {
        let is_own = self.is_own(held.id);
        let patience_ns = self.settings.silence_ns();
        let Some(shared) = &mut self.shared else { return false };
        if held.state == HeldState::Prepared {
            return !is_own;
        }
        let since_ns = *shared.strange.entry((donor, held.id)).or_insert(now_ns);
        now_ns < since_ns.saturating_add(patience_ns)
    }

    /// A donor's report: what it does not hold, or the table has by now, is strange no more.
    pub(super) fn forget_strange(&mut self, donor: NodeId, held: &BTreeSet<GrantId>) {
        let rat = &self.rat;
        let Some(shared) = &mut self.shared else { return };
        let is_strange = |id: GrantId| held.contains(&id) && rat.get(id).is_none();
        shared.strange.retain(|(of, id), _| *of != donor || is_strange(*id));
    }
}
