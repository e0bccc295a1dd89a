//! Messages of the participants, and the outcomes of calls.

use std::collections::{BTreeMap, BTreeSet};

use venice_rack::caller::{Owner, User};
use venice_rack::monitor::{Change, Kept, Record, RecordKey, Sight};
use venice_rack::queueing::Asked;
use venice_rack::types::{
    AllocationRequest, ClaimRequest, DonorStatus, Grant, HeartbeatAck, HeartbeatReport, LeaseState,
    NodeRegistration, Pong, PrepareRequest, RackError, Refusal, Registered, TransferRequest,
    TransferStep, Transferred,
};
use venice_wire::{GrantId, GrantKey, NodeId};

/// A call's number.
pub(super) type CallId = u64;
/// Grants with their keys.
pub(super) type Leases = Vec<(GrantId, GrantKey)>;

/// A request.
#[derive(Clone, Debug)]
pub(super) enum Request {
    // Requests to a Monitor Node.
    Register(Box<NodeRegistration>),
    Heartbeat(Box<HeartbeatReport>),
    Allocate(Owner, AllocationRequest),
    Leave(Owner, u128),
    GiveBack(Leases),
    Transfer(User, Box<TransferRequest>),
    Claim(Owner, ClaimRequest),
    Drain { name: String, undo: bool },
    // Requests of a Monitor Node to an agent.
    Prepare(Box<PrepareRequest>),
    Commit { grant: GrantId, donor_epoch: u64 },
    Abort(GrantId),
    Release(Vec<GrantId>),
    PrepareTransfer(Box<TransferStep>),
    CommitTransfer(Box<TransferStep>),
    AbortTransfer { from: GrantId, grant: GrantId },
    Ping,
    // Requests of a recipient to an agent.
    Return(Leases),
    Renew(GrantId, GrantKey),
    // Requests to the store that several Monitor Nodes share.
    Join,
    Load,
    Transact(Transaction),
    Sign(Sign),
}

/// A response.
#[derive(Clone, Debug)]
pub(super) enum Response {
    Registered(Result<Registered, RackError>),
    Acknowledged(Result<HeartbeatAck, RackError>),
    Asked(Result<Asked, RackError>),
    Kept(Kept),
    Transferred(Result<Vec<Transferred>, RackError>),
    Claimed(Result<Vec<Grant>, RackError>),
    Done(Result<(), RackError>),
    Status(Result<DonorStatus, Refusal>),
    Pong(Pong),
    Lease(LeaseState),
    Joined { member: u64, revision: u64 },
    Loaded(Snapshot),
    Transacted(Outcome),
    Signed { is_member: bool },
}

/// End of a call without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// No process listens there.
    Refused,
    /// The connection broke: the request may have arrived or not.
    Reset,
    /// No answer came in time.
    TimedOut,
}

/// Changes that are all made if their conditions hold, once, however often they are requested.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) member: u64,
    pub(super) number: u64,
    pub(super) conditions: Vec<Sight>,
    pub(super) changes: Vec<Change>,
}

/// Outcome of a transaction.
#[derive(Clone, Debug)]
pub(super) enum Outcome {
    Made { revision: u64 },
    Conflict { found: BTreeMap<RecordKey, u64>, is_member: bool },
}

/// A sign of life.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Sign {
    pub(super) member: u64,
    pub(super) number: u64,
    /// The nodes that do not report to it.
    pub(super) silent: BTreeSet<NodeId>,
}

/// Contents of the store.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) revision: u64,
    pub(super) records: Vec<(u64, Record)>,
    pub(super) signs: BTreeMap<u64, Sign>,
}

/// Changes of a transaction, as all watchers receive them.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) revision: u64,
    pub(super) changes: Vec<Change>,
    /// Signs of life; `None` for a member that ended.
    pub(super) signs: Vec<(u64, Option<Sign>)>,
}

impl Request {
    /// Returns its name in traces.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Register(_) => "register",
            Self::Heartbeat(_) => "heartbeat",
            Self::Allocate(..) => "allocate",
            Self::Leave(..) => "leave",
            Self::GiveBack(_) => "give back",
            Self::Transfer(..) => "transfer",
            Self::Claim(..) => "claim",
            Self::PrepareTransfer(_) => "prepare transfer",
            Self::CommitTransfer(_) => "commit transfer",
            Self::AbortTransfer { .. } => "abort transfer",
            Self::Drain { .. } => "drain",
            Self::Prepare(_) => "prepare",
            Self::Commit { .. } => "commit",
            Self::Abort(_) => "abort",
            Self::Release(_) => "release",
            Self::Ping => "ping",
            Self::Return(_) => "return",
            Self::Renew(..) => "renew",
            Self::Join => "join",
            Self::Load => "load",
            Self::Transact(_) => "transact",
            Self::Sign(_) => "sign",
        }
    }
}
