//! Two ends and the network between them, in virtual time.

use venice_simkernel::events::Events;
use venice_simkernel::random::Stream;
use venice_tcp::{Config, Connection, Info, Segment};

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
    /// Numbers, from one, of the client's segments with payload that are dropped or marked.
    dropped_data: Vec<u64>,
    marked_data: Vec<u64>,
    data: u64,
    /// Segments as they were sent: time, end, segment.
    log: Option<Vec<(u64, usize, Segment)>>,
    pub steps: u64,
    pub start: u64,
    /// The time of the last write.
    pub sent_at: u64,
    /// True if programs read what comes.
    pub reads: bool,
    pub received: [u64; 2],
    pub messages: [Vec<u64>; 2],
}

impl Pair {
    pub fn new(configs: [Config; 2], isn: u32, seed: u64) -> Self {
        let client = Connection::connect(isn, &configs[0]);
        Self {
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
            dropped_data: Vec::new(),
            marked_data: Vec::new(),
            data: 0,
            log: Some(Vec::new()),
            steps: 0,
            start: 1_000_000_000,
            sent_at: 0,
            reads: true,
            received: [0; 2],
            messages: [Vec::new(), Vec::new()],
        }
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
            let at = at.max(self.now);
            self.timers[end] = at;
            self.events.push(at, Event::Timer(end));
        }
    }

    fn send(&mut self, from: usize, segment: Segment) {
        self.counts[from] += 1;
        if let Some(log) = &mut self.log {
            log.push((self.now, from, segment));
        }
        self.data += u64::from(from == 0 && segment.len > 0);
        let is_data = from == 0 && segment.len > 0;
        if (self.drop)(from, self.counts[from], &segment)
            || (is_data && self.dropped_data.contains(&self.data))
            || self.rng.chance(self.faults.lost)
        {
            return;
        }
        let is_chosen = is_data && self.marked_data.contains(&self.data);
        let copies = 1 + u32::from(self.rng.chance(self.faults.duplicated));
        for _ in 0..copies {
            let late = match self.rng.chance(self.faults.reordered) {
                true => self.rng.below(20 * self.delay),
                false => 0,
            };
            let is_marked = segment.flags.has(venice_tcp::Flags::ECT)
                && (is_chosen || self.rng.chance(self.faults.marked));
            let at = self.now + self.delay + late;
            self.events.push(at, Event::Arrives(1 - from, segment, is_marked));
        }
    }

    /// Handles the next event. Returns the end it was at, or `None` if there is none.
    pub fn step(&mut self) -> Option<usize> {
        self.begin();
        let (at, event) = self.events.pop()?;
        self.now = at;
        self.steps += 1;
        let end = match event {
            Event::Arrives(end, segment, is_marked) => {
                self.arrive(end, &segment, is_marked);
                end
            }
            // An earlier time has taken its place.
            Event::Timer(end) if self.timers[end] != at => return Some(end),
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

    /// Sends the first segment.
    fn begin(&mut self) {
        if self.steps == 0 && self.counts[0] == 0 {
            self.flush(0);
        }
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

    pub fn info(&self, end: usize) -> Info {
        self.ends[end].as_ref().expect("the end exists").info(&self.configs[end])
    }

    /// Forgets the segments so far.
    pub fn clear_log(&mut self) {
        self.log = Some(Vec::new());
    }

    pub fn stop_log(&mut self) {
        self.log = None;
    }

    pub fn log(&self) -> impl Iterator<Item = (u64, usize, Segment)> {
        self.log.iter().flatten().copied()
    }

    /// Drops the client's segments with payload of these numbers, counted from 1.
    pub fn drop_data(&mut self, numbers: &[u64]) {
        self.dropped_data = numbers.to_vec();
    }

    pub fn mark_data(&mut self, numbers: &[u64]) {
        self.marked_data = numbers.to_vec();
    }

    pub fn data_sent(&self) -> u64 {
        self.data
    }

    pub fn write(&mut self, end: usize, bytes: u32) {
        self.write_message(end, bytes, 0);
    }

    /// Writes, but sends nothing yet.
    pub fn queue(&mut self, end: usize, bytes: u32) {
        let config = self.configs[end].clone();
        assert_eq!(self.end(end).write(bytes, 0, &config), bytes);
        self.sent_at = self.now;
    }

    pub fn write_message(&mut self, end: usize, bytes: u32, tag: u64) {
        let config = self.configs[end].clone();
        assert_eq!(self.end(end).write(bytes, tag, &config), bytes);
        self.sent_at = self.now;
        self.flush(end);
    }

    pub fn close(&mut self, end: usize) {
        self.end(end).close();
        self.flush(end);
    }

    /// Reads all that has come to an end.
    pub fn read_all(&mut self, end: usize) {
        let config = self.configs[end].clone();
        let Some(connection) = &mut self.ends[end] else { return };
        self.received[end] += u64::from(connection.read(u32::MAX, &config));
        while let Some(message) = connection.next_message() {
            self.messages[end].push(message);
        }
        self.flush(end);
    }

    /// Runs until nothing happens any more, or until a time.
    pub fn run_until(&mut self, until: u64) {
        self.begin();
        while self.events.next_at().is_some_and(|at| at <= until) {
            let end = self.step().expect("there is an event");
            if self.reads {
                self.read_all(end);
            }
        }
        if until != u64::MAX {
            self.now = until;
        }
    }

    pub fn run(&mut self) {
        self.run_until(u64::MAX);
    }

    /// Connects if need be, writes, and runs until nothing happens any more.
    pub fn transfer(&mut self, end: usize, bytes: u32) {
        self.run();
        self.write(end, bytes);
        self.run();
    }

    /// Returns the client's segments with payload by their number, from 0, at 1000 bytes each.
    pub fn numbers(&self, end: usize) -> Vec<u32> {
        self.numbers_between(end, 0, u64::MAX)
    }

    pub fn numbers_between(&self, end: usize, from: u64, to: u64) -> Vec<u32> {
        self.numbered(end)
            .into_iter()
            .filter(|(at, _)| (from..to).contains(at))
            .map(|(_, n)| n)
            .collect()
    }

    pub fn numbered(&self, end: usize) -> Vec<(u64, u32)> {
        let sent = self.log().filter(|(_, from, segment)| *from == end && segment.len > 0);
        let sent: Vec<_> = sent.map(|(at, _, segment)| (at, segment.seq)).collect();
        let first = sent.first().map_or(0, |(_, seq)| *seq);
        sent.into_iter().map(|(at, seq)| (at, seq.wrapping_sub(first) / 1_000)).collect()
    }

    /// Returns the segments that were sent again: time and number.
    pub fn retransmissions(&self, end: usize) -> Vec<(u64, u32)> {
        let mut highest = None;
        let mut again = Vec::new();
        for (at, number) in self.numbered(end) {
            match highest {
                Some(most) if number <= most => again.push((at, number)),
                _ => highest = Some(number),
            }
        }
        again
    }

    /// Returns how many segments with payload were sent at each instant.
    pub fn bursts(&self, end: usize) -> Vec<usize> {
        let mut bursts: Vec<(u64, usize)> = Vec::new();
        for (at, _) in self.numbered(end) {
            match bursts.last_mut() {
                Some((last, count)) if *last == at => *count += 1,
                _ => bursts.push((at, 1)),
            }
        }
        bursts.into_iter().map(|(_, count)| count).collect()
    }
}
