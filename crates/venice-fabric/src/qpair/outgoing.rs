//! Frames that QPairs have to send: their order and their contents.

use venice_wire::{Channel, HEADER_BYTES, HeaderRepr, MAX_PAYLOAD_BYTES, Opcode};

use super::{
    CreditMode, QPairId, QPairs, RejectReason,
    credit::{CREDIT_BYTES, CREDIT_REGION, Credit, CreditRegion},
    greeting::{GREETING_BYTES, Greeting},
    pair::{AbortCode, CloseBits, Phase, QPair},
};
use crate::datalink::Link;

/// The time without a credit after which a written and lost one is probed for, in nanoseconds; it
/// doubles each time.
const PROBE_MIN_NS: u64 = 5_000_000;
const PROBE_MAX_NS: u64 = 250_000_000;

/// The next frame of a QPair.
enum Next {
    Reject(RejectReason),
    Connect,
    Accept,
    Abort(AbortCode),
    Close(CloseBits),
    Credit(Credit),
    Segment,
    Probe,
}

/// The outcome of a send.
enum Sent {
    /// The link has queued it.
    Queued,
    /// It was written to the buffer, with this length in bytes.
    Written(usize),
}

impl Sent {
    fn written_bytes(&self) -> Option<usize> {
        match *self {
            Self::Queued => None,
            Self::Written(len) => Some(len),
        }
    }
}

impl QPairs {
    /// Passes the next frame of the link's QPairs to the link, each QPair in turn, if the link
    /// could send it at once and fewer than `share` of theirs are in flight. A segment of which the
    /// link keeps no copy is written straight into `buf`: then its length is returned.
    pub(crate) fn transmit(
        &mut self,
        now_ns: u64,
        at: u32,
        link: &mut Link,
        share: usize,
        buf: &mut [u8],
    ) -> Option<usize> {
        let queues = self.links.get_mut(at as usize)?;
        if !queues.has_frames() || !link.is_eager() || queues.in_flight(link.acked()) >= share {
            return None;
        }
        let position = link.end();
        if let Some((peer_number, reason)) = queues.next_reject() {
            let header = link.header(Channel::QPair, Opcode::Reject);
            let (transaction, detail) = (peer_number, reason.code());
            link.push(HeaderRepr { transaction, detail, ..header }, 0);
            queues.note_sent(position);
            return None;
        }
        while let Some(id) = self.queues_mut(at).ready.pop_front() {
            if let Some(sent) = self.send_next(now_ns, id, link, buf) {
                self.queues_mut(at).note_sent(position);
                return sent.written_bytes();
            }
        }
        None
    }

    /// Passes the next frame of a QPair to the link, if it has one, and queues the QPair again if
    /// it may have more.
    fn send_next(
        &mut self,
        now_ns: u64,
        id: QPairId,
        link: &mut Link,
        buf: &mut [u8],
    ) -> Option<Sent> {
        let credit = self.credit_of(id);
        let pair = self.table.get_mut(id)?;
        pair.is_ready = false;
        if has_nothing_but_data(pair) {
            return self.send_data(now_ns, id, credit, link, buf);
        }
        let next = next_frame(pair, credit);
        let Some(next) = &next else {
            self.expect_credit(now_ns, id);
            return None;
        };
        if matches!(next, Next::Segment) {
            let sent = push_segment(pair, credit, link, buf);
            self.schedule(id);
            self.offer_room(id, credit);
            return Some(sent);
        }
        push_frame(pair, next, &self.region, link);
        self.schedule(id);
        match next {
            Next::Reject(_) | Next::Abort(_) => self.end(id, crate::CloseReason::Finished),
            Next::Close(_) => self.end_if_both_ended(id),
            Next::Connect | Next::Accept | Next::Credit(_) | Next::Segment | Next::Probe => {}
        }
        Some(Sent::Queued)
    }

    /// A fast path of [`QPairs::send_next`] for a QPair that has only data to send, the usual case.
    fn send_data(
        &mut self,
        now_ns: u64,
        id: QPairId,
        credit: Credit,
        link: &mut Link,
        buf: &mut [u8],
    ) -> Option<Sent> {
        let pair = self.table.get_mut(id)?;
        let is_sendable = |pair: &QPair| {
            pair.flow.as_deref().is_some_and(|flow| flow.send.sendable_bytes(credit) > 0)
        };
        let sent = is_sendable(pair).then(|| push_segment(pair, credit, link, buf));
        if is_sendable(pair) {
            self.schedule(id);
        } else {
            self.expect_credit(now_ns, id);
        }
        if sent.is_some() {
            self.offer_room(id, credit);
        }
        sent
    }

    fn offer_room(&mut self, id: QPairId, credit: Credit) {
        let flow = self.table.get_mut(id).and_then(|pair| pair.flow.as_deref_mut());
        if flow.is_some_and(|flow| flow.send.take_writable(credit)) {
            self.raise(id, |events| events.writable = true);
        }
    }

    /// Records that a QPair waits for credit, if it does: a written one may be lost.
    pub(super) fn expect_credit(&mut self, now_ns: u64, id: QPairId) {
        let credit = self.credit_of(id);
        let Some(pair) = self.table.get_mut(id).filter(|pair| pair.is_flowing()) else { return };
        let is_lossy = self.links[pair.link as usize].is_lossy;
        let Some(flow) = pair.flow.as_deref_mut() else { return };
        if !flow.send.is_starved(credit) {
            return;
        }
        pair.stats.stalls += u64::from(!std::mem::replace(&mut flow.is_stalled, true));
        if flow.probe_at_ns.is_some() || pair.mode == CreditMode::InBand || !is_lossy {
            return;
        }
        let patience_ns = (PROBE_MIN_NS << flow.probes.min(16)).min(PROBE_MAX_NS);
        let at_ns = now_ns.saturating_add(patience_ns);
        flow.probe_at_ns = Some(at_ns);
        self.probe_at_ns = Some(self.probe_at_ns.map_or(at_ns, |earlier| earlier.min(at_ns)));
    }

    /// Returns the time at which to call [`QPairs::handle_timeout`].
    pub(crate) fn poll_timeout(&self) -> Option<u64> {
        self.probe_at_ns
    }

    /// Probes for credits that may have been lost.
    pub(crate) fn handle_timeout(&mut self, now_ns: u64) {
        if self.probe_at_ns.is_none_or(|at_ns| now_ns < at_ns) {
            return;
        }
        self.probe_at_ns = None;
        for slot in 0..self.table.places() {
            let Some(id) = self.table.id_in(slot) else { continue };
            let Some(flow) = self.table.get_mut(id).and_then(|pair| pair.flow.as_deref_mut())
            else {
                continue;
            };
            let Some(at_ns) = flow.probe_at_ns else { continue };
            if now_ns < at_ns {
                self.probe_at_ns = Some(self.probe_at_ns.map_or(at_ns, |other| other.min(at_ns)));
                continue;
            }
            (flow.probe_at_ns, flow.probes) = (None, flow.probes.saturating_add(1));
            if let Some(pair) = self.table.get_mut(id) {
                pair.due.probe = true;
            }
            self.schedule(id);
        }
    }

    /// Writes the next credit of a link into `buf`; returns its length.
    pub(crate) fn transmit_put(
        &mut self,
        at: u32,
        link: &mut Link,
        buf: &mut [u8],
    ) -> Option<usize> {
        loop {
            let id = self.links.get_mut(at as usize)?.puts.pop_front()?;
            let Some(pair) = self.table.get_mut(id) else { continue };
            pair.is_put_queued = false;
            if !pair.is_flowing() {
                continue;
            }
            let Some(flow) = pair.flow.as_deref_mut() else { continue };
            let header = HeaderRepr {
                address: flow.credit_address,
                grant: CREDIT_REGION,
                key: flow.credit_key,
                access_len: CREDIT_BYTES as u16,
                ..link.header(Channel::Crma, Opcode::Put)
            };
            pair.stats.credit_writes_sent += 1;
            pair.stats.credit_bytes_sent += (HEADER_BYTES + CREDIT_BYTES) as u64;
            return Some(link.emit_unsequenced(
                header,
                &flow.receive.take_credit().to_bytes(),
                buf,
            ));
        }
    }
}

/// Returns the next frame of a QPair, the most urgent first.
fn next_frame(pair: &mut QPair, credit: Credit) -> Option<Next> {
    if let Some(reason) = pair.due.reject {
        return Some(Next::Reject(reason));
    }
    if std::mem::take(&mut pair.due.connect) {
        return Some(Next::Connect);
    }
    if std::mem::take(&mut pair.due.accept) {
        return Some(Next::Accept);
    }
    if let Some(code) = pair.due.abort {
        return Some(Next::Abort(code));
    }
    if pair.phase != Phase::Open {
        return None;
    }
    let flow = pair.flow.as_deref_mut()?;
    let bits =
        CloseBits { ends: flow.send.ended && flow.send.is_empty(), is_deaf: pair.is_released };
    if bits != pair.close_told {
        return Some(Next::Close(bits));
    }
    let has_data = flow.send.sendable_bytes(credit) > 0;
    if let Some(credit) = flow.in_band.take(flow.send.sent_bytes(), !has_data) {
        return Some(Next::Credit(credit));
    }
    if has_data {
        return Some(Next::Segment);
    }
    std::mem::take(&mut pair.due.probe).then_some(Next::Probe)
}

/// True if a QPair has at most data to send.
fn has_nothing_but_data(pair: &QPair) -> bool {
    let Some(flow) = pair.flow.as_deref() else { return false };
    pair.phase == Phase::Open
        && pair.due.is_nothing()
        && flow.in_band.is_empty()
        && pair.close_told == CloseBits { ends: flow.send.ended, is_deaf: pair.is_released }
}

/// Passes the next segment to the link. Panics if there is none.
fn push_segment(pair: &mut QPair, credit: Credit, link: &mut Link, buf: &mut [u8]) -> Sent {
    let (transaction, address) = (pair.peer_number, u64::from(pair.id.0));
    let send = &mut pair.flow.as_deref_mut().expect("it has data").send;
    let len = send.next_segment_bytes(MAX_PAYLOAD_BYTES, credit);
    pair.stats.segments_sent += 1;
    pair.stats.segment_bytes_sent += len as u64;
    let header = link.header(Channel::QPair, Opcode::Segment);
    let header = HeaderRepr { transaction, address, ..header };
    if link.is_direct() {
        return Sent::Written(link.emit_direct(header, len, |room| send.take_segment(room), buf));
    }
    send.take_segment(&mut link.stage()[..len]);
    link.push(header, len);
    Sent::Queued
}

fn push_frame(pair: &mut QPair, next: &Next, region: &CreditRegion, link: &mut Link) {
    let (opcode, detail) = match *next {
        Next::Reject(reason) => (Opcode::Reject, reason.code()),
        Next::Connect => (Opcode::Connect, 0),
        Next::Accept => (Opcode::Accept, 0),
        Next::Abort(code) => (Opcode::Abort, code.code()),
        Next::Close(bits) => (Opcode::Close, bits.code()),
        Next::Credit(_) => (Opcode::Credit, 0),
        Next::Segment => unreachable!("segments are pushed by push_segment"),
        Next::Probe => (Opcode::Probe, 0),
    };
    let len = match *next {
        Next::Connect | Next::Accept => {
            greeting(pair, region).emit(link.stage());
            GREETING_BYTES
        }
        Next::Credit(credit) => {
            link.stage()[..CREDIT_BYTES].copy_from_slice(&credit.to_bytes());
            pair.stats.credit_frames_sent += 1;
            pair.stats.credit_bytes_sent += (HEADER_BYTES + CREDIT_BYTES) as u64;
            if let Some(flow) = &mut pair.flow {
                flow.receive.note_credited(credit);
            }
            CREDIT_BYTES
        }
        Next::Close(bits) => {
            pair.close_told = bits;
            0
        }
        Next::Probe => {
            pair.stats.probes_sent += 1;
            0
        }
        Next::Reject(_) | Next::Abort(_) | Next::Segment => 0,
    };
    let (transaction, address) = (pair.peer_number, u64::from(pair.id.0));
    let header = link.header(Channel::QPair, opcode);
    link.push(HeaderRepr { transaction, address, detail, ..header }, len);
}

fn greeting(pair: &QPair, region: &CreditRegion) -> Greeting {
    let flow = pair.flow.as_deref().expect("a QPair that sends a greeting has buffers");
    Greeting {
        capacity: flow.receive.capacity(),
        credit_address: CreditRegion::address(pair.id.slot()),
        credit_key: region.key(pair.id.slot()),
        kind: pair.kind,
        mode: pair.mode,
        service: if pair.phase == Phase::Connecting { pair.service } else { 0 },
    }
}
