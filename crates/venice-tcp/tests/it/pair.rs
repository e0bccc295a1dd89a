//! Two ends and the network between them, in virtual time.

use venice_simkernel::events::Events;
use venice_simkernel::random::Stream;
use venice_tcp::{Config, Connection, Segment};

/// The faults of a network, in parts per million.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub lost: u32,
    pub duplicated: u32,
    pub reordered: u32,
    pub marked: u32,
}

#[derive(Debug)]
enum Event {
    Arrives(usize, Segment, bool),
    Timer(usize),
}

/// Two ends: 0 connects, 1 accepts.
pub struct Pair {
    pub configs: [Config; 2],
    pub ends: [Option<Connection>; 2],
    pub now: u64,
    pub delay: u64,
    pub faults: Faults,
    rng: Stream,
    events: Events<Event>,
    timers: [u64; 2],
    isn: u32,
    /// Decides for each segment from an end, by its number, if it is dropped.
    pub drop: fn(usize, u64, &Segment) -> bool,
    pub counts: [u64; 2],
    /// Segments as they were sent: time, end, segment.
    pub log: Option<Vec<(u64, usize, Segment)>>,
    pub steps: u64,
}

impl Pair {
    pub fn new(configs: [Config; 2], isn: u32, seed: u64) -> Self {
        let client = Connection::connect(isn, &configs[0]);
        let mut pair = Self {
            configs,
            ends: [Some(client), None],
            now: 1_000_000_000,
            delay: 50_000,
            faults: Faults::default(),
            rng: Stream::new(seed),
            events: Events::default(),
            timers: [u64::MAX; 2],
            isn,
            drop: |_, _, _| false,
            counts: [0; 2],
            log: None,
            steps: 0,
        };
        pair.flush(0);
        pair
    }

    /// Sends what an end has, and sets its timer.
    pub fn flush(&mut self, end: usize) {
        loop {
            let Some(connection) = &mut self.ends[end] else { return };
            let Some(segment) = connection.poll_transmit(self.now, &self.configs[end]) else {
                break;
            };
            self.send(end, segment);
        }
        let next = self.ends[end].as_ref().and_then(Connection::poll_timeout);
        if let Some(at) = next
            && at < self.timers[end]
        {
            self.timers[end] = at;
            self.events.push(at.max(self.now), Event::Timer(end));
        }
    }

    fn send(&mut self, from: usize, segment: Segment) {
        self.counts[from] += 1;
        if let Some(log) = &mut self.log {
            log.push((self.now, from, segment));
        }
        if (self.drop)(from, self.counts[from], &segment) || self.rng.chance(self.faults.lost) {
            return;
        }
        let copies = 1 + u32::from(self.rng.chance(self.faults.duplicated));
        for _ in 0..copies {
            let late = match self.rng.chance(self.faults.reordered) {
                true => self.rng.below(20 * self.delay),
                false => 0,
            };
            let is_marked =
                segment.flags.has(venice_tcp::Flags::ECT) && self.rng.chance(self.faults.marked);
            let at = self.now + self.delay + late;
            self.events.push(at, Event::Arrives(1 - from, segment, is_marked));
        }
    }

    /// Handles the next event. Returns the end it was at, or `None` if there is none.
    pub fn step(&mut self) -> Option<usize> {
        let (at, event) = self.events.pop()?;
        self.now = at;
        self.steps += 1;
        let end = match event {
            Event::Arrives(end, segment, is_marked) => {
                self.arrive(end, &segment, is_marked);
                end
            }
            Event::Timer(end) => {
                self.timers[end] = u64::MAX;
                if let Some(connection) = &mut self.ends[end] {
                    connection.handle_timeout(self.now, &self.configs[end]);
                }
                end
            }
        };
        self.flush(end);
        Some(end)
    }

    fn arrive(&mut self, end: usize, segment: &Segment, is_marked: bool) {
        match &mut self.ends[end] {
            Some(connection) => {
                connection.handle_segment(self.now, &self.configs[end], segment, is_marked);
            }
            none => {
                *none = Connection::accept(self.isn.wrapping_mul(31), &self.configs[end], segment);
            }
        }
    }

    pub fn end(&mut self, end: usize) -> &mut Connection {
        self.ends[end].as_mut().expect("the end exists")
    }
}
