//! Buffers, arbitration and timing of one switch.
//!
//! A switch knows packets by number, size and port, and nothing of what they carry. It has no events
//! of its own: the caller says what arrives when, and wakes an output when asked to.
//!
//! # Time
//! All times are in picoseconds. A packet *arrives* when its first bit, which begins the header,
//! reaches the input. At some time from then on the output *decides* to send it; its first bit leaves
//! the port one latency later. The output's line is busy from the decision for the packet's time on
//! the line. The latency lies after the decision, so nothing leaves sooner than one latency after it
//! arrived: latency and propagation together are the look-ahead of a parallel simulation.
//!
//! # Events
//! A packet that waits for nothing is sent by [`Switch::arrive`]: one event. Else [`Switch::wake`]
//! sends it. The caller makes an event of each `wake_at` it is given. At most one of them counts for an
//! output: an earlier one replaces it, and a replaced wake does nothing.
//!
//! | a packet waits | until |
//! |---|---|
//! | for bits of its own | an output faster than the input cannot run dry; all came, if stored and forwarded |
//! | for the output | the output's line is free, and it is the input's turn |
//! | for the input | the input's way into the crossbar is free, if that is limited |
//! | for a circuit | it is set up, and the packets before it on the circuit are gone |

pub mod config;

mod buffer;
mod circuit_switch;
mod counters;
mod line;
mod packet_switch;
mod queues;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use venice_simkernel::units::BitRate;

pub use self::circuit_switch::CircuitSwitch;
pub use self::config::{BadSwitch, SwitchConfig};
pub use self::counters::{Counters, Drops};
pub use self::packet_switch::PacketSwitch;
use crate::packet::PacketId;

/// The number of a port of a switch, from 0: it is an input and an output.
pub type PortNumber = u16;

/// A packet whose first bit reaches an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arriving {
    /// Its number, which the switch returns.
    pub packet: PacketId,
    /// Its bytes on the line, and in a buffer.
    pub bytes: u32,
    /// The port that it comes to.
    pub input: PortNumber,
    /// The port that it leaves by.
    pub output: PortNumber,
    /// The rate at which its bits come: that of the link, or of its circuit in the switch before.
    pub input_rate: BitRate,
    /// True if a switch may mark it (RFC 3168).
    pub ecn_capable: bool,
}

/// A packet that a switch sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Departure {
    /// Its number.
    pub packet: PacketId,
    /// The port that it leaves by.
    pub output: PortNumber,
    /// The time at which its first bit leaves the port.
    pub first_bit_at: u64,
    /// The time at which its last bit has left the port.
    pub last_bit_at: u64,
    /// The rate at which its bits leave: the next switch's `input_rate`.
    pub rate: BitRate,
    /// True if this switch marked it.
    pub marked: bool,
}

/// The fate of a packet that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It waits for nothing.
    Sent(Departure),
    /// It waits.
    Queued {
        /// The time at which to wake its output; `None` if an earlier wake is still to come.
        wake_at: Option<u64>,
    },
    /// There is no room for it.
    Dropped(DropCause),
}

/// The limit that a dropped packet would have exceeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum DropCause {
    /// The buffer of its queue, input or output.
    QueueFull,
    /// The pool of all outputs.
    PoolFull,
    /// The dynamic threshold of its output.
    OverThreshold,
}

/// A switch of either kind.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Switch {
    /// See [`PacketSwitch`].
    Packet(Box<PacketSwitch>),
    /// See [`CircuitSwitch`].
    Circuit(Box<CircuitSwitch>),
}

impl Switch {
    /// Makes a switch, with the line rate of each port.
    ///
    /// # Panics
    /// If a rate is 0, or there are more ports than 65 535.
    pub fn new(config: &SwitchConfig, rates: &[BitRate]) -> Self {
        assert!(rates.iter().all(|rate| rate.0 > 0), "a port has no rate");
        assert!(rates.len() <= usize::from(PortNumber::MAX), "too many ports");
        match config {
            SwitchConfig::Packet(packet) => {
                Self::Packet(Box::new(PacketSwitch::new(packet, rates)))
            }
            SwitchConfig::Circuit(circuit) => {
                Self::Circuit(Box::new(CircuitSwitch::new(circuit, rates)))
            }
        }
    }

    /// Takes a packet whose first bit reaches an input at `now`.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn arrive(&mut self, now: u64, arriving: &Arriving) -> Outcome {
        match self {
            Self::Packet(switch) => switch.arrive(now, arriving),
            Self::Circuit(switch) => switch.arrive(now, arriving),
        }
    }

    /// Wakes an output at a time that it asked for: returns a packet that it sends, and the next time
    /// at which to wake it.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn wake(&mut self, now: u64, output: PortNumber) -> (Option<Departure>, Option<u64>) {
        match self {
            Self::Packet(switch) => switch.wake(now, output),
            Self::Circuit(switch) => switch.wake(now, output),
        }
    }

    /// Visits the packets that wait, to give them other numbers.
    pub(crate) fn each_packet(&mut self, mut visit: impl FnMut(&mut PacketId)) {
        match self {
            Self::Packet(switch) => switch.each_packet(&mut visit),
            Self::Circuit(switch) => switch.each_packet(&mut visit),
        }
    }

    /// Returns the bytes that wait for an output.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn depth(&self, output: PortNumber) -> u64 {
        match self {
            Self::Packet(switch) => switch.depth(output),
            Self::Circuit(switch) => switch.depth(output),
        }
    }

    /// Returns the number of packets that wait for an output.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn waiting(&self, output: PortNumber) -> u32 {
        match self {
            Self::Packet(switch) => switch.waiting(output),
            Self::Circuit(switch) => switch.waiting(output),
        }
    }

    /// Returns the counts of an output until `now`.
    ///
    /// # Panics
    /// If there is no such port.
    pub fn counters(&self, output: PortNumber, now: u64) -> Counters {
        let (mut counters, depth) = match self {
            Self::Packet(switch) => (*switch.counters(output), switch.depth(output)),
            Self::Circuit(switch) => (*switch.counters(output), switch.depth(output)),
        };
        counters.advance(now, depth);
        counters
    }

    /// Returns the number of ports.
    pub fn ports(&self) -> PortNumber {
        match self {
            Self::Packet(switch) => switch.ports(),
            Self::Circuit(switch) => switch.ports(),
        }
    }

    /// Returns the sum of all outputs' counts until `now`.
    pub fn total(&self, now: u64) -> Counters {
        let mut total = Counters::default();
        (0..self.ports()).for_each(|output| total.add(&self.counters(output, now)));
        total
    }
}

/// A time that never comes: no wake is asked for.
const NEVER: u64 = u64::MAX;

/// Returns the earlier time at which an output is to be woken, if `at` is earlier than what it asked
/// for.
fn earlier(wake_at: &mut u64, at: u64) -> Option<u64> {
    (at < *wake_at).then(|| {
        *wake_at = at;
        at
    })
}
