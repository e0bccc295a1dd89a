//! A switch of virtual circuits.

use serde::{Deserialize, Serialize};
use venice_simkernel::units::BitRate;

use super::config::CircuitSwitchConfig;
use super::line::Line;
use super::queues::{Queues, Slab, Waiting};
use super::{Arriving, Counters, Departure, NEVER, Outcome, PortNumber, earlier};
use crate::packet::PacketId;

/// A switch of virtual circuits with reserved slots.
///
/// A circuit joins an input and an output. Each port has a number of equal slots in time, and a circuit
/// owns one at both ends, so it has that part of the slower line's rate whatever the others do: its
/// packets wait for one another alone. The slots are short against a packet; the wait for the next slot
/// is part of the latency.
///
/// A packet without a circuit waits until one is set up, and for a free slot before that. A circuit
/// that sent no packet for the idle time is torn down, and its slots are free. A busy one is kept: with
/// fewer slots than peers, a packet may wait as long as other circuits are busy.
///
/// Nothing is dropped. Credits of each circuit would hold its packets back at the sender; here they
/// wait in the switch, for the same time. The most that ever waited is the room that a switch without
/// credits would need.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CircuitSwitch {
    latency: u64,
    set_up: u64,
    idle: u64,
    circuits_per_port: u16,
    /// By input: its line rate, and the outputs that it has circuits to.
    inputs: Vec<(BitRate, Vec<PortNumber>)>,
    outputs: Vec<Output>,
    slab: Slab,
    circuits_made: u64,
    /// Inputs that one wake looks at.
    #[serde(skip)]
    scratch: Vec<PortNumber>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Output {
    rate: BitRate,
    circuits: Vec<Circuit>,
    queues: Queues,
    /// The wake that counts.
    wake_at: u64,
    /// The input whose turn is next.
    turn: PortNumber,
    counters: Counters,
}

/// A circuit from an input to an output.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct Circuit {
    input: PortNumber,
    line: Line,
    /// The time from which on it may send: after the set-up, and after its last packet.
    free_at: u64,
}

impl CircuitSwitch {
    pub(super) fn new(config: &CircuitSwitchConfig, rates: &[BitRate]) -> Self {
        let output = |rate: &BitRate| Output {
            rate: *rate,
            circuits: Vec::new(),
            queues: Queues::new(rates.len() as u16),
            wake_at: NEVER,
            turn: 0,
            counters: Counters::default(),
        };
        Self {
            latency: config.latency.0,
            set_up: config.set_up.0,
            idle: config.idle.0,
            circuits_per_port: config.circuits_per_port,
            inputs: rates.iter().map(|rate| (*rate, Vec::new())).collect(),
            outputs: rates.iter().map(output).collect(),
            slab: Slab::default(),
            circuits_made: 0,
            scratch: Vec::new(),
        }
    }

    pub(super) fn arrive(&mut self, now: u64, arriving: &Arriving) -> Outcome {
        let &Arriving { packet, bytes, input, output, .. } = arriving;
        let line = Line::new(self.rate(input, output));
        let ready_at = now + wait_for_bits(arriving, &line);
        let waiting = Waiting::new(packet, bytes, ready_at);
        let is_first = !self.outputs[usize::from(output)].queues.has(input);
        if is_first && let Some(circuit) = self.circuit(input, output) {
            if now >= circuit.free_at + self.idle {
                self.tear_down(input, output);
            } else if circuit.free_at.max(ready_at) <= now {
                return Outcome::Sent(self.send(now, input, output, &waiting));
            }
        }
        let out = &mut self.outputs[usize::from(output)];
        out.counters.advance(now, out.queues.bytes());
        out.counters.count_queued(out.queues.bytes() + u64::from(bytes), false);
        out.queues.push(&mut self.slab, input, waiting);
        // The wake of the first packet of a queue is that of all.
        let due_at = if is_first { self.due(now, input, output) } else { NEVER };
        Outcome::Queued { wake_at: earlier(&mut self.outputs[usize::from(output)].wake_at, due_at) }
    }

    pub(super) fn wake(
        &mut self,
        now: u64,
        output: PortNumber,
    ) -> (Option<Departure>, Option<u64>) {
        let out = &mut self.outputs[usize::from(output)];
        if out.wake_at != now {
            return (None, None);
        }
        out.wake_at = NEVER;
        let mut inputs = std::mem::take(&mut self.scratch);
        inputs.clear();
        inputs.extend(out.queues.inputs_from(out.turn));
        let (mut next, mut chosen) = (NEVER, None);
        for input in &inputs {
            let due_at = self.due(now, *input, output);
            if due_at <= now && chosen.is_none() {
                chosen = Some(*input);
            } else {
                next = next.min(due_at);
            }
        }
        self.scratch = inputs;
        let departure = chosen.map(|input| {
            let waiting = self.dequeue(now, input, output);
            let departure = self.send(now, input, output, &waiting);
            if self.outputs[usize::from(output)].queues.has(input) {
                next = next.min(self.due(now, input, output));
            }
            departure
        });
        (departure, earlier(&mut self.outputs[usize::from(output)].wake_at, next))
    }

    /// Returns the time at which the first packet of a queue may be sent, or at which to look again:
    /// sets its circuit up, if it has none and there are slots.
    fn due(&mut self, now: u64, input: PortNumber, output: PortNumber) -> u64 {
        let out = &self.outputs[usize::from(output)];
        let ready_at = out.queues.head(&self.slab, input).map_or(now, |head| head.ready_at);
        if let Some(circuit) = self.circuit(input, output) {
            return circuit.free_at.max(ready_at);
        }
        let slots_at = self.slot_of_input(now, input).max(self.slot_of_output(now, output));
        if slots_at > now {
            return slots_at;
        }
        let circuit = Circuit {
            input,
            line: Line::new(self.rate(input, output)),
            free_at: now + self.set_up,
        };
        self.outputs[usize::from(output)].circuits.push(circuit);
        self.inputs[usize::from(input)].1.push(output);
        self.circuits_made += 1;
        circuit.free_at.max(ready_at)
    }

    /// Returns the earliest time at which the input may have a free slot; tears down what is idle.
    fn slot_of_input(&mut self, now: u64, input: PortNumber) -> u64 {
        let outputs = &self.inputs[usize::from(input)].1;
        if outputs.len() < usize::from(self.circuits_per_port) {
            return now;
        }
        let ends = outputs.iter().map(|output| (self.end(now, input, *output), *output));
        let (end, output) = ends.min().expect("it has circuits");
        if end <= now {
            self.tear_down(input, output);
        }
        end
    }

    /// Returns the earliest time at which the output may have a free slot; tears down what is idle.
    fn slot_of_output(&mut self, now: u64, output: PortNumber) -> u64 {
        let circuits = &self.outputs[usize::from(output)].circuits;
        if circuits.len() < usize::from(self.circuits_per_port) {
            return now;
        }
        let ends = circuits.iter().map(|one| (self.end(now, one.input, output), one.input));
        let (end, input) = ends.min().expect("it has circuits");
        if end <= now {
            self.tear_down(input, output);
        }
        end
    }

    /// Returns the earliest time at which a circuit may be torn down.
    fn end(&self, now: u64, input: PortNumber, output: PortNumber) -> u64 {
        let free_at = self.circuit(input, output).map_or(0, |circuit| circuit.free_at);
        let is_idle = !self.outputs[usize::from(output)].queues.has(input);
        let idle_from = if is_idle { free_at } else { free_at.max(now) };
        idle_from + self.idle
    }

    fn circuit(&self, input: PortNumber, output: PortNumber) -> Option<&Circuit> {
        self.outputs[usize::from(output)].circuits.iter().find(|circuit| circuit.input == input)
    }

    fn tear_down(&mut self, input: PortNumber, output: PortNumber) {
        self.outputs[usize::from(output)].circuits.retain(|circuit| circuit.input != input);
        self.inputs[usize::from(input)].1.retain(|other| *other != output);
    }

    /// Returns the rate of a circuit: a slot's part of the slower line.
    fn rate(&self, input: PortNumber, output: PortNumber) -> BitRate {
        let slower = self.inputs[usize::from(input)].0.min(self.outputs[usize::from(output)].rate);
        BitRate((slower.0 / u64::from(self.circuits_per_port)).max(1))
    }

    /// Sends a packet on its circuit: it is in no queue.
    fn send(
        &mut self,
        now: u64,
        input: PortNumber,
        output: PortNumber,
        waiting: &Waiting,
    ) -> Departure {
        let out = &mut self.outputs[usize::from(output)];
        let circuit = out.circuits.iter_mut().find(|circuit| circuit.input == input);
        let circuit = circuit.expect("it is set up");
        let time = circuit.line.time_of(waiting.bytes);
        circuit.free_at = now + time;
        out.turn = input + 1;
        out.counters.count_sent(waiting.bytes);
        Departure {
            packet: waiting.packet,
            output,
            first_bit_at: now + self.latency,
            last_bit_at: now + self.latency + time,
            rate: circuit.line.rate,
            marked: false,
        }
    }

    /// Takes the first packet of a queue.
    fn dequeue(&mut self, now: u64, input: PortNumber, output: PortNumber) -> Waiting {
        let out = &mut self.outputs[usize::from(output)];
        out.counters.advance(now, out.queues.bytes());
        out.queues.pop(&mut self.slab, input)
    }

    pub(super) fn each_packet(&mut self, visit: &mut impl FnMut(&mut PacketId)) {
        let (outputs, slab) = (&self.outputs, &mut self.slab);
        outputs.iter().for_each(|output| output.queues.each_packet(slab, visit));
    }

    pub(super) fn depth(&self, output: PortNumber) -> u64 {
        self.outputs[usize::from(output)].queues.bytes()
    }

    pub(super) fn waiting(&self, output: PortNumber) -> u32 {
        self.outputs[usize::from(output)].queues.packets()
    }

    pub(super) fn counters(&self, output: PortNumber) -> &Counters {
        &self.outputs[usize::from(output)].counters
    }

    pub(super) fn ports(&self) -> PortNumber {
        self.outputs.len() as PortNumber
    }

    /// Returns the number of circuits that were ever set up.
    pub fn circuits_made(&self) -> u64 {
        self.circuits_made
    }
}

/// Returns the time from the first bit's arrival until the line never has to wait for a bit.
fn wait_for_bits(arriving: &Arriving, line: &Line) -> u64 {
    if arriving.input_rate >= line.rate {
        return 0;
    }
    Line::new(arriving.input_rate).time_of(arriving.bytes) - line.time_of(arriving.bytes)
}
