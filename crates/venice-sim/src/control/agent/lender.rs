//! Lending: executes the donor core's actions, like the agent.

use venice_rack::donor::{DonorAction, Prepared};
use venice_rack::pausable_clock::TICK_NS;
use venice_rack::types::{DonorStatus, PrepareRequest, Refusal};
use venice_wire::GrantId;

use super::{Agent, AgentTimer};
use crate::control::desk::{Desk, Fact, Timer};
use crate::control::messages::{CallId, Response};

/// Longest time to make fresh slabs.
const WIPES_WITHIN_NS: u64 = 200_000_000;

impl Agent {
    pub(super) fn prepare(&mut self, desk: &mut Desk<'_>, call: CallId, request: PrepareRequest) {
        let (grant, epoch) = (request.grant, request.donor_epoch);
        let at_once = request.at_once;
        let set_aside = self.set_aside(desk, request);
        self.carry_out(desk);
        self.look(desk);
        let result = match at_once {
            true => set_aside.and_then(|_| self.commit(desk, grant, epoch)),
            false => set_aside,
        };
        desk.reply(call, Response::Status(result));
    }

    fn set_aside(
        &mut self,
        desk: &mut Desk<'_>,
        request: PrepareRequest,
    ) -> Result<DonorStatus, Refusal> {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else {
            unreachable!("a call reaches only a living process")
        };
        let (grant, epoch) = (request.grant, request.donor_epoch);
        let slabs = request.share.slabs() as usize;
        match life.core.handle_prepare(local_ns, request)? {
            Prepared::Repeated(status) => Ok(status),
            Prepared::New(status) => {
                let left = life.pool.len().checked_sub(slabs);
                let Some(left) = left else {
                    life.core.handle_abort(local_ns, grant);
                    return Err(Refusal::Failed("its slabs are still being made".into()));
                };
                let slabs = life.pool.split_off(left);
                life.of_grants.insert(grant, slabs.clone());
                desk.fact(Fact::SetsAside { donor: self.number, grant, slabs, epoch });
                Ok(status)
            }
        }
    }

    pub(super) fn commit(
        &mut self,
        desk: &mut Desk<'_>,
        grant: GrantId,
        epoch: u64,
    ) -> Result<DonorStatus, Refusal> {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else {
            unreachable!("a call reaches only a living process")
        };
        let result = life.core.handle_commit(local_ns, grant, epoch);
        if result.is_ok() {
            desk.fact(Fact::Lends { donor: self.number, grant, epoch });
        }
        self.carry_out(desk);
        self.look(desk);
        result
    }

    pub(super) fn abort(&mut self, desk: &mut Desk<'_>, call: CallId, grant: GrantId) {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else { return };
        let status = life.core.handle_abort(local_ns, grant);
        self.carry_out(desk);
        desk.reply(call, Response::Status(Ok(status)));
    }

    /// Releases grants; the answer follows when all are wiped.
    pub(super) fn release(&mut self, desk: &mut Desk<'_>, call: CallId, grants: Vec<GrantId>) {
        let local_ns = self.now_ns(desk);
        let Some(life) = &mut self.life else { return };
        for grant in &grants {
            life.core.handle_release(local_ns, *grant);
        }
        life.releases.push((call, grants));
        self.carry_out(desk);
        self.answer_releases(desk);
    }

    /// Handles expired deadlines, and sets the next timer.
    pub(super) fn look(&mut self, desk: &mut Desk<'_>) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        life.attention.handle_tick(clock_ns);
        let local_ns = life.attention.now_ns(clock_ns);
        life.core.handle_timeout(local_ns);
        let waits_ns = life.core.poll_timeout().map(|next_ns| {
            let waits_ns = next_ns.saturating_sub(local_ns).min(TICK_NS);
            self.clock.takes_ns(waits_ns)
        });
        if let Some(waits_ns) = waits_ns
            && life
                .looks_ns
                .is_none_or(|at_ns| at_ns <= desk.now_ns || desk.now_ns + waits_ns < at_ns)
        {
            life.looks_ns = Some(desk.now_ns + waits_ns);
            desk.timer(waits_ns, Timer::Agent(AgentTimer::Look));
        }
        self.carry_out(desk);
    }

    /// Executes the core's actions.
    pub(super) fn carry_out(&mut self, desk: &mut Desk<'_>) {
        let Some(life) = &mut self.life else { return };
        let mut is_free = false;
        while let Some(DonorAction::FreeSlabs { grant, slabs, reason }) = life.core.poll_action() {
            desk.fact(Fact::Ends { donor: self.number, grant, reason });
            if slabs > 0 {
                let takes_ns = desk.rng.between(1_000_000, WIPES_WITHIN_NS);
                desk.timer(takes_ns, Timer::Agent(AgentTimer::Wiped(grant)));
            } else {
                // A device has no memory to wipe.
                life.core.handle_freed(grant);
                is_free = true;
            }
        }
        if is_free {
            self.answer_releases(desk);
            self.report_change(desk);
        }
    }

    pub(super) fn wiped(&mut self, desk: &mut Desk<'_>, grant: GrantId) {
        let Some(life) = &mut self.life else { return };
        let slabs = life.of_grants.remove(&grant).unwrap_or_default();
        life.pool.extend(slabs);
        life.core.handle_freed(grant);
        self.answer_releases(desk);
        // Monitor Nodes get a report at once when memory is free again.
        self.report_change(desk);
    }

    fn answer_releases(&mut self, desk: &mut Desk<'_>) {
        let Some(life) = &mut self.life else { return };
        let (core, status) = (&life.core, life.core.status());
        life.releases.retain(|(call, grants)| {
            let is_left = grants.iter().any(|grant| core.is_freeing(*grant));
            if !is_left {
                desk.reply(*call, Response::Status(Ok(status)));
            }
            is_left
        });
    }

    /// Returns the time used for leases and handshakes.
    pub(super) fn now_ns(&self, desk: &Desk<'_>) -> u64 {
        let clock_ns = self.clock.at(desk.now_ns);
        self.life.as_ref().map_or(clock_ns, |life| life.attention.now_ns(clock_ns))
    }
}
