//! Performs the logic's outputs in order.

use venice_rack::monitor::{Change, Record, RecordKey, Sight};
use venice_rack::monitor_node::{DonorCall, Output, Reply, Written};
use venice_rack::queueing::Asked;
use venice_rack::types::Identity;
use venice_wire::{GrantId, NodeId};

use super::opening::{ANSWER_WITHIN_NS, PAUSE_NS};
use super::{Monitor, MonitorTag, MonitorTimer, State, enter};
use crate::control::desk::{Desk, Fact, Knows, Tag, Timer};
use crate::control::messages::{Broken, Outcome, Request, Response, Transaction};
use crate::control::party::Party;

/// Longest time of a write to the file.
const WRITES_WITHIN_NS: u64 = 20_000_000;
/// Time limit for reaching the store.
const STORE_PATIENCE_NS: u64 = 10_000_000_000;

impl Monitor {
    /// Performs outputs until a change has to be waited for, or none is left.
    pub(super) fn perform_all(&mut self, desk: &mut Desk<'_>) {
        while let Some(driver) = self.driver_mut() {
            let Some(output) = driver.node.poll_output() else { return };
            // A Monitor Node whose state is stale must not act on it.
            let member = driver.member.as_ref();
            if member.is_some_and(|it| it.membership.until_ns() <= desk.now_ns) {
                return self.begin_anew(desk);
            }
            match output {
                Output::Write { conditions, changes } => self.write(desk, conditions, changes),
                Output::Call { donor, name, call, .. } => self.call(desk, donor, &name, call),
                Output::Reply(token, reply) => desk.reply(token.0, Response::Replied(reply)),
                Output::Granted(request, grants) => {
                    if !request.calls.is_empty() {
                        let client_id = request.request.client_id;
                        desk.fact(Fact::Tells { client_id, grants: grants.clone() });
                    }
                    for token in request.calls {
                        let reply = Reply::Asked(Ok(Asked::Granted(grants.clone())));
                        desk.reply(token.0, Response::Replied(reply));
                    }
                }
                Output::Note(_) | Output::Revoked => {}
            }
        }
    }

    fn call(&mut self, desk: &mut Desk<'_>, donor: Identity, name: &str, call: DonorCall) {
        if let DonorCall::Prepare(request) = &call {
            let (monitor, request) = (self.number, Box::new(request.clone()));
            let knows = self.knows(donor.node, request.grant);
            desk.fact(Fact::Prepares { monitor, donor, request, knows });
        }
        if let DonorCall::PrepareTransfer(step) = &call {
            desk.fact(Fact::Offers { step: Box::new(step.clone()) });
        }
        let to = Party::Donor(crate::control::agent::number_of(name).unwrap_or_default());
        let call = Box::new(call);
        let tag = MonitorTag::Donor { to, donor, call: call.clone(), is_again: false };
        desk.call(to, Request::Donor(call), self.donor_timeout_ns, Tag::Monitor(tag));
    }

    fn knows(&self, node: NodeId, grant: GrantId) -> Knows {
        let State::Serving(driver) = &self.state else { return Knows::default() };
        let record = self.known(&RecordKey::Node(node));
        let is_drained = matches!(record, Some(Record::Node(record)) if record.is_draining);
        let was_drained = driver.node.view().is_some() || driver.drained.contains(&node);
        Knows {
            is_recorded: self.known(&RecordKey::Grant(grant)).is_some(),
            is_draining: is_drained && was_drained,
            is_down: self.core().is_some_and(|core| core.silent_nodes().any(|it| it == node)),
        }
    }

    fn write(&mut self, desk: &mut Desk<'_>, conditions: Vec<Sight>, changes: Vec<Change>) {
        let Some(driver) = self.driver_mut() else { return };
        let Some(member) = &mut driver.member else {
            // A crash may come before the write, or between the write and its report.
            let takes_ns = desk.rng.between(500_000, WRITES_WITHIN_NS);
            let written_ns = desk.rng.below(takes_ns);
            desk.timer(written_ns, Timer::Monitor(MonitorTimer::Written(changes)));
            return desk.timer(takes_ns, Timer::Monitor(MonitorTimer::Made));
        };
        member.transactions += 1;
        let (member, number) = (*member.membership.own(), member.transactions);
        let request = Request::Transact(Transaction { member, number, conditions, changes });
        self.transact(desk, Box::new(request), desk.now_ns);
    }

    pub(super) fn written(&mut self, changes: &[Change]) {
        enter(&mut self.file, changes);
    }

    pub(super) fn made(&mut self, desk: &mut Desk<'_>, written: Written) {
        let now = self.now(desk);
        if let State::Serving(driver) = &mut self.state {
            driver.node.handle_written(now, written);
            self.pump(desk);
        }
    }

    /// Attempts a transaction.
    pub(super) fn transact(&mut self, desk: &mut Desk<'_>, request: Box<Request>, since_ns: u64) {
        let tag = MonitorTag::Transact { request: request.clone(), since_ns };
        desk.call(Party::Store, *request, ANSWER_WITHIN_NS, Tag::Monitor(tag));
    }

    pub(super) fn transacted(
        &mut self,
        desk: &mut Desk<'_>,
        request: Box<Request>,
        since_ns: u64,
        outcome: Result<Response, Broken>,
    ) {
        match outcome {
            Ok(Response::Transacted(Outcome::Conflict { is_member: false, .. })) => {
                self.begin_anew(desk);
            }
            Ok(Response::Transacted(Outcome::Conflict { found, .. })) => {
                self.made(desk, Written::Conflict { found });
            }
            Ok(Response::Transacted(Outcome::Made { revision })) => {
                self.made(desk, Written::Made { revision });
            }
            _ if desk.now_ns < since_ns + STORE_PATIENCE_NS => {
                let again = MonitorTimer::Again { request, since_ns };
                desk.timer(PAUSE_NS / 10, Timer::Monitor(again));
            }
            _ => self.begin_anew(desk),
        }
    }
}
