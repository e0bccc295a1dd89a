//! The context of a host that handles an event, and its outbox.

use std::collections::VecDeque;

use venice_rack::donor::EndReason;
use venice_rack::rows::QueueRow;
use venice_rack::types::{Grant, Identity, PrepareRequest, TransferStep, Transferred, Want};
use venice_wire::GrantId;

use super::agent::{AgentTag, AgentTimer};
use super::messages::{CallId, Request, Response};
use super::monitor::{MonitorTag, MonitorTimer};
use super::party::Party;
use super::recipient::{RecipientTag, RecipientTimer};
use venice_simkernel::random::Stream;

/// Context of a host.
pub(super) struct Desk<'a> {
    /// The true time, in nanoseconds.
    pub(super) now_ns: u64,
    /// The host's random numbers.
    pub(super) rng: &'a mut Stream,
    pub(super) out: &'a mut Outbox,
    pub(super) party: Party,
}

/// Effects to execute, and facts for the checkers.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    pub(super) effects: VecDeque<Effect>,
    pub(super) facts: VecDeque<Fact>,
}

/// An effect of a host.
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
    /// The participant accepts calls from now on.
    Listen(Party),
    /// The participant stops: all its connections end, and it restarts after a while.
    BeginAnew {
        party: Party,
        after_ns: u64,
    },
}

/// Purpose of a call, returned with its outcome.
#[derive(Clone, Debug)]
pub(super) enum Tag {
    Monitor(MonitorTag),
    Agent(AgentTag),
    Recipient(RecipientTag),
    /// Drain of a donor by the operator, or its end.
    Operator {
        donor: u16,
        drains: bool,
    },
}

/// A timer of a participant.
#[derive(Clone, Debug)]
pub(super) enum Timer {
    Monitor(MonitorTimer),
    Agent(AgentTimer),
    Recipient(RecipientTimer),
    /// The store checks its members' signs of life.
    Store,
    /// The operator retries for a donor.
    Operator(u16),
}

/// An event that the checkers evaluate.
#[derive(Clone, Debug)]
pub(super) enum Fact {
    /// A Monitor Node sends a prepare to a donor.
    Prepares { monitor: u16, donor: Identity, request: Box<PrepareRequest>, knows: Knows },
    /// The only Monitor Node restarts: its queue is empty.
    Begins,
    /// It receives a request for memory.
    Wants { recipient: String, priority: u8 },
    /// Its queued requests, in order.
    Line(Vec<QueueRow>),
    /// A Monitor Node answers a request with grants.
    Tells { client_id: u128, grants: Vec<Grant> },
    /// A donor sets slabs aside for a grant, by a prepare under that epoch.
    SetsAside { donor: u16, grant: GrantId, slabs: Vec<u32>, epoch: u64 },
    /// It lends them, by a commit under that epoch.
    Lends { donor: u16, grant: GrantId, epoch: u64 },
    /// A donor ends a grant.
    Ends { donor: u16, grant: GrantId, reason: EndReason },
    /// A donor loses its state: its agent died.
    Dies { donor: u16 },
    /// A recipient takes its grants, by a request sent at that time.
    Takes { recipient: u16, client_id: u128, grants: Vec<Grant>, wants: Vec<Want>, asked_ns: u64 },
    /// A Monitor Node sends the prepare of a transfer to a donor.
    Offers { step: Box<TransferStep> },
    /// A donor gives a grant to its successor.
    Switches { donor: u16, step: Box<TransferStep> },
    /// A donor answers the owner of a grant.
    Serves { donor: u16, grant: GrantId },
    /// A recipient begins to transfer its grants.
    HandsOver { recipient: u16, client_id: u128, grants: Vec<GrantId> },
    /// It is told that they are transferred.
    HandedOver { client_id: u128, rows: Vec<Transferred> },
    /// It is told that nothing was transferred, by the answer to its only call.
    KeptAll { client_id: u128, grants: Vec<GrantId>, why: String },
    /// A recipient uses claimed grants.
    Claims { grants: u64 },
    /// A recipient stops using a grant.
    Leaves { grant: GrantId },
    /// A recipient got its answer after so long.
    Answered { after_ns: u64 },
}

/// State of a Monitor Node when it sends a prepare.
#[derive(Clone, Copy, Debug, Default)]
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
