//! Messages of the participants, and the outcomes of calls.

use std::collections::BTreeMap;

use venice_rack::monitor::{Change, Record, RecordKey, Sight};
use venice_rack::monitor_node::{Call, DonorAnswer, DonorCall, Reply, Sign};
use venice_rack::types::{HeartbeatAck, HeartbeatReport, LeaseState, RackError, Refusal};
use venice_wire::{GrantId, GrantKey};

/// A call's number.
pub(super) type CallId = u64;
/// Grants with their keys.
pub(super) type Leases = Vec<(GrantId, GrantKey)>;

/// A request.
#[derive(Clone, Debug)]
pub(super) enum Request {
    // Requests to a Monitor Node; a report comes with the name of its node.
    Call(Box<Call>),
    Heartbeat(String, Box<HeartbeatReport>),
    // Requests of a Monitor Node to an agent.
    Donor(Box<DonorCall>),
    // Requests of a recipient to an agent.
    Return(Leases),
    Renew(GrantId, GrantKey),
    // Requests to the store that several Monitor Nodes share.
    Join,
    Load,
    Transact(Transaction),
    Sign(u64, Sign),
}

/// A response.
#[derive(Clone, Debug)]
pub(super) enum Response {
    Replied(Reply),
    Acknowledged(Result<HeartbeatAck, RackError>),
    Donor(Result<DonorAnswer, Refusal>),
    Lease(LeaseState),
    Joined { member: u64 },
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

impl From<Call> for Request {
    fn from(call: Call) -> Self {
        Self::Call(Box::new(call))
    }
}

impl Request {
    /// Returns its name in traces.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Heartbeat(..) => "heartbeat",
            Self::Call(call) => match **call {
                Call::Register(_) => "register",
                Call::Request(..) => "allocate",
                Call::Leave(..) => "leave",
                Call::Release(_) => "give back",
                Call::Transfer(..) => "transfer",
                Call::Claim(..) => "claim",
                Call::Order(_) => "drain",
            },
            Self::Donor(call) => match **call {
                DonorCall::PrepareTransfer(_) => "prepare transfer",
                DonorCall::CommitTransfer(_) => "commit transfer",
                DonorCall::AbortTransfer { .. } => "abort transfer",
                DonorCall::Prepare(_) => "prepare",
                DonorCall::Commit { .. } => "commit",
                DonorCall::Abort(_) => "abort",
                DonorCall::Release(_) => "release",
                DonorCall::Ping => "ping",
            },
            Self::Return(_) => "return",
            Self::Renew(..) => "renew",
            Self::Join => "join",
            Self::Load => "load",
            Self::Transact(_) => "transact",
            Self::Sign(..) => "sign",
        }
    }
}
