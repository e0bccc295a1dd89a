//! TCP incast (Phanishayee et al., FAST 2008): servers answer a client at once, and the buffer before
//! its link overflows. The figures beside ours are those of ns-3.37: NewReno with SACK, 1 Gb/s, 256
//! KiB for each server, twenty rounds, one egress queue.

use std::collections::VecDeque;

use venice_simkernel::events::Events;
use venice_simkernel::random::Stream;
use venice_tcp::{
    Basis, Config, Connection, DelayedAck, Floor, LossDetection, Reduction, Rto, Segment,
};

const MS: u64 = 1_000_000;
const SERVERS: [usize; 8] = [1, 2, 4, 8, 16, 24, 32, 47];
const BYTES: u32 = 256 << 10;
const ROUNDS: u32 = 20;
/// The delay of each of the two links of a way. The round trip of a full segment is 4 × 5 + 2 × 12 µs.
const DELAY: u64 = 5_000;
/// Bytes of IP and of a point-to-point frame.
const BELOW_TCP: u32 = 20 + 2;

#[derive(Debug)]
enum Event {
    Start(usize),
    AtSwitch(usize, Segment),
    LinkIsFree,
    AtClient(usize, Segment),
    AtServer(usize, Segment),
    /// The timer of an end: of the servers first.
    Timer(usize),
}

/// Servers, a switch and a client.
struct World {
    config: Config,
    buffer: u32,
    now: u64,
    events: Events<Event>,
    /// Servers, then the client's ends.
    ends: Vec<Connection>,
    timers: Vec<u64>,
    servers: usize,
    nic_free: Vec<u64>,
    queue: VecDeque<(usize, Segment)>,
    queued: u32,
    is_busy: bool,
    client_nic_free: u64,
    missing: usize,
    round: u32,
    rng: Stream,
}

fn wire_ns(segment: &Segment) -> u64 {
    u64::from(segment.len + segment.header_bytes() + BELOW_TCP) * 8
}

impl World {
    fn new(servers: usize, buffer: u32, config: Config, seed: u64) -> Self {
        let mut world = Self {
            ends: Vec::new(),
            timers: vec![u64::MAX; 2 * servers],
            servers,
            nic_free: vec![0; servers],
            queue: VecDeque::new(),
            queued: 0,
            is_busy: false,
            client_nic_free: 0,
            missing: 0,
            round: 0,
            rng: Stream::new(seed),
            events: Events::default(),
            now: MS,
            config,
            buffer,
        };
        world.connect();
        world
    }

    /// Opens the connections, the client's ends at once.
    fn connect(&mut self) {
        for server in 0..self.servers {
            let other = Connection::connect(server as u32 * 77_777, &self.config);
            let syn = other.clone().poll_transmit(self.now, &self.config).expect("a SYN");
            // It takes the SYN again when that comes.
            let one = Connection::accept(server as u32 * 55_555, &self.config, &syn);
            self.ends.insert(server, one.expect("a SYN"));
            self.ends.push(other);
        }
        for server in 0..self.servers {
            self.flush(self.servers + server);
        }
        while self.ends.iter().any(|end| !end.is_connected()) {
            self.step();
        }
    }

    fn step(&mut self) {
        let (at, event) = self.events.pop().unwrap_or_else(|| panic!("round {}", self.round));
        self.now = at;
        self.handle(event);
    }

    /// Runs all rounds. Returns the time that they took.
    fn run(&mut self) -> u64 {
        let start = self.now;
        self.begin_round();
        while self.round < ROUNDS {
            self.step();
        }
        self.now - start
    }

    fn begin_round(&mut self) {
        self.missing = self.servers;
        for server in 0..self.servers {
            // The request, and some time in the server.
            let after = 2 * DELAY + self.rng.below(5_000);
            self.events.push(self.now + after, Event::Start(server));
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Start(server) => {
                let taken = self.ends[server].write(BYTES, self.round.into(), &self.config);
                assert_eq!(taken, BYTES);
                self.flush(server);
            }
            Event::AtSwitch(server, segment) => {
                let bytes = (wire_ns(&segment) / 8) as u32;
                if !self.is_busy {
                    self.transmit(server, segment);
                } else if self.queued + bytes <= self.buffer {
                    self.queued += bytes;
                    self.queue.push_back((server, segment));
                }
            }
            Event::LinkIsFree => {
                self.is_busy = false;
                if let Some((server, segment)) = self.queue.pop_front() {
                    self.queued -= (wire_ns(&segment) / 8) as u32;
                    self.transmit(server, segment);
                }
            }
            Event::AtClient(server, segment) => {
                self.receive(self.servers + server, &segment);
                self.read(server);
            }
            Event::AtServer(server, segment) => self.receive(server, &segment),
            Event::Timer(end) if self.timers[end] != self.now => {}
            Event::Timer(end) => {
                self.timers[end] = u64::MAX;
                self.ends[end].handle_timeout(self.now, &self.config);
                self.flush(end);
            }
        }
    }

    fn transmit(&mut self, server: usize, segment: Segment) {
        self.is_busy = true;
        let free = self.now + wire_ns(&segment);
        self.events.push(free, Event::LinkIsFree);
        self.events.push(free + DELAY, Event::AtClient(server, segment));
    }

    fn receive(&mut self, end: usize, segment: &Segment) {
        self.ends[end].handle_segment(self.now, &self.config, segment, false);
        self.flush(end);
    }

    fn read(&mut self, server: usize) {
        let end = self.servers + server;
        self.ends[end].read(u32::MAX, &self.config);
        self.flush(end);
        while let Some(round) = self.ends[end].next_message() {
            assert_eq!(round, u64::from(self.round));
            self.missing -= 1;
            if self.missing == 0 {
                self.round += 1;
                self.begin_round();
            }
        }
    }

    fn flush(&mut self, end: usize) {
        while let Some(segment) = self.ends[end].poll_transmit(self.now, &self.config) {
            let wire = wire_ns(&segment);
            if end < self.servers {
                let free = &mut self.nic_free[end];
                *free = self.now.max(*free) + wire;
                self.events.push(*free + DELAY, Event::AtSwitch(end, segment));
            } else {
                self.client_nic_free = self.now.max(self.client_nic_free) + wire;
                let at = self.client_nic_free + wire + 2 * DELAY;
                self.events.push(at, Event::AtServer(end - self.servers, segment));
            }
        }
        if let Some(at) = self.ends[end].poll_timeout()
            && at < self.timers[end]
        {
            self.timers[end] = at.max(self.now);
            self.events.push(self.timers[end], Event::Timer(end));
        }
    }
}

/// The settings of ns-3.37 in that table.
fn ns3(minimum_ns: u64) -> Config {
    let base = Config::rfc();
    Config {
        mss: 1_460,
        loss_detection: LossDetection::DuplicateThreshold,
        reduction: Reduction::Proportional,
        timestamps: true,
        // Its clock has ticks of 1 ms: the term for the variation is never less.
        rto: Rto { minimum_ns, floor: floor(minimum_ns), ..base.rto.clone() },
        delayed_ack: DelayedAck { timeout_ns: 40 * MS, segments: 2, quick: 0 },
        receive_buffer: 128 << 10,
        send_buffer: 1 << 20,
        nagle: false,
        basis: Basis::Pipe,
        data_retries: 100,
        restart_after_idle: false,
        ..base
    }
}

fn floor(minimum_ns: u64) -> Floor {
    if minimum_ns == MS { Floor::Variation } else { Floor::Timeout }
}

/// Buffer in KiB, minimum of the time-out in ms, goodput in tenths of Mb/s by servers.
const NS3: [(u32, u64, &[u64]); 6] = [
    (4, 200, &[9560, 175, 230, 190, 98, 39]),
    (4, 1, &[9560, 7320, 7820, 7040, 5940, 3860, 2650, 2010]),
    (32, 200, &[9560, 2610, 1640, 690, 1140, 870, 910, 980]),
    (32, 1, &[9560, 7970, 9410, 9200, 8470, 8030, 7470, 6690]),
    (64, 200, &[9560, 2940, 2040, 1280, 1410, 1810, 2360, 1570]),
    (64, 1, &[9560, 8270, 9530, 9610, 9540, 8690, 7990, 7420]),
];

/// Returns the goodput of three runs in tenths of Mb/s.
fn goodput(servers: usize, buffer: u32, config: &Config) -> u64 {
    let bits = u64::from(ROUNDS) * u64::from(BYTES) * servers as u64 * 8;
    let times = (0..3).map(|seed| World::new(servers, buffer, config.clone(), seed).run());
    3 * bits * 10_000 / times.sum::<u64>()
}

#[test]
fn goodput_resembles_ns3() {
    println!("buffer, RTO minimum: Mb/s of ours (of ns-3) by servers {SERVERS:?}");
    let (mut cells, mut close) = (0, 0);
    for (buffer, rto, theirs) in NS3 {
        let mut line = format!("{buffer:2} KiB {rto:3} ms:");
        for (&servers, &theirs) in SERVERS.iter().zip(theirs) {
            let ours = goodput(servers, buffer << 10, &ns3(rto * MS));
            line += &format!(" {:5.1} ({:5.1})", ours as f64 / 10.0, theirs as f64 / 10.0);
            let (low, high) = (ours.min(theirs), ours.max(theirs));
            assert!(high < 10 * low, "{line}");
            cells += 1;
            close += u32::from(high <= 2 * low);
            let is_collapsed = rto == 200 && servers > 1;
            assert!(!is_collapsed || ours < 4_000, "{line}");
        }
        println!("{line}");
    }
    println!("{close} of {cells} cells within a factor of 2");
    assert!(3 * close >= 2 * cells, "{close} of {cells}");
}

/// Twenty-four servers and buffers of 32 KiB: the collapse is one of time-outs.
#[test]
fn short_timeout_mends_collapse() {
    let [short, long] = [1, 200].map(|rto| goodput(24, 32 << 10, &ns3(rto * MS)));
    assert!(short > 5 * long, "{short} {long}");
}
