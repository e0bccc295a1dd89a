//! Requests and their repetition, perhaps at another Monitor Node: the answers agree.

use super::{Recipient, World, name_of, owner_of};
use crate::model::MS;
use std::collections::BTreeSet;
use venice_rack::placement::Policy;
use venice_rack::queueing::Queueing;
use venice_rack::types::{Grant, MemoryRequest};
use venice_wire::{ByteSize, SLAB_BYTES};

impl World {
    pub(super) fn request(&mut self, slabs: u32, named: Option<usize>, queueing: Queueing) {
        let request = MemoryRequest {
            client_id: self.recipients.len() as u128 + 1,
            recipient: format!("recipient{}", self.recipients.len()),
            bytes: ByteSize(u64::from(slabs) * SLAB_BYTES),
            copies: 1,
            donors: named.map(name_of).into_iter().collect(),
            home: String::new(),
            placement: Some(Policy::ALL[self.recipients.len() % 3]),
            bandwidth_bps: u64::from(slabs) * self.slab_bps,
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
            MemoryRequest { queueing: Queueing { waited_ms, ..request.queueing }, ..request };
        self.queue.note_call(request.client_id, now_ns);
        self.monitors[at].requests.insert(request.client_id);
        self.core().handle_request(now_ns, owner, request).unwrap();
        self.note_limits();
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
            donor.alive && is_same && donor.core.grant(grant.id).is_some()
        };
        assert!(!before.iter().all(is_lent), "request {client_id} was granted twice");
    }
}
