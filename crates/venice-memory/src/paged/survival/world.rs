//! Virtual time, the links, and the scheduler of the actors.
//!
//! Each actor (a thread of the program, or of its supervisor) is a real thread, because the code
//! under test blocks in place. Only one runs at a time, until it waits. Events in between happen in
//! the order of virtual time, so equal seeds give equal runs.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use venice_fabric::LinkModel;
use venice_sim::network::Link;
use venice_simkernel::events::Events;
use venice_simkernel::random::Stream;
use venice_wire::MAX_FRAME_BYTES;

use super::donor::SimulatedDonor;
use super::loss_checker::LossChecker;
use super::scenario::{FaultKind, Scenario};
use crate::paged::run_block::RunBlockMap;

/// The actors by number. Actors that read or write have links of the same number.
pub const EVICTOR: usize = 0;
pub const HANDLER: usize = 1;
pub const BUILDER: usize = 2;
pub const SUPERVISOR: usize = 3;
pub const ACTORS: usize = 4;
/// Most bytes queued for a link.
const QUEUE_BYTES: u32 = 1 << 20;
/// Virtual time after which a run counts as stuck.
const LAST_NS: u64 = 600_000_000_000;

/// An event at some virtual time.
#[derive(Debug)]
enum Event {
    /// The end of an actor's wait, unless it waits anew since.
    Wake { actor: usize, wait: u64 },
    /// A frame arrives at an actor.
    ToActor { actor: usize, donor: usize, cuts: u32, bytes: Vec<u8> },
    /// A frame arrives at a donor.
    ToDonor { donor: usize, actor: usize, cuts: u32, bytes: Vec<u8> },
    /// A donor's timer.
    Timer { donor: usize },
    /// The begin of a fault.
    Fault { fault: usize },
    /// The end of a fault.
    Over { fault: usize },
    /// The time at which a donor back from an absence counts as reliable again.
    Healed { donor: usize, absence: u32 },
}

/// The simulated world.
pub struct World {
    state: Mutex<State>,
    wakeups: [Condvar; ACTORS],
}

/// The state, used by one actor at a time.
pub struct State {
    pub now_ns: u64,
    pub donors: Vec<SimulatedDonor>,
    pub loss_checker: LossChecker,
    /// The first broken promise.
    pub wrong: Option<String>,
    pub block: Arc<RunBlockMap>,
    pub rng: Stream,
    scenario: Scenario,
    events: Events<Event>,
    running: usize,
    /// The number of each actor's wait (`u64::MAX` after its end), and whether a frame ends that
    /// wait.
    waits: [u64; ACTORS],
    wakes_on_frame: [bool; ACTORS],
    inboxes: [VecDeque<(usize, Vec<u8>)>; ACTORS],
    /// The links there and back, by actor and donor.
    links: BTreeMap<(usize, usize), [Link; 2]>,
    /// The buffer that frames are written to.
    frame: Box<[u8]>,
}

impl World {
    /// Creates the world at time 1, with all faults scheduled.
    pub fn new(scenario: &Scenario, block: &Arc<RunBlockMap>) -> World {
        let root = Stream::new(scenario.seed);
        let new_link = |actor: usize, donor: usize, back: u64| {
            let rng = root.split("link", &[actor as u64, donor as u64, back]);
            Link::new(LinkModel::default(), QUEUE_BYTES, rng)
        };
        let pairs =
            (0..ACTORS).flat_map(|actor| (0..scenario.nodes).map(move |donor| (actor, donor)));
        let link = |pair: (usize, usize)| (pair, [0, 1].map(|back| new_link(pair.0, pair.1, back)));
        let donor = |number| SimulatedDonor::new(number, root.split("donor", &[number as u64]));
        let mut state = State {
            now_ns: 1,
            donors: (0..scenario.nodes).map(donor).collect(),
            loss_checker: LossChecker::new(scenario.coding.map_or(1, |coding| coding.data())),
            wrong: None,
            block: block.clone(),
            rng: root.split("borrowing", &[]),
            scenario: scenario.clone(),
            events: Events::default(),
            running: usize::MAX,
            waits: [0; ACTORS],
            wakes_on_frame: [false; ACTORS],
            inboxes: Default::default(),
            links: pairs.map(link).collect(),
            frame: vec![0; MAX_FRAME_BYTES].into(),
        };
        (0..ACTORS).for_each(|actor| state.at(1, Event::Wake { actor, wait: 0 }));
        for (fault, begins) in scenario.faults.iter().enumerate() {
            state.at(begins.at_ns, Event::Fault { fault });
        }
        World { state: Mutex::new(state), wakeups: Default::default() }
    }

    /// Locks the state.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("not poisoned")
    }

    /// The virtual time, nanoseconds.
    pub fn now_ns(&self) -> u64 {
        self.state().now_ns
    }

    /// Reports a broken promise and ends the run.
    pub fn fail(&self, wrong: String) -> ! {
        let mut state = self.state();
        state.wrong.get_or_insert(wrong);
        drop(state);
        self.wake_all();
        std::panic::resume_unwind(Box::new("the run ended"));
    }

    /// Wakes all actors to see the end of the run.
    pub fn wake_all(&self) {
        self.wakeups.iter().for_each(Condvar::notify_all);
    }

    /// Starts the first actor.
    pub fn start(&self) {
        let mut state = self.state();
        state.running = state.go_on();
        self.wakeups[state.running].notify_all();
    }

    /// Waits for the actor's first turn.
    pub fn begin(&self, actor: usize) {
        self.await_turn(self.state(), actor);
    }

    /// Waits until then, or with `wakes_on_frame` until a frame arrives.
    pub fn wait(&self, actor: usize, until_ns: u64, wakes_on_frame: bool) {
        let mut state = self.state();
        let is_ready = wakes_on_frame && !state.inboxes[actor].is_empty();
        let at_ns = if is_ready { state.now_ns } else { until_ns.max(state.now_ns + 1) };
        let wait = state.waits[actor];
        state.wakes_on_frame[actor] = wakes_on_frame;
        state.at(at_ns, Event::Wake { actor, wait });
        state.running = state.go_on();
        if state.running != actor {
            self.wakeups[state.running].notify_all();
        }
        self.await_turn(state, actor);
    }

    fn await_turn(&self, mut state: MutexGuard<'_, State>, actor: usize) {
        while state.running != actor && state.wrong.is_none() {
            state = self.wakeups[actor].wait(state).expect("not poisoned");
        }
        if state.wrong.is_some() {
            drop(state);
            self.wake_all();
            std::panic::resume_unwind(Box::new("the run ended"));
        }
    }

    /// Ends an actor.
    pub fn end(&self, actor: usize) {
        let mut state = self.state();
        state.waits[actor] = u64::MAX;
        if state.waits.iter().any(|wait| *wait != u64::MAX) {
            state.running = state.go_on();
            self.wakeups[state.running].notify_all();
        }
    }

    /// Sends a frame to a donor.
    pub fn send(&self, actor: usize, donor: usize, bytes: &[u8]) {
        self.state().send(actor, donor, bytes, 0);
    }

    /// The next frame received by an actor, with its donor.
    pub fn take(&self, actor: usize) -> Option<(usize, Vec<u8>)> {
        self.state().inboxes[actor].pop_front()
    }
}

impl State {
    fn at(&mut self, at_ns: u64, event: Event) {
        self.events.push(at_ns.max(self.now_ns), event);
    }

    /// Processes events until an actor's turn comes, and returns that actor.
    fn go_on(&mut self) -> usize {
        loop {
            let (at_ns, event) = self.events.pop().expect("an actor waits");
            self.now_ns = at_ns;
            if at_ns > LAST_NS {
                self.wrong.get_or_insert("the run does not end".into());
                return (0..ACTORS).find(|actor| self.waits[*actor] != u64::MAX).unwrap_or(0);
            }
            if let Some(actor) = self.happen(event) {
                self.waits[actor] += 1;
                self.wakes_on_frame[actor] = false;
                return actor;
            }
        }
    }

    /// Processes an event; returns the actor whose wait it ends.
    fn happen(&mut self, event: Event) -> Option<usize> {
        match event {
            Event::Wake { actor, wait } => return (self.waits[actor] == wait).then_some(actor),
            Event::ToActor { actor, donor, cuts, bytes } => {
                if self.link(actor, donor, 1).cut_epoch() == cuts {
                    self.inboxes[actor].push_back((donor, bytes));
                    return self.wakes_on_frame[actor].then_some(actor);
                }
            }
            Event::ToDonor { donor, actor, cuts, bytes } => {
                if self.link(actor, donor, 0).cut_epoch() == cuts {
                    let now_ns = self.now_ns;
                    self.donors[donor].take_in(now_ns, actor, bytes);
                    self.tend(donor);
                }
            }
            Event::Timer { donor } => {
                self.donors[donor].timer_ns = None;
                self.tend(donor);
            }
            Event::Fault { fault } => self.begin_fault(fault),
            Event::Over { fault } => self.end_fault(fault),
            Event::Healed { donor, absence } => {
                let block = self.block.clone();
                self.loss_checker
                    .heal(donor, absence, |replica| block.is_readable(&block.replicas()[replica]));
            }
        }
        None
    }

    fn link(&mut self, actor: usize, donor: usize, back: usize) -> &mut Link {
        &mut self.links.get_mut(&(actor, donor)).expect("every pair has a link")[back]
    }

    /// Sends a frame to the donor (0) or back (1).
    fn send(&mut self, actor: usize, donor: usize, bytes: &[u8], back: usize) {
        let (now_ns, impairment) = (self.now_ns, self.scenario.impairment);
        let link = self.link(actor, donor, back);
        let passage = link.send(now_ns, &impairment, bytes, &mut Default::default());
        let cuts = link.cut_epoch();
        for arrival in passage.arrivals {
            let bytes = arrival.altered.unwrap_or_else(|| bytes.to_vec());
            let event = match back {
                0 => Event::ToDonor { donor, actor, cuts, bytes },
                _ => Event::ToActor { actor, donor, cuts, bytes },
            };
            self.at(arrival.at_ns, event);
        }
    }

    /// Runs a donor: ends leases, sends frames, sets the timer.
    pub fn tend(&mut self, donor: usize) {
        let now_ns = self.now_ns;
        for grant in self.donors[donor].end_leases(now_ns) {
            self.loss_checker.lose_grant(grant);
        }
        let mut frame = std::mem::take(&mut self.frame);
        while let Some((actor, len)) = self.donors[donor].poll_transmit(now_ns, &mut frame) {
            self.send(actor, donor, &frame[..len], 1);
        }
        self.frame = frame;
        if let Some(at_ns) = self.donors[donor].wants_timer() {
            self.at(at_ns, Event::Timer { donor });
        }
    }

    fn cut_or_heal(&mut self, donor: usize, cuts: bool) {
        for actor in 0..ACTORS {
            for back in 0..2 {
                let link = self.link(actor, donor, back);
                if cuts { link.cut() } else { link.heal() }
            }
        }
    }

    fn begin_fault(&mut self, fault: usize) {
        let begun = self.scenario.faults[fault];
        let (donor, now_ns) = (begun.donor, self.now_ns);
        match begun.kind {
            FaultKind::Dies => {
                self.donors[donor].die();
                self.loss_checker.lose_node(donor);
            }
            FaultKind::Stalls => self.donors[donor].stall(now_ns),
            FaultKind::CutOff => {
                self.donors[donor].cuts += 1;
                self.cut_or_heal(donor, true);
            }
            FaultKind::Reclaims => self.donors[donor].is_reclaiming = true,
        }
        self.loss_checker.record_fault(donor, begun.kind, begun.lasts_ns);
        self.at(now_ns + begun.lasts_ns, Event::Over { fault });
    }

    fn end_fault(&mut self, fault: usize) {
        let over = self.scenario.faults[fault];
        let (donor, now_ns) = (over.donor, self.now_ns);
        match over.kind {
            FaultKind::Dies => self.donors[donor].restart(),
            FaultKind::Stalls => self.donors[donor].go_on(now_ns),
            FaultKind::CutOff => {
                self.donors[donor].cuts -= 1;
                self.cut_or_heal(donor, false);
            }
            // The grace period of the reclaim is over: all remaining grants end.
            FaultKind::Reclaims => {
                for grant in self.donors[donor].take_back_all(now_ns) {
                    self.loss_checker.lose_grant(grant);
                }
                self.donors[donor].is_reclaiming = false;
            }
        }
        self.donors[donor].catch_up(now_ns);
        self.tend(donor);
        if let Some((absence, after_ns)) = self.loss_checker.is_healing(donor, over.kind) {
            self.at(now_ns + after_ns, Event::Healed { donor, absence });
        }
    }
}
