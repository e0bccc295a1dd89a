//! A lending agent without I/O: the core, and around it the callers that wait, the memory that
//! changes hands, and the recipients of ended grants.
//!
//! [`DonorNode`] takes calls, the end of what takes time, and the time (`handle_*`). Its outputs
//! ([`DonorNode::poll_output`]) are to be performed in order, all of them before the next input; an
//! answer that an output asks for is given at once. `venice-agent` runs it on slabs and ports,
//! `venice-sim` in virtual time.

#[cfg(test)]
mod tests;

use crate::donor::{
    DonorAction, DonorCore, DonorSettings, EndReason, GrantView, Prepared, Switched,
};
use crate::monitor::Token;
use crate::monitor_node::{DonorAnswer, DonorCall};
use crate::pausable_clock::{PausableClock, TICK_NS};
use crate::types::{
    DonorReport, DonorStatus, HeldState, LeaseState, Pong, PrepareRequest, Refusal, TransferStep,
};
use std::collections::{BTreeMap, VecDeque};
use venice_wire::{GrantId, GrantKey};

/// Time for which the recipients of an ended grant are still served, to be notified. Their links
/// time out after as much silence: a recipient without a notice notices then.
const NOTIFY_FOR_NS: u64 = 2_000_000_000;
/// Most ended grants remembered; beyond, the oldest is forgotten early.
const MAX_ENDED: usize = 4096;
/// Reason of the refusal of mapped memory.
const MAPPED: &str = "its memory was mapped by a program (port shm), and a mapping cannot be taken \
                      away from a program: use --port udp for memory that is to be transferred";

/// An output, to be performed before the next one is polled. A grant of a device has 0 slabs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Answer a call.
    Reply(Token, Result<DonorAnswer, Refusal>),
    /// Take so many free slabs for a grant; no port reaches them yet.
    SetAside {
        /// The grant.
        grant: GrantId,
        /// Its slabs.
        slabs: u32,
    },
    /// Let the ports reach a grant's slabs, or start the service of its device.
    Lend(GrantId),
    /// Hand out no files of a grant's slabs, unless some were handed out before; then
    /// [`DonorNode::handle_files_held`].
    HoldFiles(FileHold),
    /// Hand out files of a grant's slabs again.
    ReleaseFiles(GrantId),
    /// Give a grant to its successor. Slabs: end it at all ports, and set them aside for the
    /// successor; then [`DonorNode::handle_unused`]. A device: end its service, and start another
    /// one for the successor.
    Switch(TransferStep),
    /// End a grant at all ports, or at the service of its device, and wipe its slabs; then
    /// [`DonorNode::handle_freed`].
    End {
        /// The grant.
        grant: GrantId,
        /// Its slabs.
        slabs: u32,
        /// The reason of its end.
        reason: EndReason,
    },
    /// Forget an ended grant: its key is refused from now on.
    Forget(GrantId),
    /// Report to the Monitor Nodes at once: memory or a device is free, for which a request may wait.
    Report,
}

/// The hold of a grant's files. It goes back with its result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileHold {
    token: Token,
    step: TransferStep,
    /// Its time in nanoseconds; `None`: until the grant ends or [`Output::ReleaseFiles`].
    pub for_ns: Option<u64>,
}

impl FileHold {
    /// Returns the grant whose files are held.
    pub fn of(&self) -> GrantId {
        self.step.from
    }
}

/// A lending agent. Times are of one clock that never goes backwards, in nanoseconds; pauses of the
/// process may be part of it.
#[derive(Debug)]
pub struct DonorNode {
    core: DonorCore,
    clock: PausableClock,
    prepare_timeout_ns: u64,
    pong: Pong,
    outputs: VecDeque<Output>,
    /// Callers that wait until these grants are free.
    releases: Vec<(Token, Vec<GrantId>)>,
    /// Successors whose slabs are still read for the old owner, with the callers that wait for that.
    switching: BTreeMap<GrantId, Vec<Token>>,
    /// Ended grants and the time until which their recipients are notified, the oldest first.
    ended: VecDeque<(u64, GrantId)>,
}

impl DonorNode {
    /// Creates a donor with all its slabs free, not yet registered. `pong` answers pings.
    pub fn new(settings: DonorSettings, pong: Pong, clock_ns: u64) -> Self {
        Self {
            core: DonorCore::new(settings),
            clock: PausableClock::new(clock_ns),
            prepare_timeout_ns: settings.prepare_timeout_ns,
            pong,
            outputs: VecDeque::new(),
            releases: Vec::new(),
            switching: BTreeMap::new(),
            ended: VecDeque::new(),
        }
    }

    /// Returns the grants.
    pub fn core(&self) -> &DonorCore {
        &self.core
    }

    /// Returns the grants, for inputs that concern them alone. Poll the outputs afterwards.
    pub fn core_mut(&mut self) -> &mut DonorCore {
        &mut self.core
    }

    /// Returns the time of the grants when the clock shows `clock_ns`.
    pub fn now_ns(&self, clock_ns: u64) -> u64 {
        self.clock.now_ns(clock_ns)
    }

    /// Returns the slab counts and every grant, for the heartbeat. A successor whose slabs no port
    /// reaches yet is left out: the Monitor Node would give its key to the new owner.
    pub fn report(&self) -> DonorReport {
        let mut report = self.core.report();
        report.held.retain(|held| !self.switching.contains_key(&held.id));
        report
    }

    /// Handles a call. Its reply has the same number.
    pub fn handle_call(&mut self, clock_ns: u64, token: Token, call: DonorCall) {
        let now_ns = self.now_ns(clock_ns);
        let core = &mut self.core;
        let result = match call {
            DonorCall::Prepare(request) => self.prepare(now_ns, request),
            DonorCall::Commit { grant, donor_epoch } => self.commit(now_ns, grant, donor_epoch),
            DonorCall::Abort(grant) => Ok(core.handle_abort(now_ns, grant)),
            DonorCall::Release(grants) => return self.release(now_ns, token, grants),
            DonorCall::PrepareTransfer(step) => match core.handle_prepare_transfer(now_ns, &step) {
                Ok(_) => return self.hold_files(token, step, Some(self.prepare_timeout_ns)),
                Err(refusal) => Err(refusal),
            },
            DonorCall::CommitTransfer(step) => return self.hold_files(token, step, None),
            DonorCall::AbortTransfer { from, grant } => {
                if core.promised(from) == Some(grant) {
                    self.outputs.push_back(Output::ReleaseFiles(from));
                }
                Ok(core.handle_abort_transfer(now_ns, from, grant))
            }
            DonorCall::Ping => {
                let pong = Ok(DonorAnswer::Pong(self.pong.clone()));
                return self.outputs.push_back(Output::Reply(token, pong));
            }
        };
        self.reply(token, result);
    }

    /// Handles a recipient's release: ends the grants whose keys are right, and replies when they
    /// are free.
    pub fn handle_give_back(
        &mut self,
        clock_ns: u64,
        token: Token,
        leases: &[(GrantId, GrantKey)],
    ) {
        let is_right = |(grant, key): &&(GrantId, GrantKey)| {
            self.core.grant(*grant).is_some_and(|view| view.key == *key)
        };
        let grants = leases.iter().filter(is_right).map(|(grant, _)| *grant).collect();
        self.release(self.now_ns(clock_ns), token, grants);
    }

    /// Renews leases; returns the state of each, in order.
    pub fn handle_renew(
        &mut self,
        clock_ns: u64,
        leases: &[(GrantId, GrantKey)],
    ) -> Vec<LeaseState> {
        let now_ns = self.now_ns(clock_ns);
        let renew =
            |(grant, key): &(GrantId, GrantKey)| self.core.handle_renew(now_ns, *grant, *key);
        leases.iter().map(renew).collect()
    }

    /// Handles the result of [`Output::HoldFiles`]: false if files were handed out before. A program
    /// that has mapped the memory cannot be stopped from using it, so it is not transferred.
    pub fn handle_files_held(&mut self, clock_ns: u64, hold: FileHold, is_held: bool) {
        let now_ns = self.now_ns(clock_ns);
        let FileHold { token, step, for_ns } = hold;
        let result = match (for_ns, is_held) {
            (Some(_), true) => Ok(self.core.status()),
            (Some(_), false) => {
                self.core.handle_abort_transfer(now_ns, step.from, step.grant);
                Err(Refusal::Failed(MAPPED.to_owned()))
            }
            (None, true) => return self.switch(now_ns, token, step),
            // The promise was over, and the owner has mapped the memory since.
            (None, false) => {
                self.core.handle_release(now_ns, step.from);
                Err(Refusal::UnknownGrant)
            }
        };
        self.reply(token, result);
    }

    /// Handles that a successor's slabs are no longer read for the old owner.
    pub fn handle_unused(&mut self, grant: GrantId) {
        let Some(callers) = self.switching.remove(&grant) else { return };
        // A report from before lacks the grant, and must not count as the newest.
        self.core.note_change();
        self.outputs.push_back(Output::Lend(grant));
        self.reply_all(callers);
    }

    /// Handles that an ended grant's slabs are wiped, or its device is free. So many of the slabs
    /// are withheld: others use their memory.
    pub fn handle_freed(&mut self, grant: GrantId, withheld: u32) {
        self.core.handle_freed(grant);
        self.core.handle_withhold(withheld);
        self.answer_releases();
        self.outputs.push_back(Output::Report);
    }

    /// Records that the process runs, and handles deadlines. Returns the time that does not count,
    /// in nanoseconds: the process stood still.
    pub fn handle_timeout(&mut self, clock_ns: u64) -> u64 {
        let missed_ns = self.clock.handle_tick(clock_ns);
        let now_ns = self.now_ns(clock_ns);
        self.core.handle_timeout(now_ns);
        while let Some((until_ns, grant)) = self.ended.front().copied()
            && (until_ns <= now_ns || self.ended.len() > MAX_ENDED)
        {
            self.ended.pop_front();
            self.outputs.push_back(Output::Forget(grant));
        }
        missed_ns
    }

    /// Returns the latest time of the next [`Self::handle_timeout`]; `None`: only after an input.
    pub fn poll_timeout(&self, clock_ns: u64) -> Option<u64> {
        let forget_ns = self.ended.front().map(|(until_ns, _)| *until_ns);
        let next_ns = self.core.poll_timeout().into_iter().chain(forget_ns).min()?;
        let wait_ns = next_ns.saturating_sub(self.now_ns(clock_ns)).min(TICK_NS);
        Some(clock_ns.saturating_add(wait_ns))
    }

    /// Returns the next output. Grants end before anything else happens.
    pub fn poll_output(&mut self, clock_ns: u64) -> Option<Output> {
        let Some(DonorAction::FreeSlabs { grant, slabs, reason }) = self.core.poll_action() else {
            return self.outputs.pop_front();
        };
        if slabs > 0 {
            self.note_ended(self.now_ns(clock_ns), grant);
        }
        if let Some(callers) = self.switching.remove(&grant) {
            self.reply_all(callers);
        }
        Some(Output::End { grant, slabs, reason })
    }

    /// Performs all outputs of a donor without memory, on which ended grants are free at once.
    /// Returns the answers.
    pub fn perform_without_memory(
        &mut self,
        clock_ns: u64,
    ) -> Vec<(Token, Result<DonorAnswer, Refusal>)> {
        let mut answers = Vec::new();
        while let Some(output) = self.poll_output(clock_ns) {
            match output {
                Output::Reply(token, answer) => answers.push((token, answer)),
                Output::HoldFiles(hold) => self.handle_files_held(clock_ns, hold, true),
                Output::Switch(step) => self.handle_unused(step.grant),
                Output::End { grant, .. } => self.handle_freed(grant, 0),
                Output::SetAside { .. }
                | Output::Lend(_)
                | Output::ReleaseFiles(_)
                | Output::Forget(_)
                | Output::Report => {}
            }
        }
        answers
    }

    fn prepare(&mut self, now_ns: u64, request: PrepareRequest) -> Result<DonorStatus, Refusal> {
        let (grant, slabs) = (request.grant, request.share.slabs());
        let at_once = request.at_once.then_some(request.donor_epoch);
        let prepared = self.core.handle_prepare(now_ns, request)?;
        if matches!(prepared, Prepared::New(_)) {
            self.outputs.push_back(Output::SetAside { grant, slabs });
        }
        match (at_once, prepared) {
            (Some(epoch), _) => self.commit(now_ns, grant, epoch),
            (None, Prepared::New(status) | Prepared::Repeated(status)) => Ok(status),
        }
    }

    fn commit(
        &mut self,
        now_ns: u64,
        grant: GrantId,
        donor_epoch: u64,
    ) -> Result<DonorStatus, Refusal> {
        let is_prepared = |view: GrantView| view.state == HeldState::Prepared;
        let is_new = self.core.grant(grant).is_some_and(is_prepared);
        let status = self.core.handle_commit(now_ns, grant, donor_epoch)?;
        if is_new {
            self.outputs.push_back(Output::Lend(grant));
        }
        Ok(status)
    }

    fn release(&mut self, now_ns: u64, token: Token, grants: Vec<GrantId>) {
        for grant in &grants {
            self.core.handle_release(now_ns, *grant);
        }
        self.releases.push((token, grants));
        self.answer_releases();
    }

    fn answer_releases(&mut self) {
        let Self { core, outputs, releases, .. } = self;
        releases.retain(|(token, grants)| {
            let is_left = grants.iter().any(|grant| core.is_freeing(*grant));
            if !is_left {
                let status = Ok(DonorAnswer::Status(core.status()));
                outputs.push_back(Output::Reply(*token, status));
            }
            is_left
        });
    }

    fn hold_files(&mut self, token: Token, step: TransferStep, for_ns: Option<u64>) {
        self.outputs.push_back(Output::HoldFiles(FileHold { token, step, for_ns }));
    }

    fn switch(&mut self, now_ns: u64, token: Token, step: TransferStep) {
        let (from, grant) = (step.from, step.grant);
        let mut callers = vec![token];
        match self.core.handle_transfer(now_ns, &step) {
            Ok(Switched::New(_)) => {
                callers.extend(self.switching.remove(&from).into_iter().flatten());
                self.outputs.push_back(Output::Switch(step));
                if self.core.grant(grant).is_some_and(|view| view.slabs > 0) {
                    self.note_ended(now_ns, from);
                    self.switching.insert(grant, callers);
                    return;
                }
            }
            Ok(Switched::Repeated(_)) => {
                if let Some(waiting) = self.switching.get_mut(&grant) {
                    return waiting.push(token);
                }
            }
            Err(refusal) => {
                self.outputs.push_back(Output::ReleaseFiles(from));
                return self.reply(token, Err(refusal));
            }
        }
        self.reply_all(callers);
    }

    fn note_ended(&mut self, now_ns: u64, grant: GrantId) {
        self.ended.push_back((now_ns.saturating_add(NOTIFY_FOR_NS), grant));
    }

    fn reply(&mut self, token: Token, result: Result<DonorStatus, Refusal>) {
        self.outputs.push_back(Output::Reply(token, result.map(DonorAnswer::Status)));
    }

    fn reply_all(&mut self, callers: Vec<Token>) {
        let status = self.core.status();
        callers.into_iter().for_each(|token| self.reply(token, Ok(status)));
    }
}
