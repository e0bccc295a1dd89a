//! All participants, and the event loop.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::agent::Agent;
use super::calls::Calls;
use super::clock::Clock;
use super::desk::{Desk, Effect, Outbox, Tag, Timer};
use super::faults::Operator;
use super::judge::{Checker, Judge, Scene};
use super::messages::{Batch, Broken, CallId, Request, Response};
use super::monitor::Monitor;
use super::network::{Network, RESEND_NS};
use super::party::Party;
use super::peace::Phase;
use super::recipient::Recipient;
use super::report::Report;
use super::sabotage::Sabotage;
use super::scenario::Scenario;
use super::store::{LOOK_EVERY_NS, SharedStore};
use venice_simkernel::events::Events;
use venice_simkernel::random::Stream;
use venice_simkernel::trace::Trace;

/// Events after which a run counts as an endless loop.
const MAX_EVENTS: u64 = 20_000_000;

pub(super) struct World<'a> {
    pub(super) scenario: &'a Scenario,
    pub(super) now_ns: u64,
    pub(super) events: Events<Event>,
    events_count: u64,
    pub(super) network: Network,
    pub(super) calls: Calls,
    pub(super) standings: BTreeMap<Party, Standing>,
    pub(super) rngs: BTreeMap<Party, Stream>,
    pub(super) monitors: Vec<Monitor>,
    pub(super) agents: Vec<Agent>,
    pub(super) recipients: Vec<Recipient>,
    pub(super) store: SharedStore,
    /// Batches on their way to each Monitor Node, with their times.
    watches: Vec<VecDeque<(u64, Batch)>>,
    pub(super) operator: Operator,
    pub(super) out: Outbox,
    pub(super) judge: Judge,
    pub(super) trace: Trace,
    pub(super) faults: BTreeMap<&'static str, u64>,
}

/// State of a participant.
#[derive(Debug, Default)]
pub(super) struct Standing {
    /// Number of processes so far.
    pub(super) life: u32,
    /// Number of reasons to be down.
    pub(super) downs: u32,
    /// True if it takes calls.
    pub(super) listens: bool,
    /// Faults that freeze it.
    pub(super) frozen: BTreeSet<usize>,
    /// Events that wait until it resumes.
    held: Vec<Event>,
}

/// A future event.
#[derive(Debug)]
pub(super) enum Event {
    Arrives {
        call: CallId,
        from: Party,
        to: Party,
        life: u32,
        is_kept: bool,
        request: Request,
    },
    Answers {
        call: CallId,
        from: Party,
        to: Party,
        is_kept: bool,
        response: Response,
    },
    Breaks {
        call: CallId,
        how: Broken,
    },
    /// A caller of a Monitor Node stopped waiting.
    HangsUp {
        call: CallId,
        from: Party,
        monitor: u16,
        life: u32,
    },
    Timer {
        party: Party,
        life: u32,
        timer: Timer,
    },
    Tells {
        monitor: u16,
        life: u32,
    },
    Up(Party),
    FaultBegins(usize),
    FaultEnds(usize),
    Phase(Phase),
}

/// Input of a participant.
pub(super) enum Brought {
    Start,
    Crash,
    Request(CallId, Request),
    Outcome(Tag, Result<Response, Broken>),
    /// A caller stopped waiting for its answer.
    HangsUp(CallId),
    Timer(Timer),
    Batch(Batch),
    /// All faults are over.
    End,
    LetGo,
    WantBack(u32),
    BreakDevices(bool),
}

impl<'a> World<'a> {
    pub(super) fn new(scenario: &'a Scenario, sabotage: Option<Sabotage>) -> Self {
        let root = Stream::new(scenario.seed).split("control plane", &[]);
        let mut world = Self {
            scenario,
            now_ns: 0,
            events: Events::default(),
            events_count: 0,
            network: Network::new(root.split("network", &[]), scenario.network),
            calls: Calls::default(),
            standings: BTreeMap::new(),
            rngs: BTreeMap::new(),
            monitors: Vec::new(),
            agents: Vec::new(),
            recipients: Vec::new(),
            store: SharedStore::default(),
            watches: vec![VecDeque::new(); usize::from(scenario.monitors)],
            operator: Operator::default(),
            out: Outbox::default(),
            judge: Judge::new(scenario),
            trace: Trace::default(),
            faults: BTreeMap::new(),
        };
        world.make_parties(&root, sabotage);
        world.plan();
        world
    }

    fn make_parties(&mut self, root: &Stream, sabotage: Option<Sabotage>) {
        let scenario = self.scenario;
        let clock = |party: Party| {
            let mut rng = root.split("clock", &party.numbers());
            Clock::new(&scenario.clocks, &mut rng)
        };
        for number in 0..scenario.monitors {
            self.monitors.push(Monitor::new(scenario, number, clock(Party::Monitor(number))));
        }
        for number in 0..scenario.donors {
            let clock = clock(Party::Donor(number));
            self.agents.push(Agent::new(scenario, number, clock, sabotage));
        }
        let usual = vec![None; usize::from(scenario.recipients)];
        let wishes = usual.into_iter().chain(super::peace::probes(scenario).map(Some));
        for (number, probe) in (0..).zip(wishes) {
            let clock = clock(Party::Recipient(number));
            self.recipients.push(Recipient::new(scenario, number, clock, probe));
        }
        let all = (0..scenario.monitors)
            .map(Party::Monitor)
            .chain((0..scenario.donors).map(Party::Donor))
            .chain((0..self.recipients.len() as u16).map(Party::Recipient))
            .chain([Party::Store, Party::Operator]);
        for party in all {
            self.rngs.insert(party, root.split("party", &party.numbers()));
            self.standings.insert(party, Standing { downs: 1, ..Standing::default() });
            self.events.push(0, Event::Up(party));
        }
    }

    /// Runs until the end, or the first violation.
    pub(super) fn run(&mut self) {
        while !self.judge.findings.any() && self.events_count < MAX_EVENTS {
            let Some((at_ns, event)) = self.events.pop() else { return };
            self.now_ns = at_ns;
            self.events_count += 1;
            if matches!(event, Event::Phase(Phase::Over)) {
                return;
            }
            self.handle(event);
        }
        let is_over = self.events_count < MAX_EVENTS;
        self.judge
            .findings
            .check(Checker::Soundness, self.now_ns, is_over, || "the run does not end".to_owned());
    }

    fn handle(&mut self, event: Event) {
        if let Some(event) = self.unless_frozen(event) {
            match event {
                Event::Arrives { .. } => self.arrives(event),
                Event::Answers { .. } => self.answers(event),
                Event::Breaks { call, how } => self.breaks(call, how),
                Event::HangsUp { .. } => self.hangs_up(event),
                Event::Timer { party, life, timer } => {
                    if self.standings[&party].life == life {
                        self.trace.note(&[self.now_ns, party.numbers()[0], party.numbers()[1], 1]);
                        self.bring(party, Brought::Timer(timer));
                    }
                }
                Event::Tells { monitor, life } => self.tells(monitor, life),
                Event::Up(party) => self.up(party),
                Event::FaultBegins(fault) => self.begin_fault(fault),
                Event::FaultEnds(fault) => self.end_fault(fault),
                Event::Phase(phase) => self.begin_phase(phase),
            }
        }
        self.settle();
    }

    /// Returns the event, or keeps it for a frozen participant.
    fn unless_frozen(&mut self, event: Event) -> Option<Event> {
        let party = match &event {
            Event::Arrives { to, .. } | Event::Answers { to, .. } => *to,
            Event::Breaks { call, .. } => self.calls.caller(*call)?,
            Event::Timer { party, .. } => *party,
            Event::Tells { monitor, .. } | Event::HangsUp { monitor, .. } => {
                Party::Monitor(*monitor)
            }
            _ => return Some(event),
        };
        let standing = self.standings.get_mut(&party).expect("every participant has a state");
        if standing.frozen.is_empty() {
            return Some(event);
        }
        standing.held.push(event);
        None
    }

    /// Delivers input to a participant.
    pub(super) fn bring(&mut self, party: Party, brought: Brought) {
        let rng = self.rngs.get_mut(&party).expect("every participant has random numbers");
        let mut desk = Desk { now_ns: self.now_ns, rng, out: &mut self.out, party };
        let desk = &mut desk;
        match party {
            Party::Monitor(number) => {
                let monitor = &mut self.monitors[usize::from(number)];
                match brought {
                    Brought::Start => monitor.start(desk),
                    Brought::Crash => monitor.crash(),
                    Brought::Request(call, request) => monitor.request(desk, call, request),
                    Brought::Outcome(Tag::Monitor(tag), it) => monitor.outcome(desk, tag, it),
                    Brought::HangsUp(call) => monitor.hangs_up(call),
                    Brought::Timer(Timer::Monitor(timer)) => monitor.timer(desk, timer),
                    Brought::Batch(batch) => monitor.watch(desk, batch),
                    _ => unreachable!("not an input of a Monitor Node"),
                }
            }
            Party::Donor(number) => {
                let agent = &mut self.agents[usize::from(number)];
                match brought {
                    Brought::Start => agent.start(desk),
                    Brought::Crash => agent.crash(desk),
                    Brought::Request(call, request) => agent.request(desk, call, request),
                    Brought::Outcome(Tag::Agent(tag), it) => agent.outcome(desk, tag, it),
                    Brought::Timer(Timer::Agent(timer)) => agent.timer(desk, timer),
                    Brought::WantBack(slabs) => agent.want_back(desk, slabs),
                    Brought::BreakDevices(begins) => agent.break_devices(desk, begins),
                    _ => unreachable!("not an input of an agent"),
                }
            }
            Party::Recipient(number) => {
                let recipient = &mut self.recipients[usize::from(number)];
                match brought {
                    Brought::Start => recipient.start(desk),
                    Brought::Crash => recipient.crash(desk),
                    Brought::Outcome(Tag::Recipient(tag), it) => recipient.outcome(desk, tag, it),
                    Brought::Timer(Timer::Recipient(timer)) => recipient.timer(desk, timer),
                    Brought::End => recipient.end(desk),
                    Brought::LetGo => recipient.let_go(desk),
                    _ => unreachable!("not an input of a recipient"),
                }
            }
            Party::Store => match brought {
                Brought::Start => {
                    desk.listen();
                    desk.timer(LOOK_EVERY_NS, Timer::Store);
                }
                Brought::Request(call, request) => {
                    let (response, batches) = self.store.handle(self.now_ns, request);
                    desk.reply(call, response);
                    batches.into_iter().for_each(|batch| self.tell(&batch));
                }
                Brought::Timer(Timer::Store) => {
                    desk.timer(LOOK_EVERY_NS, Timer::Store);
                    let batches = self.store.handle_timeout(self.now_ns);
                    batches.into_iter().for_each(|batch| self.tell(&batch));
                }
                _ => unreachable!("not an input of the store"),
            },
            Party::Operator => match brought {
                Brought::Start => {}
                Brought::Outcome(Tag::Operator { donor, drains }, outcome) => {
                    self.operator.outcome(desk, (donor, drains), outcome);
                }
                Brought::Timer(Timer::Operator(donor)) => {
                    self.operator.see_to(desk, donor, self.scenario.monitors);
                }
                _ => unreachable!("not an input of the operator"),
            },
        }
    }

    /// Evaluates the facts, and executes the effects.
    fn settle(&mut self) {
        loop {
            while let Some(fact) = self.out.facts.pop_front() {
                let frozen = frozen_recipients(&self.standings);
                let scene = Scene {
                    now_ns: self.now_ns,
                    agents: &self.agents,
                    monitors: &self.monitors,
                    recipients: &self.recipients,
                    store: &self.store,
                    frozen: &frozen,
                };
                self.judge.hear(&scene, fact);
            }
            let Some(effect) = self.out.effects.pop_front() else { return };
            match effect {
                Effect::Call { from, to, request, within_ns, tag } => {
                    self.call((from, to), request, within_ns, tag);
                }
                Effect::Reply { call, response } => self.reply(call, response),
                Effect::Timer { party, at_ns, timer } => {
                    let life = self.standings[&party].life;
                    self.events.push(at_ns, Event::Timer { party, life, timer });
                }
                Effect::Listen(party) => self.standing(party).listens = true,
                Effect::BeginAnew { party, after_ns } => {
                    self.down(party);
                    self.events.push(self.now_ns + after_ns, Event::Up(party));
                }
            }
        }
    }

    pub(super) fn standing(&mut self, party: Party) -> &mut Standing {
        self.standings.get_mut(&party).expect("every participant has a state")
    }

    /// Ends a process; its connections break.
    pub(super) fn down(&mut self, party: Party) {
        let standing = self.standing(party);
        standing.downs += 1;
        if standing.downs > 1 {
            return;
        }
        standing.life += 1;
        standing.listens = false;
        standing.frozen.clear();
        standing.held.clear();
        if let Party::Monitor(number) = party {
            self.watches[usize::from(number)].clear();
        }
        self.bring(party, Brought::Crash);
        self.break_connections(party);
    }

    /// Starts a process, unless another reason keeps it down.
    pub(super) fn up(&mut self, party: Party) {
        let standing = self.standing(party);
        standing.downs -= 1;
        if standing.downs == 0 {
            self.bring(party, Brought::Start);
        }
    }

    /// Resumes a process, with the input that came meanwhile.
    pub(super) fn thaw(&mut self, party: Party, fault: usize) {
        let now_ns = self.now_ns;
        let standing = self.standing(party);
        if standing.frozen.remove(&fault) && standing.frozen.is_empty() {
            for event in std::mem::take(&mut standing.held) {
                self.events.push(now_ns, event);
            }
        }
    }

    /// Sends a change of the store to all Monitor Nodes, in order.
    fn tell(&mut self, batch: &Batch) {
        for monitor in 0..self.scenario.monitors {
            let party = Party::Monitor(monitor);
            let takes_ns = self.network.takes_ns(Party::Store, party);
            let at_ns = self.now_ns + takes_ns;
            let watch = &mut self.watches[usize::from(monitor)];
            let at_ns = watch.back().map_or(at_ns, |(before_ns, _)| at_ns.max(*before_ns));
            watch.push_back((at_ns, batch.clone()));
            let life = self.standings[&party].life;
            self.events.push(at_ns, Event::Tells { monitor, life });
        }
    }

    /// Delivers a batch; over a cut path it comes later.
    fn tells(&mut self, monitor: u16, life: u32) {
        let party = Party::Monitor(monitor);
        if self.standings[&party].life != life {
            return;
        }
        if self.network.is_cut(Party::Store, party) {
            let event = Event::Tells { monitor, life };
            return self.events.push(self.now_ns + RESEND_NS, event);
        }
        while let Some((at_ns, _)) = self.watches[usize::from(monitor)].front()
            && *at_ns <= self.now_ns
            && let Some((_, batch)) = self.watches[usize::from(monitor)].pop_front()
        {
            self.bring(party, Brought::Batch(batch));
            if self.standings[&party].life != life {
                return;
            }
        }
    }

    pub(super) fn note_panic(&mut self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        let text = text.unwrap_or_else(|| "a panic".to_owned());
        self.judge.findings.check(Checker::Soundness, self.now_ns, false, || text);
    }

    pub(super) fn report(&self) -> Report {
        let findings = &self.judge.findings;
        Report {
            seed: self.scenario.seed,
            donors: self.scenario.donors,
            recipients: self.scenario.recipients,
            monitors: self.scenario.monitors,
            trace_hash: format!("{:016x}", self.trace.hash()),
            virtual_ns: self.now_ns,
            events: self.events_count,
            messages: self.network.counts,
            grants: self.judge.counts,
            faults: self.faults.clone(),
            verdicts: findings.verdicts(),
            violations: findings.violations().to_vec(),
        }
    }
}

/// Returns the recipients that are frozen.
pub(super) fn frozen_recipients(standings: &BTreeMap<Party, Standing>) -> BTreeSet<u16> {
    let frozen = standings.iter().filter(|(_, standing)| !standing.frozen.is_empty());
    let frozen = frozen.filter_map(|(party, _)| match party {
        Party::Recipient(number) => Some(*number),
        _ => None,
    });
    frozen.collect()
}
