//! The gRPC service: every call goes to the driver and awaits its answer.

use crate::inputs::{Input, Listing, Order, RecordsAnswer, Report};
use crate::metrics::Counters;
use crate::rotation::Rotation;
use crate::tenure::Tenure;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use venice_control::identity::Authority;
use venice_control::server::MonitorHandler;
use venice_control::{
    AllocationPlan, AllocationRequest, Asked, Caller, ClaimRequest, EventBatch, EventPosition,
    ForecastRow, Grant, GrantRow, HeartbeatAck, HeartbeatReport, Identity, Kept, LinkRow,
    NodeRegistration, NodeRow, Owner, QueueRow, QuotaFor, QuotaRecord, QuotaTable, RackError,
    Registered, ResourceRow, TransferRequest, Transferred, User,
};
use venice_wire::{GrantId, GrantKey};

pub(crate) struct Service {
    inputs: mpsc::Sender<Input>,
    reports: mpsc::Sender<Report>,
    pub(crate) authority: Arc<Authority>,
    /// Address on which the Monitor Node listens.
    pub(crate) addr: SocketAddr,
    pub(crate) tenure: Tenure,
    pub(crate) rotation: Rotation,
    counters: Arc<Counters>,
}

impl Service {
    pub(crate) fn new(
        (inputs, reports): (mpsc::Sender<Input>, mpsc::Sender<Report>),
        authority: Arc<Authority>,
        addr: SocketAddr,
        tenure: Tenure,
        rotation: Rotation,
        counters: Arc<Counters>,
    ) -> Self {
        Self { inputs, reports, authority, addr, tenure, rotation, counters }
    }

    /// Sends an input and awaits its answer; `None` when the Monitor Node is stopping.
    async fn ask<T>(&self, input: impl FnOnce(oneshot::Sender<T>) -> Input) -> Option<T> {
        let (reply, answer) = oneshot::channel();
        self.inputs.send(input(reply)).await.ok()?;
        answer.await.ok()
    }

    /// Executes an order and waits until it is durable.
    pub(crate) async fn ask_done(&self, order: Order) -> Result<(), RackError> {
        self.ask(|reply| Input::Order(order, reply)).await.unwrap_or_else(stopping)
    }

    /// Returns keys and values of all records.
    pub(crate) async fn records(&self) -> RecordsAnswer {
        self.ask(Input::Records).await.unwrap_or_else(stopping)
    }

    /// Queries a table; `None` when the Monitor Node is stopping.
    pub(crate) async fn listed<T>(
        &self,
        listing: impl FnOnce(oneshot::Sender<T>) -> Listing,
    ) -> Option<T> {
        self.ask(|reply| Input::List(listing(reply))).await
    }

    pub(crate) async fn list<T>(
        &self,
        listing: impl FnOnce(oneshot::Sender<Vec<T>>) -> Listing,
    ) -> Vec<T> {
        self.listed(listing).await.unwrap_or_default()
    }
}

fn stopping<T>() -> Result<T, RackError> {
    Err(RackError::Stopping)
}

impl MonitorHandler for Service {
    async fn register(&self, node: NodeRegistration) -> Result<Registered, RackError> {
        self.ask(|reply| Input::Register(node, reply)).await.unwrap_or_else(stopping)
    }

    async fn heartbeat(
        &self,
        name: String,
        report: HeartbeatReport,
    ) -> Result<HeartbeatAck, RackError> {
        let (reply, answer) = oneshot::channel();
        let sent = self.reports.send(Report { name, report, reply }).await;
        match sent {
            Ok(()) => answer.await.unwrap_or_else(|_| stopping()),
            Err(_) => stopping(),
        }
    }

    async fn deregister(
        &self,
        name: String,
        identity: Identity,
        instance: u64,
    ) -> Result<(), RackError> {
        self.ask_done(Order::Deregister { name, identity, instance }).await
    }

    async fn allocate(&self, owner: Owner, request: AllocationRequest) -> Result<Asked, RackError> {
        self.ask(|reply| Input::Request(owner, request, reply)).await.unwrap_or_else(stopping)
    }

    async fn leave_queue(&self, owner: Owner, client_id: u128) -> Result<(), RackError> {
        self.ask(|reply| Input::Leave { owner, client_id, reply }).await.unwrap_or_else(stopping)
    }

    async fn queue(&self) -> Vec<QueueRow> {
        self.list(Listing::Queue).await
    }

    async fn plan(
        &self,
        owner: Owner,
        request: AllocationRequest,
    ) -> Result<AllocationPlan, RackError> {
        self.ask(|reply| Input::Plan(owner, request, reply)).await.unwrap_or_else(stopping)
    }

    async fn release(&self, leases: Vec<(GrantId, GrantKey)>) -> Result<Kept, RackError> {
        self.ask(|reply| Input::Release(leases, reply)).await.map_or_else(stopping, Ok)
    }

    async fn transfer(
        &self,
        by: User,
        request: TransferRequest,
    ) -> Result<Vec<Transferred>, RackError> {
        self.ask(|reply| Input::Transfer(by, request, reply)).await.unwrap_or_else(stopping)
    }

    async fn claim(&self, owner: Owner, request: ClaimRequest) -> Result<Vec<Grant>, RackError> {
        self.ask(|reply| Input::Claim(owner, request, reply)).await.unwrap_or_else(stopping)
    }

    async fn drain(&self, name: String, undo: bool) -> Result<(), RackError> {
        self.ask_done(Order::Drain { name, undo }).await
    }

    async fn set_quota(&self, by: Caller, quota: QuotaRecord) -> Result<(), RackError> {
        self.ask_done(Order::SetQuota { quota, by: by.to_string() }).await
    }

    async fn remove_quota(&self, by: Caller, of: QuotaFor) -> Result<(), RackError> {
        self.ask_done(Order::RemoveQuota { of, by: by.to_string() }).await
    }

    async fn quotas(&self) -> QuotaTable {
        self.listed(Listing::Quotas).await.unwrap_or_default()
    }

    async fn events_after(&self, position: EventPosition, wait: bool) -> EventBatch {
        let events = &self.counters.events;
        if wait && position.list == events.end().list {
            events.wait_after(position).await;
        }
        events.after(position)
    }

    async fn events_end(&self) -> EventPosition {
        self.counters.events.end()
    }

    async fn nodes(&self) -> Vec<NodeRow> {
        self.list(Listing::Nodes).await
    }

    async fn resources(&self) -> Vec<ResourceRow> {
        self.list(Listing::Resources).await
    }

    async fn grants(&self) -> Vec<GrantRow> {
        self.list(Listing::Grants).await
    }

    async fn forecasts(&self) -> Vec<ForecastRow> {
        self.list(Listing::Forecasts).await
    }

    async fn links(&self) -> Vec<LinkRow> {
        self.list(Listing::Links).await
    }
}
