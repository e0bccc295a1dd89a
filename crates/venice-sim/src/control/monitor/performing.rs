//! Performs the logic's actions in order; a change has to be durable before the next action.

use venice_rack::monitor::{Action, Change, Record, RecordKey};
use venice_rack::queueing::Asked;
use venice_wire::{GrantId, NodeId};

use super::driver::{Behind, Stage};
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
    /// Performs actions until a change has to be waited for, or none is left.
    pub(super) fn perform_all(&mut self, desk: &mut Desk<'_>) {
        self.catch_up(desk);
        while let Some(driver) = self.driver_mut() {
            if !matches!(driver.stage, Stage::Idle) {
                return;
            }
            let Some(action) = driver.core.poll_action() else { return };
            // A Monitor Node whose state is stale must not act on it.
            if driver.membership.as_ref().is_some_and(|it| it.until_ns <= desk.now_ns) {
                return self.begin_anew(desk);
            }
            match action {
                Action::Store(changes) => self.store(desk, changes),
                action => self.perform(desk, action),
            }
        }
    }

    fn perform(&mut self, desk: &mut Desk<'_>, action: Action) {
        if let Action::SendPrepare { donor, request, .. } = &action {
            let (monitor, request) = (self.number, Box::new(request.clone()));
            let knows = self.knows(donor.node, request.grant);
            desk.fact(Fact::Prepares { monitor, donor: *donor, request, knows });
        }
        if let Action::SendPrepareTransfer { step, .. } = &action {
            desk.fact(Fact::Offers { step: Box::new(step.clone()) });
        }
        let Some(driver) = self.driver_mut() else { return };
        let (donor, request) = match action {
            Action::SendPrepare { donor, request, .. } => {
                (donor, Request::Prepare(Box::new(request)))
            }
            Action::SendCommit { donor, grant, .. } => {
                (donor, Request::Commit { grant, donor_epoch: donor.epoch })
            }
            Action::SendAbort { donor, grant, .. } => (donor, Request::Abort(grant)),
            Action::SendRelease { donor, grants, .. } => (donor, Request::Release(grants)),
            Action::SendPrepareTransfer { donor, step, .. } => {
                (donor, Request::PrepareTransfer(Box::new(step)))
            }
            Action::SendCommitTransfer { donor, step, .. } => {
                (donor, Request::CommitTransfer(Box::new(step)))
            }
            Action::SendAbortTransfer { donor, from, grant, .. } => {
                (donor, Request::AbortTransfer { from, grant })
            }
            Action::SendPing { donor, .. } => (donor, Request::Ping),
            Action::ReplyRequest { client_id, result } => {
                let is_heard =
                    driver.requests.get(&client_id).is_some_and(|asking| !asking.calls.is_empty());
                if let (Ok(grants), true) = (&result, is_heard) {
                    desk.fact(Fact::Tells { client_id, grants: grants.clone() });
                }
                let asked = result.map(Asked::Granted);
                return driver.answer(desk, client_id, Response::Asked(asked));
            }
            Action::ReplyStanding { client_id, standing } => {
                let asked = Ok(Asked::Waits(standing));
                return driver.answer(desk, client_id, Response::Asked(asked));
            }
            Action::ReplyRelease { token, kept } => {
                if let Some((_, call)) = driver.releases.remove(&token) {
                    desk.reply(call, Response::Kept(kept));
                }
                return;
            }
            Action::ReplyTransfer { token, result } => {
                if let Some((_, call)) = driver.transfers.remove(&token) {
                    desk.reply(call, Response::Transferred(result));
                }
                return;
            }
            Action::ReplyClaim { token, result } => {
                if let Some((_, call)) = driver.claims.remove(&token) {
                    desk.reply(call, Response::Claimed(result));
                }
                return;
            }
            Action::ReplyDone { token, result } => {
                if let Some((_, call)) = driver.orders.remove(&token) {
                    desk.reply(call, Response::Done(result));
                }
                return;
            }
            Action::ReplyRegister { token, result } => {
                if let Some((_, call)) = driver.registrations.remove(&token) {
                    desk.reply(call, Response::Registered(result));
                }
                return;
            }
            Action::Note(_) => return,
            Action::Store(_) => unreachable!("changes are written separately"),
        };
        let to = driver.party_of(donor);
        let tag = MonitorTag::Donor { donor, request: Box::new(request.clone()), is_again: false };
        desk.call(to, request, self.donor_timeout_ns, Tag::Monitor(tag));
    }

    fn knows(&self, node: NodeId, grant: GrantId) -> Knows {
        let record = self.known(&RecordKey::Node(node));
        Knows {
            is_recorded: self.known(&RecordKey::Grant(grant)).is_some(),
            is_draining: matches!(record, Some(Record::Node(record)) if record.is_draining),
            is_down: self.core().is_some_and(|core| core.silent_nodes().any(|it| it == node)),
        }
    }

    fn store(&mut self, desk: &mut Desk<'_>, changes: Vec<Change>) {
        let Some(driver) = self.driver_mut() else { return };
        driver.stage = Stage::Storing(changes.clone());
        let Some(membership) = &mut driver.membership else {
            // A crash may come before the write, or between the write and its report.
            let takes_ns = desk.rng.between(500_000, WRITES_WITHIN_NS);
            let written_ns = desk.rng.below(takes_ns);
            desk.timer(written_ns, Timer::Monitor(MonitorTimer::Written));
            return desk.timer(takes_ns, Timer::Monitor(MonitorTimer::Made));
        };
        membership.transactions += 1;
        let conditions = membership.view.conditions(&changes);
        let (member, number) = (membership.member, membership.transactions);
        let request = Request::Transact(Transaction { member, number, conditions, changes });
        self.transact(desk, Box::new(request), desk.now_ns);
    }

    pub(super) fn written(&mut self) {
        let State::Serving(driver) = &self.state else { return };
        if let Stage::Storing(changes) = &driver.stage {
            enter(&mut self.file, changes);
        }
    }

    pub(super) fn made(&mut self, desk: &mut Desk<'_>) {
        if let Some(driver) = self.driver_mut() {
            driver.stage = Stage::Idle;
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
        let Some(driver) = self.driver_mut() else { return };
        let Some(membership) = &mut driver.membership else { return };
        let outcome = match outcome {
            Ok(Response::Transacted(outcome)) => outcome,
            _ if desk.now_ns < since_ns + STORE_PATIENCE_NS => {
                let again = MonitorTimer::Again { request, since_ns };
                return desk.timer(PAUSE_NS / 10, Timer::Monitor(again));
            }
            _ => return self.begin_anew(desk),
        };
        let Stage::Storing(changes) = std::mem::replace(&mut driver.stage, Stage::Idle) else {
            unreachable!("only one transaction is outstanding")
        };
        match outcome {
            Outcome::Made { revision } => membership.view.made(revision, changes),
            Outcome::Conflict { is_member: false, .. } => return self.begin_anew(desk),
            Outcome::Conflict { found, .. } => {
                let sights = membership.view.conditions(&changes);
                let behind = Behind { failed: changes, news: Vec::new(), sights, found };
                driver.stage = Stage::CatchingUp(behind);
            }
        }
        self.pump(desk);
    }

    /// Requests the conflicting change, and all before it.
    fn catch_up(&mut self, desk: &mut Desk<'_>) {
        let local_ns = self.local_ns(desk);
        let State::Serving(driver) = &mut self.state else { return };
        let Stage::CatchingUp(behind) = &mut driver.stage else { return };
        let Some(membership) = &mut driver.membership else { return };
        while !membership.view.has_moved_on(&behind.sights, &behind.found) {
            let Some(batch) = self.told.pop_front() else { return };
            behind.news.extend(membership.learn(batch));
        }
        if let Stage::CatchingUp(behind) = std::mem::replace(&mut driver.stage, Stage::Idle) {
            driver.yield_to_others(desk, local_ns, behind);
        }
    }
}
