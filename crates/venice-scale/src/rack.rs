//! The rack: its events, and who handles them.

use venice_rack::monitor::Event as Note;
use venice_simkernel::events::Events;
use venice_simkernel::random::Stream;
use venice_simkernel::trace::Trace;
use venice_simkernel::units::{Bytes, Picos};
use venice_wire::GrantId;

use crate::agent::{self, Agent, LinkView, node_of, number_of};
use crate::config::Config;
use crate::fabric::{Fabric, Step};
use crate::messages::Message;
use crate::monitor::{self, Monitor, MonitorEvent};
use crate::reads::Reader;
use crate::recipient::{self, Recipient, RecipientEvent, exponential};
use crate::records::Records;

const NANO: u64 = Picos::NANO;

/// An event of the rack.
#[derive(Debug)]
enum Event {
    /// A packet is whole at a switch.
    Packet(u32),
    /// A message has passed the stacks of both its ends.
    Message(u32, u32, Box<Message>),
    Monitor(MonitorEvent),
    /// Deadlines of a node's agent.
    Agent(u32),
    /// Slabs of a node's ended grant are wiped.
    Wiped(u32, GrantId),
    Recipient(u32, RecipientEvent),
    /// Reads begin.
    Reads,
    /// No more reads begin.
    ReadsEnd,
    /// The reader of that index reads.
    Read(u32),
    /// The node dies.
    Death(u32),
}

/// A packet on its way.
#[derive(Debug)]
struct Packet {
    from: u32,
    to: u32,
    at: u32,
    bytes: Bytes,
    content: Content,
}

#[derive(Debug)]
enum Content {
    Message(Box<Message>),
    /// A read of that time.
    Request(u64),
    /// Its line.
    Answer(u64),
}

/// The state of a node.
#[derive(Debug)]
struct Node {
    agent: Agent,
    recipient: Option<Recipient>,
    /// Time of the agent's next timer, if one is set.
    timer: Option<u64>,
    reported_at: u64,
    died_at: Option<u64>,
}

/// A rack.
pub struct Rack {
    config: Config,
    fabric: Fabric,
    monitor: Monitor,
    /// The Monitor Node's own node.
    middle: u32,
    nodes: Vec<Node>,
    readers: Vec<Reader>,
    packets: Vec<Option<Packet>>,
    free: Vec<u32>,
    events: Events<Event>,
    handled: u64,
    now: u64,
    is_over: bool,
    trace: Trace,
    /// Bytes of the busiest link and of all in the mean, while reads began.
    read_bytes: (u64, f64),
    records: Records,
}

/// Returns the node in the middle of the topology.
fn middle(fabric: &Fabric, nodes: u32) -> u32 {
    let topology = fabric.topology();
    let last = topology.coordinates(venice_fabric::Position(nodes - 1));
    let middle = last.and_then(|sides| topology.at(sides.map(|side| side / 2)));
    middle.map_or(0, |position| position.0)
}

impl Rack {
    pub fn new(config: &Config) -> Self {
        let fabric = Fabric::new(config);
        let middle = middle(&fabric, config.nodes);
        let mut rack = Self {
            config: config.clone(),
            monitor: Monitor::new(config),
            middle,
            nodes: Vec::with_capacity(config.nodes as usize),
            readers: Vec::new(),
            packets: Vec::new(),
            free: Vec::new(),
            events: Events::default(),
            handled: 0,
            now: 0,
            is_over: false,
            trace: Trace::default(),
            read_bytes: (0, 0.0),
            records: Records::new(config.warm_up.0),
            fabric,
        };
        let seed = Stream::new(config.seed);
        let is_placed = rack.fabric.neighbours(middle).next().is_some();
        let borrowers =
            |nodes: u32| u64::from(nodes) * u64::from(config.recipients.share.0) / 1_000_000;
        for node in 0..config.nodes {
            let phase =
                seed.split("phase", &[node.into()]).below(config.monitor.heartbeat_interval.0);
            let stream = seed.split("recipient", &[node.into()]);
            let borrows = borrowers(node + 1) > borrowers(node);
            let recipient = borrows.then(|| {
                Recipient::new(node, config.recipients, config.monitor.lease.0, is_placed, stream)
            });
            let agent = Agent::new(config, node, phase / NANO);
            let timer = None;
            rack.nodes.push(Node { agent, recipient, timer, reported_at: 0, died_at: None });
            rack.set_timer(node, phase);
            rack.perform_recipient(node);
        }
        rack.perform_monitor();
        rack.plan_deaths(&seed);
        if config.reads.every.0 > 0 {
            rack.events.push(config.warm_up.0, Event::Reads);
        }
        rack
    }

    fn plan_deaths(&mut self, seed: &Stream) {
        let mut draws = seed.split("deaths", &[]);
        let others = |node: &u32| *node != self.middle;
        let mut nodes: Vec<u32> = (0..self.config.nodes).filter(others).collect();
        for number in 0..self.config.deaths.count {
            let node = nodes.swap_remove(draws.below(nodes.len() as u64) as usize);
            let after = self.config.deaths.first.0 + u64::from(number) * self.config.deaths.every.0;
            self.events.push(self.config.warm_up.0 + after, Event::Death(node));
        }
    }

    /// Runs until a time, or to its end.
    pub fn run_until(&mut self, until: u64) {
        let end = self.config.end();
        while self.events.next_at().is_some_and(|at| at <= until.min(end)) {
            let Some((at, event)) = self.events.pop() else { break };
            self.now = at;
            self.handled += 1;
            self.handle(event);
        }
        self.is_over = self.events.next_at().is_none_or(|at| at > end);
    }

    /// True if nothing more happens before its end.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Returns the time of the last event, in picoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Returns the events handled.
    pub fn events(&self) -> u64 {
        self.handled
    }

    /// Returns the hash over all messages, lines, deaths and nodes taken for dead.
    pub fn trace_hash(&self) -> u64 {
        self.trace.hash()
    }

    /// Returns the measurements.
    pub fn records(&self) -> &Records {
        &self.records
    }

    /// Returns the Monitor Node's measurements.
    pub fn load(&self) -> &monitor::Load {
        &self.monitor.load
    }

    /// Returns the links.
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// Returns the requests that have no answer yet.
    pub fn asking(&self) -> u64 {
        let living = self.nodes.iter().filter(|node| node.died_at.is_none());
        living.filter_map(|node| node.recipient.as_ref()).filter(|it| it.is_asking()).count() as u64
    }

    /// Returns the use of the busiest link while reads began, and of all in the mean, as shares.
    pub fn read_load(&self) -> (f64, f64) {
        let (most, mean) = self.read_bytes;
        let span = self.config.reads.during.0.max(1) as f64;
        let share = |bytes: f64| bytes * self.fabric.time_of(1_000_000) as f64 / 1e6 / span;
        (share(most as f64), share(mean))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Packet(number) => self.step(number),
            Event::Message(from, to, message) => {
                self.trace.note(&[self.now, 1, from.into(), to.into()]);
                self.deliver(from, to, *message);
            }
            Event::Monitor(event) => {
                self.monitor.handle(self.now, event);
                self.perform_monitor();
            }
            Event::Agent(node) => self.agent_due(node),
            Event::Wiped(node, grant) => {
                let now_ns = self.now_ns();
                if let Some(agent) = self.living(node) {
                    agent.handle_wiped(now_ns, grant);
                    self.perform_agent(node);
                }
            }
            Event::Recipient(node, event) => {
                let now = self.now;
                if self.nodes[node as usize].died_at.is_some() {
                    return;
                }
                if let Some(recipient) = &mut self.nodes[node as usize].recipient {
                    self.records.asked += u64::from(event == RecipientEvent::Ask);
                    recipient.handle(now, event);
                    self.perform_recipient(node);
                }
            }
            Event::Reads => self.begin_reads(),
            Event::ReadsEnd => self.read_bytes = self.fabric.bytes(),
            Event::Read(index) => self.read(index),
            Event::Death(node) => self.die(node),
        }
    }

    fn now_ns(&self) -> u64 {
        self.now / NANO
    }

    fn living(&mut self, node: u32) -> Option<&mut Agent> {
        let node = &mut self.nodes[node as usize];
        node.died_at.is_none().then_some(&mut node.agent)
    }

    // ---- packets

    fn send(&mut self, from: u32, to: u32, bytes: Bytes, content: Content) {
        let number = self.keep(Packet { from, to, at: from, bytes, content });
        self.step(number);
    }

    /// Gives a packet its number.
    fn keep(&mut self, packet: Packet) -> u32 {
        let number = self.free.pop().unwrap_or_else(|| {
            self.packets.push(None);
            self.packets.len() as u32 - 1
        });
        self.packets[number as usize] = Some(packet);
        number
    }

    fn send_message(&mut self, from: u32, to: u32, message: Message, listed: usize) {
        let hosts = &self.config.hosts;
        let bytes = Bytes(hosts.message_bytes.0 + hosts.listed_bytes.0 * listed as u64);
        self.send(from, to, bytes, Content::Message(Box::new(message)));
    }

    /// Moves a packet that is whole at a switch.
    fn step(&mut self, number: u32) {
        let packet = self.packets[number as usize].as_mut().expect("it is on its way");
        match self.fabric.step(self.now, packet.at, packet.to, packet.bytes) {
            Step::Next { at, time } => {
                packet.at = at;
                self.events.push(time, Event::Packet(number));
            }
            Step::There => {
                let packet = self.packets[number as usize].take().expect("it is there");
                self.free.push(number);
                self.arrive(packet);
            }
        }
    }

    fn arrive(&mut self, packet: Packet) {
        let Packet { from, to, content, .. } = packet;
        match content {
            Content::Message(message) => {
                let at = self.now + self.config.hosts.message.0;
                self.events.push(at, Event::Message(from, to, message));
            }
            Content::Request(since) => {
                // The memory answers without the processor; the answer leaves when it has the line.
                let (bytes, content) = (self.config.reads.answer, Content::Answer(since));
                let number = self.keep(Packet { from: to, to: from, at: to, bytes, content });
                let at = self.now + self.config.reads.memory.0;
                self.events.push(at, Event::Packet(number));
            }
            Content::Answer(since) => {
                self.trace.note(&[self.now, 2, from.into(), to.into()]);
                self.records.reads_done += 1;
                self.records.taken += u128::from(self.now - since);
                self.records.idle += u128::from(self.idle_read(from, to));
                self.records.take(|records| &mut records.read, since, self.now);
            }
        }
    }

    /// Returns the time of a read over idle links.
    fn idle_read(&self, from: u32, to: u32) -> u64 {
        let reads = &self.config.reads;
        let hop = self.fabric.time_of(reads.request.0)
            + self.fabric.time_of(reads.answer.0)
            + 2 * self.config.fabric.latency.0;
        u64::from(self.fabric.hops(from, to)) * hop + reads.memory.0
    }

    // ---- messages

    fn deliver(&mut self, from: u32, to: u32, message: Message) {
        let now_ns = self.now_ns();
        match message {
            Message::Report(..) | Message::Call(..) | Message::Result(..) => {
                self.monitor.handle_message(self.now, from, message);
                self.perform_monitor();
            }
            Message::Reply(purpose, reply) => {
                let now = self.now;
                let node = &mut self.nodes[to as usize];
                if let Some(recipient) = node.recipient.as_mut().filter(|_| node.died_at.is_none())
                {
                    recipient.handle_reply(now, purpose, *reply);
                    self.perform_recipient(to);
                }
            }
            Message::Renewed(number, grant, state) => {
                let now = self.now;
                let node = &mut self.nodes[to as usize];
                if let Some(recipient) = node.recipient.as_mut().filter(|_| node.died_at.is_none())
                {
                    recipient.handle_renewed(now, number, grant, &state);
                    self.perform_recipient(to);
                }
            }
            Message::Acknowledged(call, result) => {
                let (since, now) = (self.nodes[to as usize].reported_at, self.now);
                let Some(agent) = self.living(to) else { return };
                agent.handle_acknowledged(now_ns, call, result);
                self.records.take(|records| &mut records.heartbeat, since, now);
                self.perform_agent(to);
            }
            Message::Registered(call, registered) => {
                let Some(agent) = self.living(to) else { return };
                agent.handle_registered(now_ns, call, registered);
                self.perform_agent(to);
            }
            Message::DonorCall(number, call) => {
                let Some(agent) = self.living(to) else { return };
                agent.handle_call(now_ns, number, *call);
                self.perform_agent(to);
            }
            Message::Renew(number, grant, key) => {
                let Some(agent) = self.living(to) else { return };
                let state = agent.core().handle_renew(now_ns, grant, key);
                self.send_message(to, from, Message::Renewed(number, grant, state), 0);
                self.perform_agent(to);
            }
        }
    }

    fn perform_monitor(&mut self) {
        for effect in self.monitor.take_effects() {
            match effect {
                monitor::Effect::Send(to, message, listed) => {
                    self.send_message(self.middle, to, message, listed);
                }
                monitor::Effect::At(at, event) => self.events.push(at, Event::Monitor(event)),
                monitor::Effect::Note(note) => self.note(&note),
            }
        }
    }

    /// Follows the Monitor Node's log.
    fn note(&mut self, note: &Note) {
        let Note::NodeDown { name } = note else { return };
        let Some(node) = node_of(name) else { return };
        self.trace.note(&[self.now, 3, node.into()]);
        match self.nodes[node as usize].died_at {
            Some(since) => {
                self.records.noticed += 1;
                self.records.take(|records| &mut records.revocation, since, self.now);
            }
            None => self.records.mistaken += 1,
        }
    }

    // ---- agents

    fn agent_due(&mut self, node: u32) {
        let (now, now_ns) = (self.now, self.now_ns());
        let links = match &self.nodes[node as usize].agent.is_report_due(now_ns) {
            true => self.links_of(node),
            false => Vec::new(),
        };
        let timer = &mut self.nodes[node as usize].timer;
        *timer = timer.filter(|set| *set > now);
        let Some(agent) = self.living(node) else { return };
        agent.handle_timeout(now_ns, links);
        self.perform_agent(node);
    }

    fn links_of(&self, node: u32) -> Vec<LinkView> {
        let view = |(port, other): (u16, u32)| LinkView {
            to: number_of(other),
            bytes: self.fabric.bytes_sent(node, port) + self.fabric.bytes_sent(other, port ^ 1),
        };
        self.fabric.neighbours(node).map(view).collect()
    }

    fn perform_agent(&mut self, node: u32) {
        for effect in self.nodes[node as usize].agent.take_effects() {
            match effect {
                agent::Effect::Send(message) => {
                    if let Message::Report(..) = message {
                        self.nodes[node as usize].reported_at = self.now;
                    }
                    self.send_message(node, self.middle, message, 0);
                }
                agent::Effect::Wipe(grant, slabs) => {
                    let at = self.now + self.config.hosts.wipe.0 * u64::from(slabs);
                    self.events.push(at, Event::Wiped(node, grant));
                }
            }
        }
        self.set_timer(node, self.now);
    }

    fn set_timer(&mut self, node: u32, now: u64) {
        let state = &mut self.nodes[node as usize];
        let Some(due_ns) = state.agent.poll_timeout() else { return };
        let at = (due_ns * NANO).max(now);
        if state.timer.is_none_or(|set| at < set) {
            state.timer = Some(at);
            self.events.push(at, Event::Agent(node));
        }
    }

    // ---- recipients

    fn perform_recipient(&mut self, node: u32) {
        let Some(recipient) = &mut self.nodes[node as usize].recipient else { return };
        for effect in recipient.take_effects() {
            match effect {
                recipient::Effect::ToMonitor(message) => {
                    self.send_message(node, self.middle, message, 0);
                }
                recipient::Effect::ToAgent(to, message) => self.send_message(node, to, message, 0),
                recipient::Effect::At(at, event) => {
                    self.events.push(at, Event::Recipient(node, event));
                }
                recipient::Effect::Granted(since, shares) => {
                    self.records.granted += 1;
                    self.records.take(|records| &mut records.allocation, since, self.now);
                    for (donor, slabs) in shares {
                        let hops = self.fabric.hops(node, donor);
                        *self.records.slabs_by_hops.entry(hops).or_default() += u64::from(slabs);
                    }
                }
                recipient::Effect::Refused(reason) => {
                    *self.records.refused.entry(reason).or_default() += 1;
                }
                recipient::Effect::GaveBack(since) => {
                    self.records.take(|records| &mut records.release, since, self.now);
                }
                recipient::Effect::Lost(count) => self.records.lost += count,
            }
        }
    }

    fn die(&mut self, node: u32) {
        self.trace.note(&[self.now, 4, node.into()]);
        self.records.deaths += 1;
        let state = &mut self.nodes[node as usize];
        state.died_at = Some(self.now);
        let asks = state.recipient.as_ref().is_some_and(Recipient::is_asking);
        self.records.abandoned += u64::from(asks);
    }

    // ---- reads

    fn begin_reads(&mut self) {
        self.fabric.mark();
        for node in 0..self.config.nodes {
            let state = &self.nodes[node as usize];
            let granted = state.recipient.as_ref().map(Recipient::donors).unwrap_or_default();
            let reader = Reader::new(&self.config, &self.fabric, node, granted);
            self.readers.extend(reader.filter(|_| state.died_at.is_none()));
        }
        for index in 0..self.readers.len() as u32 {
            self.read_later(index);
        }
        self.events.push(self.now + self.config.reads.during.0, Event::ReadsEnd);
    }

    fn read_later(&mut self, index: u32) {
        let reads = self.config.reads;
        let stream = &mut self.readers[index as usize].stream;
        let at = self.now + exponential(stream, reads.every.0);
        if at < self.config.warm_up.0 + reads.during.0 {
            self.events.push(at, Event::Read(index));
        }
    }

    fn read(&mut self, index: u32) {
        let reader = &mut self.readers[index as usize];
        let (from, to) = (reader.node, reader.next_donor());
        self.records.reads += 1;
        self.send(from, to, self.config.reads.request, Content::Request(self.now));
        self.read_later(index);
    }
}
