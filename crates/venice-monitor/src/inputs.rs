//! The driver's inputs, and the calls that await an answer.

use crate::metrics::Snapshot;
use tokio::sync::oneshot;
use venice_control::{
    AllocationPlan, AllocationRequest, Asked, ClaimRequest, ForecastRow, Grant, GrantRow,
    HeartbeatAck, HeartbeatReport, Identity, LinkRow, NodeRegistration, NodeRow, Owner, QueueRow,
    QuotaFor, QuotaRecord, QuotaTable, RackError, Registered, ResourceRow, Revocation,
    TransferRequest, Transferred, User,
};
use venice_rack::monitor::{JoinTokenRecord, Kept};
use venice_wire::{GrantId, GrantKey};

pub(crate) type Reply<T> = oneshot::Sender<T>;
/// The reply of a call whose only result is success.
pub(crate) type Done = Reply<Result<(), RackError>>;
pub(crate) type AskedReply = Reply<Result<Asked, RackError>>;
/// The answer to a transfer.
pub(crate) type TransferAnswer = Result<Vec<Transferred>, RackError>;
pub(crate) type TransferReply = Reply<TransferAnswer>;
/// The answer to a claim.
pub(crate) type ClaimAnswer = Result<Vec<Grant>, RackError>;
pub(crate) type ClaimReply = Reply<ClaimAnswer>;

/// Keys and values of all records.
pub(crate) type RecordsAnswer = Result<Vec<(String, Vec<u8>)>, RackError>;

/// An input of the driver.
pub(crate) enum Input {
    Register(NodeRegistration, Reply<Result<Registered, RackError>>),
    Request(Owner, AllocationRequest, AskedReply),
    /// Withdrawal of a request.
    Leave {
        owner: Owner,
        client_id: u128,
        reply: Done,
    },
    /// Dry run of a request.
    Plan(Owner, AllocationRequest, Reply<Result<AllocationPlan, RackError>>),
    Release(Vec<(GrantId, GrantKey)>, Reply<Kept>),
    Transfer(User, TransferRequest, TransferReply),
    Claim(Owner, ClaimRequest, ClaimReply),
    Order(Order, Done),
    List(Listing),
    /// All records of the store, for a backup.
    Records(Reply<RecordsAnswer>),
    Stop,
}

impl Input {
    /// True if the caller has hung up and the input concerns nobody else. Withdrawals, releases and
    /// revocations are right without a caller.
    pub(crate) fn is_abandoned(&self) -> bool {
        match self {
            Self::Register(_, reply) => reply.is_closed(),
            Self::Request(_, _, reply) => reply.is_closed(),
            Self::Plan(_, _, reply) => reply.is_closed(),
            Self::Transfer(_, _, reply) => reply.is_closed(),
            Self::Claim(_, _, reply) => reply.is_closed(),
            Self::Order(order, reply) => !order.is_rack_wide() && reply.is_closed(),
            Self::Leave { .. } | Self::Release(..) => false,
            Self::Records(reply) => reply.is_closed(),
            Self::List(_) | Self::Stop => false,
        }
    }
}

/// An input by way of the heartbeat server, in order.
pub(crate) enum Heard {
    /// Reports of nodes, in order of arrival.
    Reports(Vec<Report>),
    /// The heartbeat server runs: all reports that arrived before have been forwarded. The time
    /// counts for the nodes' liveness only as these arrive.
    Tick,
}

/// A node's heartbeat report.
pub(crate) struct Report {
    /// The node's name, from its certificate.
    pub(crate) name: String,
    pub(crate) report: HeartbeatReport,
    pub(crate) reply: Reply<Result<HeartbeatAck, RackError>>,
}

/// A change whose only result is success.
#[derive(Clone)]
pub(crate) enum Order {
    /// An agent ends.
    Deregister {
        /// The node's name, from the agent's certificate.
        name: String,
        identity: Identity,
        instance: u64,
    },
    Drain {
        name: String,
        undo: bool,
    },
    NewToken(JoinTokenRecord),
    Join {
        token: (u64, [u8; 32]),
        name: String,
        key: [u8; 32],
    },
    DeleteToken(u64),
    SetQuota {
        quota: QuotaRecord,
        /// Its caller, for the event.
        by: String,
    },
    RemoveQuota {
        of: QuotaFor,
        by: String,
    },
    Revoke {
        name: String,
        /// True to accept a name that the rack does not have.
        is_sure: bool,
    },
}

impl Order {
    /// True if the order concerns the whole rack (a node is revoked, or has ended): it is executed
    /// without a caller, and while other changes cannot be made.
    pub(crate) fn is_rack_wide(&self) -> bool {
        matches!(self, Self::Revoke { .. } | Self::Deregister { .. })
    }
}

/// A query of a table.
pub(crate) enum Listing {
    Nodes(Reply<Vec<NodeRow>>),
    Resources(Reply<Vec<ResourceRow>>),
    Grants(Reply<Vec<GrantRow>>),
    Queue(Reply<Vec<QueueRow>>),
    Quotas(Reply<QuotaTable>),
    Forecasts(Reply<Vec<ForecastRow>>),
    Links(Reply<Vec<LinkRow>>),
    Tokens(Reply<Vec<JoinTokenRecord>>),
    Revocations(Reply<Vec<Revocation>>),
    /// Version of the authorities that each node trusts.
    TrustVersions(Reply<Vec<(String, u64)>>),
    /// Addresses of the Monitor Nodes that serve beside this one.
    Peers(Reply<Vec<String>>),
    /// The tables of one moment, for metrics.
    Snapshot(Reply<Snapshot>),
    /// The reason why the Monitor Node makes no changes, if it does not.
    Obstacle(Reply<Option<String>>),
}

/// A call that awaits an answer. Its input is kept: it is repeated if the answer turns out to rest
/// on outdated records.
pub(crate) struct PendingCall<Q, T> {
    pub(crate) asked: Q,
    pub(crate) reply: Reply<T>,
}

impl<Q, T> PendingCall<Q, T> {
    /// Takes the reply; later ones are lost.
    pub(crate) fn take_reply(&mut self) -> Reply<T> {
        std::mem::replace(&mut self.reply, oneshot::channel().0)
    }
}

/// A request that awaits an answer. It may be repeated by its client during the handshake.
pub(crate) struct PendingRequest {
    pub(crate) owner: Owner,
    pub(crate) request: AllocationRequest,
    pub(crate) replies: Vec<AskedReply>,
    /// True once its caller has withdrawn it: the answer is no refusal then.
    pub(crate) is_withdrawn: bool,
}
