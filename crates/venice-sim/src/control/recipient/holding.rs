//! Grants in use: performs what the logic of `venice-recipient` asks for.

use venice_rack::lease_holder::{LeaseHolder, Output, RenewalCall, Renewed};
use venice_rack::monitor_node::Call;
use venice_rack::types::{Grant, LeaseState, Want};

use super::line::HANGS_NS;
use super::{Doing, Recipient, RecipientTag, RecipientTimer, leases};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// Time limit of a donor's answer.
pub(super) const ANSWER_WITHIN_NS: u64 = 3_000_000_000;

/// A program that holds grants.
pub(super) struct Holding {
    holder: LeaseHolder,
    /// The origin of grants that it does not use yet.
    unused: Option<Origin>,
}

/// The origin of grants.
pub(super) struct Origin {
    /// The request, of which it uses all or none; `None`: a claim.
    pub(super) wants: Option<Vec<Want>>,
    /// Time of the beginning, or of a renewal before their use: their leases began later.
    pub(super) asked_ns: u64,
}

impl Recipient {
    /// Takes grants, and uses them at once, or after a renewal that they need.
    pub(super) fn take(&mut self, desk: &mut Desk<'_>, grants: Vec<Grant>, mut origin: Origin) {
        let mut holder = LeaseHolder::new(grants, self.clock.at(origin.asked_ns));
        holder.confirm(self.clock.at(desk.now_ns));
        if holder.confirms_until_ns().is_some() {
            origin.asked_ns = desk.now_ns;
        }
        self.doing = Doing::Holding(Holding { holder, unused: Some(origin) });
        self.keep(desk);
    }

    /// Begins to use its grants, once they are confirmed; false: it releases them, as some are lost.
    fn use_them(&mut self, desk: &mut Desk<'_>) -> bool {
        let (recipient, client_id) = (self.number, self.client_id());
        let Doing::Holding(Holding { holder, unused }) = &mut self.doing else { return true };
        let Some(origin) = unused.take_if(|_| holder.confirms_until_ns().is_none()) else {
            return true;
        };
        if origin.wants.is_some() && holder.lost().next().is_some() {
            self.give_back(desk);
            return false;
        }
        let grants = holder.held().map(|(_, grant)| grant.clone()).collect();
        let (wants, asked_ns) = (origin.wants.unwrap_or_default(), origin.asked_ns);
        desk.fact(Fact::Takes { recipient, client_id, grants, wants, asked_ns });
        let holds_ns = match self.is_ending {
            true => desk.rng.below(500_000_000),
            false => desk.rng.below(2 * self.workload.hold.0),
        };
        let program = self.programs;
        desk.timer(holds_ns, Timer::Recipient(RecipientTimer::Done { program }));
        true
    }

    /// Does what is due, and sets the next timer.
    pub(super) fn keep(&mut self, desk: &mut Desk<'_>) {
        let local_ns = self.clock.at(desk.now_ns);
        let Doing::Holding(Holding { holder, .. }) = &mut self.doing else { return };
        holder.handle_timeout(local_ns);
        if !self.use_them(desk) {
            return;
        }
        let mut is_wanted = false;
        while let Doing::Holding(Holding { holder, .. }) = &mut self.doing
            && let Some(output) = holder.poll_output()
        {
            is_wanted |= matches!(output, Output::Wanted(..));
            self.perform(desk, output);
        }
        let Doing::Holding(Holding { holder, .. }) = &self.doing else { return };
        let Some(next_ns) = holder.poll_timeout() else {
            self.idle(desk);
            if let Some(wish) = self.probe.clone() {
                self.begin(desk, wish);
            }
            return;
        };
        // Some programs cannot move their data.
        if is_wanted && self.probe.is_none() && self.programs.is_multiple_of(2) {
            return self.give_back(desk);
        }
        let at_ns = desk.now_ns + self.clock.takes_ns(next_ns.saturating_sub(local_ns));
        if self.keeps_ns.is_none_or(|set_ns| set_ns <= desk.now_ns || at_ns < set_ns) {
            self.keeps_ns = Some(at_ns);
            desk.timer(at_ns - desk.now_ns, Timer::Recipient(RecipientTimer::Keep));
        }
    }

    fn perform(&self, desk: &mut Desk<'_>, output: Output) {
        let Doing::Holding(Holding { holder, .. }) = &self.doing else { return };
        match output {
            Output::Renew(call) => {
                let grant = holder.grant(call.index);
                let request = Request::Renew(grant.id, grant.key);
                let tag = RecipientTag::Renew { program: self.programs, call };
                desk.call(donor_of(grant), request, ANSWER_WITHIN_NS, Tag::Recipient(tag));
            }
            Output::GiveBack(index) => {
                let leases = leases(std::slice::from_ref(holder.grant(index)));
                let request = Call::Release(leases).into();
                desk.call(
                    self.line.party(),
                    request,
                    HANGS_NS,
                    Tag::Recipient(RecipientTag::Leave),
                );
            }
            Output::Lost(index, _) => desk.fact(Fact::Leaves { grant: holder.grant(index).id }),
            Output::Wanted(..) | Output::Due(_) => {}
        }
    }

    pub(super) fn renewed(
        &mut self,
        desk: &mut Desk<'_>,
        call: RenewalCall,
        outcome: Result<Response, Broken>,
    ) {
        let Doing::Holding(Holding { holder, .. }) = &mut self.doing else { return };
        holder.handle_renewed(call, renewed(outcome));
        self.keep(desk);
    }

    /// Returns its grants, in use or about to be.
    pub(in crate::control) fn held(&self) -> impl Iterator<Item = &Grant> {
        let holder = match &self.doing {
            Doing::Holding(Holding { holder, .. }) => Some(holder),
            Doing::Idle
            | Doing::Asking(_)
            | Doing::Refused { .. }
            | Doing::Claiming { .. }
            | Doing::GivingBack(_) => None,
        };
        holder.into_iter().flat_map(LeaseHolder::held).map(|(_, grant)| grant)
    }
}

/// Returns the donor of a grant.
pub(super) fn donor_of(grant: &Grant) -> Party {
    Party::Donor(crate::control::agent::number_of(&grant.donor).unwrap_or_default())
}

/// Returns the result of a renewal.
pub(super) fn renewed(outcome: Result<Response, Broken>) -> Renewed {
    match outcome {
        Ok(Response::Lease(LeaseState::Live { notice, .. })) => Renewed::Live(notice),
        Ok(Response::Lease(LeaseState::Transferred { to })) => Renewed::Transferred(to),
        Ok(Response::Lease(LeaseState::Unknown)) => Renewed::Unknown,
        Err(Broken::Refused) => Renewed::Refused,
        Ok(_) | Err(_) => Renewed::Unreachable,
    }
}
