//! One end of one QPair.

use venice_wire::{GrantKey, NodeId};

use super::{
    CloseReason, CreditMode, EndConfig, QPairId, QPairKind, QPairStats, RejectReason,
    credit::{Capacity, InBandCredits},
    greeting::Greeting,
    receive::ReceiveHalf,
    send::SendHalf,
};

#[derive(Debug)]
pub(super) struct QPair {
    pub id: QPairId,
    /// The link over which it runs, as its owner numbers links.
    pub link: u32,
    pub node: NodeId,
    pub service: u32,
    /// The other end's number; 0 until it is known.
    pub peer_number: u32,
    pub kind: QPairKind,
    pub mode: CreditMode,
    pub phase: Phase,
    /// Set once nothing more can be sent and received.
    pub outcome: Option<CloseReason>,
    /// The owner has released the handle.
    pub is_released: bool,
    /// The other end's greeting in its request; present until this end answers.
    pub asked_by: Option<Greeting>,
    /// Made when this end agrees: a mere request takes no buffers.
    pub flow: Option<Box<Flow>>,
    pub due: Due,
    /// The bits sent to the other end by Close.
    pub close_told: CloseBits,
    /// The other end has stopped reading.
    pub peer_is_deaf: bool,
    pub events: Events,
    pub stats: QPairStats,
    /// The engine's queues in which it waits.
    pub is_ready: bool,
    pub is_put_queued: bool,
    pub is_event_queued: bool,
}

/// The two directions, and the destination of credits.
#[derive(Debug)]
pub(super) struct Flow {
    pub send: SendHalf,
    pub receive: ReceiveHalf,
    pub in_band: InBandCredits,
    /// Address in the other end's credit region.
    pub credit_address: u64,
    pub credit_key: GrantKey,
    /// True if it waits for credit.
    pub is_stalled: bool,
    /// The time at which to probe for a lost credit, and the probes so far.
    pub probe_at_ns: Option<u64>,
    pub probes: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Requested here, not answered yet.
    Connecting,
    /// Requested by the other side, not answered yet.
    Incoming,
    /// Accepted.
    Open,
    /// No more data is sent or received.
    Over,
}

/// Frames to send as soon as the link has room.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    pub connect: bool,
    pub accept: bool,
    pub reject: Option<RejectReason>,
    pub abort: Option<AbortCode>,
    pub probe: bool,
}

impl Due {
    pub(super) fn is_nothing(&self) -> bool {
        let Self { connect, accept, reject, abort, probe } = *self;
        !(connect | accept | probe) && reject.is_none() && abort.is_none()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AbortCode {
    Dropped,
    Protocol,
}

/// The contents of a Close; a bit once set stays set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct CloseBits {
    /// The sender of the Close stops sending.
    pub ends: bool,
    /// The sender of the Close stops reading.
    pub is_deaf: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Events {
    pub connected: bool,
    pub incoming: bool,
    pub readable: bool,
    pub writable: bool,
    pub closed: bool,
}

impl QPair {
    pub(super) fn new(id: QPairId, link: u32, node: NodeId, service: u32, phase: Phase) -> Self {
        Self {
            id,
            link,
            node,
            service,
            peer_number: 0,
            kind: QPairKind::Messages,
            mode: CreditMode::CrmaWrite,
            phase,
            outcome: None,
            is_released: false,
            asked_by: None,
            flow: None,
            due: Due::default(),
            close_told: CloseBits::default(),
            peer_is_deaf: false,
            events: Events::default(),
            stats: QPairStats::default(),
            is_ready: false,
            is_put_queued: false,
            is_event_queued: false,
        }
    }

    /// True if data flows, as far as this end knows.
    pub(super) fn is_flowing(&self) -> bool {
        self.phase == Phase::Open && self.due.abort.is_none()
    }
}

impl Flow {
    pub(super) fn new(kind: QPairKind, end: &EndConfig) -> Self {
        Self {
            send: SendHalf::new(kind, end),
            receive: ReceiveHalf::new(kind, end),
            in_band: InBandCredits::default(),
            credit_address: 0,
            credit_key: GrantKey(0),
            is_stalled: false,
            probe_at_ns: None,
            probes: 0,
        }
    }

    /// Opens the flow once the other end is known.
    pub(super) fn open(&mut self, capacity: Capacity, credit_address: u64, credit_key: GrantKey) {
        self.send.open(capacity);
        (self.credit_address, self.credit_key) = (credit_address, credit_key);
    }
}

impl AbortCode {
    pub(super) fn code(self) -> u16 {
        match self {
            Self::Dropped => 0,
            Self::Protocol => 1,
        }
    }

    pub(super) fn reason(code: u16) -> CloseReason {
        if code == 1 { CloseReason::Protocol } else { CloseReason::PeerAborted }
    }
}

impl CloseBits {
    pub(super) fn code(self) -> u16 {
        u16::from(self.ends) | u16::from(self.is_deaf) << 1
    }

    pub(super) fn from_code(code: u16) -> Self {
        Self { ends: code & 1 != 0, is_deaf: code & 2 != 0 }
    }
}

impl Events {
    pub(super) fn is_empty(self) -> bool {
        self == Self::default()
    }
}
