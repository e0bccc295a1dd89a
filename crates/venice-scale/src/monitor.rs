//! The Monitor Node: the logic of `venice-monitor`, its processor and its store.
//!
//! The processor does one thing at a time. The logic comes before the next message, reports before
//! other input, and nothing enters it during a write, as in the daemon.

use std::collections::{BTreeMap, VecDeque};

use hdrhistogram::Histogram;
use venice_fabric::{Position, Topology};
use venice_rack::agent_member::ReportCall;
use venice_rack::monitor::{
    CallError, CountingKeys, Distances, Event, MonitorCore, MonitorSettings, Record, Token,
};
use venice_rack::monitor_node::{
    Call, DonorAnswer, DonorCall, MonitorNode, Now, Output, Reply, Written,
};
use venice_rack::pausable_clock::TICK_NS;
use venice_rack::queueing::Asked;
use venice_rack::rrt::NodeRecord;
use venice_rack::types::{HeartbeatReport, Identity};
use venice_simkernel::units::Picos;

use crate::agent::{name_of, node_of, registration};
use crate::config::{Config, Cost};
use crate::messages::{Message, Purpose};

/// Most inputs that the daemon takes in before it performs their outputs.
const INPUTS_AT_ONCE: usize = 64;
/// Longest lifetime of a certificate, in milliseconds: 30 days.
const CERTIFICATE_LIFE_MS: u64 = 30 * 86_400_000;
/// Nanoseconds, in picoseconds.
const NANO: u64 = Picos::NANO;

/// Something that is to happen at the Monitor Node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MonitorEvent {
    /// The processor is done with its work.
    Done,
    /// A write is durable.
    Written,
    /// Deadlines of the logic.
    Timeout,
    /// The regular tick of its clock.
    Tick,
    /// A donor has had its time to answer the call of this number.
    Late(u64),
}

/// An effect of the Monitor Node.
#[derive(Debug)]
pub enum Effect {
    /// A message to a node, with the nodes listed in it.
    Send(u32, Message, usize),
    /// An event of its own, at a time.
    At(u64, MonitorEvent),
    /// An entry of its log.
    Note(Event),
}

/// The work of the processor.
#[derive(Debug)]
enum Work {
    /// A message is received, or an answer made.
    Receive(u64, Input),
    Report(u32, ReportCall, Box<HeartbeatReport>),
    Inputs(Vec<Input>),
    Results(Vec<Input>),
    Timeout,
    Tick,
    Write,
    /// A list is made for an answer.
    List(u32, Box<Message>, usize),
}

/// A message that has arrived, or a tick.
#[derive(Debug)]
enum Input {
    Report(u32, ReportCall, Box<HeartbeatReport>),
    Call(u32, Purpose, Box<Call>),
    Result(u64, Result<DonorAnswer, CallError>),
    /// A tick of the clock. It comes the way of the reports, behind those before it.
    Tick,
}

/// Measurements of the Monitor Node, from the end of the warm-up on.
#[derive(Debug)]
pub struct Load {
    /// Time of its processor, in picoseconds.
    pub busy: u64,
    /// Time during which a write kept input waiting, in picoseconds.
    pub writing: u64,
    /// Writes.
    pub writes: u64,
    /// Messages received.
    pub messages: u64,
    /// From a message's arrival to the end of its handling, in nanoseconds.
    pub stays: Histogram<u64>,
    /// The most messages in it at a time.
    pub longest: usize,
}

/// The Monitor Node's machine.
pub struct Monitor {
    node: MonitorNode,
    cost: Cost,
    nodes: u64,
    write: u64,
    donor_timeout: u64,
    warm_up: u64,
    arrived: VecDeque<(u64, Input)>,
    reports: VecDeque<(u64, Input)>,
    inputs: VecDeque<(u64, Input)>,
    results: VecDeque<(u64, Input)>,
    work: Option<Work>,
    /// Arrivals of what is being handled.
    handled: Vec<u64>,
    /// True if a write waits for the processor.
    wants_write: bool,
    write_began: Option<u64>,
    is_timeout_due: bool,
    is_turn_of_results: bool,
    next_look: u64,
    look_every: u64,
    results_at_once: usize,
    timeout_at: Option<u64>,
    tokens: BTreeMap<Token, (u32, Purpose)>,
    next_token: u64,
    calls: BTreeMap<u64, (Identity, DonorCall)>,
    next_call: u64,
    effects: Vec<Effect>,
    pub load: Load,
}

fn settings(config: &Config) -> MonitorSettings {
    let lease_ns = config.monitor.lease.0 / NANO;
    MonitorSettings {
        heartbeat_interval_ns: config.monitor.heartbeat_interval.0 / NANO,
        missed_heartbeats: config.monitor.missed_heartbeats,
        lease_ns,
        request_timeout_ns: (lease_ns / 2).min(10_000_000_000),
        preempt_notice_ns: 60_000_000_000,
        is_plain: true,
        way,
        distance,
        neighbours,
        link_bps: |_| None,
        placement: config.monitor.placement,
        forecast: Default::default(),
        waiting: Default::default(),
    }
}

/// Returns the positions on the path between two of a network, as the daemon does.
fn way(topology: &str, from: u32, to: u32) -> Option<Vec<u32>> {
    let topology: Topology = topology.parse().ok()?;
    let (from, to) = (Position(from), Position(to));
    if from.0.max(to.0) >= topology.switches() {
        return None;
    }
    Some(topology.path(from, to).map(|position| position.0).collect())
}

/// Returns the lengths of the paths from a position, as the daemon does.
fn distance(topology: &str, from: u32) -> Distances {
    let topology = topology.parse::<Topology>().ok();
    Box::new(move |to| Some(topology?.hops(Position(from), Position(to))))
}

/// Returns the positions that a position is linked to, as the daemon does.
fn neighbours(topology: &str, position: u32) -> Vec<u32> {
    let Ok(topology) = topology.parse::<Topology>() else { return Vec::new() };
    topology.neighbours(Position(position)).map(|(_, neighbour)| neighbour.0).collect()
}

/// Returns the store's record of a node.
fn record_of(config: &Config, node: u32) -> NodeRecord {
    let registration = registration(config, node);
    let identity = registration.previous.expect("it registered before the start");
    NodeRecord::new(identity, registration, None)
}

/// Makes the logic, which knows all nodes from its store.
pub fn logic(config: &Config) -> MonitorNode {
    let records = (0..config.nodes).map(|node| Record::Node(record_of(config, node)));
    let core = MonitorCore::recover(settings(config), Box::new(CountingKeys(0)), 0, records);
    MonitorNode::new(core, None, 0, CERTIFICATE_LIFE_MS)
}

impl Monitor {
    pub fn new(config: &Config) -> Self {
        Self {
            node: logic(config),
            cost: config.monitor.cost,
            nodes: config.nodes.into(),
            write: config.monitor.write.0,
            donor_timeout: config.monitor.donor_timeout.0.min(config.monitor.lease.0 / 4),
            warm_up: config.warm_up.0,
            arrived: VecDeque::new(),
            reports: VecDeque::new(),
            inputs: VecDeque::new(),
            results: VecDeque::new(),
            work: None,
            handled: Vec::new(),
            wants_write: false,
            write_began: None,
            is_timeout_due: false,
            is_turn_of_results: false,
            next_look: 0,
            look_every: config.monitor.heartbeat_interval.0 / 4,
            results_at_once: config.monitor.results_at_once as usize,
            timeout_at: None,
            tokens: BTreeMap::new(),
            next_token: 0,
            calls: BTreeMap::new(),
            next_call: 0,
            effects: vec![Effect::At(TICK_NS * NANO, MonitorEvent::Tick)],
            load: Load {
                busy: 0,
                writing: 0,
                writes: 0,
                messages: 0,
                stays: Histogram::new(3).expect("three digits are supported"),
                longest: 0,
            },
        }
    }

    /// Returns what it has to do since the last time.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// Returns the messages in it, those being handled too.
    pub fn waiting(&self) -> usize {
        self.arrived.len()
            + self.reports.len()
            + self.inputs.len()
            + self.results.len()
            + self.handled.len()
    }

    /// Handles a message of a node.
    pub fn handle_message(&mut self, now: u64, from: u32, message: Message) {
        let input = match message {
            Message::Report(call, report) => Input::Report(from, call, report),
            Message::Call(purpose, call) => Input::Call(from, purpose, call),
            Message::Result(number, result) => Input::Result(number, result),
            Message::Acknowledged(..)
            | Message::Registered(..)
            | Message::DonorCall(..)
            | Message::Renew(..)
            | Message::Reply(..)
            | Message::Renewed(..) => unreachable!("these go to nodes"),
        };
        self.arrived.push_back((now, input));
        if now >= self.warm_up {
            self.load.messages += 1;
            self.load.longest = self.load.longest.max(self.waiting());
        }
        self.go_on(now);
    }

    /// Handles an event of its own.
    pub fn handle(&mut self, now: u64, event: MonitorEvent) {
        match event {
            MonitorEvent::Done => self.done(now),
            MonitorEvent::Written => {
                if let Some(began) = self.write_began.take() {
                    self.load.writing += now.max(self.warm_up) - began.max(self.warm_up);
                }
                let time = self.time(now);
                self.node.handle_written(time, Written::Made { revision: 0 });
                self.perform(now);
            }
            MonitorEvent::Timeout => {
                self.timeout_at = self.timeout_at.filter(|at| *at > now);
                self.is_timeout_due |= self.node.poll_timeout() <= self.node.now_ns(now / NANO);
            }
            MonitorEvent::Tick => {
                self.arrived.push_back((now, Input::Tick));
                self.effects.push(Effect::At(now + TICK_NS * NANO, MonitorEvent::Tick));
            }
            MonitorEvent::Late(number) => {
                if self.calls.contains_key(&number) {
                    self.results.push_back((now, Input::Result(number, Err(CallError::NoAnswer))));
                }
            }
        }
        self.go_on(now);
    }

    fn time(&self, now: u64) -> Now {
        let clock_ns = now / NANO;
        let wall_ms = clock_ns / 1_000_000;
        Now { clock_ns, wall_ms, signed_until_ms: wall_ms }
    }

    /// Begins the next work, if the processor is free.
    fn go_on(&mut self, now: u64) {
        if self.work.is_some() {
            return;
        }
        if self.timeout_at.is_none() {
            self.set_timeout(now);
        }
        let Some((work, cost)) = self.next_work(now) else { return self.set_timeout(now) };
        self.work = Some(work);
        self.charge(now, cost);
    }

    fn charge(&mut self, now: u64, cost: u64) {
        let ends = now + cost;
        self.load.busy += ends.max(self.warm_up) - now.max(self.warm_up);
        self.effects.push(Effect::At(ends, MonitorEvent::Done));
    }

    fn next_work(&mut self, now: u64) -> Option<(Work, u64)> {
        let cost = self.cost;
        if std::mem::take(&mut self.wants_write) {
            return Some((Work::Write, cost.write.0));
        }
        if self.node.takes_input() {
            match self.reports.pop_front() {
                Some((at, Input::Report(from, call, report))) => {
                    self.handled.push(at);
                    return Some((Work::Report(from, call, report), cost.report.0));
                }
                Some((_, Input::Tick)) => return Some((Work::Tick, 0)),
                Some((_, Input::Call(..) | Input::Result(..))) | None => {}
            }
            if std::mem::take(&mut self.is_timeout_due) {
                return Some((Work::Timeout, self.cost_of_timeout(now)));
            }
            // The daemon draws which of the two comes first.
            self.is_turn_of_results ^= true;
            let (first, second) = match self.is_turn_of_results {
                true => (self.next_results(), Self::next_inputs as fn(&mut Self) -> _),
                false => (self.next_inputs(), Self::next_results as fn(&mut Self) -> _),
            };
            if let Some(work) = first.or_else(|| second(self)) {
                return Some(work);
            }
        }
        let (at, input) = self.arrived.pop_front()?;
        self.handled.push(at);
        let cost = if matches!(input, Input::Tick) { 0 } else { cost.call.0 };
        Some((Work::Receive(at, input), cost))
    }

    /// Returns the cost of deadlines: the look at all nodes comes four times an interval.
    fn cost_of_timeout(&mut self, now: u64) -> u64 {
        if now < self.next_look {
            return self.cost.request.0;
        }
        self.next_look = now + self.look_every;
        self.cost.look_node.0 * self.nodes
    }

    fn next_inputs(&mut self) -> Option<(Work, u64)> {
        let count = self.inputs.len().min(INPUTS_AT_ONCE);
        let (arrivals, inputs): (Vec<_>, Vec<_>) = self.inputs.drain(..count).unzip();
        self.handled.extend(arrivals);
        let cost = inputs.iter().map(|input| self.cost_of(input)).sum();
        (count > 0).then_some((Work::Inputs(inputs), cost))
    }

    fn next_results(&mut self) -> Option<(Work, u64)> {
        let count = self.results.len().min(self.results_at_once);
        let (arrivals, results): (Vec<_>, Vec<_>) = self.results.drain(..count).unzip();
        self.handled.extend(arrivals);
        let cost = self.cost.result.0 * count as u64;
        (count > 0).then_some((Work::Results(results), cost))
    }

    fn cost_of(&self, input: &Input) -> u64 {
        let is_request =
            matches!(input, Input::Call(_, _, call) if matches!(**call, Call::Request(..)));
        let nodes = if is_request { self.nodes } else { 0 };
        self.cost.request.0 + self.cost.request_node.0 * nodes
    }

    /// Ends the present work: it takes effect.
    fn done(&mut self, now: u64) {
        let work = self.work.take().expect("only work is done");
        let time = self.time(now);
        match work {
            Work::Receive(at, input) => {
                self.handled.pop();
                return match input {
                    Input::Report(..) | Input::Tick => self.reports.push_back((at, input)),
                    Input::Call(..) => self.inputs.push_back((at, input)),
                    Input::Result(..) => self.results.push_back((at, input)),
                };
            }
            Work::Report(from, call, report) => {
                let ack = self.node.handle_report(time, &name_of(from), *report);
                let listed = ack.as_ref().map_or(0, |ack| {
                    ack.peers.as_ref().map_or(0, |list| list.peers.len() + list.relays.len())
                });
                let message = Message::Acknowledged(call, ack.map(Box::new));
                if listed > 0 {
                    self.work = Some(Work::List(from, Box::new(message), listed));
                    return self.charge(now, self.cost.listed.0 * listed as u64);
                }
                self.effects.push(Effect::Send(from, message, 0));
            }
            Work::List(to, message, listed) => {
                self.effects.push(Effect::Send(to, *message, listed));
            }
            Work::Inputs(inputs) => {
                for input in inputs {
                    let Input::Call(from, purpose, call) = input else { continue };
                    self.next_token += 1;
                    let token = Token(self.next_token);
                    self.tokens.insert(token, (from, purpose));
                    self.node.handle_call(time, token, *call);
                }
            }
            Work::Results(results) => {
                for result in results {
                    let Input::Result(number, result) = result else { continue };
                    // A late answer is none: the call has had its time.
                    if let Some((donor, call)) = self.calls.remove(&number) {
                        self.node.handle_returned(time, donor, call, result);
                    }
                }
            }
            Work::Timeout => self.node.handle_timeout(time),
            Work::Tick => drop(self.node.handle_tick(time)),
            Work::Write => {
                self.effects.push(Effect::At(now + self.write, MonitorEvent::Written));
                self.write_began = Some(now);
                return;
            }
        }
        self.leave(now);
        self.perform(now);
    }

    /// Records the stay of what was handled.
    fn leave(&mut self, now: u64) {
        for arrived in self.handled.drain(..) {
            if arrived >= self.warm_up {
                let stay = (now - arrived) / NANO;
                self.load.stays.record(stay).expect("it grows with its values");
            }
        }
    }

    /// Performs outputs until a write.
    fn perform(&mut self, now: u64) {
        while let Some(output) = self.node.poll_output() {
            match output {
                Output::Write { .. } => {
                    self.load.writes += u64::from(now >= self.warm_up);
                    self.wants_write = true;
                    return;
                }
                Output::Call { donor, name, call, .. } => {
                    self.next_call += 1;
                    let number = self.next_call;
                    self.calls.insert(number, (donor, call.clone()));
                    let late = now + self.donor_timeout;
                    self.effects.push(Effect::At(late, MonitorEvent::Late(number)));
                    let to = node_of(&name).expect("names are those of nodes");
                    let message = Message::DonorCall(number, Box::new(call));
                    self.effects.push(Effect::Send(to, message, 0));
                }
                Output::Reply(token, reply) => self.reply(token, reply),
                Output::Granted(request, grants) => {
                    for token in request.calls {
                        self.reply(token, Reply::Asked(Ok(Asked::Granted(grants.clone()))));
                    }
                }
                Output::Note(event) => self.effects.push(Effect::Note(event)),
                Output::Revoked => {}
            }
        }
    }

    fn reply(&mut self, token: Token, reply: Reply) {
        let Some((to, purpose)) = self.tokens.remove(&token) else { return };
        let message = match (purpose, reply) {
            (Purpose::Register(call), Reply::Registered(result)) => {
                Message::Registered(call, result.ok())
            }
            (purpose, reply) => Message::Reply(purpose, Box::new(reply)),
        };
        self.effects.push(Effect::Send(to, message, 0));
    }

    /// Sets the logic's next timer.
    fn set_timeout(&mut self, now: u64) {
        if !self.node.takes_input() {
            return;
        }
        let wait_ns = self.node.poll_timeout().saturating_sub(self.node.now_ns(now / NANO));
        let at = now + wait_ns.max(1) * NANO;
        if self.timeout_at.is_none_or(|set| set <= now || at < set) {
            self.timeout_at = Some(at);
            self.effects.push(Effect::At(at, MonitorEvent::Timeout));
        }
    }
}
