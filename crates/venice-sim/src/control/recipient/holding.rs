//! Grants in use: renewed at their donors, abandoned in time.

use venice_rack::types::{Grant, LeaseState, Want};

use super::{Doing, Recipient, RecipientTag, RecipientTimer};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, Request, Response};
use crate::control::party::Party;

/// Divisor of the lease: a grant is abandoned when this part of it is left.
const MARGIN_PARTS: u64 = 4;
/// Time limit of a donor's answer.
const ANSWER_WITHIN_NS: u64 = 3_000_000_000;
/// Longest pause between two renewals.
const MAX_PAUSE_NS: u64 = 1_000_000_000;

pub(super) struct Holding {
    kept: Vec<Kept>,
    /// Time of the next renewals.
    next_ns: u64,
}

struct Kept {
    grant: Grant,
    /// Time, by this machine's clock, at which the last answered renewal was sent.
    renewed_ns: u64,
    is_asked: bool,
    is_lost: bool,
}

impl Holding {
    /// Returns the grants that are not lost.
    pub(super) fn living(&self) -> impl Iterator<Item = &Grant> {
        self.kept.iter().filter(|kept| !kept.is_lost).map(|kept| &kept.grant)
    }

    fn lease_ns(&self) -> u64 {
        let shortest_s = self.kept.iter().map(|kept| kept.grant.lease_s).fold(86_400.0, f64::min);
        (shortest_s * 1e9) as u64
    }
}

impl Kept {
    /// Returns the time for which a grant is trusted after a renewal.
    fn trust_ns(&self) -> u64 {
        let lease_ns = (self.grant.lease_s * 1e9) as u64;
        lease_ns - lease_ns / MARGIN_PARTS
    }

    fn ends_ns(&self) -> u64 {
        self.renewed_ns + self.trust_ns()
    }
}

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
        let renewed_ns = self.clock.at(asked_ns);
        let keep = |grant| Kept { grant, renewed_ns, is_asked: false, is_lost: false };
        let kept = grants.into_iter().map(keep).collect();
        self.doing = Doing::Holding(Holding { kept, next_ns: 0 });
        self.judge(desk);
        self.keep(desk);
        let holds_ns = match self.is_ending {
            true => desk.rng.below(500_000_000),
            false => desk.rng.below(2 * self.workload.hold.0),
        };
        let program = self.programs;
        desk.timer(holds_ns, Timer::Recipient(RecipientTimer::Done { program }));
    }

    /// Renews due grants, and sets the next timer.
    pub(super) fn keep(&mut self, desk: &mut Desk<'_>) {
        let (clock, program) = (self.clock, self.programs);
        let local_ns = clock.at(desk.now_ns);
        let Doing::Holding(holding) = &mut self.doing else { return };
        if holding.next_ns <= local_ns {
            holding.next_ns = local_ns + (holding.lease_ns() / 4).min(MAX_PAUSE_NS);
            let due = |(_, kept): &(usize, &mut Kept)| !kept.is_lost && !kept.is_asked;
            for (index, kept) in holding.kept.iter_mut().enumerate().filter(due) {
                kept.is_asked = true;
                let donor = crate::control::agent::number_of(&kept.grant.donor).unwrap_or_default();
                let request = Request::Renew(kept.grant.id, kept.grant.key);
                let tag = RecipientTag::Renew { program, index, sent_ns: local_ns };
                desk.call(Party::Donor(donor), request, ANSWER_WITHIN_NS, Tag::Recipient(tag));
            }
        }
        let living = holding.kept.iter().filter(|kept| !kept.is_lost);
        if let Some(ends_ns) = living.map(Kept::ends_ns).min() {
            let next_ns = ends_ns.min(holding.next_ns);
            let waits_ns = clock.takes_ns(next_ns.saturating_sub(local_ns));
            desk.timer(waits_ns, Timer::Recipient(RecipientTimer::Keep { program }));
        }
    }

    pub(super) fn renewed(
        &mut self,
        desk: &mut Desk<'_>,
        (index, sent_ns): (usize, u64),
        outcome: Result<Response, Broken>,
    ) {
        let Doing::Holding(holding) = &mut self.doing else { return };
        let kept = &mut holding.kept[index];
        kept.is_asked = false;
        if kept.is_lost {
            return;
        }
        match outcome {
            Ok(Response::Lease(LeaseState::Live { notice, .. })) => {
                kept.renewed_ns = kept.renewed_ns.max(sent_ns);
                // Some programs cannot move their data.
                if notice.is_some() && self.probe.is_none() && self.programs.is_multiple_of(2) {
                    self.give_back(desk);
                }
            }
            Ok(Response::Lease(LeaseState::Unknown | LeaseState::Transferred { .. }))
            | Err(Broken::Refused) => {
                self.lose(desk, index);
            }
            _ => {}
        }
    }

    /// Abandons grants that were not renewed in time, whatever their donors answer later.
    pub(super) fn judge(&mut self, desk: &mut Desk<'_>) {
        let local_ns = self.clock.at(desk.now_ns);
        let Doing::Holding(holding) = &self.doing else { return };
        let is_over = |kept: &Kept| !kept.is_lost && kept.ends_ns() <= local_ns;
        let over: Vec<usize> =
            (0..holding.kept.len()).filter(|index| is_over(&holding.kept[*index])).collect();
        for index in over {
            self.lose(desk, index);
        }
    }

    fn lose(&mut self, desk: &mut Desk<'_>, index: usize) {
        let Doing::Holding(holding) = &mut self.doing else { return };
        let kept = &mut holding.kept[index];
        kept.is_lost = true;
        desk.fact(Fact::Leaves { grant: kept.grant.id });
        if holding.living().next().is_some() {
            return;
        }
        self.idle(desk);
        if let Some(wish) = self.probe.clone() {
            self.begin(desk, wish);
        }
    }
}
