//! Programs that hand their grants to another user's program: the old owner goes on using its
//! grants until it is told of the transfer, or its donor refuses a renewal.

use venice_rack::caller::{Owner, User};
use venice_rack::monitor_node::{Call, Reply};
use venice_rack::types::{TransferRequest, Transferred};
use venice_wire::GrantId;

use super::{Cause, Recipient, RecipientTag, RecipientTimer, owner_of};
use crate::control::desk::{Desk, Fact, Timer};
use crate::control::messages::{Broken, Response};

impl Recipient {
    /// Begins to transfer all its grants; false: to nobody.
    pub(super) fn hand_over(&mut self, desk: &mut Desk<'_>) -> bool {
        let grants: Vec<GrantId> = self.held().map(|grant| grant.id).collect();
        if self.recipients < 2 || self.handing.is_some() || grants.is_empty() {
            return false;
        }
        let step = 1 + desk.rng.below(u64::from(self.recipients) - 1) as u16;
        let to = owner_of((self.number + step) % self.recipients, self.donors);
        self.handings += 1;
        let client_id = self.client_id() | u128::from(self.handings) << 64;
        let claim_ms = desk.rng.below(self.lease_ns / 1_000_000);
        let request = TransferRequest { client_id, grants, to, claim_ms };
        let (recipient, grants) = (self.number, request.grants.clone());
        desk.fact(Fact::HandsOver { recipient, client_id, grants });
        let Owner { node, user: name, .. } = self.owner();
        let by = User { node, uid: 1000, name, is_admin: false };
        self.handing = Some(request.clone());
        self.line.connect(desk);
        let tag = RecipientTag::Transfer { program: self.programs };
        self.line.call(desk, Call::Transfer(by, request), tag, false);
        true
    }

    pub(super) fn transferred(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        if self.handing.is_none() {
            return;
        }
        let result = self.line.result(desk, outcome, |reply| match reply {
            Reply::Transferred(rows) => rows,
            other => unreachable!("a transfer is answered by {other:?}"),
        });
        let Some(result) = result else { return };
        let Some(request) = self.handing.take() else { return };
        match result {
            Ok(rows) => self.handed_over(desk, request.client_id, rows),
            Err(cause) => self.keeps(desk, request, cause),
        }
    }

    fn handed_over(&mut self, desk: &mut Desk<'_>, client_id: u128, rows: Vec<Transferred>) {
        for row in &rows {
            desk.fact(Fact::Leaves { grant: row.from });
        }
        desk.fact(Fact::HandedOver { client_id, rows });
        self.idle(desk);
    }

    /// Goes on with its grants.
    fn keeps(&mut self, desk: &mut Desk<'_>, request: TransferRequest, cause: Cause) {
        // A call without an answer may have been executed.
        self.is_in_doubt |= self.line.is_in_doubt();
        if let Some(error) = cause.filter(|_| !self.is_in_doubt) {
            let TransferRequest { client_id, grants, .. } = request;
            desk.fact(Fact::KeptAll { client_id, grants, why: error.to_string() });
        }
        let (program, after_ns) = (self.programs, desk.rng.below(1_000_000_000));
        desk.timer(after_ns, Timer::Recipient(RecipientTimer::Done { program }));
    }
}
