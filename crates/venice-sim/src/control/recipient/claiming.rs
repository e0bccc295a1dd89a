//! Programs that take over what was transferred to their user: performs what the logic of a claim
//! asks for.

use venice_rack::borrower::{Claiming, ClaimingOutput};
use venice_rack::monitor_node::{Call, Reply};
use venice_rack::types::ClaimRequest;

use super::holding::{ANSWER_WITHIN_NS, donor_of, renewed};
use super::{Doing, Origin, Recipient, RecipientTag, RecipientTimer};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};

/// Longest wait for something to claim.
const MAX_WAIT_NS: u64 = 2_000_000_000;

impl Recipient {
    /// Begins a program that claims.
    pub(super) fn begin_claim(&mut self, desk: &mut Desk<'_>) {
        self.programs += 1;
        self.line.connect(desk);
        let request = ClaimRequest { recipient: self.name(), transfer: None };
        let (local_ns, within_ns) = (self.clock.at(desk.now_ns), desk.rng.below(MAX_WAIT_NS));
        let claiming = Claiming::new(local_ns, request, within_ns);
        self.doing = Doing::Claiming { claiming, renews_ns: 0 };
        self.claim(desk);
    }

    /// Performs all outputs, and sets the next timer.
    pub(super) fn claim(&mut self, desk: &mut Desk<'_>) {
        let program = self.programs;
        while let Doing::Claiming { claiming, renews_ns } = &mut self.doing
            && let Some(output) = claiming.poll_output()
        {
            match output {
                ClaimingOutput::Claim(request) => {
                    let call = Call::Claim(super::owner_of(self.number, self.donors), request);
                    self.line.call(desk, call, RecipientTag::Claim { program }, false);
                }
                ClaimingOutput::Renew(index, grant) => {
                    *renews_ns = desk.now_ns;
                    let tag = Tag::Recipient(RecipientTag::Accept { program, index });
                    let request = Request::Renew(grant.id, grant.key);
                    desk.call(donor_of(&grant), request, ANSWER_WITHIN_NS, tag);
                }
                // What it could not renew it leaves alone.
                ClaimingOutput::Claimed { live, .. } if !live.is_empty() => {
                    desk.fact(Fact::Claims { grants: live.len() as u64 });
                    let origin = Origin { wants: None, asked_ns: *renews_ns };
                    return self.take(desk, live, origin);
                }
                ClaimingOutput::Claimed { .. } | ClaimingOutput::Failed(_) => {
                    return self.idle(desk);
                }
            }
        }
        let Doing::Claiming { claiming, .. } = &self.doing else { return };
        if let Some(due_ns) = claiming.poll_timeout() {
            let left_ns = due_ns.saturating_sub(self.clock.at(desk.now_ns));
            let timer = Timer::Recipient(RecipientTimer::Claim { program });
            desk.timer(self.clock.takes_ns(left_ns), timer);
        }
    }

    /// Does what is due.
    pub(super) fn claim_due(&mut self, desk: &mut Desk<'_>) {
        let local_ns = self.clock.at(desk.now_ns);
        if let Doing::Claiming { claiming, .. } = &mut self.doing {
            claiming.handle_timeout(local_ns);
            self.claim(desk);
        }
    }

    pub(super) fn claimed(&mut self, desk: &mut Desk<'_>, outcome: Result<Response, Broken>) {
        let local_ns = self.clock.at(desk.now_ns);
        let Doing::Claiming { claiming, .. } = &mut self.doing else { return };
        let result = self.line.result(desk, outcome, |reply| match reply {
            Reply::Claimed(claimed) => claimed,
            other => unreachable!("a claim is answered by {other:?}"),
        });
        let Some(result) = result else { return };
        claiming.handle_claimed(local_ns, result);
        self.claim(desk);
    }

    pub(super) fn accepted(
        &mut self,
        desk: &mut Desk<'_>,
        index: usize,
        outcome: Result<Response, Broken>,
    ) {
        let Doing::Claiming { claiming, .. } = &mut self.doing else { return };
        claiming.handle_renewed(index, &renewed(outcome));
        self.claim(desk);
    }
}
