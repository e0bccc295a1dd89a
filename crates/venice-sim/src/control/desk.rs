//! What a host has at hand while it handles an event, and where it leaves what is to be done.

use std::collections::VecDeque;

use venice_rack::donor::EndReason;
use venice_rack::rows::QueueRow;
use venice_rack::types::{Grant, Identity, PrepareRequest};
use venice_wire::GrantId;

use super::agent::{AgentTag, AgentTimer};
use super::messages::{CallId, Request, Response};
use super::monitor::{MonitorTag, MonitorTimer};
use super::party::Party;
use super::recipient::{RecipientTag, RecipientTimer};
use crate::random::Stream;

/// What a host has at hand.
pub(super) struct Desk<'a> {
    /// The true time.
    pub(super) now_ns: u64,
    /// The host's own.
    pub(super) rng: &'a mut Stream,
    pub(super) out: &'a mut Outbox,
    pub(super) party: Party,
}

/// What is to be done, and what is to be judged.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) effects: VecDeque<Effect>,
    pub(super) facts: VecDeque<Fact>,
}

/// What a host wants done.
#[derive(Debug)]
pub(super) enum Effect {
    Call {
        from: Party,
        to: Party,
        request: Request,
        within_ns: u64,
        tag: Tag,
    },
    Reply {
        call: CallId,
        response: Response,
    },
    Timer {
        party: Party,
        at_ns: u64,
        timer: Timer,
    },
    /// Calls are taken from now on.
    Listen(Party),
    /// It serves no more: all its connections end, and after so long it begins anew.
    BeginAnew {
        party: Party,
        after_ns: u64,
    },
}

/// What a caller wants to know again when its call is over.
#[derive(Clone, Debug)]
pub(super) enum Tag {
    Monitor(MonitorTag),
    Agent(AgentTag),
    Recipient(RecipientTag),
    /// The operator's: which donor is to be drained, or not.
    Operator {
        donor: u16,
        drains: bool,
    },
}

/// What comes by itself.
#[derive(Clone, Debug)]
pub(super) enum Timer {
    Monitor(MonitorTimer),
    Agent(AgentTimer),
    Recipient(RecipientTimer),
    /// Signs of life may be over.
    Store,
    /// The operator sees to a donor.
    Operator(u16),
}

/// What happened that the judge is to know.
#[derive(Clone, Debug)]
pub(super) enum Fact {
    /// A Monitor Node asks a donor to set something aside.
    Prepares { monitor: u16, donor: Identity, request: Box<PrepareRequest>, knows: Knows },
    /// The only Monitor Node begins: its line is empty.
    Begins,
    /// It hears of a request for memory.
    Wants { recipient: String, priority: u8 },
    /// Those who wait for room there, in order.
    Line(Vec<QueueRow>),
    /// A Monitor Node tells what a request was granted.
    Tells { client_id: u128, grants: Vec<Grant> },
    /// A donor sets slabs aside for a grant, as it was asked to under that epoch.
    SetsAside { donor: u16, grant: GrantId, slabs: Vec<u32>, epoch: u64 },
    /// It lends them, likewise.
    Lends { donor: u16, grant: GrantId, epoch: u64 },
    /// A donor ends a grant.
    Ends { donor: u16, grant: GrantId, reason: EndReason },
    /// A donor has nothing any more: its agent died.
    Dies { donor: u16 },
    /// A recipient takes what it was granted, by a request that it sent then.
    Takes { recipient: u16, client_id: u128, grants: Vec<Grant>, wanted_bytes: u64, asked_ns: u64 },
    /// A recipient goes by a grant no more.
    Leaves { grant: GrantId },
    /// A recipient has its answer after so long.
    Answered { after_ns: u64 },
}

/// What a Monitor Node knows when it asks a donor to set something aside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Knows {
    /// The grant is recorded already.
    pub(super) is_recorded: bool,
    /// The donor is drained.
    pub(super) is_draining: bool,
    /// The donor is down.
    pub(super) is_down: bool,
}

impl Desk<'_> {
    pub(super) fn call(&mut self, to: Party, request: Request, within_ns: u64, tag: Tag) {
        let from = self.party;
        self.out.effects.push_back(Effect::Call { from, to, request, within_ns, tag });
    }

    pub(super) fn reply(&mut self, call: CallId, response: Response) {
        self.out.effects.push_back(Effect::Reply { call, response });
    }

    pub(super) fn timer(&mut self, after_ns: u64, timer: Timer) {
        let (party, at_ns) = (self.party, self.now_ns.saturating_add(after_ns));
        self.out.effects.push_back(Effect::Timer { party, at_ns, timer });
    }

    pub(super) fn listen(&mut self) {
        self.out.effects.push_back(Effect::Listen(self.party));
    }

    pub(super) fn fact(&mut self, fact: Fact) {
        self.out.facts.push_back(fact);
    }
}
