//! The control plane between the processes of a rack.
//!
//! * [`client`] calls: [`client::MonitorClient`] and [`client::AgentClient`], in plain types.
//! * [`server`] is called: implement [`server::MonitorHandler`] or [`server::AgentHandler`] and
//!   hand it to [`server::serve_monitor`] or [`server::serve_agent`].
//! * [`proto`] is the gRPC of `proto/venice/v1/*.proto`, for those who want it bare.
//!
//! The types of the calls are those of `venice-rack` and are exported here again.
#![forbid(unsafe_code)]

pub mod client;
mod convert;
mod error;
pub mod identity;
pub mod proto;
pub mod server;

pub use error::{ControlError, PeerKind};
pub use venice_rack::caller::{Caller, InvalidOwner, Owner, User};
pub use venice_rack::door::{DoorReport, RefusedCounts};
pub use venice_rack::event::{
    EventBatch, EventFilter, EventKind, EventPosition, EventRequest, EventRow, UnknownEvent,
};
pub use venice_rack::forecast::{ForecastSettings, Windows};
pub use venice_rack::kind::{KindSpec, Lending, UnknownKind};
pub use venice_rack::label::{MAX_LABEL_BYTES, is_label, to_label};
pub use venice_rack::monitor::Kept;
pub use venice_rack::monitor_node::{DonorAnswer, DonorCall};
pub use venice_rack::placement::{Policy, UnknownPolicy};
pub use venice_rack::queueing::{
    Asked, DEFAULT_PRIORITY, InLine, Preempt, Queueing, Standing, WaitingBounds,
};
pub use venice_rack::quota::{Limit, Limits, OverQuota, QuotaFor, QuotaRecord};
pub use venice_rack::request::{MAX_COPIES, MAX_PIECES, MAX_WANTS};
pub use venice_rack::revocation::{Revocation, RevocationNews, Revocations};
pub use venice_rack::rows::{
    AllocationPlan, AmountsByKind, DevicePlan, DevicePlanRow, ForecastRow, GrantRow, LinkRow,
    NodeRow, PlacementPlan, PlacementRow, QueueRow, QueuedWant, QuotaRow, QuotaTable,
    ResourceForecast, ResourceRow, bandwidth_text,
};
pub use venice_rack::types::{
    AllocationRequest, CalledBack, ClaimRequest, DeviceReport, DonorReport, DonorStatus,
    DroppedCounts, Endpoint, FlowPeer, FlowReport, Grant, GrantUsage, HeartbeatAck,
    HeartbeatReport, HeldGrant, HeldState, Identity, InvalidWant, LeaseState, LinkPort,
    LinkProtection, LinkReport, LinkState, MAX_CLAIM_MS, MAX_TRANSFER_GRANTS, NodeRegistration,
    Notice, NoticeReason, Peer, PeerList, Pong, PortReport, PrepareRequest, RackError, Refusal,
    Registered, RelayPeer, RelayPlace, ResourceKind, ResourceSpec, ServiceAccess, ServiceState,
    Share, TransferRequest, TransferState, TransferStep, Transferred, Want, XdpFrames, pool_text,
};
