//! A packet switch with virtual output queues.

use serde::{Deserialize, Serialize};
use venice_simkernel::units::BitRate;

use super::buffer::{Buffer, Depths};
use super::config::{Arbitration, Forwarding, PacketSwitchConfig};
use super::line::Line;
use super::queues::{Queues, Slab, Waiting, bits_from};
use super::{Arriving, Counters, Departure, NEVER, Outcome, PortNumber, earlier};
use crate::packet::PacketId;

/// A packet switch with virtual output queues (DIABLO, section 3.3).
///
/// Each output that is free takes one packet from the queues of its inputs, by its own order and
/// without regard to other outputs. If the crossbar is limited, an input passes one packet at a time;
/// several outputs that want the same input get it in turn (a greedy maximal matching, no iteration
/// as in iSLIP). A crossbar faster than the output's line ends in a staging buffer of one packet at
/// the output.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PacketSwitch {
    latency: u64,
    forwarding: Forwarding,
    arbitration: Arbitration,
    ecn_threshold: u64,
    crossbar_limited: bool,
    inputs: Vec<Input>,
    outputs: Vec<Output>,
    buffer: Buffer,
    slab: Slab,
    /// Packets that ever waited.
    number: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Input {
    line: Line,
    /// Bytes that wait, for all outputs.
    queued_bytes: u64,
    /// The way into the crossbar, in use if that is limited.
    crossbar: Line,
    crossbar_free_at: u64,
    /// The output whose turn is next.
    turn: PortNumber,
    /// A bit for each output that a packet waits for.
    outputs: Vec<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Output {
    line: Line,
    /// The time from which on it may decide again.
    free_at: u64,
    /// The wake that counts.
    wake_at: u64,
    /// The input whose turn is next.
    turn: PortNumber,
    queues: Queues,
    counters: Counters,
}

impl PacketSwitch {
    pub(super) fn new(config: &PacketSwitchConfig, rates: &[BitRate]) -> Self {
        let limited = config.crossbar_speedup > 0;
        let words = if limited { rates.len().div_ceil(64) } else { 0 };
        let crossbar = |rate: BitRate| {
            let speedup = u64::from(config.crossbar_speedup.max(1));
            Line::new(BitRate(rate.0.saturating_mul(speedup)))
        };
        let input = |rate: &BitRate| Input {
            line: Line::new(*rate),
            queued_bytes: 0,
            crossbar: crossbar(*rate),
            crossbar_free_at: 0,
            turn: 0,
            outputs: vec![0; words],
        };
        let output = |rate: &BitRate| Output {
            line: Line::new(*rate),
            free_at: 0,
            wake_at: NEVER,
            turn: 0,
            queues: Queues::new(rates.len() as u16),
            counters: Counters::default(),
        };
        Self {
            latency: config.latency.0,
            forwarding: config.forwarding,
            arbitration: config.arbitration,
            ecn_threshold: config.ecn_threshold.map_or(u64::MAX, |bytes| bytes.0),
            crossbar_limited: limited,
            inputs: rates.iter().map(input).collect(),
            outputs: rates.iter().map(output).collect(),
            buffer: Buffer::new(config.buffer),
            slab: Slab::default(),
            number: 0,
        }
    }

    pub(super) fn arrive(&mut self, now: u64, arriving: &Arriving) -> Outcome {
        let &Arriving { packet, bytes, input, output, .. } = arriving;
        let ready_at = now + self.wait_for_bits(arriving);
        let crossbar = self.enter_crossbar(now, input, output);
        let out = &self.outputs[usize::from(output)];
        if out.queues.is_empty() && out.free_at <= now && ready_at <= now && crossbar.is_ok() {
            return Outcome::Sent(self.send(now, input, output, &Waiting::new(packet, bytes, now)));
        }
        let due_at = ready_at.max(out.free_at).max(crossbar.err().unwrap_or(0));
        self.queue(now, arriving, ready_at, due_at)
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
        if out.queues.is_empty() {
            return (None, None);
        }
        if out.free_at > now {
            return (None, earlier(&mut out.wake_at, out.free_at));
        }
        let input = match self.choose(now, output) {
            Ok(input) => input,
            Err(at) => return (None, earlier(&mut self.outputs[usize::from(output)].wake_at, at)),
        };
        let waiting = self.dequeue(now, input, output);
        let departure = self.send(now, input, output, &waiting);
        let out = &mut self.outputs[usize::from(output)];
        let next = if out.queues.is_empty() { NEVER } else { out.free_at };
        (Some(departure), earlier(&mut out.wake_at, next))
    }

    /// Returns the time from the first bit's arrival until the packet may be sent.
    fn wait_for_bits(&self, arriving: &Arriving) -> u64 {
        let out = self.outputs[usize::from(arriving.output)].line;
        match self.forwarding {
            Forwarding::CutThrough if arriving.input_rate >= out.rate => 0,
            Forwarding::CutThrough => {
                self.arrival_time(arriving).saturating_sub(out.time_of(arriving.bytes))
            }
            Forwarding::StoreAndForward => self.arrival_time(arriving),
        }
    }

    /// Returns the time from the first bit's arrival to the last one's.
    fn arrival_time(&self, arriving: &Arriving) -> u64 {
        let own = self.inputs[usize::from(arriving.input)].line;
        let line =
            if own.rate == arriving.input_rate { own } else { Line::new(arriving.input_rate) };
        line.time_of(arriving.bytes)
    }

    /// Returns the time at which to look again, if a packet may not pass from the input into the
    /// crossbar now: it is busy, or another free output's turn is sooner.
    fn enter_crossbar(&self, now: u64, input: PortNumber, output: PortNumber) -> Result<(), u64> {
        if !self.crossbar_limited {
            return Ok(());
        }
        let from = &self.inputs[usize::from(input)];
        if from.crossbar_free_at > now {
            return Err(from.crossbar_free_at);
        }
        let ports = self.outputs.len() as u32;
        let rank = |port: PortNumber| (u32::from(port) + ports - u32::from(from.turn)) % ports;
        let is_ready = |other: PortNumber| {
            let out = &self.outputs[usize::from(other)];
            let head = out.queues.head(&self.slab, input);
            out.free_at <= now && head.is_some_and(|head| head.ready_at <= now)
        };
        let sooner = |other: &PortNumber| rank(*other) < rank(output);
        let mut others = bits_from(&from.outputs, from.turn).take_while(sooner);
        // The other has a wake at this instant, and then is busy.
        if others.any(is_ready) { Err(now) } else { Ok(()) }
    }

    /// Returns the input to serve, or the time at which to look again.
    fn choose(&self, now: u64, output: PortNumber) -> Result<PortNumber, u64> {
        let out = &self.outputs[usize::from(output)];
        let mut again_at = NEVER;
        let mut first = None;
        for input in out.queues.inputs_from(out.turn) {
            let head = out.queues.head(&self.slab, input).expect("its queue is not empty");
            if head.ready_at > now {
                again_at = again_at.min(head.ready_at);
            } else if let Err(at) = self.enter_crossbar(now, input, output) {
                again_at = again_at.min(at);
            } else {
                match self.arbitration {
                    Arbitration::RoundRobin => return Ok(input),
                    Arbitration::Fifo => {
                        let key = (head.ready_at, head.number, input);
                        first = Some(first.map_or(key, |first: (u64, u64, u16)| first.min(key)));
                    }
                }
            }
        }
        first.map(|(_, _, input)| input).ok_or(again_at)
    }

    /// Sends a packet: it is in no queue.
    fn send(
        &mut self,
        now: u64,
        input: PortNumber,
        output: PortNumber,
        waiting: &Waiting,
    ) -> Departure {
        let out = &mut self.outputs[usize::from(output)];
        let time = out.line.time_of(waiting.bytes);
        out.free_at = now + time;
        out.turn = input + 1;
        out.counters.count_sent(waiting.bytes);
        if self.crossbar_limited {
            let from = &mut self.inputs[usize::from(input)];
            from.crossbar_free_at = now + from.crossbar.time_of(waiting.bytes);
            from.turn = (output + 1) % self.outputs.len() as u16;
        }
        let out = &self.outputs[usize::from(output)];
        Departure {
            packet: waiting.packet,
            output,
            first_bit_at: now + self.latency,
            last_bit_at: now + self.latency + time,
            rate: out.line.rate,
            marked: waiting.marked,
        }
    }

    /// Queues a packet that may be sent at `due_at` if nothing is before it, or drops it.
    fn queue(&mut self, now: u64, arriving: &Arriving, ready_at: u64, due_at: u64) -> Outcome {
        let &Arriving { packet, bytes, input, output, .. } = arriving;
        let (from, out) =
            (&mut self.inputs[usize::from(input)], &mut self.outputs[usize::from(output)]);
        let depths = Depths {
            queue: out.queues.bytes_of(input),
            input: from.queued_bytes,
            output: out.queues.bytes(),
        };
        if let Err(cause) = self.buffer.admit(&depths, bytes) {
            out.counters.count_drop(cause);
            return Outcome::Dropped(cause);
        }
        let marked = arriving.ecn_capable && depths.output > self.ecn_threshold;
        let number = self.number;
        self.number += 1;
        let mut waiting = Waiting::new(packet, bytes, ready_at);
        (waiting.number, waiting.marked) = (number, marked);
        out.counters.advance(now, depths.output);
        out.counters.count_queued(out.queues.bytes() + u64::from(bytes), marked);
        out.queues.push(&mut self.slab, input, waiting);
        from.queued_bytes += u64::from(bytes);
        if self.crossbar_limited {
            from.outputs[usize::from(output / 64)] |= 1 << (output % 64);
        }
        Outcome::Queued { wake_at: earlier(&mut out.wake_at, due_at) }
    }

    /// Takes the first packet of a queue.
    fn dequeue(&mut self, now: u64, input: PortNumber, output: PortNumber) -> Waiting {
        let (from, out) =
            (&mut self.inputs[usize::from(input)], &mut self.outputs[usize::from(output)]);
        out.counters.advance(now, out.queues.bytes());
        let waiting = out.queues.pop(&mut self.slab, input);
        from.queued_bytes -= u64::from(waiting.bytes);
        self.buffer.release(out.queues.bytes(), waiting.bytes);
        if self.crossbar_limited && !out.queues.has(input) {
            from.outputs[usize::from(output / 64)] &= !(1 << (output % 64));
        }
        waiting
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
}
