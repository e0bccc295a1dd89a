//! Drives the core: feeds it calls and the time, and performs its actions.

mod repeat;
mod stopping;
mod writing;

use crate::clock::{Clock, wall_ms};
use crate::donors::{Answer, Call, Donors};
use crate::error::MonitorError;
use crate::inputs::{
    AskedReply, ClaimAnswer, Done, Heard, Input, Listing, Order, PendingCall, PendingRequest,
    RecordsAnswer, Reply, Report, TransferAnswer,
};
use crate::log::{log, log_granted};
use crate::metrics::{Counters, Snapshot};
use crate::records::RecordStore;
use crate::tenure::Tenure;
use crate::trust::TrustState;
use std::collections::BTreeMap;
use std::mem::replace;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use venice_control::{
    AllocationRequest, Asked, ClaimRequest, DonorStatus, Grant, HeartbeatAck, HeartbeatReport,
    Identity, NodeRegistration, Owner, RackError, Registered, TransferRequest, User,
};
use venice_rack::monitor::{
    Action, CHANGES_AT_ONCE, CallError, Change, Event, Kept, MonitorCore, RequestFacts, Token,
};
use venice_wire::{GrantId, GrantKey};

/// Length from which a stall is logged.
const LONG_STALL: Duration = Duration::from_secs(1);
/// Most inputs handled at once, so that their changes are written together.
const INPUTS_AT_ONCE: usize = 64;
/// Most batches of reports handled at once.
const HEARD_AT_ONCE: usize = 64;

/// A finished call to a donor.
struct Returned {
    donor: Identity,
    call: Call,
    result: Result<Answer, CallError>,
}

pub(crate) struct Driver {
    core: MonitorCore,
    store: RecordStore,
    clock: Clock,
    donors: Arc<Donors>,
    calls: JoinSet<Returned>,
    next_token: u64,
    registrations: BTreeMap<Token, PendingCall<NodeRegistration, Result<Registered, RackError>>>,
    releases: BTreeMap<Token, PendingCall<Vec<(GrantId, GrantKey)>, Kept>>,
    orders: BTreeMap<Token, PendingCall<Order, Result<(), RackError>>>,
    transfers: BTreeMap<Token, PendingCall<(User, TransferRequest), TransferAnswer>>,
    claims: BTreeMap<Token, PendingCall<(Owner, ClaimRequest), ClaimAnswer>>,
    requests: BTreeMap<u128, PendingRequest>,
    trust: TrustState,
    tenure: Tenure,
    /// Longest lifetime of a certificate, in milliseconds.
    certificate_life_ms: u64,
    counters: Arc<Counters>,
    inputs: mpsc::Receiver<Input>,
    /// Reports, ahead of all other inputs, and the time.
    heard: mpsc::Receiver<Heard>,
    /// Callers that await all records.
    record_readers: Vec<Reply<RecordsAnswer>>,
    is_stopping: bool,
}

impl Driver {
    pub(crate) fn new(
        core: MonitorCore,
        store: RecordStore,
        clock: Clock,
        donors: Donors,
        trust: TrustState,
        certificate_life_ms: u64,
        counters: Arc<Counters>,
    ) -> Self {
        trust.revoke(core.revocations());
        let tenure = store.shared().map_or_else(Tenure::for_ever, |it| it.membership().tenure());
        Self {
            core,
            store,
            clock,
            donors: Arc::new(donors),
            calls: JoinSet::new(),
            next_token: 0,
            registrations: BTreeMap::new(),
            releases: BTreeMap::new(),
            orders: BTreeMap::new(),
            transfers: BTreeMap::new(),
            claims: BTreeMap::new(),
            requests: BTreeMap::new(),
            trust,
            tenure,
            certificate_life_ms,
            counters,
            // Placeholders until `run`.
            inputs: mpsc::channel(1).1,
            heard: mpsc::channel(1).1,
            record_readers: Vec::new(),
            is_stopping: false,
        }
    }

    /// Runs until a stop input, after which earlier inputs are completed, or until the store fails.
    pub(crate) async fn run(
        mut self,
        inputs: mpsc::Receiver<Input>,
        heard: mpsc::Receiver<Heard>,
    ) -> Result<(), MonitorError> {
        (self.inputs, self.heard) = (inputs, heard);
        self.core.handle_certificate_life(self.certificate_life_ms);
        let mut batch = Vec::with_capacity(INPUTS_AT_ONCE);
        loop {
            // Heartbeats wait for one batch of other inputs at most.
            self.handle_all_heard();
            self.perform_all().await?;
            self.answer_record_readers().await;
            if self.is_stopping {
                return self.finish().await;
            }
            let wait = self.clock.until(self.core.poll_timeout());
            tokio::select! {
                count = self.inputs.recv_many(&mut batch, INPUTS_AT_ONCE) => {
                    if count == 0 {
                        return Ok(());
                    }
                    for input in batch.drain(..) {
                        // Callers after the stop learn that the Monitor Node stops.
                        if !self.is_stopping {
                            self.handle_input(input);
                        }
                    }
                }
                Some(done) = self.calls.join_next(), if !self.calls.is_empty() => {
                    self.handle_returned(done.map_err(MonitorError::Driver)?);
                }
                news = self.store.news() => self.handle_news(news?),
                Some(heard) = self.heard.recv() => self.handle_heard(heard),
                () = tokio::time::sleep(wait) => self.handle_timeout(),
            }
        }
    }

    fn handle_all_heard(&mut self) {
        for _ in 0..HEARD_AT_ONCE {
            let Ok(heard) = self.heard.try_recv() else { return };
            self.handle_heard(heard);
        }
    }

    fn handle_heard(&mut self, heard: Heard) {
        match heard {
            Heard::Reports(reports) => {
                let now_ns = self.clock.now_ns();
                for Report { name, report, reply } in reports {
                    let ack = self.handle_report(now_ns, &name, report);
                    // A caller that has hung up needs no answer; the same below.
                    let _ = reply.send(ack);
                }
            }
            Heard::Tick => self.tick(),
        }
    }

    /// Handles deadlines, after the reports that have arrived.
    fn handle_timeout(&mut self) {
        self.handle_all_heard();
        self.core.handle_timeout(self.clock.now_ns());
    }

    /// Advances the clock. Time in which this driver, or the heartbeat server, stood still does not
    /// count against the nodes: their reports come the same way as the ticks.
    fn tick(&mut self) {
        let missed = self.clock.tick();
        self.counters.note_stall(missed);
        if missed >= LONG_STALL {
            tracing::warn!(?missed, "stalled: nodes have that much longer to report");
        }
        if self.core.handle_wall_clock(self.clock.now_ns(), wall_ms()) {
            self.trust.revoke(self.core.revocations());
        }
        if let Some(shared) = self.store.shared() {
            shared.membership().set_silent(self.core.silent_nodes());
        }
    }

    /// Handles changes of other Monitor Nodes.
    fn handle_news(&mut self, news: Vec<Change>) {
        if let Some(shared) = self.store.shared() {
            self.core.handle_silent_at_peers(shared.membership().silent_at_peers());
        }
        if !news.is_empty() {
            let are_revoked = news.iter().any(is_of_revocations);
            self.core.handle_stored(self.clock.now_ns(), news);
            if are_revoked {
                self.trust.revoke(self.core.revocations());
            }
        }
    }

    /// Handles a conflict with another Monitor Node: all pending calls are evaluated again.
    fn handle_conflict(&mut self, failed: Vec<Change>, news: Vec<Change>) {
        let Some(shared) = self.store.shared() else { return };
        self.core.handle_silent_at_peers(shared.membership().silent_at_peers());
        self.core.handle_conflict(self.clock.now_ns(), failed, shared.view(), news);
        self.core.handle_certificate_life(self.certificate_life_ms);
        self.trust.revoke(self.core.revocations());
        self.repeat_calls();
    }

    fn handle_input(&mut self, input: Input) {
        if input.is_abandoned() {
            return;
        }
        let now_ns = self.clock.now_ns();
        match input {
            Input::Register(node, reply) => {
                let token = self.token();
                self.registrations.insert(token, PendingCall { asked: node.clone(), reply });
                self.core.handle_register(now_ns, token, node);
            }
            Input::Request(owner, request, reply) => {
                self.request(now_ns, owner, request, reply);
            }
            Input::Leave { owner, client_id, reply } => {
                let left = self.core.handle_leave(now_ns, &owner, client_id);
                if let Some(asking) = self.requests.get_mut(&client_id).filter(|_| left.is_ok()) {
                    asking.is_withdrawn = true;
                }
                let _ = reply.send(left);
            }
            Input::Plan(owner, request, reply) => {
                drop(reply.send(self.core.plan(&owner, &request)));
            }
            Input::Release(leases, reply) => {
                let token = self.token();
                self.core.handle_release(token, &leases);
                self.releases.insert(token, PendingCall { asked: leases, reply });
            }
            Input::Transfer(by, request, reply) => {
                let token = self.token();
                self.core.handle_transfer(now_ns, token, by.clone(), request.clone());
                self.transfers.insert(token, PendingCall { asked: (by, request), reply });
            }
            Input::Claim(owner, request, reply) => {
                let token = self.token();
                self.core.handle_claim(token, &owner, &request);
                self.claims.insert(token, PendingCall { asked: (owner, request), reply });
            }
            Input::Order(order, reply) => self.handle_order(order, reply),
            Input::List(listing) => self.list(now_ns, listing),
            Input::Records(reply) => self.record_readers.push(reply),
            Input::Stop => self.is_stopping = true,
        }
    }

    fn request(
        &mut self,
        now_ns: u64,
        owner: Owner,
        request: AllocationRequest,
        reply: AskedReply,
    ) {
        let client_id = request.client_id;
        if let Err(error) = self.core.handle_request(now_ns, owner.clone(), request.clone()) {
            self.note_refused(RequestFacts::of(&owner, &request), &error);
            return drop(reply.send(Err(error)));
        }
        let asking = PendingRequest { owner, request, replies: Vec::new(), is_withdrawn: false };
        self.requests.entry(client_id).or_insert(asking).replies.push(reply);
    }

    fn handle_order(&mut self, order: Order, reply: Done) {
        let token = self.token();
        self.orders.insert(token, PendingCall { asked: order.clone(), reply });
        self.start_order(token, order);
    }

    fn start_order(&mut self, token: Token, order: Order) {
        let now_ns = self.clock.now_ns();
        match order {
            Order::Deregister { name, identity, .. }
                if self.core.name_of(identity.node) != name =>
            {
                self.answer_order(token, Err(RackError::NotRegistered));
            }
            Order::Deregister { identity, instance, .. } => {
                self.core.handle_deregister(now_ns, token, identity, instance);
            }
            Order::NewToken(record) => self.core.handle_new_token(wall_ms(), token, record),
            Order::Join { token: join, name, key } => {
                self.core.handle_join(wall_ms(), token, join, (&name, key));
            }
            Order::DeleteToken(id) => self.core.handle_delete_token(wall_ms(), token, id),
            Order::Revoke { name, is_sure } => {
                let until_ms = self.trust.revoked_until_ms();
                self.core.handle_revoke(now_ns, until_ms, token, (&name, is_sure));
                // The revocation applies before it is durable: the node might renew during the
                // write.
                self.trust.revoke(self.core.revocations());
            }
            Order::SetQuota { quota, by } => self.core.handle_set_quota(token, quota, &by),
            Order::RemoveQuota { of, by } => self.core.handle_remove_quota(token, of, &by),
            Order::Drain { name, undo } => self.core.handle_drain(now_ns, token, &name, !undo),
        }
    }

    /// Handles a heartbeat report, which may also carry revocations that this Monitor Node has
    /// lost.
    fn handle_report(
        &mut self,
        now_ns: u64,
        name: &str,
        mut report: HeartbeatReport,
    ) -> Result<HeartbeatAck, RackError> {
        if self.core.name_of(report.identity.node) != name {
            return Err(RackError::NotRegistered);
        }
        let reported = std::mem::take(&mut report.door.revoked_besides);
        let reported = self.trust.sealed_only(name, reported);
        let until_ms = self.trust.revoked_until_ms();
        if self.core.handle_reported_revocations(now_ns, until_ms, reported) {
            self.trust.revoke(self.core.revocations());
        }
        let mut ack = self.core.handle_heartbeat(now_ns, report)?;
        ack.trust_version = self.trust.version;
        if let Some(news) = &mut ack.revoked {
            let known = std::mem::take(&mut news.known).into_iter();
            news.known = known.map(|it| self.trust.authority.seal(it)).collect();
        }
        Ok(ack)
    }

    fn list(&self, now_ns: u64, listing: Listing) {
        match listing {
            Listing::Nodes(reply) => drop(reply.send(self.core.node_rows(now_ns))),
            Listing::Resources(reply) => drop(reply.send(self.core.resource_rows())),
            Listing::Grants(reply) => drop(reply.send(self.core.grant_rows(now_ns))),
            Listing::Queue(reply) => drop(reply.send(self.core.queue_rows(now_ns))),
            Listing::Quotas(reply) => drop(reply.send(self.core.quota_table())),
            Listing::Forecasts(reply) => drop(reply.send(self.core.forecast_rows())),
            Listing::Links(reply) => drop(reply.send(self.core.link_rows())),
            Listing::Tokens(reply) => drop(reply.send(self.core.tokens(wall_ms()))),
            Listing::Revocations(reply) => drop(reply.send(self.core.revocations().list())),
            Listing::TrustVersions(reply) => drop(reply.send(self.core.trust_versions())),
            Listing::Peers(reply) => {
                let shared = self.store.shared();
                drop(reply.send(shared.map(|it| it.membership().peers()).unwrap_or_default()));
            }
            Listing::Snapshot(reply) => drop(reply.send(self.snapshot(now_ns))),
            Listing::Obstacle(reply) => drop(reply.send(None)),
        }
    }

    fn snapshot(&self, now_ns: u64) -> Snapshot {
        Snapshot {
            nodes: self.core.node_rows(now_ns),
            resources: self.core.resource_rows(),
            grants: self.core.grant_rows(now_ns),
            queue: self.core.queue_rows(now_ns),
            links: self.core.link_rows(),
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    async fn perform_all(&mut self) -> Result<(), MonitorError> {
        while let Some(action) = self.core.poll_action() {
            // A member cut off from its peers must not act on an outdated view.
            if !self.tenure.lasts() {
                return Err(MonitorError::CutOff);
            }
            match action {
                Action::Store(changes) if self.store.shared().is_none() => {
                    self.write_batched(changes).await?;
                }
                Action::Store(changes) => self.write(changes).await?,
                action => self.perform(action),
            }
        }
        Ok(())
    }

    /// Makes all waiting changes durable together: the disk's latency is most of the cost of each.
    /// Only for a store without other writers, where no conflict can occur. Actions between the
    /// changes are performed after all of them.
    async fn write_batched(&mut self, mut changes: Vec<Change>) -> Result<(), MonitorError> {
        let mut later = Vec::new();
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Store(more) if changes.len() + more.len() <= CHANGES_AT_ONCE => {
                    changes.extend(more);
                }
                Action::Store(more) => self.write(replace(&mut changes, more)).await?,
                action => later.push(action),
            }
        }
        self.write(changes).await?;
        later.into_iter().for_each(|action| self.perform(action));
        Ok(())
    }

    /// Performs any action but a write to the store.
    fn perform(&mut self, action: Action) {
        match action {
            Action::Store(_) => unreachable!("writes are awaited by the caller"),
            Action::SendPrepare { donor, addr, request } => {
                self.call(donor, addr, Call::Prepare(request));
            }
            Action::SendCommit { donor, addr, grant } => {
                self.call(donor, addr, Call::Commit { grant, donor_epoch: donor.epoch });
            }
            Action::SendAbort { donor, addr, grant } => self.call(donor, addr, Call::Abort(grant)),
            Action::SendRelease { donor, addr, grants } => {
                self.call(donor, addr, Call::Release(grants));
            }
            Action::SendPrepareTransfer { donor, addr, step } => {
                self.call(donor, addr, Call::PrepareTransfer(step));
            }
            Action::SendCommitTransfer { donor, addr, step } => {
                self.call(donor, addr, Call::CommitTransfer(step));
            }
            Action::SendAbortTransfer { donor, addr, from, grant } => {
                self.call(donor, addr, Call::AbortTransfer { from, grant });
            }
            Action::SendPing { donor, addr } => self.call(donor, addr, Call::Ping),
            Action::ReplyRequest { client_id, result } => self.reply(client_id, result),
            Action::ReplyStanding { client_id, standing } => {
                let asking = self.requests.remove(&client_id);
                for reply in asking.into_iter().flat_map(|asking| asking.replies) {
                    let _ = reply.send(Ok(Asked::Waits(standing.clone())));
                }
            }
            Action::ReplyRelease { token, kept } => {
                self.releases.remove(&token).map(|waiting| waiting.reply.send(kept));
            }
            Action::ReplyTransfer { token, result } => {
                self.transfers.remove(&token).map(|waiting| waiting.reply.send(result));
            }
            Action::ReplyClaim { token, result } => {
                self.claims.remove(&token).map(|waiting| waiting.reply.send(result));
            }
            Action::ReplyDone { token, result } => self.answer_order(token, result),
            Action::ReplyRegister { token, result } => {
                self.registrations.remove(&token).map(|waiting| waiting.reply.send(result));
            }
            Action::Note(event) => self.note(&event),
        }
    }

    fn note(&self, event: &Event) {
        log(event);
        self.counters.events.push(event.row());
    }

    fn note_refused(&self, request: RequestFacts, error: &RackError) {
        self.note(&Event::RequestRefused { request, error: error.clone() });
    }

    fn answer_order(&mut self, token: Token, result: Result<(), RackError>) {
        self.orders.remove(&token).map(|waiting| waiting.reply.send(result));
    }

    fn call(&mut self, donor: Identity, addr: String, call: Call) {
        let donors = Arc::clone(&self.donors);
        let name = self.core.name_of(donor.node);
        self.calls.spawn(async move {
            let result = donors.call(&name, &addr, call.clone()).await;
            Returned { donor, call, result }
        });
    }

    fn reply(&mut self, client_id: u128, result: Result<Vec<Grant>, RackError>) {
        let Some(asking) = self.requests.remove(&client_id) else { return };
        match &result {
            Ok(grants) => log_granted(&asking, grants),
            Err(_) if asking.is_withdrawn => {}
            Err(error) => {
                let request = RequestFacts::of(&asking.owner, &asking.request);
                self.note_refused(request, error);
            }
        }
        for reply in asking.replies {
            let _ = reply.send(result.clone().map(Asked::Granted));
        }
    }

    /// Passes the result of a donor call to the core.
    fn handle_returned(&mut self, returned: Returned) {
        let Returned { donor, call, result } = returned;
        let now_ns = self.clock.now_ns();
        match call {
            Call::Prepare(request) => {
                self.core.handle_prepared(now_ns, donor, request.grant, status(result));
            }
            Call::Commit { grant, .. } => {
                self.core.handle_committed(now_ns, donor, grant, status(result));
            }
            Call::PrepareTransfer(step) => {
                let grants = (step.from, step.grant);
                self.core.handle_transfer_prepared(now_ns, donor, grants, status(result));
            }
            Call::CommitTransfer(step) => {
                self.core.handle_transfer_committed(now_ns, donor, step.grant, status(result));
            }
            Call::AbortTransfer { .. } => {
                self.core.handle_transfer_aborted(now_ns, donor, status(result));
            }
            Call::Abort(_) => self.core.handle_aborted(now_ns, donor, status(result)),
            Call::Release(grants) => {
                self.core.handle_released(now_ns, donor, &grants, status(result));
            }
            Call::Ping => {
                let pong = result.and_then(|answer| match answer {
                    Answer::Pong(pong) => Ok(pong),
                    Answer::Status(_) => Err(CallError::NoAnswer),
                });
                self.core.handle_pinged(now_ns, donor, pong);
            }
        }
    }
}

fn is_of_revocations(change: &Change) -> bool {
    matches!(change, Change::PutRevocation(_) | Change::DeleteRevocation(_))
}

fn status(result: Result<Answer, CallError>) -> Result<DonorStatus, CallError> {
    match result? {
        Answer::Status(status) => Ok(status),
        Answer::Pong(_) => Err(CallError::NoAnswer),
    }
}

#[cfg(test)]
mod tests;
