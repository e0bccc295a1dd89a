//! Tests of both kinds of switches.

mod buffers;
mod circuits;
mod model;
mod queueing;
mod rate;
mod timing;

use venice_simkernel::events::Events;
use venice_simkernel::units::{BitRate, Bytes, Picos};

use super::config::{BufferConfig, PacketSwitchConfig};
use super::*;

const GIGABIT: BitRate = BitRate(1_000_000_000);
/// The time of a byte at 1 Gb/s.
const BYTE: u64 = 8 * Picos::NANO;

/// A step of a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Arrived(Arriving, Outcome),
    Woken(PortNumber, Option<Departure>),
}

impl Step {
    fn output(&self) -> PortNumber {
        match self {
            Self::Arrived(arriving, _) => arriving.output,
            Self::Woken(output, _) => *output,
        }
    }
}

/// A packet at 1 Gb/s.
fn packet(packet: PacketId, bytes: u32, input: PortNumber, output: PortNumber) -> Arriving {
    Arriving { packet, bytes, input, output, input_rate: GIGABIT, ecn_capable: false }
}

/// A switch with no latency and room for all packets, whose decisions are its departures.
fn roomy() -> PacketSwitchConfig {
    PacketSwitchConfig {
        latency: Picos(0),
        buffer: BufferConfig::PerOutput { bytes: Bytes(1 << 40) },
        ..PacketSwitchConfig::default()
    }
}

fn packet_switch(config: PacketSwitchConfig, ports: usize) -> Switch {
    let config = SwitchConfig::Packet(config);
    config.check().expect("it is a valid configuration");
    Switch::new(&config, &vec![GIGABIT; ports])
}

/// The caller of a switch: it makes events of arrivals and wakes.
struct Rig {
    switch: Switch,
    events: Events<Event>,
}

enum Event {
    Arrive(Arriving),
    Wake(PortNumber),
}

impl Rig {
    fn new(switch: Switch, arrivals: impl IntoIterator<Item = (u64, Arriving)>) -> Self {
        let mut events = Events::default();
        arrivals.into_iter().for_each(|(at, arriving)| events.push(at, Event::Arrive(arriving)));
        Self { switch, events }
    }

    /// Handles one event.
    fn step(&mut self) -> Option<(u64, Step)> {
        let (now, event) = self.events.pop()?;
        let (step, wake_at) = match event {
            Event::Arrive(arriving) => {
                let outcome = self.switch.arrive(now, &arriving);
                let wake_at = match outcome {
                    Outcome::Queued { wake_at } => wake_at,
                    Outcome::Sent(_) | Outcome::Dropped(_) => None,
                };
                (Step::Arrived(arriving, outcome), wake_at)
            }
            Event::Wake(output) => {
                let (departure, wake_at) = self.switch.wake(now, output);
                (Step::Woken(output, departure), wake_at)
            }
        };
        if let Some(at) = wake_at {
            assert!(at >= now, "a wake at {at} is before {now}");
            self.events.push(at, Event::Wake(step.output()));
        }
        Some((now, step))
    }

    /// Handles all events.
    fn run(&mut self) -> Vec<(u64, Step)> {
        std::iter::from_fn(|| self.step()).collect()
    }

    /// Handles all events; returns packets with the times of their first and last bits.
    fn departures(&mut self) -> Vec<(PacketId, u64, u64)> {
        let sent = |(_, step)| match step {
            Step::Arrived(_, Outcome::Sent(departure)) | Step::Woken(_, Some(departure)) => {
                Some((departure.packet, departure.first_bit_at, departure.last_bit_at))
            }
            Step::Arrived(_, Outcome::Queued { .. } | Outcome::Dropped(_))
            | Step::Woken(_, None) => None,
        };
        self.run().into_iter().filter_map(sent).collect()
    }
}
