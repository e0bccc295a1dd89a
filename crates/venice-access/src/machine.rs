//! The recipient at work: its processor executes the program and waits for memory, near or far.

use std::sync::Arc;

use hdrhistogram::Histogram;
use venice_simkernel::events::Events;
use venice_simkernel::trace::Trace;
use venice_simkernel::units::Picos;

use crate::config::{Channel, Config, Qpair};
use crate::fabric::{Answer, Fabric, FabricEvent, Request};
use crate::stream::{Miss, Misses};
use crate::swap::{Device, PageCache};
use crate::trace::{AccessTrace, Kind, LINES_OF_PAGE};

/// An event of the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The processor goes on.
    Step,
    /// A request reaches the recipient's interface.
    AtInterface(Request),
    /// A line is with the processor, or written.
    Filled(Answer),
    /// A page was swapped in.
    PageIn(u64),
    /// The fabric's own.
    Fabric(FabricEvent),
}

/// An access under way.
#[derive(Clone, Copy, Debug)]
struct UnderWay {
    token: u64,
    miss: Miss,
    asked_at: u64,
    place: Place,
    /// The version that a read must find.
    version: u64,
}

/// The place that an access goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The recipient's own memory.
    Local,
    /// The donor's, as a load or store of the processor.
    Remote,
    /// The donor's, by a request that the program makes.
    Asked,
}

/// Counts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Fills from the recipient's own memory.
    pub local_fills: u64,
    /// Fills from the donor.
    pub remote_fills: u64,
    /// Write-backs to the donor.
    pub remote_writes: u64,
    /// Pages swapped in.
    pub pages_in: u64,
    /// Dirty pages swapped out.
    pub pages_out: u64,
    /// Reads that did not return what was written last: a fault of the fabric.
    pub wrong_reads: u64,
}

/// A recipient, its donor, and the program's state.
#[derive(Debug)]
pub struct Machine {
    config: Config,
    misses: Misses,
    /// The access that comes next.
    next: Option<Miss>,
    /// True if the program has paid for the request of `next`.
    is_posted: bool,
    /// Instructions executed, and when the processor was there.
    executed: u64,
    time: u64,
    /// Instructions of the program for answers that it has yet to take.
    debt: u64,
    under_way: Vec<UnderWay>,
    /// True if a step is among the events; else it waits for one of `under_way`, or a page.
    is_stepping: bool,
    is_faulting: bool,
    fabric: Option<Fabric>,
    swap: Option<(PageCache, Device)>,
    /// The version last written to each line.
    versions: Vec<u64>,
    tokens: u64,
    events: Events<Event>,
    handled: u64,
    now: u64,
    started_at: Option<u64>,
    ended_at: Option<u64>,
    trace: Trace,
    counts: Counts,
    /// Remote fills, in nanoseconds.
    latencies: Histogram<u64>,
}

impl Machine {
    /// Makes the nodes; the program starts when they are connected.
    pub fn new(config: &Config, trace: Arc<AccessTrace>) -> Self {
        let lines = trace.pages * LINES_OF_PAGE;
        let pages = trace.pages;
        let all = match config.program.accesses {
            0 => usize::MAX,
            some => some as usize,
        };
        let mut misses = Misses::new(trace, &config.processor.cache, all);
        let swap = match config.channel {
            Channel::Swap(swap) => Some((PageCache::new(&config.memory, pages), Device::new(swap))),
            Channel::Local | Channel::Crma(_) | Channel::Qpair(_) => None,
        };
        let next = misses.next();
        let mut machine = Self {
            config: config.clone(),
            misses,
            next,
            is_posted: false,
            executed: 0,
            time: 0,
            debt: 0,
            under_way: Vec::new(),
            is_stepping: false,
            is_faulting: false,
            fabric: Fabric::new(config, lines),
            swap,
            versions: vec![0; lines as usize],
            tokens: 0,
            events: Events::default(),
            handled: 0,
            now: 0,
            started_at: None,
            ended_at: None,
            trace: Trace::default(),
            counts: Counts::default(),
            latencies: Histogram::new(3).expect("three digits are supported"),
        };
        match machine.fabric {
            Some(_) => machine.events.push(0, Event::Fabric(FabricEvent::Timer)),
            None => machine.start(),
        }
        machine
    }

    fn start(&mut self) {
        self.started_at = Some(self.now);
        self.time = self.now;
        self.schedule(self.now);
    }

    fn schedule(&mut self, at: u64) {
        self.is_stepping = true;
        self.events.push(at, Event::Step);
    }

    /// Runs until a time, or to the end of the program.
    pub fn run_until(&mut self, until: u64) {
        while self.ended_at.is_none() && self.events.next_at().is_some_and(|at| at <= until) {
            let Some((at, event)) = self.events.pop() else { return };
            self.now = at;
            self.handled += 1;
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Step => {
                self.is_stepping = false;
                self.step();
            }
            Event::Filled(answer) => self.filled(answer),
            Event::PageIn(page) => {
                self.trace.note(&[self.now, page]);
                self.is_faulting = false;
                self.wake();
            }
            Event::AtInterface(request) => self.of_fabric(FabricEvent::Request(request)),
            Event::Fabric(event) => self.of_fabric(event),
        }
    }

    fn of_fabric(&mut self, event: FabricEvent) {
        let fabric = self.fabric.as_mut().expect("only it makes such events");
        fabric.handle(self.now, event, &mut self.events);
        if self.started_at.is_none() && fabric.is_up() {
            self.start();
        }
    }

    /// Goes on if it waits. It may still have to: for another access, or for its turn.
    fn wake(&mut self) {
        if !self.is_stepping {
            self.time = self.time.max(self.now);
            self.step();
        }
    }

    /// Executes instructions.
    fn advance(&mut self, to: u64) {
        self.time += self.config.processor.time_of(to.saturating_sub(self.executed));
        self.executed = self.executed.max(to);
    }

    /// Executes until something must be waited for: memory, or the time at which the next access is.
    fn step(&mut self) {
        while self.ended_at.is_none() && !self.is_faulting && !self.waits_for_answer() {
            let debt = std::mem::take(&mut self.debt);
            self.time += self.config.processor.time_of(debt);
            let Some(miss) = self.next else { return self.end() };
            let limit = self.window_end();
            if limit < miss.at {
                // The oldest load that is under way must be there first.
                return self.advance(limit);
            }
            self.advance(miss.at);
            let place = self.place_of(&miss);
            if !self.has_room(&miss, place) {
                return;
            }
            if let (Place::Asked, Channel::Qpair(Qpair { post, .. }), false) =
                (place, self.config.channel, self.is_posted)
            {
                self.time += self.config.processor.time_of(post.into());
                self.is_posted = true;
            }
            if self.time > self.now {
                return self.schedule(self.time);
            }
            if self.swap.is_some() && self.faults(&miss) {
                return;
            }
            self.is_posted = false;
            self.ask(miss, place);
            self.next = self.misses.next();
        }
    }

    /// Executes what is left, and ends once nothing is under way.
    fn end(&mut self) {
        self.advance(self.misses.instructions());
        if !self.under_way.is_empty() {
            return;
        }
        if self.time > self.now {
            return self.schedule(self.time);
        }
        self.ended_at = Some(self.now);
    }

    /// Returns the instruction before which the oldest load under way must be there.
    fn window_end(&self) -> u64 {
        let is_load = |one: &&UnderWay| one.miss.kind == Kind::Load && one.place != Place::Asked;
        let oldest = self.under_way.iter().find(is_load);
        oldest.map_or(u64::MAX, |one| one.miss.at + u64::from(self.config.processor.window))
    }

    /// True if the program has as many requests under way as it makes at once.
    fn waits_for_answer(&self) -> bool {
        let Channel::Qpair(Qpair { asynchronous, .. }) = self.config.channel else { return false };
        let most = if asynchronous { self.config.program.independent } else { 1 };
        self.count(|one| one.place == Place::Asked) >= most as usize
    }

    fn count(&self, is_counted: impl Fn(&UnderWay) -> bool) -> usize {
        self.under_way.iter().filter(|one| is_counted(one)).count()
    }

    /// True if a buffer of the processor is free for an access.
    fn has_room(&self, miss: &Miss, place: Place) -> bool {
        if place == Place::Asked {
            return true;
        }
        let is_write_back = miss.kind == Kind::WriteBack;
        let same = self.count(|one| {
            one.place != Place::Asked && (one.miss.kind == Kind::WriteBack) == is_write_back
        });
        let processor = &self.config.processor;
        let limit = if is_write_back { processor.write_backs } else { processor.fills };
        same < limit as usize
    }

    fn place_of(&self, miss: &Miss) -> Place {
        let is_local = || self.config.memory.is_local(miss.line / LINES_OF_PAGE);
        match self.config.channel {
            Channel::Local | Channel::Swap(_) => Place::Local,
            Channel::Crma(_) | Channel::Qpair(_) if is_local() => Place::Local,
            Channel::Crma(_) => Place::Remote,
            Channel::Qpair(_) => Place::Asked,
        }
    }

    /// Uses the page of an access; true if it has to be swapped in first.
    fn faults(&mut self, miss: &Miss) -> bool {
        let (Some((pages, device)), Channel::Swap(swap)) = (&mut self.swap, self.config.channel)
        else {
            return false;
        };
        let page = miss.line / LINES_OF_PAGE;
        // A dirty line of a page that has left went with it.
        if pages.use_page(page, miss.kind != Kind::Load) || miss.kind == Kind::WriteBack {
            return false;
        }
        let writes = pages.replace(page);
        self.time += self.config.processor.time_of(swap.fault.into());
        let there_at = device.read(self.time, writes);
        self.counts.pages_in += 1;
        self.counts.pages_out += u64::from(writes);
        self.is_faulting = true;
        self.events.push(there_at, Event::PageIn(page));
        true
    }

    /// Sends an access on its way.
    fn ask(&mut self, miss: Miss, place: Place) {
        let token = self.tokens;
        self.tokens += 1;
        self.trace.note(&[self.now, token, miss.line]);
        let is_write_back = miss.kind == Kind::WriteBack;
        let mut version = self.versions[miss.line as usize];
        match place {
            Place::Local => {
                self.counts.local_fills += u64::from(!is_write_back);
                let at = self.now + self.config.memory.latency.0;
                self.events.push(at, Event::Filled(Answer { token, read: None }));
            }
            Place::Remote | Place::Asked => {
                self.counts.remote_fills += u64::from(!is_write_back);
                self.counts.remote_writes += u64::from(is_write_back);
                version += u64::from(is_write_back);
                self.versions[miss.line as usize] = version;
                let write = is_write_back.then_some(version);
                let fabric = self.fabric.as_ref().expect("the channel has one");
                fabric.ask(self.now, Request { token, line: miss.line, write }, &mut self.events);
            }
        }
        self.under_way.push(UnderWay { token, miss, asked_at: self.now, place, version });
    }

    fn filled(&mut self, Answer { token, read }: Answer) {
        self.trace.note(&[self.now, token]);
        let at = self.under_way.iter().position(|one| one.token == token);
        let one = self.under_way.remove(at.expect("each access ends once"));
        if one.place != Place::Local {
            let is_fill = one.miss.kind != Kind::WriteBack;
            self.counts.wrong_reads += u64::from(read != is_fill.then_some(one.version));
            if is_fill {
                let taken = (self.now - one.asked_at) / Picos::NANO;
                self.latencies.record(taken).expect("it grows with its values");
            }
        }
        if let (Place::Asked, Channel::Qpair(Qpair { poll, .. })) = (one.place, self.config.channel)
        {
            self.debt += u64::from(poll);
        }
        self.wake();
    }

    /// Returns the present time, from the start of the world.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// True once the program has ended.
    pub fn is_over(&self) -> bool {
        self.ended_at.is_some()
    }

    /// Returns the time of the program so far.
    pub fn program_time(&self) -> u64 {
        self.ended_at.unwrap_or(self.now) - self.started_at.unwrap_or(self.now)
    }

    /// Returns the events handled.
    pub fn events(&self) -> u64 {
        self.handled
    }

    /// Returns the hash over all accesses and their ends, with times.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the latencies of remote fills in nanoseconds: from the processor's request to the line.
    pub fn latencies(&self) -> &Histogram<u64> {
        &self.latencies
    }

    /// Returns the program's accesses, with what it has taken of them.
    pub fn misses(&self) -> &Misses {
        &self.misses
    }

    /// Returns frames on the wires, and their bytes.
    pub fn traffic(&self) -> (u64, u64) {
        self.fabric.as_ref().map_or((0, 0), Fabric::traffic)
    }
}
