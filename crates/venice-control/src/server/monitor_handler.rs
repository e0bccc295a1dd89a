//! The calls of the MonitorNode service.

use std::future::Future;
use venice_rack::caller::{Caller, Owner, User};
use venice_rack::event::{EventBatch, EventPosition};
use venice_rack::monitor::Kept;
use venice_rack::queueing::Asked;
use venice_rack::quota::{QuotaFor, QuotaRecord};
use venice_rack::rows::{
    AllocationPlan, ForecastRow, GrantRow, LinkRow, NodeRow, QueueRow, QuotaTable, ResourceRow,
};
use venice_rack::types::{
    AllocationRequest, ClaimRequest, Grant, HeartbeatAck, HeartbeatReport, Identity,
    NodeRegistration, RackError, Registered, TransferRequest, Transferred,
};
use venice_wire::{GrantId, GrantKey};

/// The calls of the Monitor Node. Write the methods as `async fn`.
pub trait MonitorHandler: Send + Sync + 'static {
    /// Registers an agent.
    fn register(
        &self,
        node: NodeRegistration,
    ) -> impl Future<Output = Result<Registered, RackError>> + Send;

    /// Handles a report of the agent of the node `name`.
    fn heartbeat(
        &self,
        name: String,
        report: HeartbeatReport,
    ) -> impl Future<Output = Result<HeartbeatAck, RackError>> + Send;

    /// Deregisters the agent of the node `name` with this epoch and instance.
    fn deregister(
        &self,
        name: String,
        identity: Identity,
        instance: u64,
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Allocates for a program of `owner`.
    fn allocate(
        &self,
        owner: Owner,
        request: AllocationRequest,
    ) -> impl Future<Output = Result<Asked, RackError>> + Send;

    /// Cancels the queued request of a program of `owner`.
    fn leave_queue(
        &self,
        owner: Owner,
        client_id: u128,
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Returns the queued requests.
    fn queue(&self) -> impl Future<Output = Vec<QueueRow>> + Send;

    /// Plans a request of `owner` without granting it.
    fn plan(
        &self,
        owner: Owner,
        request: AllocationRequest,
    ) -> impl Future<Output = Result<AllocationPlan, RackError>> + Send;

    /// Releases grants; returns those that could not be released.
    fn release(
        &self,
        leases: Vec<(GrantId, GrantKey)>,
    ) -> impl Future<Output = Result<Kept, RackError>> + Send;

    /// Transfers grants, on behalf of `by`.
    fn transfer(
        &self,
        by: User,
        request: TransferRequest,
    ) -> impl Future<Output = Result<Vec<Transferred>, RackError>> + Send;

    /// Returns the grants transferred to `owner`.
    fn claim(
        &self,
        owner: Owner,
        request: ClaimRequest,
    ) -> impl Future<Output = Result<Vec<Grant>, RackError>> + Send;

    /// Starts draining the node `name`, or (`undo`) ends it.
    fn drain(&self, name: String, undo: bool)
    -> impl Future<Output = Result<(), RackError>> + Send;

    /// Sets a quota, for the caller `by`.
    fn set_quota(
        &self,
        by: Caller,
        quota: QuotaRecord,
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Removes a quota, for the caller `by`.
    fn remove_quota(
        &self,
        by: Caller,
        of: QuotaFor,
    ) -> impl Future<Output = Result<(), RackError>> + Send;

    /// Returns the quotas and their use.
    fn quotas(&self) -> impl Future<Output = QuotaTable> + Send;

    /// Returns the next events after a position; with `wait`, once there is one.
    fn events_after(
        &self,
        position: EventPosition,
        wait: bool,
    ) -> impl Future<Output = EventBatch> + Send;

    /// Returns the position after the newest event.
    fn events_end(&self) -> impl Future<Output = EventPosition> + Send;

    /// Returns the nodes.
    fn nodes(&self) -> impl Future<Output = Vec<NodeRow>> + Send;

    /// Returns the Resource Registration Table.
    fn resources(&self) -> impl Future<Output = Vec<ResourceRow>> + Send;

    /// Returns the Resource Allocation Table.
    fn grants(&self) -> impl Future<Output = Vec<GrantRow>> + Send;

    /// Returns the forecast needs of workloads.
    fn forecasts(&self) -> impl Future<Output = Vec<ForecastRow>> + Send;

    /// Returns the Topology Status Table.
    fn links(&self) -> impl Future<Output = Vec<LinkRow>> + Send;
}
