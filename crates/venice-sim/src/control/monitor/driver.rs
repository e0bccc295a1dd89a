//! Handles input: calls, the donors' answers, changes of others, and the time.

use std::collections::{BTreeMap, VecDeque};

use venice_rack::caller::{Owner, User};
use venice_rack::monitor::{CallError, Change, MonitorCore, Token};
use venice_rack::pausable_clock::{PausableClock, TICK_NS};
use venice_rack::types::{ClaimRequest, DonorStatus, Identity, NodeRegistration, TransferRequest};

use super::membership::Membership;
use super::waiting::Asking;
use super::{Monitor, MonitorTag, MonitorTimer, State};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Batch, Broken, CallId, Leases, Request, Response};
use crate::control::party::Party;

/// Largest number of inputs handled together.
const INPUTS_AT_ONCE: usize = 64;

pub(super) struct Driver {
    pub(super) core: MonitorCore,
    attention: PausableClock,
    pub(super) membership: Option<Membership>,
    pub(super) stage: Stage,
    pub(super) inputs: VecDeque<(CallId, Request)>,
    returned: VecDeque<Returned>,
    is_timeout_due: bool,
    is_tick_due: bool,
    /// Time of the next timer, if one is set.
    timeout_ns: Option<u64>,
    /// True if requests were queued when the queue was last reported.
    has_line: bool,
    next_token: u64,
    pub(super) registrations: BTreeMap<Token, (NodeRegistration, CallId)>,
    pub(super) releases: BTreeMap<Token, (Leases, CallId)>,
    pub(super) orders: BTreeMap<Token, ((String, bool), CallId)>,
    pub(super) transfers: BTreeMap<Token, ((User, TransferRequest), CallId)>,
    pub(super) claims: BTreeMap<Token, ((Owner, ClaimRequest), CallId)>,
    pub(super) requests: BTreeMap<u128, Asking>,
}

/// State of the driver.
pub(super) enum Stage {
    /// It handles any input.
    Idle,
    /// It writes these changes.
    Storing(Vec<Change>),
    /// Others were first: it waits for their changes.
    CatchingUp(Behind),
}

pub(super) struct Behind {
    pub(super) failed: Vec<Change>,
    pub(super) news: Vec<Change>,
    pub(super) sights: Vec<venice_rack::monitor::Sight>,
    pub(super) found: BTreeMap<venice_rack::monitor::RecordKey, u64>,
}

struct Returned {
    donor: Identity,
    request: Request,
    result: Result<Response, CallError>,
}

#[derive(Clone, Copy)]
enum Ready {
    Inputs,
    Returned,
    News,
    Timeout,
    Tick,
}

impl Driver {
    pub(super) fn new(
        core: MonitorCore,
        attention: PausableClock,
        membership: Option<Membership>,
    ) -> Self {
        Self {
            core,
            attention,
            membership,
            stage: Stage::Idle,
            inputs: VecDeque::new(),
            returned: VecDeque::new(),
            is_timeout_due: false,
            is_tick_due: false,
            timeout_ns: None,
            has_line: false,
            next_token: 0,
            registrations: BTreeMap::new(),
            releases: BTreeMap::new(),
            orders: BTreeMap::new(),
            transfers: BTreeMap::new(),
            claims: BTreeMap::new(),
            requests: BTreeMap::new(),
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn ready(&self, has_news: bool) -> Vec<Ready> {
        let all = [
            (Ready::Inputs, !self.inputs.is_empty()),
            (Ready::Returned, !self.returned.is_empty()),
            (Ready::News, has_news),
            (Ready::Timeout, self.is_timeout_due),
            (Ready::Tick, self.is_tick_due),
        ];
        all.into_iter().filter(|(_, is_ready)| *is_ready).map(|(ready, _)| ready).collect()
    }
}

impl Monitor {
    /// Continues as far as possible at this moment.
    pub(super) fn pump(&mut self, desk: &mut Desk<'_>) {
        loop {
            self.perform_all(desk);
            let has_news = !self.told.is_empty();
            let Some(driver) = self.driver_mut() else { return };
            if !matches!(driver.stage, Stage::Idle) {
                return;
            }
            let ready = driver.ready(has_news);
            if ready.is_empty() {
                return self.wait(desk);
            }
            // The order is random, as in the daemon.
            let which = *desk.rng.pick(&ready);
            self.take_in(desk, which);
            self.show_line(desk);
        }
    }

    fn take_in(&mut self, desk: &mut Desk<'_>, ready: Ready) {
        let local_ns = self.local_ns(desk);
        let clock_ns = self.clock.at(desk.now_ns);
        let State::Serving(driver) = &mut self.state else { return };
        match ready {
            Ready::Inputs => {
                for _ in 0..INPUTS_AT_ONCE {
                    let Some((call, request)) = driver.inputs.pop_front() else { break };
                    driver.take(desk, local_ns, call, request);
                }
            }
            Ready::Returned => {
                if let Some(returned) = driver.returned.pop_front() {
                    driver.hear(local_ns, returned);
                }
            }
            Ready::News => driver.learn(local_ns, self.told.pop_front()),
            Ready::Timeout => {
                driver.is_timeout_due = false;
                driver.core.handle_timeout(local_ns);
            }
            Ready::Tick => {
                driver.is_tick_due = false;
                driver.attention.handle_tick(clock_ns);
                if let Some(membership) = &mut driver.membership {
                    membership.tell_silent(driver.core.silent_nodes().collect());
                }
            }
        }
    }

    /// Reports the queue of a lone Monitor Node; with several, each has its own queue, and requests
    /// move between them.
    fn show_line(&mut self, desk: &mut Desk<'_>) {
        let (is_alone, local_ns) = (self.is_alone, self.local_ns(desk));
        let Some(driver) = self.driver_mut().filter(|_| is_alone) else { return };
        let rows = driver.core.queue_rows(local_ns);
        if driver.has_line || !rows.is_empty() {
            driver.has_line = !rows.is_empty();
            desk.fact(Fact::Line(rows));
        }
    }

    /// Sets the logic's next timer.
    fn wait(&mut self, desk: &mut Desk<'_>) {
        let local_ns = self.local_ns(desk);
        let clock = self.clock;
        let Some(driver) = self.driver_mut() else { return };
        let waits_ns = clock.takes_ns(driver.core.poll_timeout().saturating_sub(local_ns));
        let at_ns = desk.now_ns + waits_ns;
        if driver.timeout_ns.is_none_or(|set_ns| set_ns <= desk.now_ns || at_ns < set_ns) {
            driver.timeout_ns = Some(at_ns);
            desk.timer(waits_ns, Timer::Monitor(MonitorTimer::Timeout));
        }
    }

    pub(super) fn timeout(&mut self, desk: &mut Desk<'_>) {
        let local_ns = self.local_ns(desk);
        let Some(driver) = self.driver_mut() else { return };
        if driver.timeout_ns.is_some_and(|set_ns| set_ns <= desk.now_ns) {
            driver.timeout_ns = None;
        }
        driver.is_timeout_due |= driver.core.poll_timeout() <= local_ns;
        self.pump(desk);
    }

    pub(super) fn tick(&mut self, desk: &mut Desk<'_>) {
        desk.timer(self.clock.takes_ns(TICK_NS), Timer::Monitor(MonitorTimer::Tick));
        if let Some(driver) = self.driver_mut() {
            driver.is_tick_due = true;
            self.pump(desk);
        }
    }

    /// Handles the outcome of a call to a donor. A call whose connection broke is repeated once,
    /// over a new one.
    pub(super) fn donor_answered(
        &mut self,
        desk: &mut Desk<'_>,
        (donor, request, is_again): (Identity, Box<Request>, bool),
        outcome: Result<Response, Broken>,
    ) {
        let within_ns = self.donor_timeout_ns;
        let Some(driver) = self.driver_mut() else { return };
        let result = match outcome {
            Err(Broken::Reset) if !is_again => {
                let to = driver.party_of(donor);
                let tag = MonitorTag::Donor { donor, request: request.clone(), is_again: true };
                return desk.call(to, *request, within_ns, Tag::Monitor(tag));
            }
            Err(Broken::Refused) => Err(CallError::Gone),
            Err(_) => Err(CallError::NoAnswer),
            Ok(Response::Status(Err(refusal))) => Err(CallError::Refused(refusal)),
            Ok(response) => Ok(response),
        };
        driver.returned.push_back(Returned { donor, request: *request, result });
        self.pump(desk);
    }

    /// Returns the time used for others' deadlines.
    pub(super) fn local_ns(&self, desk: &Desk<'_>) -> u64 {
        let clock_ns = self.clock.at(desk.now_ns);
        match &self.state {
            State::Serving(driver) => driver.attention.now_ns(clock_ns),
            _ => clock_ns,
        }
    }
}

impl Driver {
    fn take(&mut self, desk: &mut Desk<'_>, now_ns: u64, call: CallId, request: Request) {
        match request {
            Request::Register(node) => {
                let token = self.token();
                self.registrations.insert(token, ((*node).clone(), call));
                self.core.handle_register(now_ns, token, *node);
            }
            Request::Heartbeat(report) => {
                let acknowledged = self.core.handle_heartbeat(now_ns, *report);
                desk.reply(call, Response::Acknowledged(acknowledged));
            }
            Request::Allocate(owner, request) => {
                let (recipient, priority) = (request.recipient.clone(), request.queueing.priority);
                desk.fact(Fact::Wants { recipient, priority });
                self.request(desk, now_ns, (owner, request), call);
            }
            Request::Leave(owner, client_id) => {
                let done = self.core.handle_leave(now_ns, &owner, client_id);
                desk.reply(call, Response::Done(done));
            }
            Request::GiveBack(leases) => {
                let token = self.token();
                self.core.handle_release(token, &leases);
                self.releases.insert(token, (leases, call));
            }
            Request::Transfer(by, request) => {
                let token = self.token();
                self.transfers.insert(token, ((by.clone(), (*request).clone()), call));
                self.core.handle_transfer(now_ns, token, by, *request);
            }
            Request::Claim(owner, request) => {
                let token = self.token();
                self.claims.insert(token, ((owner.clone(), request.clone()), call));
                self.core.handle_claim(token, &owner, &request);
            }
            Request::Drain { name, undo } => {
                let token = self.token();
                self.orders.insert(token, ((name.clone(), undo), call));
                self.core.handle_drain(now_ns, token, &name, !undo);
            }
            other => unreachable!("a Monitor Node has no request {}", other.name()),
        }
    }

    /// Handles the outcome of a call to a donor.
    fn hear(&mut self, now_ns: u64, returned: Returned) {
        let Returned { donor, request, result } = returned;
        let core = &mut self.core;
        match request {
            Request::Prepare(request) => {
                core.handle_prepared(now_ns, donor, request.grant, status(result));
            }
            Request::Commit { grant, .. } => {
                core.handle_committed(now_ns, donor, grant, status(result));
            }
            Request::PrepareTransfer(step) => {
                let grants = (step.from, step.grant);
                core.handle_transfer_prepared(now_ns, donor, grants, status(result));
            }
            Request::CommitTransfer(step) => {
                core.handle_transfer_committed(now_ns, donor, step.grant, status(result));
            }
            Request::AbortTransfer { .. } => {
                core.handle_transfer_aborted(now_ns, donor, status(result));
            }
            Request::Abort(_) => core.handle_aborted(now_ns, donor, status(result)),
            Request::Release(grants) => {
                core.handle_released(now_ns, donor, &grants, status(result));
            }
            Request::Ping => {
                let pong = result.and_then(|response| match response {
                    Response::Pong(pong) => Ok(pong),
                    _ => Err(CallError::NoAnswer),
                });
                core.handle_pinged(now_ns, donor, pong);
            }
            other => unreachable!("a donor has no answer to {}", other.name()),
        }
    }

    /// Applies changes that others made in the store.
    fn learn(&mut self, now_ns: u64, batch: Option<Batch>) {
        let (Some(membership), Some(batch)) = (&mut self.membership, batch) else { return };
        let news = membership.learn(batch);
        self.core.handle_silent_at_peers(membership.silent_elsewhere());
        if !news.is_empty() {
            self.core.handle_stored(now_ns, news);
        }
    }

    /// Others were first: the pending work is evaluated again, and requests without an answer are
    /// repeated.
    pub(super) fn yield_to_others(&mut self, desk: &mut Desk<'_>, now_ns: u64, behind: Behind) {
        let Some(membership) = &self.membership else { return };
        self.core.handle_silent_at_peers(membership.silent_elsewhere());
        self.core.handle_conflict(now_ns, behind.failed, &membership.view, behind.news);
        self.core.handle_certificate_life(30 * 86_400_000);
        self.ask_anew(desk, now_ns);
    }

    /// Returns the participant of a call to that donor, by its address.
    pub(super) fn party_of(&self, donor: Identity) -> Party {
        let name = self.core.name_of(donor.node);
        Party::Donor(crate::control::agent::number_of(&name).unwrap_or_default())
    }
}

fn status(result: Result<Response, CallError>) -> Result<DonorStatus, CallError> {
    match result? {
        Response::Status(Ok(status)) => Ok(status),
        _ => Err(CallError::NoAnswer),
    }
}
