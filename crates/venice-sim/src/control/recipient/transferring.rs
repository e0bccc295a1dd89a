//! Programs that hand their grants to another user's program, and programs that take them over.
//!
//! The old owner goes on using its grants until it is told of the transfer, or its donor refuses a
//! renewal. The new owner claims what was transferred to it, and uses what it could renew.

use venice_rack::caller::{Owner, User};
use venice_rack::monitor_node::{Call, Reply};
use venice_rack::types::{
    ClaimRequest, Grant, LeaseState, RackError, TransferRequest, Transferred,
};
use venice_wire::GrantId;

use super::{Doing, HANGS_NS, PATIENCE_NS, PAUSE_NS, Recipient, RecipientTag, RecipientTimer};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// Time limit of a donor's answer.
const ANSWER_WITHIN_NS: u64 = 3_000_000_000;

/// A transfer that this program asked for.
pub(super) struct Handing {
    request: TransferRequest,
    at: u16,
    began_ns: u64,
    tries: u32,
}

/// A program that takes over what was transferred to its user.
pub(super) enum Claiming {
    Asking {
        at: u16,
        began_ns: u64,
    },
    /// It renews the grants before it uses any.
    Renewing {
        left: Vec<(Grant, bool)>,
        live: Vec<Grant>,
        sent_ns: u64,
    },
}

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
        let at = desk.rng.below(self.monitors.into()) as u16;
        self.handing = Some(Handing { request, at, began_ns: desk.now_ns, tries: 0 });
        self.ask_transfer(desk);
        true
    }

    pub(super) fn ask_transfer(&mut self, desk: &mut Desk<'_>) {
        let Owner { node, user: name, .. } = self.owner();
        let by = User { node, uid: 1000, name, is_admin: false };
        let Some(handing) = self.handing.as_mut() else { return };
        handing.tries += 1;
        let request = Call::Transfer(by, handing.request.clone()).into();
        let tag = RecipientTag::Transfer { program: self.programs };
        desk.call(Party::Monitor(handing.at), request, HANGS_NS, Tag::Recipient(tag));
    }

    pub(super) fn transferred(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let Some(handing) = self.handing.as_mut() else { return };
        match outcome {
            Ok(Response::Replied(Reply::Transferred(Ok(rows)))) => self.handed_over(desk, rows),
            Ok(Response::Replied(Reply::Transferred(Err(error)))) => self.keeps(desk, &error),
            Ok(other) => unreachable!("a transfer is answered by {other:?}"),
            Err(_) if desk.now_ns > handing.began_ns + PATIENCE_NS => {
                // It may have been made.
                (self.handing, self.is_in_doubt) = (None, true);
            }
            Err(_) => {
                handing.at = (handing.at + 1) % self.monitors;
                let program = self.programs;
                let again = RecipientTimer::Transfer { program };
                desk.timer(PAUSE_NS, Timer::Recipient(again));
            }
        }
    }

    fn handed_over(&mut self, desk: &mut Desk<'_>, rows: Vec<Transferred>) {
        let Some(handing) = self.handing.take() else { return };
        let client_id = handing.request.client_id;
        for row in &rows {
            desk.fact(Fact::Leaves { grant: row.from });
        }
        desk.fact(Fact::HandedOver { client_id, rows });
        self.idle(desk);
    }

    /// Goes on with its grants.
    fn keeps(&mut self, desk: &mut Desk<'_>, error: &RackError) {
        let Some(handing) = self.handing.take() else { return };
        // An earlier call may have been executed.
        self.is_in_doubt |= handing.tries > 1;
        if !self.is_in_doubt {
            let (client_id, why) = (handing.request.client_id, error.to_string());
            desk.fact(Fact::KeptAll { client_id, grants: handing.request.grants, why });
        }
        let (program, after_ns) = (self.programs, desk.rng.below(1_000_000_000));
        desk.timer(after_ns, Timer::Recipient(RecipientTimer::Done { program }));
    }

    /// Begins a program that claims.
    pub(super) fn begin_claim(&mut self, desk: &mut Desk<'_>) {
        self.programs += 1;
        let at = desk.rng.below(self.monitors.into()) as u16;
        self.doing = Doing::Claiming(Claiming::Asking { at, began_ns: desk.now_ns });
        self.ask_claim(desk);
    }

    pub(super) fn ask_claim(&mut self, desk: &mut Desk<'_>) {
        let Doing::Claiming(Claiming::Asking { at, .. }) = &self.doing else { return };
        let claim = ClaimRequest { recipient: self.name(), transfer: None };
        let tag = RecipientTag::Claim { program: self.programs };
        let request = Call::Claim(self.owner(), claim).into();
        desk.call(Party::Monitor(*at), request, HANGS_NS, Tag::Recipient(tag));
    }

    pub(super) fn claimed(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let Doing::Claiming(Claiming::Asking { at, began_ns }) = &mut self.doing else { return };
        let began_ns = *began_ns;
        match outcome {
            Ok(Response::Replied(Reply::Claimed(Ok(grants)))) if !grants.is_empty() => {
                self.renew_claimed(desk, grants);
            }
            Ok(Response::Replied(Reply::Claimed(_))) => self.idle(desk),
            Ok(other) => unreachable!("a claim is answered by {other:?}"),
            Err(_) if self.is_ending || desk.now_ns > began_ns + PATIENCE_NS => self.idle(desk),
            Err(_) => {
                *at = (*at + 1) % self.monitors;
                let again = RecipientTimer::Claim { program: self.programs };
                desk.timer(PAUSE_NS, Timer::Recipient(again));
            }
        }
    }

    fn renew_claimed(&mut self, desk: &mut Desk<'_>, grants: Vec<Grant>) {
        let program = self.programs;
        for (index, grant) in grants.iter().enumerate() {
            let donor = crate::control::agent::number_of(&grant.donor).unwrap_or_default();
            let request = Request::Renew(grant.id, grant.key);
            let tag = RecipientTag::Accept { program, index };
            desk.call(Party::Donor(donor), request, ANSWER_WITHIN_NS, Tag::Recipient(tag));
        }
        let left = grants.into_iter().map(|grant| (grant, true)).collect();
        let (live, sent_ns) = (Vec::new(), desk.now_ns);
        self.doing = Doing::Claiming(Claiming::Renewing { left, live, sent_ns });
    }

    pub(super) fn accepted(
        &mut self,
        desk: &mut Desk<'_>,
        index: usize,
        outcome: Result<Response, Broken>,
    ) {
        let Doing::Claiming(Claiming::Renewing { left, live, sent_ns, .. }) = &mut self.doing
        else {
            return;
        };
        let (grant, is_open) = &mut left[index];
        *is_open = false;
        if let Ok(Response::Lease(LeaseState::Live { .. })) = outcome {
            live.push(grant.clone());
        }
        if left.iter().any(|(_, is_open)| *is_open) {
            return;
        }
        let (grants, sent_ns) = (std::mem::take(live), *sent_ns);
        // What it could not renew in time it leaves alone.
        if grants.is_empty() || desk.now_ns > sent_ns + self.lease_ns / 2 {
            return self.idle(desk);
        }
        desk.fact(Fact::Claims { grants: grants.len() as u64 });
        self.take(desk, grants, Vec::new(), (sent_ns, sent_ns));
    }
}

/// Returns the user of a recipient's node: two users share the nodes.
pub(super) fn owner_of(number: u16, donors: u16) -> Owner {
    let user = ["alice", "bob"][usize::from(number % 2)];
    let node = crate::control::agent::name_of(number % donors);
    Owner { node, user: user.to_owned(), is_bound: false }
}
