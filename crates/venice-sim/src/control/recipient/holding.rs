//! Grants in use: performs what the logic of `venice-recipient` asks for.

use venice_rack::lease_holder::{LeaseHolder, Output, RenewalCall, Renewed};
use venice_rack::monitor_node::Call;
use venice_rack::types::{Grant, LeaseState, Want};

use super::{Doing, GIVES_BACK_NS, Recipient, RecipientTag, RecipientTimer, leases};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// Time limit of a donor's answer.
const ANSWER_WITHIN_NS: u64 = 3_000_000_000;

impl Recipient {
    /// Takes its grants, by a request sent at that time.
    pub(super) fn take(
        &mut self,
        desk: &mut Desk<'_>,
        grants: Vec<Grant>,
        wants: Vec<Want>,
        (first_ns, asked_ns): (u64, u64),
    ) {
        let (recipient, client_id) = (self.number, self.client_id());
        let told = grants.clone();
        // While it is queued at one Monitor Node, another may grant its earlier request there.
        let asked_ns_of_all = if self.monitors > 1 { first_ns } else { asked_ns };
        desk.fact(Fact::Takes {
            recipient,
            client_id,
            grants: told,
            wants,
            asked_ns: asked_ns_of_all,
        });
        self.doing = Doing::Holding(LeaseHolder::new(grants, self.clock.at(asked_ns)));
        self.keep(desk);
        let holds_ns = match self.is_ending {
            true => desk.rng.below(500_000_000),
            false => desk.rng.below(2 * self.workload.hold.0),
        };
        let program = self.programs;
        desk.timer(holds_ns, Timer::Recipient(RecipientTimer::Done { program }));
    }

    /// Does what is due, and sets the next timer.
    pub(super) fn keep(&mut self, desk: &mut Desk<'_>) {
        let local_ns = self.clock.at(desk.now_ns);
        let Doing::Holding(holder) = &mut self.doing else { return };
        holder.handle_timeout(local_ns);
        let mut is_wanted = false;
        while let Doing::Holding(holder) = &mut self.doing
            && let Some(output) = holder.poll_output()
        {
            is_wanted |= matches!(output, Output::Wanted(..));
            self.perform(desk, output);
        }
        let Doing::Holding(holder) = &self.doing else { return };
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
        let Doing::Holding(holder) = &self.doing else { return };
        match output {
            Output::Renew(call) => {
                let grant = holder.grant(call.index);
                let donor = crate::control::agent::number_of(&grant.donor).unwrap_or_default();
                let request = Request::Renew(grant.id, grant.key);
                let tag = RecipientTag::Renew { program: self.programs, call };
                desk.call(Party::Donor(donor), request, ANSWER_WITHIN_NS, Tag::Recipient(tag));
            }
            Output::GiveBack(index) => {
                let leases = leases(std::slice::from_ref(holder.grant(index)));
                let request = Call::Release(leases).into();
                let at = Party::Monitor(desk.rng.below(self.monitors.into()) as u16);
                desk.call(at, request, GIVES_BACK_NS, Tag::Recipient(RecipientTag::Leave));
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
        let Doing::Holding(holder) = &mut self.doing else { return };
        let renewed = match outcome {
            Ok(Response::Lease(LeaseState::Live { notice, .. })) => Renewed::Live(notice),
            Ok(Response::Lease(LeaseState::Transferred { to })) => Renewed::Transferred(to),
            Ok(Response::Lease(LeaseState::Unknown)) => Renewed::Unknown,
            Err(Broken::Refused) => Renewed::Refused,
            Ok(_) | Err(_) => Renewed::Unreachable,
        };
        holder.handle_renewed(call, renewed);
        self.keep(desk);
    }
}
