//! The gRPC service: every call goes to the driver and awaits its answer.

use crate::driver::Driver;
use crate::inputs::{Input, RecordsAnswer, Report};
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
use venice_rack::monitor_node::{Call, Order, Reply};
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

    async fn call(&self, call: Call) -> Option<Reply> {
        self.ask(|reply| Input::Call(Box::new(call), reply)).await
    }

    async fn call_done(&self, call: Call) -> Result<(), RackError> {
        match self.call(call).await {
            Some(Reply::Done(result)) => result,
            _ => stopping(),
        }
    }

    /// Executes an order and waits until it is durable.
    pub(crate) async fn ask_done(&self, order: Order) -> Result<(), RackError> {
        self.call_done(Call::Order(order)).await
    }

    /// Returns keys and values of all records.
    pub(crate) async fn records(&self) -> RecordsAnswer {
        self.ask(Input::Records).await.unwrap_or_else(stopping)
    }

    /// Queries the tables; `None` when the Monitor Node is stopping.
    pub(crate) async fn query<T: Send + 'static>(
        &self,
        query: impl FnOnce(&Driver) -> T + Send + 'static,
    ) -> Option<T> {
        self.ask(|reply| {
            Input::Query(Box::new(move |driver| {
                if !reply.is_closed() {
                    let _ = reply.send(query(driver));
                }
            }))
        })
        .await
    }

    pub(crate) async fn list<T: Send + 'static>(
        &self,
        list: impl FnOnce(&Driver) -> Vec<T> + Send + 'static,
    ) -> Vec<T> {
        self.query(list).await.unwrap_or_default()
    }
}

fn stopping<T>() -> Result<T, RackError> {
    Err(RackError::Stopping)
}

impl MonitorHandler for Service {
    async fn register(&self, node: NodeRegistration) -> Result<Registered, RackError> {
        match self.call(Call::Register(node)).await {
            Some(Reply::Registered(result)) => result,
            _ => stopping(),
        }
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
        match self.call(Call::Request(owner, request)).await {
            Some(Reply::Asked(result)) => result,
            _ => stopping(),
        }
    }

    async fn leave_queue(&self, owner: Owner, client_id: u128) -> Result<(), RackError> {
        self.call_done(Call::Leave(owner, client_id)).await
    }

    async fn queue(&self) -> Vec<QueueRow> {
        self.list(|driver| driver.core().queue_rows(driver.now_ns())).await
    }

    async fn plan(
        &self,
        owner: Owner,
        request: AllocationRequest,
    ) -> Result<AllocationPlan, RackError> {
        let plan = move |driver: &Driver| driver.core().plan(&owner, &request);
        self.query(plan).await.unwrap_or_else(stopping)
    }

    async fn release(&self, leases: Vec<(GrantId, GrantKey)>) -> Result<Kept, RackError> {
        match self.call(Call::Release(leases)).await {
            Some(Reply::Released(kept)) => Ok(kept),
            _ => stopping(),
        }
    }

    async fn transfer(
        &self,
        by: User,
        request: TransferRequest,
    ) -> Result<Vec<Transferred>, RackError> {
        match self.call(Call::Transfer(by, request)).await {
            Some(Reply::Transferred(result)) => result,
            _ => stopping(),
        }
    }

    async fn claim(&self, owner: Owner, request: ClaimRequest) -> Result<Vec<Grant>, RackError> {
        match self.call(Call::Claim(owner, request)).await {
            Some(Reply::Claimed(result)) => result,
            _ => stopping(),
        }
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
        self.query(|driver| driver.core().quota_table()).await.unwrap_or_default()
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
        self.list(|driver| driver.core().node_rows(driver.now_ns())).await
    }

    async fn resources(&self) -> Vec<ResourceRow> {
        self.list(|driver| driver.core().resource_rows()).await
    }

    async fn grants(&self) -> Vec<GrantRow> {
        self.list(|driver| driver.core().grant_rows(driver.now_ns())).await
    }

    async fn forecasts(&self) -> Vec<ForecastRow> {
        self.list(|driver| driver.core().forecast_rows()).await
    }

    async fn links(&self) -> Vec<LinkRow> {
        self.list(|driver| driver.core().link_rows()).await
    }
}
