//! Recipient and donor of the fabric, and the wires between them: the product's state machines in
//! virtual time. Lines are asked for by token; the answer names it.

use std::collections::VecDeque;

use venice_fabric::{
    EmulatedLink, EndConfig, GrantedMemory, Initiator, InitiatorConfig, PeerAddr, PeerIndex,
    PeerState, QPairConfig, QPairError, QPairEvent, QPairId, QPairs, Refusal, Target, TargetConfig,
};
use venice_simkernel::events::Events;
use venice_simkernel::units::Picos;
use venice_wire::{GrantId, GrantKey, MAX_FRAME_BYTES, NodeId};

use crate::cache::LINE_BYTES;
use crate::config::{Channel, Config};
use crate::machine::Event;

const RECIPIENT: NodeId = NodeId(1);
const DONOR: NodeId = NodeId(2);
const GRANT: (GrantId, GrantKey) = (GrantId(1), GrantKey(0x1ea5e));
/// The service of the donor's thread.
const SERVICE: u32 = 1;
/// Seeds of link numbers: any, and the same in every run.
const SEEDS: (u64, u64) = (0x5eed, 0xf00d);
const LINE: usize = LINE_BYTES as usize;

/// A line that the recipient reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Returned with the answer.
    pub token: u64,
    /// The line.
    pub line: u64,
    /// The version to write; `None`: it reads.
    pub write: Option<u64>,
}

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The request's token.
    pub token: u64,
    /// The version that was read; `None` for a write.
    pub read: Option<u64>,
}

/// The donor's memory: each line as the version last written to it.
#[derive(Debug)]
struct Lines(Vec<u64>);

impl Lines {
    fn at(&mut self, key: GrantKey, addr: u64, len: usize) -> Result<&mut u64, Refusal> {
        if key != GRANT.1 {
            return Err(Refusal::WrongKey);
        }
        let is_line = addr.is_multiple_of(LINE_BYTES) && len == LINE;
        let line = self.0.get_mut((addr / LINE_BYTES) as usize).filter(|_| is_line);
        line.ok_or(Refusal::OutOfRange)
    }
}

impl GrantedMemory for Lines {
    fn read(
        &mut self,
        _: GrantId,
        key: GrantKey,
        addr: u64,
        into: &mut [u8],
    ) -> Result<(), Refusal> {
        let version = *self.at(key, addr, into.len())?;
        into.copy_from_slice(&bytes_of(version));
        Ok(())
    }

    fn write(&mut self, _: GrantId, key: GrantKey, addr: u64, from: &[u8]) -> Result<(), Refusal> {
        *self.at(key, addr, from.len())? = version_of(from);
        Ok(())
    }
}

fn bytes_of(version: u64) -> [u8; LINE] {
    let mut bytes = [0; LINE];
    bytes[..8].copy_from_slice(&version.to_le_bytes());
    bytes
}

fn version_of(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |first| u64::from_le_bytes(*first))
}

/// Both ends and the wires. Times are picoseconds; the fabric's clock ticks in nanoseconds and is
/// rounded up.
#[derive(Debug)]
pub struct Fabric {
    initiator: Initiator,
    target: Target,
    peer: PeerIndex,
    /// There and back.
    wires: [EmulatedLink; 2],
    memory: Lines,
    /// Requests that wait at the interface, and how many it may have under way.
    waiting: VecDeque<Request>,
    under_way: u32,
    limit: u32,
    /// The program's end and the donor's, once connected.
    qpairs: [Option<QPairId>; 2],
    is_messages: bool,
    /// From the arrival of a frame to its effect at the donor, and of an answer to the program.
    donor_delay: u64,
    crossing: u64,
    /// The donor's thread: time of a request, and when it is free.
    serve: u64,
    free_at: u64,
    timer_at: Option<u64>,
    is_up: bool,
    buf: Box<[u8; MAX_FRAME_BYTES]>,
    frames: u64,
    wire_bytes: u64,
}

impl Fabric {
    /// Makes both ends and begins the handshake. `None` if the channel does not use the fabric.
    pub fn new(config: &Config, lines: u64) -> Option<Self> {
        let (crossing, limit, serve) = match config.channel {
            Channel::Local | Channel::Swap(_) => return None,
            Channel::Crma(crma) => (crma.crossing.0, crma.accesses, None),
            Channel::Qpair(qpair) => {
                let serve = config.processor.time_of(qpair.serve.into()) + config.memory.latency.0;
                (qpair.crossing.0, u32::MAX, Some(serve))
            }
        };
        let mut initiator = Initiator::new(InitiatorConfig::new(RECIPIENT, SEEDS.0));
        let mut target = Target::new(TargetConfig::new(DONOR, SEEDS.1));
        let peer = initiator.add_peer(DONOR, 0);
        let mut qpairs = [None; 2];
        if serve.is_some() {
            target.qpairs_mut().listen(SERVICE, 1).expect("it is the first");
            let connected = initiator.qpair_connect(0, peer, SERVICE, QPairConfig::messages());
            qpairs[0] = Some(connected.expect("it is the first"));
        } else {
            let bytes = lines * LINE_BYTES;
            let mapped = initiator.map_window(0, bytes, peer, 0, GRANT.0, GRANT.1);
            mapped.expect("it is the first");
        }
        // A CRMA access goes to the donor's memory and back from it; a message only to its thread.
        let donor_delay = match serve {
            None => 2 * crossing + config.memory.latency.0,
            Some(_) => crossing,
        };
        let wire = EmulatedLink::new(config.link.model());
        Some(Self {
            initiator,
            target,
            peer,
            wires: [wire.clone(), wire],
            memory: Lines(vec![0; lines as usize]),
            waiting: VecDeque::new(),
            under_way: 0,
            limit,
            qpairs,
            is_messages: serve.is_some(),
            donor_delay,
            crossing,
            serve: serve.unwrap_or(0),
            free_at: 0,
            timer_at: None,
            is_up: false,
            buf: Box::new([0; MAX_FRAME_BYTES]),
            frames: 0,
            wire_bytes: 0,
        })
    }

    /// Returns frames on the wires so far, and their bytes.
    pub fn traffic(&self) -> (u64, u64) {
        (self.frames, self.wire_bytes)
    }

    /// True once lines can be asked for.
    pub fn is_up(&self) -> bool {
        self.is_up
    }

    /// Takes a request from the processor; it is at the interface a crossing later.
    pub fn ask(&self, now: u64, request: Request, events: &mut Events<Event>) {
        events.push(now + self.crossing, Event::AtInterface(request));
    }

    /// Handles an event of the fabric.
    pub fn handle(&mut self, now: u64, event: FabricEvent, events: &mut Events<Event>) {
        let now_ns = now.div_ceil(Picos::NANO);
        match event {
            FabricEvent::Request(request) => self.waiting.push_back(request),
            FabricEvent::AtDonor(frame) => {
                self.target.handle_frame(now_ns, PeerAddr(1), &frame, &mut self.memory);
            }
            FabricEvent::AtRecipient(frame) => {
                self.initiator.handle_frame(now_ns, self.peer, &frame);
            }
            FabricEvent::Answer(answer) => self.answer(now_ns, &answer),
            FabricEvent::Timer => {
                self.timer_at = None;
                self.initiator.handle_timeout(now_ns);
                self.target.handle_timeout(now_ns);
            }
        }
        self.listen(now, events);
        self.complete(now, events);
        self.issue(now_ns);
        self.transmit(now_ns, events);
        self.set_timer(now, events);
    }

    /// Gives waiting requests to the fabric, as far as it takes them.
    fn issue(&mut self, now_ns: u64) {
        while self.is_up && self.under_way < self.limit {
            let Some(&request) = self.waiting.front() else { return };
            let Request { token, line, write } = request;
            let addr = line * LINE_BYTES;
            let is_taken = match (self.qpairs[0], write) {
                (Some(qpair), _) => {
                    let message = message_of(&request);
                    taken(self.initiator.qpairs_mut().send(now_ns, qpair, &message))
                }
                (None, None) => self.initiator.read(now_ns, token, addr, LINE as u32).is_ok(),
                (None, Some(version)) => {
                    self.initiator.write(now_ns, token, addr, &bytes_of(version)).is_ok()
                }
            };
            if !is_taken {
                return;
            }
            self.waiting.pop_front();
            self.under_way += 1;
        }
    }

    /// Handles events of the QPair's ends.
    fn listen(&mut self, now: u64, events: &mut Events<Event>) {
        while let Some(event) = self.target.qpairs_mut().poll_event() {
            match event {
                QPairEvent::Incoming { qpair, .. } => {
                    let accepted = self.target.qpairs_mut().accept(qpair, EndConfig::default());
                    accepted.expect("it waits to be accepted");
                    self.qpairs[1] = Some(qpair);
                }
                QPairEvent::Readable { qpair } => {
                    while let Some(request) = received(self.target.qpairs_mut(), qpair) {
                        self.free_at = self.free_at.max(now) + self.serve;
                        let answer = Event::Fabric(FabricEvent::Answer(request));
                        events.push(self.free_at + self.crossing, answer);
                    }
                }
                QPairEvent::Connected { .. } | QPairEvent::Writable { .. } => {}
                QPairEvent::Closed { reason, .. } => unreachable!("nobody closes it: {reason}"),
            }
        }
        while let Some(event) = self.initiator.qpairs_mut().poll_event() {
            match event {
                QPairEvent::Connected { .. } => self.is_up = true,
                QPairEvent::Readable { qpair } => {
                    while let Some(message) = received(self.initiator.qpairs_mut(), qpair) {
                        let answer = answer_of(&message);
                        self.done(now, answer, events);
                    }
                }
                QPairEvent::Incoming { .. } | QPairEvent::Writable { .. } => {}
                QPairEvent::Closed { reason, .. } => unreachable!("nobody closes it: {reason}"),
            }
        }
    }

    /// Takes completions of CRMA.
    fn complete(&mut self, now: u64, events: &mut Events<Event>) {
        if !self.is_messages {
            self.is_up |= self.initiator.peer_state(self.peer) == PeerState::Up;
        }
        while let Some(done) = self.initiator.poll_completion() {
            done.result.expect("the donor lives, and the window is mapped");
            let read = (!done.data.is_empty()).then(|| version_of(done.data));
            let answer = Answer { token: done.token, read };
            self.done(now, answer, events);
        }
    }

    fn done(&mut self, now: u64, answer: Answer, events: &mut Events<Event>) {
        self.under_way -= 1;
        events.push(now + self.crossing, Event::Filled(answer));
    }

    /// Does what a message asks for, and answers it.
    fn answer(&mut self, now_ns: u64, request: &[u8]) {
        let Request { token, line, write } = request_of(request);
        let slot = &mut self.memory.0[line as usize];
        let mut message = token.to_le_bytes().to_vec();
        match write {
            Some(version) => *slot = version,
            None => message.extend_from_slice(&bytes_of(*slot)),
        }
        let qpair = self.qpairs[1].expect("the request came by it");
        let sent = self.target.qpairs_mut().send(now_ns, qpair, &message);
        sent.expect("the buffers have room for all that can be under way");
    }

    /// Moves frames to the wires.
    fn transmit(&mut self, now_ns: u64, events: &mut Events<Event>) {
        loop {
            let buf = &mut self.buf[..];
            let there = self.initiator.poll_transmit(now_ns, buf).map(|(_, len)| (0, len));
            let back = || self.target.poll_transmit(now_ns, buf).map(|(_, len)| (1, len));
            let Some((wire, len)) = there.or_else(back) else { return };
            let at = self.wires[wire].depart(now_ns, len) * Picos::NANO;
            let frame = self.buf[..len].to_vec();
            let (at, event) = match wire {
                0 => (at + self.donor_delay, FabricEvent::AtDonor(frame)),
                _ => (at, FabricEvent::AtRecipient(frame)),
            };
            self.frames += 1;
            self.wire_bytes += len as u64;
            events.push(at, Event::Fabric(event));
        }
    }

    /// Sets the timer, if the next time-out comes before it.
    fn set_timer(&mut self, now: u64, events: &mut Events<Event>) {
        let ends = [self.initiator.poll_timeout(), self.target.poll_timeout()];
        let Some(next_ns) = ends.into_iter().flatten().min() else { return };
        let at = next_ns.saturating_mul(Picos::NANO).max(now);
        if self.timer_at.is_none_or(|set| at < set) {
            self.timer_at = Some(at);
            events.push(at, Event::Fabric(FabricEvent::Timer));
        }
    }
}

/// An event of the fabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FabricEvent {
    /// A request is at the interface.
    Request(Request),
    /// A frame takes effect at the donor.
    AtDonor(Vec<u8>),
    /// A frame arrives at the recipient.
    AtRecipient(Vec<u8>),
    /// The donor's thread has served a message, which is sent.
    Answer(Vec<u8>),
    /// Something is due.
    Timer,
}

fn taken(sent: Result<(), QPairError>) -> bool {
    match sent {
        Ok(()) => true,
        Err(QPairError::WouldBlock) => false,
        Err(error) => unreachable!("nobody closes it: {error}"),
    }
}

fn received(qpairs: &mut QPairs, qpair: QPairId) -> Option<Vec<u8>> {
    let mut buf = [0; 3 * LINE];
    let len = qpairs.recv(qpair, &mut buf).ok().filter(|len| *len > 0)?;
    Some(buf[..len].to_vec())
}

/// Token and line, and behind them the line to write.
fn message_of(request: &Request) -> Vec<u8> {
    let mut message = [request.token.to_le_bytes(), request.line.to_le_bytes()].concat();
    message.extend(request.write.iter().flat_map(|version| bytes_of(*version)));
    message
}

fn request_of(message: &[u8]) -> Request {
    let number = |at: usize| version_of(&message[at..]);
    let write = (message.len() > 16).then(|| number(16));
    Request { token: number(0), line: number(8), write }
}

fn answer_of(message: &[u8]) -> Answer {
    let read = (message.len() > 8).then(|| version_of(&message[8..]));
    Answer { token: version_of(message), read }
}
