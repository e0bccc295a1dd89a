//! Lending: performs what the logic of `venice-agent` asks for.

use venice_rack::donor_node::Output;
use venice_rack::monitor::Token;
use venice_rack::monitor_node::{DonorAnswer, DonorCall};
use venice_rack::types::LeaseState;
use venice_wire::{GrantId, GrantKey};

use super::{Agent, AgentTimer};
use crate::control::desk::{Desk, Fact, Timer};
use crate::control::messages::{CallId, Response};
use crate::control::sabotage::Sabotage;

/// Longest time to make fresh slabs.
const WIPES_WITHIN_NS: u64 = 200_000_000;
/// Share of transfers, in a million, whose slabs are read for the old owner a long time.
const LONG_READS_PPM: u32 = 250_000;
/// Longest such time, and the longest of other transfers.
const LONG_READ_NS: u64 = 4_000_000_000;
const READ_NS: u64 = 5_000_000;

impl Agent {
    /// Executes a call of a Monitor Node.
    pub(super) fn order(&mut self, desk: &mut Desk<'_>, call: CallId, asked: DonorCall) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        let asked = match (self.sabotage, asked) {
            (Some(Sabotage::SwitchEarly), DonorCall::PrepareTransfer(step)) => {
                DonorCall::CommitTransfer(step)
            }
            (Some(Sabotage::ForgetSwitch), DonorCall::CommitTransfer(_)) => {
                let status = DonorAnswer::Status(life.node.core().status());
                return desk.reply(call, Response::Donor(Ok(status)));
            }
            (_, asked) => asked,
        };
        life.order_epoch = match &asked {
            DonorCall::Prepare(request) => Some(request.donor_epoch),
            DonorCall::Commit { donor_epoch, .. } => Some(*donor_epoch),
            DonorCall::Abort(_)
            | DonorCall::Release(_)
            | DonorCall::PrepareTransfer(_)
            | DonorCall::CommitTransfer(_)
            | DonorCall::AbortTransfer { .. }
            | DonorCall::Ping => None,
        };
        life.node.handle_call(clock_ns, Token(call), asked);
        self.perform_all(desk);
        if let Some(life) = &mut self.life {
            life.order_epoch = None;
        }
    }

    pub(super) fn renew(
        &mut self,
        desk: &mut Desk<'_>,
        call: CallId,
        (grant, key): (GrantId, GrantKey),
    ) {
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        let state = life.node.handle_renew(clock_ns, &[(grant, key)]).remove(0);
        let state = match (self.sabotage, state) {
            (Some(Sabotage::KeepOldKey), LeaseState::Transferred { .. }) => {
                LeaseState::Live { remaining_ms: 10_000, notice: None }
            }
            (_, state) => state,
        };
        if matches!(state, LeaseState::Live { .. }) {
            desk.fact(Fact::Serves { donor: self.number, grant });
        }
        desk.reply(call, Response::Lease(state));
    }

    pub(super) fn wiped(&mut self, desk: &mut Desk<'_>, grant: GrantId) {
        let Some(life) = &mut self.life else { return };
        life.pool.extend(life.of_grants.remove(&grant).unwrap_or_default());
        life.node.handle_freed(grant, 0);
        self.settle(desk);
    }

    /// Performs all outputs, handles deadlines, and sets the next timer.
    pub(super) fn settle(&mut self, desk: &mut Desk<'_>) {
        self.perform_all(desk);
        let clock_ns = self.clock.at(desk.now_ns);
        let Some(life) = &mut self.life else { return };
        life.node.handle_timeout(clock_ns);
        self.perform_all(desk);
        let Some(life) = &mut self.life else { return };
        let Some(next_ns) = life.node.poll_timeout(clock_ns) else { return };
        let at_ns = desk.now_ns + self.clock.takes_ns(next_ns.saturating_sub(clock_ns));
        if life.looks_ns.is_none_or(|set_ns| set_ns <= desk.now_ns || at_ns < set_ns) {
            life.looks_ns = Some(at_ns);
            desk.timer(at_ns - desk.now_ns, Timer::Agent(AgentTimer::Look));
        }
    }

    fn perform_all(&mut self, desk: &mut Desk<'_>) {
        let clock_ns = self.clock.at(desk.now_ns);
        while let Some(output) = self.life.as_mut().and_then(|it| it.node.poll_output(clock_ns)) {
            self.carry_out(desk, clock_ns, output);
        }
    }

    fn carry_out(&mut self, desk: &mut Desk<'_>, clock_ns: u64, output: Output) {
        let donor = self.number;
        let Some(life) = &mut self.life else { return };
        match output {
            Output::Reply(token, answer) => desk.reply(token.0, Response::Donor(answer)),
            Output::SetAside { grant, slabs } => {
                let left = life.pool.len().checked_sub(slabs as usize);
                let slabs = life.pool.split_off(left.expect("free slabs are present"));
                life.of_grants.insert(grant, slabs.clone());
                let epoch = life.order_epoch.unwrap_or_default();
                desk.fact(Fact::SetsAside { donor, grant, slabs, epoch });
            }
            Output::Lend(grant) => {
                if let Some(epoch) = life.order_epoch {
                    desk.fact(Fact::Lends { donor, grant, epoch });
                }
            }
            // All its recipients come by frames.
            Output::HoldFiles(hold) => life.node.handle_files_held(clock_ns, hold, true),
            Output::Switch(step) => {
                let slabs = life.of_grants.remove(&step.from).unwrap_or_default();
                if !slabs.is_empty() {
                    let is_long = desk.rng.chance(LONG_READS_PPM);
                    let after_ns = desk.rng.below(if is_long { LONG_READ_NS } else { READ_NS });
                    desk.timer(after_ns, Timer::Agent(AgentTimer::Unused(step.grant)));
                }
                life.of_grants.insert(step.grant, slabs);
                desk.fact(Fact::Switches { donor, step: Box::new(step) });
            }
            Output::End { grant, slabs, reason } => {
                desk.fact(Fact::Ends { donor, grant, reason });
                if slabs > 0 {
                    let takes_ns = desk.rng.between(1_000_000, WIPES_WITHIN_NS);
                    desk.timer(takes_ns, Timer::Agent(AgentTimer::Wiped(grant)));
                } else {
                    // A device has no memory to wipe.
                    life.node.handle_freed(grant, 0);
                }
            }
            Output::Report => self.report_change(desk),
            Output::ReleaseFiles(_) | Output::Forget(_) => {}
        }
    }
}
