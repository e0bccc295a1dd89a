//! Execution of requests: in order, each once, each checked.

use venice_wire::{Channel, Frame, HeaderRepr, Integrity, MAX_PAYLOAD_BYTES, Opcode, Refusal};

use super::{
    GrantedMemory,
    links::Entry,
    opened::{OpenedGrants, Revoked},
};
use crate::{
    Atomic, Lent,
    datalink::{Accepted, Link},
    qpair::QPairs,
};

/// A protocol violation: the caller sends what only a donor may, or its port broke the promised
/// order.
pub(super) struct Broken;

/// One link while it is served.
pub(super) struct Service<'a, M> {
    link: &'a mut Link,
    done_due: &'a mut Option<(Channel, u32)>,
    opened: &'a mut OpenedGrants,
    revoked: &'a Revoked,
    qpairs: &'a mut QPairs,
    /// The number of the link, as the target and its QPairs count links.
    number: u32,
    memory: &'a mut M,
}

impl<'a, M: GrantedMemory> Service<'a, M> {
    /// Returns `None` before the link is confirmed.
    pub(super) fn of(
        entry: &'a mut Entry,
        number: u32,
        revoked: &'a Revoked,
        qpairs: &'a mut QPairs,
        memory: &'a mut M,
    ) -> Option<Self> {
        let Entry { link: Some(link), done_due, opened, .. } = entry else { return None };
        Some(Self { link, done_due, opened, revoked, qpairs, number, memory })
    }

    /// Takes a frame of the link: processes its link information, carries out its request if it is
    /// the next one, and then the requests parked behind it.
    ///
    /// No request is taken without room for its answer: one that comes in its turn has to be sent
    /// again, an early one waits. A caller that keeps to its window reaches that point only if it
    /// has not heard of a QPair that was begun here and shares the room.
    pub(super) fn handle(&mut self, now_ns: u64, frame: &Frame<'_>) -> Result<(), Broken> {
        self.link.note(now_ns, frame);
        // Its acknowledgement may free the room that requests wait for.
        self.serve_parked(now_ns)?;
        if frame.opcode() == Opcode::Put {
            self.qpairs.handle_put(self.number, frame);
        }
        if !frame.opcode().is_sequenced() {
            return Ok(());
        }
        if self.link.room() == 0 && frame.channel() != Channel::QPair && self.link.is_new(frame) {
            self.link.note_overrun();
            return Ok(());
        }
        match self.link.accept(now_ns, frame) {
            Accepted::Deliver => {}
            Accepted::Nothing => return Ok(()),
            Accepted::Broken => return Err(Broken),
        }
        self.serve(frame)?;
        self.serve_parked(now_ns)
    }

    /// Takes the parked frames whose turn has come, as long as there is room for an answer.
    fn serve_parked(&mut self, now_ns: u64) -> Result<(), Broken> {
        while self.link.room() > 0 {
            let Some(parked) = self.link.take_parked(now_ns) else { break };
            let frame = Frame::parse_with(parked.bytes(), Integrity::ParsedBefore)
                .expect("it was parsed before it was parked");
            let served = self.serve(&frame);
            self.link.give_back(now_ns, parked);
            served?;
        }
        Ok(())
    }

    /// Carries out one request. Its answer, if there is one now, answers every earlier write too.
    fn serve(&mut self, request: &Frame<'_>) -> Result<(), Broken> {
        let (channel, transaction) = (request.channel(), request.transaction());
        if channel == Channel::QPair {
            self.qpairs.handle_frame(self.number, self.link, request);
            return Ok(());
        }
        match self.carry_out(request)? {
            Ok(Answer::Data(len)) => {
                *self.done_due = None;
                let header = self.link.header(channel, Opcode::Data);
                self.link.push(HeaderRepr { transaction, ..header }, len);
            }
            Ok(Answer::Lent(lent)) => {
                *self.done_due = None;
                let header = self.link.header(channel, Opcode::Data);
                self.link.push_lent(HeaderRepr { transaction, ..header }, lent);
            }
            Ok(Answer::Done) => *self.done_due = Some((channel, transaction)),
            Err(refusal) => {
                *self.done_due = None;
                let detail = refusal.code();
                let header = self.link.header(channel, Opcode::Refused);
                self.link.push(HeaderRepr { transaction, detail, ..header }, 0);
            }
        }
        Ok(())
    }

    fn carry_out(&mut self, request: &Frame<'_>) -> Result<Result<Answer, Refusal>, Broken> {
        let grant = request.grant();
        if request.opcode() == Opcode::Unmap {
            self.opened.close(grant);
            return Ok(Ok(Answer::Done));
        }
        if let Err(refusal) = self.opened.admit(grant, self.revoked) {
            return Ok(Err(refusal));
        }
        let answer = self.access(request)?;
        if answer.is_ok() {
            self.opened.enter(grant);
        }
        Ok(answer)
    }

    fn access(&mut self, request: &Frame<'_>) -> Result<Result<Answer, Refusal>, Broken> {
        let (grant, key, addr) = (request.grant(), request.key(), request.address());
        let (len, payload) = (usize::from(request.access_len()), request.payload());
        let Self { link, memory, .. } = self;
        Ok(match request.opcode() {
            Opcode::Read if len == 0 || len > MAX_PAYLOAD_BYTES => Err(Refusal::Malformed),
            Opcode::Read => self.read(request),
            Opcode::Write if len == 0 || len != payload.len() => Err(Refusal::Malformed),
            Opcode::Write => {
                link.copy_all_lent();
                memory.write(grant, key, addr, payload).map(|()| Answer::Done)
            }
            opcode @ (Opcode::FetchAdd | Opcode::CompareSwap) => {
                let atomic = Atomic::parse(opcode, payload)
                    .filter(|_| len == Atomic::BYTES && addr.is_multiple_of(Atomic::BYTES as u64));
                link.copy_all_lent();
                atomic.ok_or(Refusal::Malformed).and_then(|atomic| {
                    let old = memory.atomic(grant, key, addr, atomic)?;
                    link.stage()[..Atomic::BYTES].copy_from_slice(&old.to_le_bytes());
                    Ok(Answer::Data(Atomic::BYTES))
                })
            }
            _ => return Err(Broken),
        })
    }

    /// Answers bulk reads from the memory in place. A single access is a batch of its own, and its
    /// answer is sent sooner in one piece.
    fn read(&mut self, request: &Frame<'_>) -> Result<Answer, Refusal> {
        let (grant, key, addr) = (request.grant(), request.key(), request.address());
        let len = usize::from(request.access_len());
        let is_bulk = request.channel() == Channel::Rdma && len >= LENT_MIN_BYTES;
        if is_bulk && let Some(lent) = self.memory.lend(grant, key, addr, len)? {
            return Ok(Answer::Lent(lent));
        }
        self.memory.read(grant, key, addr, &mut self.link.stage()[..len])?;
        Ok(Answer::Data(len))
    }
}

/// The answer to a request that was carried out.
enum Answer {
    /// This many bytes, which are staged in the link.
    Data(usize),
    /// These bytes, from their place.
    Lent(Lent),
    /// Completion without data; it may wait and be merged with others.
    Done,
}

/// A shorter answer is copied faster than lent.
const LENT_MIN_BYTES: usize = 1024;
