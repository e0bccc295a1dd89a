//! A whole rack in virtual time: nodes with the real state machines, faulty links, and checkers.
//!
//! Events are handled one after another: a frame arrives, a timer ends, a program wants an access,
//! a fault begins or ends. After each, the node concerned does all that it can at that instant.

mod ask;
mod client;
mod control;
mod credit;
mod desk;
mod faults;
mod memory;
mod node;
mod relay;
mod sabotage;
mod stream;
mod tables;
mod talk;
mod talks;
mod tally;

use std::collections::BTreeMap;

use venice_fabric::QPairId;

use crate::checkers::{Checker, Oracle, WireWatch};
use crate::network::{Datagram, End, Network};
use crate::report::Report;
use crate::scenario::{BadScenario, Scenario, Topology};
use venice_simkernel::events::Events;
use venice_simkernel::trace::Trace;

use self::desk::Desk;
use self::node::Node;
use self::relay::Relay;
pub use self::sabotage::Sabotage;
use self::sabotage::Saboteur;
use self::tally::Tally;

/// Receives the frames of all links.
pub trait Tap {
    /// Handles a frame that arrives or, with a remark that gives the reason, is lost. Times never
    /// run backwards.
    fn frame(&mut self, at_ns: u64, datagram: &Datagram, remark: Option<&str>);
}

/// Options of a run.
#[derive(Default)]
pub struct Options<'a> {
    /// Receiver of all frames.
    pub tap: Option<&'a mut dyn Tap>,
    /// Bug to inject.
    pub sabotage: Option<Sabotage>,
    /// Checkers to ignore: shows which others detect a bug.
    pub ignored: &'a [Checker],
}

/// Runs a scenario to its end, or to the first violation.
///
/// # Errors
/// When the scenario is invalid.
pub fn run<'a>(scenario: &'a Scenario, options: Options<'a>) -> Result<Report, BadScenario> {
    scenario.check()?;
    let mut rack = Rack::new(scenario, scenario.wiring()?, options);
    rack.run();
    Ok(rack.report())
}

/// A future event.
#[derive(Debug)]
enum Event {
    Arrive { datagram: Datagram, cut_epoch: u32, remark: Option<&'static str> },
    Timer { node: u16, life: u32 },
    Want { node: u16, life: u32 },
    Reconnect { node: u16, life: u32, session: usize },
    Read { node: u16, life: u32, end: End, qpair: QPairId },
    FaultBegins(usize),
    FaultEnds(usize),
}

struct Rack<'a> {
    scenario: &'a Scenario,
    now_ns: u64,
    calm_ns: u64,
    patience_ns: u64,
    is_harmless: bool,
    events: Events<Event>,
    events_count: u64,
    network: Network,
    nodes: Vec<Node>,
    next_grant: u64,
    oracle: Oracle,
    wire_watch: WireWatch,
    saboteur: Saboteur,
    tally: Tally,
    trace: Trace,
    tap: Option<&'a mut dyn Tap>,
}

/// Events at one instant after which the rack counts as an endless loop.
const MAX_EVENTS_AT_ONCE: u64 = 200_000;

impl<'a> Rack<'a> {
    fn new(scenario: &'a Scenario, topology: Topology, options: Options<'a>) -> Self {
        let mut rack = Self {
            scenario,
            now_ns: 0,
            calm_ns: scenario.calm_ns(),
            patience_ns: patience_ns(scenario, topology),
            is_harmless: scenario.is_harmless(),
            events: Events::default(),
            events_count: 0,
            network: Network::new(scenario, topology.switches() as usize),
            nodes: Vec::new(),
            next_grant: 1,
            oracle: Oracle::default(),
            wire_watch: WireWatch::default(),
            saboteur: Saboteur::new(options.sabotage, scenario.seed),
            tally: Tally::default(),
            trace: Trace::default(),
            tap: options.tap,
        };
        rack.oracle.findings.ignore(options.ignored);
        for number in 0..topology.switches() as u16 {
            rack.nodes.push(Node::new(scenario, topology, number));
        }
        for (n, fault) in scenario.faults.iter().enumerate() {
            rack.events.push(fault.at.0, Event::FaultBegins(n));
            rack.events.push(fault.end_ns(), Event::FaultEnds(n));
        }
        (0..topology.switches() as u16).for_each(|node| rack.pump(node));
        rack
    }

    fn run(&mut self) {
        let done = |rack: &Self| {
            rack.now_ns >= rack.calm_ns
                && rack.nodes.iter().all(Node::is_content)
                && rack.oracle.conversations.check_settled().is_ok()
                && rack.oracle.streams.check_settled().is_ok()
        };
        if !self.run_until("every access is over and every node connected", done) {
            return;
        }
        for node in 0..self.scenario.nodes {
            self.with_client(node, |client, desk| client.probe(desk));
            self.pump(node);
        }
        let done = |rack: &Self| rack.nodes.iter().all(|node| node.client.is_idle());
        if !self.run_until("every region was read once more", done) {
            return;
        }
        // Long enough for any late frame to arrive.
        let jitter_ns = self.scenario.longest_jitter_ns();
        let end_ns = self.now_ns + 2 * jitter_ns + self.scenario.protocol.keepalive.0;
        self.run_until("late frames have come", |rack| rack.now_ns >= end_ns);
        self.wait_for_tables();
        self.check_when_quiet();
    }

    /// Runs until the condition holds; returns false after a violation or a timeout.
    fn run_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) -> bool {
        let give_up_ns = self.now_ns.max(self.calm_ns) + self.bound_ns();
        let mut at_once = 0;
        while !is_so(self) {
            let before_ns = self.now_ns;
            if !self.step() {
                return self.complain(format!("no event is left before {what}"));
            }
            at_once = if self.now_ns == before_ns { at_once + 1 } else { 0 };
            if at_once > MAX_EVENTS_AT_ONCE {
                let next = self.events.pop();
                return self.complain(format!(
                    "{at_once} events at one instant before {what}; the next is {next:?}"
                ));
            }
            if self.now_ns > give_up_ns || self.has_hung() {
                let waiting = self.who_waits();
                return self.complain(format!("timeout before {what}: {waiting}"));
            }
            if self.oracle.findings.any() {
                return false;
            }
        }
        true
    }

    /// True if an access has been outstanding for too long. Checked now and then.
    fn has_hung(&self) -> bool {
        if !self.events_count.is_multiple_of(256) {
            return false;
        }
        let oldest_ns = self.nodes.iter().filter_map(|node| node.client.oldest_ns()).min();
        let waits_ns = |since_ns: u64| self.now_ns.saturating_sub(since_ns.max(self.calm_ns));
        oldest_ns.is_some_and(|since_ns| waits_ns(since_ns) > self.patience_ns)
    }

    fn complain(&mut self, what: String) -> bool {
        self.oracle.findings.check(Checker::Progress, self.now_ns, Err(what));
        false
    }

    fn who_waits(&self) -> String {
        let waiting = self.nodes.iter().filter(|node| !node.is_content());
        let tell = |node: &Node| node.tell();
        let messages = self.oracle.conversations.check_settled().err();
        let streams = self.oracle.streams.check_settled().err();
        waiting.map(tell).take(4).chain(messages).chain(streams).collect::<Vec<_>>().join("; ")
    }

    /// Returns a bound of the remaining time once the rack is calm; it is not an estimate.
    fn bound_ns(&self) -> u64 {
        let accesses = u64::from(self.scenario.workload.accesses) + 10;
        let each_ns = self.scenario.protocol.replay_max.0 + 2 * self.scenario.workload.think.0;
        accesses * each_ns + 3 * self.patience_ns
    }

    /// Handles the next event; returns false if there is none.
    fn step(&mut self) -> bool {
        let Some((at_ns, event)) = self.events.pop() else { return false };
        self.now_ns = at_ns;
        self.events_count += 1;
        match event {
            Event::Arrive { datagram, cut_epoch, remark } => {
                self.arrive(datagram, cut_epoch, remark);
            }
            Event::Timer { node, life } => self.timer(node, life),
            Event::Want { node, life } => self.want(node, life),
            Event::Reconnect { node, life, session } => self.reconnect(node, life, session),
            Event::Read { node, life, end, qpair } => self.read_late(node, life, end, qpair),
            Event::FaultBegins(fault) => self.begin_fault(fault),
            Event::FaultEnds(fault) => self.end_fault(fault),
        }
        true
    }

    fn arrive(&mut self, datagram: Datagram, cut_epoch: u32, remark: Option<&'static str>) {
        if !self.network.arrives(datagram.from, datagram.to, cut_epoch) {
            self.tap(&datagram, Some("lost: the link was cut while the frame was in flight"));
            return;
        }
        self.tap(&datagram, remark);
        let to = datagram.to;
        let node = &mut self.nodes[usize::from(to)];
        if node.take_in(datagram, self.now_ns, &mut self.oracle, &mut self.saboteur) {
            self.pump(to);
        }
    }

    fn timer(&mut self, number: u16, life: u32) {
        let node = &mut self.nodes[usize::from(number)];
        if node.life_number != life || node.timer_ns != Some(self.now_ns) {
            return;
        }
        node.timer_ns = None;
        if node.is_awake() {
            node.handle_timeout(self.now_ns);
            self.pump(number);
        }
    }

    fn want(&mut self, number: u16, life: u32) {
        let node = &mut self.nodes[usize::from(number)];
        if node.life_number != life {
            return;
        }
        node.wants = false;
        if node.is_awake() {
            self.with_client(number, |client, desk| client.want(desk));
            self.pump(number);
        }
    }

    /// Schedules the next access of a node after its think time.
    fn want_later(&mut self, number: u16) {
        let node = &mut self.nodes[usize::from(number)];
        let is_blocked = node.client.is_blocked();
        let wants = node.client.has_time() || is_blocked;
        if node.is_awake() && wants && !std::mem::replace(&mut node.wants, true) {
            // A program without memory tries again now and then.
            let idle_ns = match node.client.sessions.iter().any(|session| session.is_mapped) {
                true if is_blocked => self.scenario.protocol.replay_min.0,
                true => 0,
                false => self.scenario.protocol.keepalive.0,
            };
            let at_ns = self.now_ns + node.client.think_ns() + idle_ns;
            self.events.push(at_ns, Event::Want { node: number, life: node.life_number });
        }
    }

    /// Lets a node do all that it can now.
    fn pump(&mut self, number: u16) {
        if !self.nodes[usize::from(number)].is_awake() {
            return;
        }
        loop {
            let mut busy = self.with_client(number, |client, desk| client.collect(desk));
            busy |= self.with_client(number, |client, desk| client.issue_held(desk));
            busy |= self.take_local(number);
            busy |= self.listen(number);
            busy |= self.transmit(number);
            if !busy {
                break;
            }
        }
        if self.nodes[usize::from(number)].lent.has_ending() {
            self.free_ended(number, false);
        }
        let wanting = self.with_client(number, |client, desk| client.take_stock(desk));
        for session in wanting {
            self.reconnect_later(number, session);
        }
        self.want_later(number);
        self.set_timer(number);
    }

    fn set_timer(&mut self, number: u16) {
        let node = &mut self.nodes[usize::from(number)];
        let Some(at_ns) = node.poll_timeout() else { return };
        let at_ns = at_ns.max(self.now_ns);
        if node.timer_ns.is_none_or(|set_ns| at_ns < set_ns) {
            node.timer_ns = Some(at_ns);
            self.events.push(at_ns, Event::Timer { node: number, life: node.life_number });
        }
    }

    /// Sends a node's frames. Returns true if there were any.
    fn transmit(&mut self, number: u16) -> bool {
        let mut any = self.transmit_held(number);
        while self.has_room(number)
            && let Some(mut datagram) = self.nodes[usize::from(number)].poll_transmit(self.now_ns)
        {
            any = true;
            self.saboteur.alter(&mut datagram.bytes);
            let result = self.wire_watch.sent(&datagram);
            self.oracle.findings.check(Checker::Wire, self.now_ns, result);
            self.saboteur.alter_unseen(&mut datagram.bytes);
            let node = &mut self.nodes[usize::from(number)];
            match &mut node.relay {
                Some(relay) => relay.send(self.now_ns + node.clock_ahead_ns, &datagram),
                None => self.send(datagram),
            }
        }
        any | self.transmit_hops(number)
    }

    /// True if a node's switch, if it has one, takes frames.
    fn has_room(&self, number: u16) -> bool {
        self.nodes[usize::from(number)].relay.as_ref().is_none_or(Relay::has_room)
    }

    fn transmit_held(&mut self, number: u16) -> bool {
        let node = &mut self.nodes[usize::from(number)];
        let local_ns = self.now_ns + node.clock_ahead_ns;
        node.relay.as_mut().is_some_and(|relay| relay.push_held(local_ns))
    }

    /// Sends a switch's datagrams to its neighbours.
    fn transmit_hops(&mut self, number: u16) -> bool {
        let mut any = false;
        loop {
            let node = &mut self.nodes[usize::from(number)];
            let local_ns = self.now_ns + node.clock_ahead_ns;
            let Some(datagram) =
                node.relay.as_mut().and_then(|relay| relay.poll_transmit(local_ns))
            else {
                return any;
            };
            any = true;
            self.send(datagram);
        }
    }

    /// Delivers a switch's frames to its own node.
    fn take_local(&mut self, number: u16) -> bool {
        let node = &mut self.nodes[usize::from(number)];
        let mut any = false;
        while node.take_local(self.now_ns, &mut self.oracle, &mut self.saboteur) {
            any = true;
        }
        any
    }

    fn send(&mut self, datagram: Datagram) {
        self.trace.note(&[self.now_ns, datagram.from.into(), datagram.to.into()]);
        self.trace.note_bytes(&datagram.bytes);
        let (passage, cut_epoch) = self.network.send(self.now_ns, &datagram);
        if let Some(why) = passage.lost {
            self.tap(&datagram, Some(why));
        }
        let mut original = datagram.bytes;
        let last = passage.arrivals.len().saturating_sub(1);
        for (n, arrival) in passage.arrivals.into_iter().enumerate() {
            let bytes = match arrival.altered {
                Some(altered) => altered,
                None if n == last => std::mem::take(&mut original),
                None => original.clone(),
            };
            let datagram = Datagram { bytes, ..datagram };
            let remark = arrival.remark;
            self.events.push(arrival.at_ns, Event::Arrive { datagram, cut_epoch, remark });
        }
    }

    fn tap(&mut self, datagram: &Datagram, remark: Option<&str>) {
        if let Some(tap) = &mut self.tap {
            tap.frame(self.now_ns, datagram, remark);
        }
    }

    /// Runs an action of a node's program.
    fn with_client<T>(
        &mut self,
        number: u16,
        act: impl FnOnce(&mut client::Client, &mut Desk<'_>) -> T,
    ) -> T {
        let node = &mut self.nodes[usize::from(number)];
        let mut desk = Desk {
            now_ns: self.now_ns,
            local_ns: self.now_ns + node.clock_ahead_ns,
            calm_ns: self.calm_ns,
            patience_ns: self.patience_ns,
            is_harmless: self.is_harmless,
            node: number,
            initiator: &mut node.initiator,
            talks: &mut node.talks[0],
            oracle: &mut self.oracle,
            tally: &mut self.tally,
            saboteur: &mut self.saboteur,
        };
        act(&mut node.client, &mut desk)
    }

    fn report(self) -> Report {
        let mut faults = BTreeMap::new();
        for fault in &self.scenario.faults {
            *faults.entry(fault.name()).or_insert(0) += 1;
        }
        Report {
            seed: self.scenario.seed,
            nodes: self.scenario.nodes,
            trace_hash: format!("{:016x}", self.trace.hash()),
            virtual_ns: self.now_ns,
            events: self.events_count,
            accesses: self.tally.accesses(),
            failed: self.tally.failed,
            refused: self.tally.refused,
            links_down: self.tally.links_down,
            frames: self.network.counts,
            links: self.nodes.iter().map(Node::link_totals).sum(),
            faults,
            verdicts: self.oracle.findings.verdicts(),
            violations: self.oracle.findings.violations().to_vec(),
        }
    }
}

/// Returns the time limit of one access once the rack is calm.
fn patience_ns(scenario: &Scenario, topology: Topology) -> u64 {
    let protocol = &scenario.protocol;
    let queue = u64::from(scenario.workload.depth.max(protocol.window)) + 10;
    let direct_ns = 20 * protocol.silence.0 + queue * 4 * protocol.replay_max.0;
    // Relayed frames wait for the relays' own frames.
    if topology.has_relays() { 10 * direct_ns } else { direct_ns }
}
