//! What the MonitorNode service asks of whoever is behind it.

use std::future::Future;
use venice_rack::caller::Owner;
use venice_rack::monitor::Kept;
use venice_rack::queueing::Asked;
use venice_rack::quota::{QuotaFor, QuotaRecord};
use venice_rack::rows::{
    DevicePlan, ForecastRow, GrantRow, LinkRow, NodeRow, PlacementPlan, QueueRow, QuotaTable,
    ResourceRow,
};
use venice_rack::types::{
    DeviceRequest, HeartbeatAck, HeartbeatReport, Identity, MemoryRequest, NodeRegistration,
    RackError, Registered,
};
use venice_wire::{GrantId, GrantKey};

/// What the Monitor Node does when it is called. Write the methods as `async fn`.
pub trait MonitorHandler: Send + Sync + 'static {
    /// An agent joins.
    fn register(
        &self,
        node: NodeRegistration,
    ) -> impl Future<Output = Result<Registered, RackError>> + Send;

    /// The agent of the node `name` reports.
    fn heartbeat(
        &self,
        name: String,
        report: HeartbeatReport,
    ) -> impl Future<Output = Result<HeartbeatAck, RackError>> + Send;

    /// The agent of the node `name`, of this epoch and instance, ends.
    fn farewell(
        &self,
        name: String,
        identity: Identity,
        instance: u64,
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// A program of `owner` asks for memory.
    fn request_memory(
        &self,
        owner: Owner,
        request: MemoryRequest,
    ) -> impl Future<Output = Result<Asked, RackError>> + Send;

    /// A program of `owner` waits no longer.
    fn leave_queue(
        &self,
        owner: Owner,
        client_id: u128,
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Those who wait for room.
    fn queue(&self) -> impl Future<Output = Vec<QueueRow>> + Send;

    /// A program of `owner` asks for a device.
    fn request_device(
        &self,
        owner: Owner,
        request: DeviceRequest,
    ) -> impl Future<Output = Result<Asked, RackError>> + Send;

    /// Which device a request of `owner` would get; nothing is granted.
    fn plan_device(
        &self,
        owner: Owner,
        request: DeviceRequest,
    ) -> impl Future<Output = Result<DevicePlan, RackError>> + Send;

    /// Where a request of `owner` would be placed; nothing is granted.
    fn plan_memory(
        &self,
        owner: Owner,
        request: MemoryRequest,
    ) -> impl Future<Output = Result<PlacementPlan, RackError>> + Send;

    /// A recipient gives grants back; those that it could not.
    fn release(
        &self,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> impl Future<Output = Result<Kept, RackError>> + Send;

    /// Nothing more is to be placed on the node `name`, or (`undo`) something again.
    fn drain(&self, name: String, undo: bool)
    -> impl Future<Output = Result<(), RackError>> + Send;

    /// Somebody may have another amount than before.
    fn set_quota(&self, quota: QuotaRecord) -> impl Future<Output = Result<(), RackError>> + Send;

    /// A quota is no more.
    fn remove_quota(&self, of: QuotaFor) -> impl Future<Output = Result<(), RackError>> + Send;

    /// The quotas, and what is used of them.
    fn quotas(&self) -> impl Future<Output = QuotaTable> + Send;

    /// The nodes.
    fn nodes(&self) -> impl Future<Output = Vec<NodeRow>> + Send;

    /// The Resource Registration Table.
    fn resources(&self) -> impl Future<Output = Vec<ResourceRow>> + Send;

    /// The Resource Allocation Table.
    fn grants(&self) -> impl Future<Output = Vec<GrantRow>> + Send;

    /// What workloads are foretold to need.
    fn forecasts(&self) -> impl Future<Output = Vec<ForecastRow>> + Send;

    /// The Topology Status Table.
    fn links(&self) -> impl Future<Output = Vec<LinkRow>> + Send;
}
