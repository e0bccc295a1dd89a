//! Recipients ask, and ask again.

use super::{Recipient, World, name_of, owner_of};
use crate::model::MS;
use venice_rack::placement::Policy;
use venice_rack::queueing::Queueing;
use venice_rack::types::MemoryRequest;
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
            purpose: "model".to_owned(),
            queueing,
        };
        let owner = owner_of(self.recipients.len());
        self.ledger.check(&request.recipient, &owner.user);
        self.line.asks(request.client_id, self.now_ns);
        self.monitor.handle_request(self.now_ns, owner.clone(), request.clone()).unwrap();
        let (asked_ns, answer) = (self.now_ns, None);
        let recipient = Recipient { owner, request, asked_ns, answer, held: vec![], alive: true };
        self.recipients.push(recipient);
    }

    pub(super) fn ask_again(&mut self, pick: usize) {
        let waits = |recipient: &&mut Recipient| recipient.alive && recipient.answer.is_none();
        let mut waiting: Vec<_> = self.recipients.iter_mut().filter(waits).collect();
        let count = waiting.len();
        if count > 0 {
            let recipient = &mut waiting[pick % count];
            let (owner, request) = (recipient.owner.clone(), recipient.request.clone());
            let waited_ms = (self.now_ns - recipient.asked_ns) / MS;
            let request =
                MemoryRequest { queueing: Queueing { waited_ms, ..request.queueing }, ..request };
            self.ledger.check(&request.recipient, &owner.user);
            self.line.asks(request.client_id, self.now_ns);
            self.monitor.handle_request(self.now_ns, owner, request).unwrap();
            self.hear_monitor();
        }
    }
}
