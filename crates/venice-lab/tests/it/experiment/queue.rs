//! A queue with one server: arrivals and services at random (M/M/1).

use std::collections::VecDeque;

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use venice_experiment::outcome::{NamedHistogram, Outcome, Series};
use venice_experiment::{BadConfig, Simulation, World};
use venice_simkernel::engine::{Engine, Node, Outbox, Part};
use venice_simkernel::random::Stream;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Config {
    seed: u64,
    customers: u64,
    /// Mean time of a service.
    service_ns: u64,
    arrivals: Arrivals,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arrivals {
    load: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { seed: 0, customers: 100, service_ns: 1_000, arrivals: Arrivals::default() }
    }
}

impl Default for Arrivals {
    fn default() -> Self {
        Self { load: 0.5 }
    }
}

pub struct Queue {
    engine: Engine<Server>,
    customers: u64,
}

struct Server {
    config: Config,
    random: Stream,
    waiting: VecDeque<u64>,
    arrived: u64,
    times: Histogram<u64>,
    lengths: Vec<(f64, f64)>,
}

enum Event {
    Arrival,
    Departure,
}

impl Server {
    /// Draws an exponential time, in picoseconds.
    fn draw(&mut self, mean_ns: f64) -> u64 {
        let share = (self.random.draw() >> 11) as f64 / (1u64 << 53) as f64;
        (-(1.0 - share).ln() * mean_ns * 1e3) as u64
    }
}

impl Part for Server {
    type Event = Event;
    type Message = Event;

    fn handle(&mut self, node: Node, event: Event, out: &mut Outbox<'_, Event>) {
        let service = self.config.service_ns as f64;
        match event {
            Event::Arrival => {
                self.arrived += 1;
                self.waiting.push_back(out.now());
                if self.waiting.len() == 1 {
                    out.send(node, self.draw(service), Event::Departure);
                }
                if self.arrived < self.config.customers {
                    let gap = self.draw(service / self.config.arrivals.load);
                    out.send(node, gap, Event::Arrival);
                }
            }
            Event::Departure => {
                let came = self.waiting.pop_front().unwrap();
                self.times.record((out.now() - came) / 1_000).unwrap();
                if self.times.len().is_multiple_of(100) {
                    self.lengths.push((out.now() as f64 / 1e12, self.waiting.len() as f64));
                }
                if !self.waiting.is_empty() {
                    out.send(node, self.draw(service), Event::Departure);
                }
            }
        }
    }

    fn digest(&self, event: &Event) -> u64 {
        matches!(event, Event::Arrival).into()
    }

    fn pack(&mut self, event: Event) -> Event {
        event
    }

    fn unpack(&mut self, event: Event) -> Event {
        event
    }
}

impl World for Queue {
    const NAME: &'static str = "queue";
    const EXPERIMENTS: &'static [(&'static str, &'static str)] = &[];

    type Config = Config;

    fn check(config: &Config) -> Result<(), BadConfig> {
        let Config { customers, arrivals: Arrivals { load }, .. } = config;
        if *customers == 0 {
            return Err(BadConfig::new("customers", "0: set 1 or more"));
        }
        if !(*load > 0.0 && *load < 1.0) {
            return Err(BadConfig::new("arrivals.load", format!("{load}: set a share below 1")));
        }
        Ok(())
    }

    fn new(config: &Config, _: usize) -> Result<Self, BadConfig> {
        Self::check(config)?;
        let server = Server {
            config: config.clone(),
            random: Stream::new(config.seed),
            waiting: VecDeque::new(),
            arrived: 0,
            times: Histogram::new(3).unwrap(),
            lengths: Vec::new(),
        };
        let engine = Engine::new(vec![server], vec![0], 0, [(0, 0, Event::Arrival)]);
        Ok(Self { engine, customers: config.customers })
    }
}

impl Simulation for Queue {
    fn advance(&mut self, until_ps: u64) {
        self.engine.run_until(until_ps);
    }

    fn now(&self) -> u64 {
        self.engine.now()
    }

    fn is_over(&self) -> bool {
        self.engine.is_over()
    }

    fn events(&self) -> u64 {
        self.engine.events()
    }

    fn progress(&self) -> Option<(u64, u64)> {
        Some((self.engine.parts().map(|part| part.times.len()).sum(), self.customers))
    }

    fn outcome(&self) -> Outcome {
        let server = self.engine.parts().next().unwrap();
        Outcome {
            histograms: vec![NamedHistogram::new("time", "us", 1e3, &server.times)],
            series: vec![Series {
                name: "length".into(),
                unit: String::new(),
                points: server.lengths.clone(),
            }],
            counts: [("served".to_owned(), server.times.len())].into(),
            events: self.engine.events(),
            virtual_ps: self.engine.last_event(),
            trace_hash: self.engine.trace(),
            ..Outcome::default()
        }
    }
}
