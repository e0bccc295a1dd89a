//! Requests and their repetition, perhaps at another Monitor Node: the answers agree.

use super::{Recipient, World, name_of, owner_of};
use crate::model::{MS, Waits};
use std::collections::BTreeSet;
use venice_rack::placement::Policy;
use venice_rack::queueing::{Preempt, Queueing};
use venice_rack::types::{AllocationRequest, Grant, Want};
use venice_wire::SLAB_BYTES;

impl World {
    /// Returns a want for this many slabs.
    pub(super) fn memory(&self, slabs: u32) -> Vec<Want> {
        let bandwidth_bps = u64::from(slabs) * self.slab_bps;
        vec![Want { bandwidth_bps, ..Want::memory(u64::from(slabs) * SLAB_BYTES, 1) }]
    }

    /// Returns the queueing options of the next recipient. The first user is an administrator, the
    /// second is not.
    fn queueing(&self, waits: Option<Waits>) -> Queueing {
        let Some(Waits { wait_ms, priority, preempts }) = waits else {
            return Queueing::default();
        };
        let preempt = match (preempts, self.recipients.len() % 2) {
            (false, _) => Preempt::No,
            (true, 0) => Preempt::All,
            (true, _) => Preempt::Own,
        };
        Queueing { wait_ms, priority, preempt, ..Queueing::default() }
    }

    pub(super) fn request(&mut self, wants: Vec<Want>, named: Option<usize>, waits: Option<Waits>) {
        let queueing = self.queueing(waits);
        let request = AllocationRequest {
            wants,
            client_id: self.recipients.len() as u128 + 1,
            recipient: format!("recipient{}", self.recipients.len()),
            donors: named.map(name_of).into_iter().collect(),
            home: String::new(),
            placement: Some(Policy::ALL[self.recipients.len() % 3]),
            purpose: "model".to_owned(),
            queueing,
        };
        let owner = owner_of(self.recipients.len());
        let (asked_ns, answer, asked) = (self.now_ns, None, self.at);
        let (held, granted, given_back, alive) = (vec![], vec![], BTreeSet::new(), true);
        let recipient =
            Recipient { owner, request, asked_ns, answer, asked, granted, given_back, held, alive };
        self.recipients.push(recipient);
        self.ask(self.recipients.len() - 1);
    }

    /// Sends the recipient's request to the selected Monitor Node; answers of others are ignored
    /// from now on.
    fn ask(&mut self, index: usize) {
        let (at, now_ns) = (self.at, self.now_ns);
        let recipient = &mut self.recipients[index];
        recipient.asked = at;
        let (owner, request) = (recipient.owner.clone(), recipient.request.clone());
        let waited_ms = (now_ns - recipient.asked_ns) / MS;
        let request =
            AllocationRequest { queueing: Queueing { waited_ms, ..request.queueing }, ..request };
        self.queue.note_call(request.client_id, now_ns);
        self.monitors[at].requests.insert(request.client_id);
        let client_id = request.client_id;
        self.note_limits();
        if let Err(error) = self.core().handle_request(now_ns, owner, request) {
            self.queue.answered(client_id);
            self.answered(client_id, Err(error));
        }
        self.collect_actions();
    }

    pub(super) fn ask_again(&mut self, pick: usize) {
        let waits = |index: &usize| {
            let recipient = &self.recipients[*index];
            recipient.alive && recipient.answer.is_none()
        };
        let waiting: Vec<usize> = (0..self.recipients.len()).filter(waits).collect();
        if !waiting.is_empty() {
            self.ask(waiting[pick % waiting.len()]);
        }
    }

    /// A recipient repeats its request, answered or not.
    pub(super) fn repeat(&mut self, pick: usize) {
        let is_alive = |index: &usize| self.recipients[*index].alive;
        let alive: Vec<usize> = (0..self.recipients.len()).filter(is_alive).collect();
        if !alive.is_empty() {
            self.ask(alive[pick % alive.len()]);
        }
    }

    /// Checks that a request is granted once, at whichever Monitor Node: an earlier grant has
    /// ended, or is granted again.
    pub(super) fn check_single(&mut self, client_id: u128, grants: Option<&Vec<Grant>>) {
        let Some(grants) = grants else { return };
        let recipient = &mut self.recipients[client_id as usize - 1];
        // The Monitor Node called before answers late, and has not received the release.
        if grants.iter().any(|grant| recipient.given_back.contains(&grant.id)) {
            return;
        }
        let before = std::mem::replace(&mut recipient.granted, grants.clone());
        let ids = |grants: &[Grant]| grants.iter().map(|grant| grant.id).collect::<Vec<_>>();
        if before.is_empty() || ids(&before) == ids(grants) {
            return;
        }
        let is_lent = |grant: &Grant| {
            let donor = &self.donors[grant.donor_node.0 as usize - 1];
            let is_same = donor.identity.is_some_and(|it| it.epoch == grant.donor_epoch);
            // A donor may not have received its release yet.
            let is_granted = self.etcd.is_granted(grant.id);
            donor.alive && is_same && is_granted && donor.core.grant(grant.id).is_some()
        };
        assert!(!before.iter().all(is_lent), "request {client_id} was granted twice");
    }
}
