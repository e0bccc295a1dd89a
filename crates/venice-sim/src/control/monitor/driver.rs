//! Gives the logic its input, and the time, in the daemon's order.

use std::collections::{BTreeSet, VecDeque};

use venice_rack::monitor::{CallError, Record, Token};
use venice_rack::monitor_node::{Call, DonorAnswer, DonorCall, MonitorNode, Now};
use venice_rack::pausable_clock::TICK_NS;
use venice_rack::types::Identity;
use venice_wire::NodeId;

use super::membership::Member;
use super::{Monitor, MonitorTag, MonitorTimer, State};
use crate::control::desk::{Desk, Fact, Tag, Timer};
use crate::control::messages::{Broken, CallId, Request, Response};
use crate::control::party::Party;

/// Largest number of inputs handled together.
const INPUTS_AT_ONCE: usize = 64;

pub(super) struct Driver {
    pub(super) node: MonitorNode,
    pub(super) member: Option<Member>,
    pub(super) inputs: VecDeque<(CallId, Request)>,
    returned: VecDeque<Returned>,
    is_timeout_due: bool,
    is_tick_due: bool,
    /// Time of the next timer, if one is set.
    timeout_ns: Option<u64>,
    /// True if requests were queued when the queue was last reported.
    has_line: bool,
    /// Nodes whose drain was durable at the last input of a lone Monitor Node. It makes the changes of
    /// inputs handled together durable together, and calls the donors of the first after that.
    pub(super) drained: BTreeSet<NodeId>,
}

struct Returned {
    donor: Identity,
    call: DonorCall,
    result: Result<DonorAnswer, CallError>,
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
    pub(super) fn new(node: MonitorNode, member: Option<Member>) -> Self {
        Self {
            node,
            member,
            inputs: VecDeque::new(),
            returned: VecDeque::new(),
            is_timeout_due: false,
            is_tick_due: false,
            timeout_ns: None,
            has_line: false,
            drained: BTreeSet::new(),
        }
    }

    fn ready(&self, has_news: bool) -> Vec<Ready> {
        if !self.node.takes_input() {
            let has_news = has_news && self.node.awaits_news();
            return has_news.then_some(Ready::News).into_iter().collect();
        }
        let all = [
            (Ready::Inputs, !self.inputs.is_empty()),
            (Ready::Returned, !self.returned.is_empty()),
            (Ready::News, has_news),
            (Ready::Timeout, self.is_timeout_due),
            (Ready::Tick, self.is_tick_due),
        ];
        all.into_iter().filter(|(_, is_ready)| *is_ready).map(|(ready, _)| ready).collect()
    }

    fn handle_input(&mut self, desk: &mut Desk<'_>, now: Now, call: CallId, request: Request) {
        match request {
            Request::Heartbeat(name, report) => {
                let acknowledged = self.node.handle_report(now, &name, *report);
                desk.reply(call, Response::Acknowledged(acknowledged));
            }
            Request::Call(asked) => {
                if let Call::Request(_, request) = &*asked {
                    let (recipient, priority) =
                        (request.recipient.clone(), request.queueing.priority);
                    desk.fact(Fact::Wants { recipient, priority });
                }
                self.node.handle_call(now, Token(call), *asked);
            }
            other => unreachable!("a Monitor Node has no request {}", other.name()),
        }
    }

    /// Handles a caller that stopped waiting.
    pub(super) fn hangs_up(&mut self, call: CallId) {
        let needs_caller = |request: &Request| match request {
            Request::Call(call) => call.needs_caller(),
            _ => false,
        };
        self.inputs.retain(|(of, request)| *of != call || !needs_caller(request));
        self.node.handle_hang_up(|token| token == Token(call));
    }
}

impl Monitor {
    /// Continues as far as possible at this moment.
    pub(super) fn pump(&mut self, desk: &mut Desk<'_>) {
        loop {
            self.perform_all(desk);
            let has_news = !self.told.is_empty();
            let Some(driver) = self.driver_mut() else { return };
            let ready = driver.ready(has_news);
            match (ready.as_slice(), driver.node.takes_input()) {
                ([], true) => return self.wait(desk),
                ([], false) => return,
                ([only], false) => self.take_in(desk, *only),
                // The order is random, as in the daemon.
                (ready, _) => {
                    let which = *desk.rng.pick(ready);
                    self.take_in(desk, which);
                    self.show_line(desk);
                }
            }
        }
    }

    fn take_in(&mut self, desk: &mut Desk<'_>, ready: Ready) {
        let now = self.now(desk);
        let State::Serving(driver) = &mut self.state else { return };
        let drained = self.file.values().filter_map(|record| match record {
            Record::Node(node) if node.is_draining => Some(node.identity.node),
            _ => None,
        });
        driver.drained = drained.collect();
        match ready {
            Ready::Inputs => {
                for _ in 0..INPUTS_AT_ONCE {
                    let Some((call, request)) = driver.inputs.pop_front() else { break };
                    driver.handle_input(desk, now, call, request);
                }
            }
            Ready::Returned => {
                if let Some(Returned { donor, call, result }) = driver.returned.pop_front() {
                    driver.node.handle_returned(now, donor, call, result);
                }
            }
            Ready::News => {
                let (Some(member), Some(batch)) = (&mut driver.member, self.told.pop_front())
                else {
                    return;
                };
                if let Some(news) = member.learn(batch) {
                    let silent = member.membership.silent_at_peers();
                    driver.node.handle_news(now, news, silent);
                }
            }
            Ready::Timeout => {
                driver.is_timeout_due = false;
                driver.node.handle_timeout(now);
            }
            Ready::Tick => {
                driver.is_tick_due = false;
                driver.node.handle_tick(now);
                if let Some(member) = &mut driver.member {
                    let silent = driver.node.core().silent_nodes().collect();
                    member.membership.set_silent(silent);
                }
            }
        }
    }

    /// Reports the queue of a lone Monitor Node; with several, each has its own queue, and requests
    /// move between them.
    fn show_line(&mut self, desk: &mut Desk<'_>) {
        let (is_alone, now) = (self.is_alone, self.now(desk));
        let Some(driver) = self.driver_mut().filter(|_| is_alone) else { return };
        let rows = driver.node.core().queue_rows(driver.node.now_ns(now.clock_ns));
        if driver.has_line || !rows.is_empty() {
            driver.has_line = !rows.is_empty();
            desk.fact(Fact::Line(rows));
        }
    }

    /// Sets the logic's next timer.
    fn wait(&mut self, desk: &mut Desk<'_>) {
        let (clock, now) = (self.clock, self.now(desk));
        let Some(driver) = self.driver_mut() else { return };
        let local_ns = driver.node.now_ns(now.clock_ns);
        let waits_ns = clock.takes_ns(driver.node.poll_timeout().saturating_sub(local_ns));
        let at_ns = desk.now_ns + waits_ns;
        if driver.timeout_ns.is_none_or(|set_ns| set_ns <= desk.now_ns || at_ns < set_ns) {
            driver.timeout_ns = Some(at_ns);
            desk.timer(waits_ns, Timer::Monitor(MonitorTimer::Timeout));
        }
    }

    pub(super) fn timeout(&mut self, desk: &mut Desk<'_>) {
        let now = self.now(desk);
        let Some(driver) = self.driver_mut() else { return };
        if driver.timeout_ns.is_some_and(|set_ns| set_ns <= desk.now_ns) {
            driver.timeout_ns = None;
        }
        driver.is_timeout_due |= driver.node.poll_timeout() <= driver.node.now_ns(now.clock_ns);
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
        (to, donor, call, is_again): (Party, Identity, Box<DonorCall>, bool),
        outcome: Result<Response, Broken>,
    ) {
        let within_ns = self.donor_timeout_ns;
        let Some(driver) = self.driver_mut() else { return };
        let result = match outcome {
            Err(Broken::Reset) if !is_again => {
                let request = Request::Donor(call.clone());
                let tag = MonitorTag::Donor { to, donor, call, is_again: true };
                return desk.call(to, request, within_ns, Tag::Monitor(tag));
            }
            Err(Broken::Refused) => Err(CallError::Gone),
            Ok(Response::Donor(answer)) => answer.map_err(CallError::Refused),
            Ok(_) | Err(_) => Err(CallError::NoAnswer),
        };
        driver.returned.push_back(Returned { donor, call: *call, result });
        self.pump(desk);
    }

    pub(super) fn now(&self, desk: &Desk<'_>) -> Now {
        let clock_ns = self.clock.at(desk.now_ns);
        let wall_ms = clock_ns / 1_000_000;
        Now { clock_ns, wall_ms, signed_until_ms: wall_ms }
    }
}
