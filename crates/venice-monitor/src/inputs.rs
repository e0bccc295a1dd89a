//! What comes in, and what waits for an answer.

use tokio::sync::oneshot;
use venice_control::{
    Asked, DevicePlan, DeviceRequest, ForecastRow, GrantRow, HeartbeatAck, HeartbeatReport,
    Identity, LinkRow, MemoryRequest, NodeRegistration, NodeRow, Owner, PlacementPlan, QueueRow,
    QuotaFor, QuotaRecord, QuotaTable, RackError, Registered, ResourceRow, Revocation,
};
use venice_rack::monitor::{JoinTokenRecord, Kept};
use venice_wire::{GrantId, GrantKey};

pub(crate) type Reply<T> = oneshot::Sender<T>;
/// Somebody who waits for no more than that it is done.
pub(crate) type Done = Reply<Result<(), RackError>>;
pub(crate) type AskedReply = Reply<Result<Asked, RackError>>;

/// What comes in.
pub(crate) enum Input {
    Register(NodeRegistration, Reply<Result<Registered, RackError>>),
    /// Of nodes, in the order they came.
    Reports(Vec<Report>),
    Request(Owner, MemoryRequest, AskedReply),
    RequestDevice(Owner, DeviceRequest, AskedReply),
    /// Who asked for memory, or a device, does not wait for it any more.
    Leave {
        owner: Owner,
        client_id: u128,
        reply: Done,
    },
    /// Where a request would be placed; nothing changes.
    Plan(Owner, MemoryRequest, Reply<Result<PlacementPlan, RackError>>),
    PlanDevice(Owner, DeviceRequest, Reply<Result<DevicePlan, RackError>>),
    Release(Vec<(GrantId, GrantKey)>, Reply<Kept>),
    Order(Order, Done),
    List(Listing),
    Stop,
}

impl Input {
    /// Whoever asked that has hung up, and nobody else has anything of it. What is reported, called off or
    /// given back is right whoever waits for that, and so is turning somebody out.
    pub(crate) fn is_forsaken(&self) -> bool {
        match self {
            Self::Register(_, reply) => reply.is_closed(),
            Self::Request(_, _, reply) | Self::RequestDevice(_, _, reply) => reply.is_closed(),
            Self::Plan(_, _, reply) => reply.is_closed(),
            Self::PlanDevice(_, _, reply) => reply.is_closed(),
            Self::Order(order, reply) => !order.is_for_all() && reply.is_closed(),
            Self::Reports(_) | Self::Leave { .. } | Self::Release(..) => false,
            Self::List(_) | Self::Stop => false,
        }
    }
}

/// A node reports.
pub(crate) struct Report {
    /// Its name, as its certificate says.
    pub(crate) name: String,
    pub(crate) report: HeartbeatReport,
    pub(crate) reply: Reply<Result<HeartbeatAck, RackError>>,
}

/// What is to be done, with no other answer than that it is.
#[derive(Clone)]
pub(crate) enum Order {
    /// An agent ends.
    Farewell {
        /// The node's name, as the agent's certificate says.
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
    SetQuota(QuotaRecord),
    RemoveQuota(QuotaFor),
    Revoke {
        name: String,
        /// Also a name that the rack does not know.
        is_sure: bool,
    },
}

impl Order {
    /// It is done for everybody's sake, whoever waits for it and whatever else cannot be done: a node is
    /// turned out, or has ended.
    pub(crate) fn is_for_all(&self) -> bool {
        matches!(self, Self::Revoke { .. } | Self::Farewell { .. })
    }
}

/// A table asked for.
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
}

/// Somebody who waits for an answer, with what was asked: it is asked again where the answer turns out
/// to have been given from records that were others by then.
pub(crate) struct Waiting<Q, T> {
    pub(crate) asked: Q,
    pub(crate) reply: Reply<T>,
}

/// The same of a request: it may be made more than once while it is in its handshake.
pub(crate) struct Asking {
    pub(crate) owner: Owner,
    pub(crate) wanted: Wanted,
    pub(crate) replies: Vec<AskedReply>,
}

/// What is requested.
#[derive(Clone)]
pub(crate) enum Wanted {
    Memory(MemoryRequest),
    Device(DeviceRequest),
}

impl Wanted {
    pub(crate) fn client_id(&self) -> u128 {
        match self {
            Wanted::Memory(request) => request.client_id,
            Wanted::Device(request) => request.client_id,
        }
    }
}
