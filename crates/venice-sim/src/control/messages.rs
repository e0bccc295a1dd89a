//! What the parties say to each other, and how a call may end.

use std::collections::{BTreeMap, BTreeSet};

use venice_rack::caller::Owner;
use venice_rack::monitor::{Change, Kept, Record, RecordKey, Sight};
use venice_rack::queueing::Asked;
use venice_rack::types::{
    DeviceRequest, DonorStatus, HeartbeatAck, HeartbeatReport, LeaseState, MemoryRequest,
    NodeRegistration, Pong, PrepareRequest, RackError, Refusal, Registered,
};
use venice_wire::{GrantId, GrantKey, NodeId};

/// A call's number.
pub(super) type CallId = u64;
/// Grants with the keys that show whose they are.
pub(super) type Leases = Vec<(GrantId, GrantKey)>;

/// What is asked.
#[derive(Clone, Debug)]
pub(super) enum Request {
    // Of a Monitor Node.
    Register(Box<NodeRegistration>),
    Heartbeat(Box<HeartbeatReport>),
    Memory(Owner, MemoryRequest),
    Device(Owner, DeviceRequest),
    Leave(Owner, u128),
    GiveBack(Leases),
    Drain { name: String, undo: bool },
    // Of an agent, by a Monitor Node.
    Prepare(Box<PrepareRequest>),
    Commit { grant: GrantId, donor_epoch: u64 },
    Abort(GrantId),
    Release(Vec<GrantId>),
    Ping,
    // Of an agent, by a recipient.
    Return(Leases),
    Renew(GrantId, GrantKey),
    // Of the store that several Monitor Nodes share.
    Join,
    Load,
    Transact(Transaction),
    Sign(Sign),
}

/// What is answered.
#[derive(Clone, Debug)]
pub(super) enum Response {
    Registered(Result<Registered, RackError>),
    Acknowledged(Result<HeartbeatAck, RackError>),
    Asked(Result<Asked, RackError>),
    Kept(Kept),
    Done(Result<(), RackError>),
    Status(Result<DonorStatus, Refusal>),
    Pong(Pong),
    Lease(LeaseState),
    Joined { member: u64, revision: u64 },
    Loaded(Snapshot),
    Transacted(Outcome),
    Signed { is_member: bool },
}

/// How a call ends that has no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    /// Nobody listens there.
    Refused,
    /// The connection broke: it may have arrived or not.
    Reset,
    /// Nothing was heard for too long.
    TimedOut,
}

/// Changes that are made together if all is as it was last seen, once, however often it is said.
#[derive(Clone, Debug)]
pub(super) struct Transaction {
    pub(super) member: u64,
    pub(super) number: u64,
    pub(super) conditions: Vec<Sight>,
    pub(super) changes: Vec<Change>,
}

/// What became of a transaction.
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
    /// The nodes that it does not hear.
    pub(super) silent: BTreeSet<NodeId>,
}

/// All that the store has.
#[derive(Clone, Debug)]
pub(super) struct Snapshot {
    pub(super) revision: u64,
    pub(super) records: Vec<(u64, Record)>,
    pub(super) signs: BTreeMap<u64, Sign>,
}

/// What a transaction has changed, as all are told.
#[derive(Clone, Debug)]
pub(super) struct Batch {
    pub(super) revision: u64,
    pub(super) changes: Vec<Change>,
    /// A sign, or that its giver is no more.
    pub(super) signs: Vec<(u64, Option<Sign>)>,
}

impl Request {
    /// What it is called, in traces.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Register(_) => "register",
            Self::Heartbeat(_) => "heartbeat",
            Self::Memory(..) => "memory",
            Self::Device(..) => "device",
            Self::Leave(..) => "leave",
            Self::GiveBack(_) => "give back",
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
