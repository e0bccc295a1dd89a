//! One donor as the initiator sees it: the link, and the requests that wait for an answer.

use std::collections::VecDeque;

use venice_wire::{Channel, Frame, HeaderRepr, MAX_PAYLOAD_BYTES, Opcode, Refusal};

use crate::{
    AccessError, DownReason,
    crma::Crma,
    datalink::{Caller, Verdict},
    ramt::Mapping,
    rdma::Rdma,
};

#[derive(Debug)]
pub(crate) struct Peer {
    caller: Caller,
    /// In the order sent, which is the order answered.
    requests: VecDeque<Request>,
    /// The transaction number of the first of them.
    first_transaction: u32,
    bulk_outstanding: usize,
}

/// Who waits for an answer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Request {
    CrmaRead { slot: u16, len_bytes: u16 },
    CrmaWrite { slot: u16 },
    RdmaRead { descriptor: u16, offset: usize, len_bytes: u16 },
    RdmaWrite { descriptor: u16 },
}

/// The two channels, where answers go.
#[derive(Debug)]
pub(crate) struct Channels {
    pub crma: Crma,
    pub rdma: Rdma,
}

impl Peer {
    pub(crate) fn new(caller: Caller) -> Self {
        let requests = VecDeque::with_capacity(caller.link.window().into());
        Self { caller, requests, first_transaction: 0, bulk_outstanding: 0 }
    }

    pub(crate) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Requests without an answer.
    pub(crate) fn outstanding(&self) -> usize {
        self.requests.len()
    }

    /// Whether a request can be queued: an answer must find room at the donor, and the request
    /// here.
    pub(crate) fn has_room(&self) -> bool {
        self.requests.len() < self.caller.link.outstanding_limit() && self.caller.link.room() > 0
    }

    /// Whether a chunk of a bulk transfer can be queued: half the window stays for single accesses.
    pub(crate) fn has_bulk_room(&self) -> bool {
        self.has_room() && self.bulk_outstanding < self.caller.link.outstanding_limit().div_ceil(2)
    }

    /// Queues a request for `len_bytes` at `mapping`, with the bytes to write or none; there must be
    /// room.
    pub(crate) fn request(&mut self, request: Request, mapping: Mapping, len: u16, data: &[u8]) {
        let link = &mut self.caller.link;
        let header = HeaderRepr {
            transaction: self.first_transaction.wrapping_add(self.requests.len() as u32),
            access_len: len,
            address: mapping.remote_addr,
            grant: mapping.grant,
            key: mapping.key,
            ..link.header(request.channel(), request.opcode())
        };
        link.stage()[..data.len()].copy_from_slice(data);
        link.push(header, data.len());
        self.requests.push_back(request);
        self.bulk_outstanding += usize::from(request.is_bulk());
    }

    /// Takes a frame from the donor.
    pub(crate) fn handle_frame(&mut self, now_ns: u64, frame: &Frame<'_>, to: &mut Channels) {
        match self.caller.handle_frame(now_ns, frame, self.requests.is_empty()) {
            Verdict::Nothing => {}
            Verdict::Down(reason) => self.fail_all(reason, to),
            Verdict::Deliver => {
                if self.handle_answer(frame, to).is_err() {
                    return self.go_down(DownReason::Protocol, to);
                }
                self.handle_parked(now_ns, to);
            }
        }
    }

    fn handle_parked(&mut self, now_ns: u64, to: &mut Channels) {
        while let Some(parked) = self.caller.link.take_parked(now_ns) {
            let frame = Frame::parse(parked.bytes()).expect("it was parsed before it was parked");
            let answered = self.handle_answer(&frame, to);
            self.caller.link.give_back(now_ns, parked);
            if answered.is_err() {
                return self.go_down(DownReason::Protocol, to);
            }
        }
    }

    /// Completes the request this answers, and the writes before it.
    fn handle_answer(&mut self, frame: &Frame<'_>, to: &mut Channels) -> Result<(), BadAnswer> {
        let ahead = frame.transaction().wrapping_sub(self.first_transaction) as usize;
        if ahead >= self.requests.len() {
            return Err(BadAnswer);
        }
        for _ in 0..ahead {
            let earlier = self.take_request().ok_or(BadAnswer)?;
            if !earlier.is_write() {
                earlier.fail(AccessError::PeerDown(DownReason::Protocol), to);
                return Err(BadAnswer);
            }
            earlier.succeed(&[], to);
        }
        let request = self.take_request().ok_or(BadAnswer)?;
        match (frame.opcode(), request.read_len()) {
            (Opcode::Refused, _) => {
                let refusal = Refusal::from_code(frame.detail()).unwrap_or(Refusal::Unavailable);
                request.fail(AccessError::Refused(refusal), to);
            }
            (Opcode::Data, Some(len)) if usize::from(len) == frame.payload().len() => {
                request.succeed(frame.payload(), to);
            }
            (Opcode::Done, None) => request.succeed(&[], to),
            _ => {
                request.fail(AccessError::PeerDown(DownReason::Protocol), to);
                return Err(BadAnswer);
            }
        }
        Ok(())
    }

    fn take_request(&mut self) -> Option<Request> {
        let request = self.requests.pop_front()?;
        self.first_transaction = self.first_transaction.wrapping_add(1);
        self.bulk_outstanding -= usize::from(request.is_bulk());
        Some(request)
    }

    pub(crate) fn handle_timeout(&mut self, now_ns: u64, to: &mut Channels) {
        if let Verdict::Down(reason) = self.caller.handle_timeout(now_ns) {
            self.fail_all(reason, to);
        }
    }

    pub(crate) fn poll_transmit(&mut self, now_ns: u64, buf: &mut [u8]) -> Option<usize> {
        self.caller.poll_transmit(now_ns, buf)
    }

    /// Takes the link down and fails what is outstanding.
    pub(crate) fn go_down(&mut self, reason: DownReason, to: &mut Channels) {
        self.caller.go_down(reason);
        self.fail_all(reason, to);
    }

    fn fail_all(&mut self, reason: DownReason, to: &mut Channels) {
        while let Some(request) = self.take_request() {
            request.fail(AccessError::PeerDown(reason), to);
        }
    }
}

/// An answer that fits no request: the donor is broken, and nothing it says can be trusted.
struct BadAnswer;

impl Request {
    fn channel(self) -> Channel {
        if self.is_bulk() { Channel::Rdma } else { Channel::Crma }
    }

    fn opcode(self) -> Opcode {
        if self.is_write() { Opcode::Write } else { Opcode::Read }
    }

    fn is_bulk(self) -> bool {
        matches!(self, Self::RdmaRead { .. } | Self::RdmaWrite { .. })
    }

    fn is_write(self) -> bool {
        self.read_len().is_none()
    }

    /// Bytes a read waits for; `None` for a write.
    fn read_len(self) -> Option<u16> {
        match self {
            Self::CrmaRead { len_bytes, .. } | Self::RdmaRead { len_bytes, .. } => Some(len_bytes),
            Self::CrmaWrite { .. } | Self::RdmaWrite { .. } => None,
        }
    }

    fn succeed(self, data: &[u8], to: &mut Channels) {
        debug_assert!(data.len() <= MAX_PAYLOAD_BYTES);
        match self {
            Self::CrmaRead { slot, .. } | Self::CrmaWrite { slot } => to.crma.succeed(slot, data),
            Self::RdmaRead { descriptor, offset, .. } => {
                to.rdma.chunk_succeeded(descriptor, offset, data);
            }
            Self::RdmaWrite { descriptor } => to.rdma.chunk_succeeded(descriptor, 0, data),
        }
    }

    fn fail(self, error: AccessError, to: &mut Channels) {
        match self {
            Self::CrmaRead { slot, .. } | Self::CrmaWrite { slot } => to.crma.fail(slot, error),
            Self::RdmaRead { descriptor, .. } | Self::RdmaWrite { descriptor } => {
                to.rdma.chunk_failed(descriptor, error);
            }
        }
    }
}
