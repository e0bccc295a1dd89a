//! A packet switch against a naive model under random arrivals.

use std::collections::{BTreeMap, VecDeque};

use proptest::prelude::*;
use venice_simkernel::random::Stream;

use super::*;
use crate::switch::config::{Alpha, Arbitration, Forwarding};

/// A packet that waits, in the model.
#[derive(Clone, Copy, Debug)]
struct Waits {
    packet: PacketId,
    bytes: u64,
    ready_at: u64,
    number: usize,
}

/// The model: plain queues, and the rules as they are written.
struct Model {
    config: PacketSwitchConfig,
    rates: Vec<BitRate>,
    queues: BTreeMap<(PortNumber, PortNumber), VecDeque<Waits>>,
    /// By output: the end of the last packet on the line, and the input served last.
    lines: Vec<(u64, PortNumber)>,
    /// By input: the end of the last packet's way into the crossbar.
    crossbar: Vec<u64>,
    arrived: usize,
}

impl Model {
    fn new(config: &PacketSwitchConfig, rates: &[BitRate]) -> Self {
        Self {
            config: config.clone(),
            rates: rates.to_vec(),
            queues: BTreeMap::new(),
            lines: vec![(0, rates.len() as u16 - 1); rates.len()],
            crossbar: vec![0; rates.len()],
            arrived: 0,
        }
    }

    fn queued(&self, of: impl Fn(PortNumber, PortNumber) -> bool) -> u64 {
        let queues = self.queues.iter().filter(|((input, output), _)| of(*input, *output));
        queues.flat_map(|(_, queue)| queue).map(|waits| waits.bytes).sum()
    }

    fn ready_at(&self, now: u64, arriving: &Arriving) -> u64 {
        let bytes = u64::from(arriving.bytes);
        let out = self.rates[usize::from(arriving.output)].time_of(bytes);
        let came = arriving.input_rate.time_of(bytes);
        match self.config.forwarding {
            Forwarding::CutThrough => now + came.saturating_sub(out),
            Forwarding::StoreAndForward => now + came,
        }
    }

    fn drop_cause(&self, arriving: &Arriving) -> Option<DropCause> {
        let bytes = u64::from(arriving.bytes);
        let (to, from) = (arriving.output, arriving.input);
        let full =
            |depth: u64, limit: Bytes| (depth + bytes > limit.0).then_some(DropCause::QueueFull);
        match self.config.buffer {
            BufferConfig::PerQueue { bytes } => {
                full(self.queued(|i, o| (i, o) == (from, to)), bytes)
            }
            BufferConfig::PerInput { bytes } => full(self.queued(|i, _| i == from), bytes),
            BufferConfig::PerOutput { bytes } => full(self.queued(|_, o| o == to), bytes),
            BufferConfig::Shared { bytes: pool, alpha, reserved } => {
                let above = |depth: u64| depth.saturating_sub(reserved.0);
                let ports = 0..self.rates.len() as u16;
                let used: u64 = ports.map(|port| above(self.queued(|_, o| o == port))).sum();
                let depth = self.queued(|_, o| o == to);
                let more = above(depth + bytes) - above(depth);
                if more == 0 {
                    None
                } else if used + more > pool.0 {
                    Some(DropCause::PoolFull)
                } else {
                    (above(depth) >= alpha.of(pool.0 - used)).then_some(DropCause::OverThreshold)
                }
            }
        }
    }

    /// Returns the input that an output serves now.
    fn choice(&self, now: u64, output: PortNumber) -> Option<PortNumber> {
        let (free_at, last) = self.lines[usize::from(output)];
        let ports = self.rates.len() as u16;
        let ready = |input: &PortNumber| {
            let head = self.queues.get(&(*input, output)).and_then(|queue| queue.front());
            head.filter(|head| head.ready_at <= now && self.crossbar[usize::from(*input)] <= now)
        };
        let mut inputs =
            (1..=ports).map(|n| (last + n) % ports).filter(|input| ready(input).is_some());
        if free_at > now {
            return None;
        }
        match self.config.arbitration {
            Arbitration::RoundRobin => inputs.next(),
            Arbitration::Fifo => inputs.min_by_key(|input| {
                let head = ready(input).expect("it is ready");
                (head.ready_at, head.number)
            }),
        }
    }

    fn send(&mut self, now: u64, input: PortNumber, departure: &Departure, bytes: u64) {
        let rate = self.rates[usize::from(departure.output)];
        assert_eq!(departure.first_bit_at, now + self.config.latency.0);
        assert_eq!(departure.last_bit_at, departure.first_bit_at + rate.time_of(bytes));
        let line = &mut self.lines[usize::from(departure.output)];
        assert!(line.0 <= now, "the line is free");
        *line = (now + rate.time_of(bytes), input);
        let speedup = u64::from(self.config.crossbar_speedup);
        if speedup > 0 {
            let crossbar = BitRate(self.rates[usize::from(input)].0 * speedup);
            self.crossbar[usize::from(input)] = now + crossbar.time_of(bytes);
        }
    }

    /// Checks a step of the switch against the rules.
    fn check(&mut self, now: u64, step: &Step) {
        match step {
            Step::Arrived(arriving, outcome) => {
                let (ready_at, bytes) = (self.ready_at(now, arriving), u64::from(arriving.bytes));
                match outcome {
                    Outcome::Sent(departure) => {
                        assert_eq!(departure.packet, arriving.packet);
                        assert_eq!(self.queued(|_, o| o == arriving.output), 0);
                        assert!(
                            ready_at <= now && self.crossbar[usize::from(arriving.input)] <= now
                        );
                        self.send(now, arriving.input, departure, bytes);
                    }
                    Outcome::Queued { .. } => {
                        assert_eq!(self.drop_cause(arriving), None);
                        let (packet, number) = (arriving.packet, self.arrived);
                        self.arrived += 1;
                        let queue =
                            self.queues.entry((arriving.input, arriving.output)).or_default();
                        queue.push_back(Waits { packet, bytes, ready_at, number });
                    }
                    Outcome::Dropped(cause) => assert_eq!(self.drop_cause(arriving), Some(*cause)),
                }
            }
            Step::Woken(output, Some(departure)) => {
                let input = match self.config.crossbar_speedup {
                    0 => self.choice(now, *output).expect("a packet is ready"),
                    // Another output's turn may be sooner: only the queue is known.
                    _ => {
                        let is_head = |waits: Option<&Waits>| {
                            waits.is_some_and(|w| w.packet == departure.packet)
                        };
                        let mut inputs = 0..self.rates.len() as u16;
                        inputs
                            .find(|i| {
                                is_head(self.queues.get(&(*i, *output)).and_then(|q| q.front()))
                            })
                            .unwrap()
                    }
                };
                let waits = self.queues.get_mut(&(input, *output)).unwrap().pop_front().unwrap();
                assert_eq!((departure.packet, departure.output), (waits.packet, *output));
                assert!(waits.ready_at <= now && self.crossbar[usize::from(input)] <= now);
                self.send(now, input, departure, waits.bytes);
            }
            Step::Woken(_, None) => {}
        }
    }

    /// Checks that no output is idle while it could send.
    fn check_work(&self, now: u64) {
        let waiting = self.queues.iter().filter(|(_, queue)| !queue.is_empty());
        for ((_, output), _) in waiting {
            assert_eq!(self.choice(now, *output), None, "output {output} is idle at {now}");
        }
    }
}

fn any_switch() -> impl Strategy<Value = (PacketSwitchConfig, Vec<BitRate>)> {
    let size = || (0..12_000u64).prop_map(|bytes| Bytes(bytes + 1));
    let buffer = prop_oneof![
        size().prop_map(|bytes| BufferConfig::PerQueue { bytes }),
        size().prop_map(|bytes| BufferConfig::PerInput { bytes }),
        size().prop_map(|bytes| BufferConfig::PerOutput { bytes }),
        (size(), 1..9u32, 1..9u32, 0..4000u64).prop_map(|(bytes, n, d, reserved)| {
            let alpha = Alpha::new(n, d).unwrap();
            BufferConfig::Shared { bytes, alpha, reserved: Bytes(reserved) }
        }),
    ];
    let rate = prop_oneof![Just(1u64), Just(3), Just(10)].prop_map(|n| BitRate(n * GIGABIT.0));
    let ports = prop_oneof![2..6usize, 62..70usize, Just(128usize)];
    let rates = ports.prop_flat_map(move |ports| prop::collection::vec(rate.clone(), ports));
    (any::<bool>(), any::<bool>(), 0..3u32, buffer, rates).prop_map(
        |(stored, fifo, crossbar_speedup, buffer, rates)| {
            let config = PacketSwitchConfig {
                latency: Picos(100_000),
                forwarding: if stored {
                    Forwarding::StoreAndForward
                } else {
                    Forwarding::CutThrough
                },
                arbitration: if fifo { Arbitration::Fifo } else { Arbitration::RoundRobin },
                crossbar_speedup,
                buffer,
                ecn_threshold: None,
            };
            (config, rates)
        },
    )
}

/// Draws packets that come one after another at each input, most of them to two outputs.
fn draw(seed: u64, rates: &[BitRate]) -> Vec<(u64, Arriving)> {
    let mut random = Stream::new(seed);
    let ports = rates.len() as u64;
    let mut free_at = vec![0; rates.len()];
    let mut arrivals: Vec<(u64, Arriving)> = (0..300)
        .map(|number| {
            let input = random.below(ports.min(12)) as u16;
            let bytes = random.between(64, 1538) as u32;
            let input_rate = rates[usize::from(input)];
            let outputs = if random.chance(800_000) { 2 } else { ports };
            let output = random.below(outputs) as u16;
            let at = free_at[usize::from(input)] + *random.pick(&[0, 0, 1000, 5_000_000]);
            free_at[usize::from(input)] = at + input_rate.time_of(bytes.into());
            (at, Arriving { input_rate, ..packet(number, bytes, input, output) })
        })
        .collect();
    arrivals.sort_by_key(|(at, _)| *at);
    arrivals
}

proptest! {
    #[test]
    fn switch_equals_a_model((config, rates) in any_switch(), seed in any::<u64>()) {
        let arrivals = draw(seed, &rates);
        let switch = Switch::new(&SwitchConfig::Packet(config.clone()), &rates);
        let mut rig = Rig::new(switch, arrivals.iter().copied());
        let mut model = Model::new(&config, &rates);
        let mut fates = vec![0; arrivals.len()];
        while let Some((now, step)) = rig.step() {
            model.check(now, &step);
            match step {
                Step::Arrived(_, Outcome::Sent(Departure { packet, .. }))
                | Step::Arrived(Arriving { packet, .. }, Outcome::Dropped(_))
                | Step::Woken(_, Some(Departure { packet, .. })) => fates[packet as usize] += 1,
                Step::Arrived(_, Outcome::Queued { .. }) | Step::Woken(_, None) => {}
            }
            let output = step.output();
            prop_assert_eq!(rig.switch.depth(output), model.queued(|_, o| o == output));
            if rig.events.next_at() != Some(now) {
                model.check_work(now);
            }
        }
        prop_assert!(fates.iter().all(|count| *count == 1), "each packet leaves or is dropped");
        let total = rig.switch.total(0);
        prop_assert_eq!(total.packets + total.drops.total(), arrivals.len() as u64);
    }
}
