//! One donor in the initiator's view: its link, and the requests without an answer.

mod bulk_window;
mod grants;
mod request;

use std::collections::VecDeque;

use venice_wire::{Channel, Frame, HeaderRepr, Integrity, Opcode, Refusal, Sequence};

use self::bulk_window::BulkWindow;
pub(crate) use self::{
    grants::{Grants, IsRevoked},
    request::Request,
};
use crate::{
    AccessError, DownReason,
    crma::Crma,
    datalink::{Caller, Verdict},
    qpair::QPairs,
    ramt::{GrantSlot, Mapping},
    rdma::{FairQueue, Rdma},
};

#[derive(Debug)]
pub(crate) struct Peer {
    caller: Caller,
    /// Requests in the order sent, which is the order answered.
    requests: VecDeque<Pending>,
    /// The transaction number of the first request.
    first_transaction: u32,
    bulk_outstanding: usize,
    bulk_window: BulkWindow,
    /// Bulk transfers with chunks still to issue to this donor.
    pub(crate) bulk: FairQueue,
    /// The number of this link, as the initiator and its QPairs count links.
    number: u32,
    /// The grants that are mapped.
    pub(crate) grants: Grants,
}

/// A request without an answer, its grant, and its frame's position.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: Request,
    slot: GrantSlot,
    sequence: Sequence,
}

/// The channels that receive answers.
#[derive(Debug)]
pub(crate) struct Channels {
    pub crma: Crma,
    pub rdma: Rdma,
    pub qpairs: QPairs,
}

impl Peer {
    /// Returns a peer with room for `rdma_depth` bulk transfers.
    pub(crate) fn new(number: u32, rdma_depth: u16, caller: Caller) -> Self {
        Self {
            requests: VecDeque::with_capacity(caller.link.window().into()),
            caller,
            first_transaction: 0,
            bulk_outstanding: 0,
            bulk_window: BulkWindow::new(),
            bulk: FairQueue::new(rdma_depth),
            number,
            grants: Grants::default(),
        }
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// True if the peer is down and has no work left.
    pub(crate) fn is_gone(&self) -> bool {
        self.caller.is_gone() && self.requests.is_empty() && self.bulk.is_empty()
    }

    /// Frees the buffers of a peer that is gone.
    pub(crate) fn release(&mut self) {
        assert!(self.is_gone(), "nothing of it is outstanding");
        self.caller.link.release();
        self.requests = VecDeque::new();
    }

    /// Returns the number of requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// True if a request can be queued: its answer needs room at the donor, and the request room
    /// here.
    pub(crate) fn has_room(&self, qpairs: &QPairs) -> bool {
        self.requests.len() < self.request_share(qpairs) && self.caller.link.room() > 0
    }

    /// Returns the number of requests allowed. A quarter of the window is reserved for QPairs if
    /// there are any, and after the last of them until the donor's last frames for it have arrived.
    fn request_share(&self, qpairs: &QPairs) -> usize {
        let limit = self.caller.link.outstanding_limit();
        // At least one request at a time is allowed, however small the other side's window.
        if qpairs.is_shared(self.number) { (limit - limit.div_ceil(4)).max(1) } else { limit }
    }

    /// Returns the number allowed to one kind of request while there are requests of the other: a
    /// quarter of the window is reserved for those.
    fn kind_share(&self, qpairs: &QPairs) -> usize {
        let left = self.caller.link.outstanding_limit().div_ceil(4);
        self.request_share(qpairs).saturating_sub(left).max(1)
    }

    /// True if a single access can be queued: a quarter of the window is reserved for bulk
    /// transfers while there are any.
    pub(crate) fn has_single_room(&self, qpairs: &QPairs) -> bool {
        let singles = self.requests.len() - self.bulk_outstanding;
        let is_fair = self.bulk.is_empty() || singles < self.kind_share(qpairs);
        is_fair && self.has_room(qpairs)
    }

    /// True if a chunk of a bulk transfer can be queued: within the congestion window, with a
    /// quarter of the link's window reserved for single accesses.
    pub(crate) fn has_bulk_room(&mut self, qpairs: &QPairs) -> bool {
        let most = self.kind_share(qpairs);
        self.bulk_window.has_room(self.bulk_outstanding, most) && self.has_room(qpairs)
    }

    /// Queues a request for `len_bytes` at `mapping`, with the bytes to write or none. Panics
    /// without room.
    pub(crate) fn request(&mut self, request: Request, mapping: Mapping, len: u16, data: &[u8]) {
        let header = self.request_header(request, &mapping, len);
        self.note_request(request, mapping.slot);
        let link = &mut self.caller.link;
        link.stage()[..data.len()].copy_from_slice(data);
        link.push(header, data.len());
    }

    /// Queues a chunk of a bulk transfer. Panics without room. Bytes to write are fetched from the
    /// descriptor when the frame is sent.
    pub(crate) fn request_chunk(
        &mut self,
        now_ns: u64,
        request: Request,
        mapping: Mapping,
        len: u16,
    ) {
        let header = self.request_header(request, &mapping, len);
        self.note_request(request, mapping.slot);
        self.bulk_outstanding += 1;
        self.bulk_window.issued(header.transaction, now_ns);
        if request.is_write() {
            self.caller.link.push_asked_for(header, len.into());
        } else {
            self.caller.link.push(header, 0);
        }
    }

    #[inline]
    fn request_header(&self, request: Request, mapping: &Mapping, len: u16) -> HeaderRepr {
        HeaderRepr {
            transaction: self.first_transaction.wrapping_add(self.requests.len() as u32),
            access_len: len,
            address: mapping.remote_addr,
            grant: mapping.grant,
            key: mapping.key,
            ..self.caller.link.header(request.channel(), request.opcode())
        }
    }

    /// Records a request whose frame is queued next.
    fn note_request(&mut self, request: Request, slot: GrantSlot) {
        let sequence = self.caller.link.end();
        self.requests.push_back(Pending { request, slot, sequence });
        self.grants.issued(slot);
    }

    /// Takes a frame from the donor.
    pub(crate) fn handle_frame(&mut self, now_ns: u64, frame: &Frame<'_>, to: &mut Channels) {
        let is_idle = self.requests.is_empty() && to.qpairs.live(self.number) == 0;
        let is_of_link = self.caller.link.id() == Some(frame.link());
        match self.caller.handle_frame(now_ns, frame, is_idle) {
            Verdict::Nothing if is_of_link => match frame.opcode() {
                Opcode::Put => to.qpairs.handle_put(self.number, frame),
                Opcode::Revoked => self.grants.revoke(frame.grant()),
                _ => {}
            },
            Verdict::Nothing => {}
            Verdict::Reopens => {
                self.grants.close_all();
                self.bulk_window.reset();
                to.qpairs.link_reopens(self.number);
            }
            Verdict::Down(reason) => self.fail_all(reason, to),
            Verdict::Deliver => {
                if self.deliver(now_ns, frame, to).is_err() {
                    return self.go_down(DownReason::Protocol, to);
                }
                self.handle_parked(now_ns, to);
            }
        }
    }

    /// Notifies the donor of grants that are no longer mapped, as far as there is room.
    pub(crate) fn send_unmaps(&mut self, qpairs: &QPairs) {
        while self.grants.has_unmaps() && self.has_room(qpairs) {
            let Some((slot, grant)) = self.grants.next_unmap() else { return };
            let header = HeaderRepr {
                transaction: self.first_transaction.wrapping_add(self.requests.len() as u32),
                grant,
                ..self.caller.link.header(Channel::Crma, Opcode::Unmap)
            };
            self.note_request(Request::Unmap, slot);
            self.caller.link.push(header, 0);
        }
    }

    fn handle_parked(&mut self, now_ns: u64, to: &mut Channels) {
        while let Some(parked) = self.caller.link.take_parked(now_ns) {
            let frame = Frame::parse_with(parked.bytes(), Integrity::ParsedBefore)
                .expect("it was parsed before it was parked");
            let answered = self.deliver(now_ns, &frame, to);
            self.caller.link.give_back(now_ns, parked);
            if answered.is_err() {
                return self.go_down(DownReason::Protocol, to);
            }
        }
    }

    /// Takes a frame whose turn it is.
    fn deliver(
        &mut self,
        now_ns: u64,
        frame: &Frame<'_>,
        to: &mut Channels,
    ) -> Result<(), BadAnswer> {
        if frame.channel() == Channel::QPair {
            to.qpairs.handle_frame(self.number, &self.caller.link, frame);
            return Ok(());
        }
        self.handle_answer(now_ns, frame, to)
    }

    /// Completes the answered request, and the writes before it.
    fn handle_answer(
        &mut self,
        now_ns: u64,
        frame: &Frame<'_>,
        to: &mut Channels,
    ) -> Result<(), BadAnswer> {
        let ahead = frame.transaction().wrapping_sub(self.first_transaction) as usize;
        // An answer implies that the request was received, and its acknowledgement must confirm
        // that.
        let answered = self.requests.get(ahead).ok_or(BadAnswer)?;
        if !answered.sequence.is_before(self.caller.link.acked()) {
            return Err(BadAnswer);
        }
        to.qpairs.note_answer(self.number, answered.sequence);
        if answered.request.is_bulk() {
            let losses = self.caller.link.stats().replayed;
            let most = self.kind_share(&to.qpairs);
            self.bulk_window.answered(frame.transaction(), now_ns, losses, most);
        }
        for _ in 0..ahead {
            let earlier = self.take_request().ok_or(BadAnswer)?;
            if !earlier.request.is_write() {
                self.fail(earlier, AccessError::PeerDown(DownReason::Protocol), to);
                return Err(BadAnswer);
            }
            self.succeed(earlier, &[], to);
        }
        let pending = self.take_request().ok_or(BadAnswer)?;
        match (frame.opcode(), pending.request.read_len()) {
            (Opcode::Refused, _) => {
                let refusal = Refusal::from_code(frame.detail()).unwrap_or(Refusal::Unavailable);
                self.fail(pending, AccessError::Refused(refusal), to);
            }
            (Opcode::Data, Some(len)) if usize::from(len) == frame.payload().len() => {
                self.succeed(pending, frame.payload(), to);
            }
            (Opcode::Done, None) => self.succeed(pending, &[], to),
            _ => {
                self.fail(pending, AccessError::PeerDown(DownReason::Protocol), to);
                return Err(BadAnswer);
            }
        }
        Ok(())
    }

    fn succeed(&mut self, pending: Pending, data: &[u8], to: &mut Channels) {
        pending.request.succeed(data, to);
        self.grants.finished(pending.slot, pending.request.opens_grant());
    }

    fn fail(&mut self, pending: Pending, error: AccessError, to: &mut Channels) {
        pending.request.fail(error, to);
        self.grants.finished(pending.slot, false);
    }

    fn take_request(&mut self) -> Option<Pending> {
        let pending = self.requests.pop_front()?;
        self.first_transaction = self.first_transaction.wrapping_add(1);
        self.bulk_outstanding -= usize::from(pending.request.is_bulk());
        Some(pending)
    }

    pub(crate) fn handle_timeout(&mut self, now_ns: u64, to: &mut Channels) {
        if let Verdict::Down(reason) = self.caller.handle_timeout(now_ns) {
            self.fail_all(reason, to);
        }
    }

    pub(crate) fn poll_transmit(
        &mut self,
        now_ns: u64,
        from: &mut Channels,
        buf: &mut [u8],
    ) -> Option<usize> {
        let Self { caller, requests, first_transaction, number, .. } = self;
        let link = &mut caller.link;
        if link.id().is_some() {
            if let Some(len) = from.qpairs.transmit_put(*number, link, buf) {
                return Some(len);
            }
            let share = link.outstanding_limit().div_ceil(2);
            if let Some(len) = from.qpairs.transmit(now_ns, *number, link, share, buf) {
                return Some(len);
            }
        }
        let lender = |transaction: u32, room: &mut [u8]| {
            let at = transaction.wrapping_sub(*first_transaction) as usize;
            match requests.get(at).map(|pending| pending.request) {
                Some(Request::RdmaWrite { descriptor, place }) => {
                    from.rdma.gather(descriptor, place, room);
                }
                other => unreachable!("a chunk to write waits for its answer, not {other:?}"),
            }
        };
        caller.poll_transmit(now_ns, lender, buf)
    }

    /// Takes the link down and fails all outstanding requests.
    pub(crate) fn go_down(&mut self, reason: DownReason, to: &mut Channels) {
        self.caller.go_down(reason);
        self.fail_all(reason, to);
    }

    fn fail_all(&mut self, reason: DownReason, to: &mut Channels) {
        while let Some(pending) = self.take_request() {
            self.fail(pending, AccessError::PeerDown(reason), to);
        }
        to.qpairs.link_down(self.number, reason);
        self.grants.close_all();
        self.bulk_window.reset();
    }
}

/// An answer that matches no request: the donor is broken, and its frames cannot be trusted.
struct BadAnswer;
