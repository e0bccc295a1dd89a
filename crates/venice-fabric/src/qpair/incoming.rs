//! Frames of the QPair channel that a link has delivered, and credits written by the other side.

use venice_wire::{Frame, Opcode};

use super::{
    CloseReason, QPairId, QPairs, RejectReason,
    credit::{CREDIT_REGION, Credit},
    greeting::Greeting,
    pair::{AbortCode, CloseBits, Phase, QPair},
    receive::Violation,
};
use crate::datalink::Link;

impl QPairs {
    /// Takes a frame of the QPair channel, in the order of its link, which the owner numbers `at`.
    pub(crate) fn handle_frame(&mut self, at: u32, link: &Link, frame: &Frame<'_>) {
        if frame.opcode() == Opcode::Connect {
            return self.handle_connect(at, link, frame);
        }
        let Some(id) = self.find(at, frame) else { return };
        let handled = match frame.opcode() {
            Opcode::Accept => self.handle_accept(id, frame),
            Opcode::Reject => {
                let reason = RejectReason::from_code(frame.detail());
                self.handle_reject(id, reason);
                Ok(())
            }
            Opcode::Segment => self.handle_segment(id, frame.payload()),
            Opcode::Credit => self.handle_credit(id, frame.payload()),
            Opcode::Close => {
                self.handle_close(id, CloseBits::from_code(frame.detail()));
                Ok(())
            }
            Opcode::Abort => {
                self.end(id, AbortCode::reason(frame.detail()));
                Ok(())
            }
            Opcode::Probe => {
                if self.table.get(id).is_some_and(QPair::is_flowing) {
                    self.write_credit(id);
                }
                Ok(())
            }
            _ => Err(Violation),
        };
        if handled.is_err() {
            self.violate(id);
        }
    }

    /// Returns the QPair a frame is for. An Abort may come from an end that never learnt its
    /// number: a QPair that is over may have the same one, from an earlier session of the other
    /// side.
    fn find(&self, link: u32, frame: &Frame<'_>) -> Option<QPairId> {
        let is_live = |pair: &&QPair| pair.link == link && pair.phase != Phase::Over;
        let pair = if frame.transaction() == 0 && frame.opcode() == Opcode::Abort {
            let number = sender_number(frame);
            self.table.iter().filter(is_live).find(|pair| pair.peer_number == number)
        } else {
            self.table.get(QPairId(frame.transaction())).filter(is_live)
        };
        pair.map(|pair| pair.id)
    }

    fn handle_connect(&mut self, at: u32, link: &Link, frame: &Frame<'_>) {
        let Some(greeting) = Greeting::parse(frame.payload()) else {
            return self.reject(at, frame, RejectReason::Declined);
        };
        let service = greeting.service;
        match self.listeners.get_mut(&service) {
            None => return self.reject(at, frame, RejectReason::NoListener),
            Some(listener) if listener.waiting >= listener.backlog => {
                return self.reject(at, frame, RejectReason::BacklogFull);
            }
            Some(_) => {}
        }
        let Some(id) = self.admit(at, link, service, Phase::Incoming) else {
            return self.reject(at, frame, RejectReason::NoRoom);
        };
        if let Some(listener) = self.listeners.get_mut(&service) {
            listener.waiting += 1;
        }
        let pair = self.table.get_mut(id).expect("it was just made");
        pair.peer_number = sender_number(frame);
        (pair.kind, pair.mode) = (greeting.kind, greeting.mode);
        pair.asked_by = Some(greeting);
        self.raise(id, |events| events.incoming = true);
    }

    fn reject(&mut self, link: u32, connect: &Frame<'_>, reason: RejectReason) {
        self.queues_mut(link).reject(sender_number(connect), reason);
        self.wake(link);
    }

    fn handle_accept(&mut self, id: QPairId, frame: &Frame<'_>) -> Result<(), Violation> {
        let pair = self.table.get_mut(id).ok_or(Violation)?;
        let greeting = Greeting::parse(frame.payload()).ok_or(Violation)?;
        if pair.due.abort.is_some() {
            // The QPair was given up here; the other end will be notified.
            return Ok(());
        }
        let is_as_asked = greeting.kind == pair.kind && greeting.mode == pair.mode;
        if pair.phase != Phase::Connecting || pair.due.connect || !is_as_asked {
            return Err(Violation);
        }
        let flow = pair.flow.as_deref_mut().ok_or(Violation)?;
        flow.open(greeting.capacity, greeting.credit_address, greeting.credit_key);
        flow.send.take_wanted();
        pair.peer_number = sender_number(frame);
        pair.phase = Phase::Open;
        self.raise(id, |events| events.connected = true);
        Ok(())
    }

    fn handle_reject(&mut self, id: QPairId, reason: RejectReason) {
        if self.table.get(id).is_some_and(|pair| pair.phase == Phase::Connecting) {
            self.end(id, CloseReason::Refused(reason));
        }
    }

    fn handle_segment(&mut self, id: QPairId, bytes: &[u8]) -> Result<(), Violation> {
        let pair = self.table.get_mut(id).ok_or(Violation)?;
        if !pair.is_flowing() {
            return Ok(());
        }
        pair.stats.segments_received += 1;
        pair.stats.segment_bytes_received += bytes.len() as u64;
        let receive = &mut pair.flow.as_deref_mut().ok_or(Violation)?.receive;
        receive.take(bytes)?;
        receive.front().map_err(|_| Violation)?;
        if receive.take_readable() {
            self.raise(id, |events| events.readable = true);
        }
        self.give_credit(id);
        Ok(())
    }

    fn handle_credit(&mut self, id: QPairId, payload: &[u8]) -> Result<(), Violation> {
        let credit = Credit::from_bytes(payload).ok_or(Violation)?;
        if let Some(pair) = self.table.get_mut(id) {
            pair.stats.credit_frames_received += 1;
        }
        self.region.store(id.slot(), credit);
        self.note_credit(id);
        Ok(())
    }

    /// Takes an overwriteable write into the credit region. A write that matches no QPair is
    /// dropped.
    pub(crate) fn handle_put(&mut self, link: u32, frame: &Frame<'_>) {
        let Some(credit) = Credit::from_bytes(frame.payload()) else { return };
        if frame.grant() != CREDIT_REGION {
            return;
        }
        let Some(slot) = self.region.find(frame.address(), frame.key()) else { return };
        let Some(id) = self.table.id_in(slot) else { return };
        let Some(pair) = self.table.get_mut(id).filter(|pair| pair.link == link) else { return };
        pair.stats.credit_writes_received += 1;
        if self.region.store(slot, credit) {
            self.note_credit(id);
        }
    }

    /// Resumes sending after the other end has read something.
    fn note_credit(&mut self, id: QPairId) {
        let credit = self.credit_of(id);
        let Some(pair) = self.table.get_mut(id) else { return };
        let Some(flow) = pair.flow.as_deref_mut() else { return };
        (flow.probe_at_ns, flow.probes, flow.is_stalled) = (None, 0, false);
        let has_data = flow.send.sendable_bytes(credit) > 0;
        let is_writable = flow.send.take_writable(credit);
        pair.due.probe = false;
        if has_data {
            self.schedule(id);
        }
        if is_writable {
            self.raise(id, |events| events.writable = true);
        }
    }

    fn handle_close(&mut self, id: QPairId, bits: CloseBits) {
        let Some(pair) = self.table.get_mut(id).filter(|pair| pair.phase == Phase::Open) else {
            return;
        };
        let Some(flow) = pair.flow.as_deref_mut() else { return };
        let mut has_writer = false;
        if bits.is_deaf && !pair.peer_is_deaf {
            pair.peer_is_deaf = true;
            // Credits are still sent: the other end may have more to send.
            flow.send.drop_queue();
            has_writer = flow.send.take_wanted();
        }
        flow.receive.ended |= bits.ends;
        let is_readable = flow.receive.take_readable();
        self.raise(id, |events| {
            events.writable |= has_writer;
            events.readable |= is_readable;
        });
        self.end_if_both_ended(id);
        self.schedule(id);
    }

    /// Ends the QPair if neither end has anything more to send.
    pub(super) fn end_if_both_ended(&mut self, id: QPairId) {
        let Some(pair) = self.table.get(id) else { return };
        let has_received_end = pair.flow.as_ref().is_some_and(|flow| flow.receive.ended);
        if pair.close_told.ends && has_received_end {
            let reason =
                if pair.peer_is_deaf { CloseReason::PeerClosed } else { CloseReason::Finished };
            self.end(id, reason);
        }
    }
}

fn sender_number(frame: &Frame<'_>) -> u32 {
    frame.address() as u32
}
