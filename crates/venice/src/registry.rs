//! Talking to the Monitor Node, with errors that fit on one line.

use anyhow::anyhow;
use venice_control::client::{GateClient, MonitorClient};
use venice_control::{
    ControlError, ForecastRow, GrantRow, LinkRow, NodeRow, PeerKind, QueueRow, QuotaFor,
    QuotaRecord, QuotaTable, RackError, ResourceRow,
};
use venice_recipient::local_rack::access;

use crate::rack;
use venice_cli::failure::Usage;

/// A connection to a Monitor Node.
pub struct Registry(MonitorClient);

/// Connects to the Monitor Node at `addr`.
pub async fn connect(addr: &str) -> anyhow::Result<Registry> {
    MonitorClient::connect(&access(addr)).await.map(Registry).map_err(told)
}

/// Connects to its gate.
pub async fn gate(addr: &str) -> anyhow::Result<GateClient> {
    GateClient::connect(&access(addr)).await.map_err(told)
}

impl Registry {
    /// Has nothing more placed on a node, or (`undo`) something again.
    pub async fn drain(&mut self, node: &str, undo: bool) -> anyhow::Result<()> {
        self.0.drain(node, undo).await.map_err(told)
    }

    /// Says how much somebody may have borrowed.
    pub async fn set_quota(&mut self, quota: QuotaRecord) -> anyhow::Result<()> {
        self.0.set_quota(quota).await.map_err(told)
    }

    /// Takes a quota away.
    pub async fn remove_quota(&mut self, of: QuotaFor) -> anyhow::Result<()> {
        self.0.remove_quota(of).await.map_err(told)
    }

    /// The quotas, and what is used of them.
    pub async fn quotas(&mut self) -> anyhow::Result<QuotaTable> {
        self.0.quotas().await.map_err(told)
    }

    /// Every node.
    pub async fn nodes(&mut self) -> anyhow::Result<Vec<NodeRow>> {
        self.0.nodes().await.map_err(told)
    }

    /// What the nodes offer: the Resource Registration Table.
    pub async fn resources(&mut self) -> anyhow::Result<Vec<ResourceRow>> {
        self.0.resources().await.map_err(told)
    }

    /// Who holds what: the Resource Allocation Table.
    pub async fn grants(&mut self) -> anyhow::Result<Vec<GrantRow>> {
        self.0.grants().await.map_err(told)
    }

    /// Who waits for room.
    pub async fn queue(&mut self) -> anyhow::Result<Vec<QueueRow>> {
        self.0.queue().await.map_err(told)
    }

    /// What workloads are foretold to need, and what is kept for them.
    pub async fn forecasts(&mut self) -> anyhow::Result<Vec<ForecastRow>> {
        self.0.forecasts().await.map_err(told)
    }

    /// The links between the nodes: the Topology Status Table.
    pub async fn links(&mut self) -> anyhow::Result<Vec<LinkRow>> {
        self.0.links().await.map_err(told)
    }
}

/// The error's own text says all a user needs; what the transport adds below it does not help. `venice up`
/// starts the Monitor Node of its own rack; in place of another's it would make one more.
pub fn told(error: ControlError) -> anyhow::Error {
    match &error {
        ControlError::Unreachable { peer: PeerKind::MonitorNode, addr, .. }
            if rack::is_of_this_rack(addr) =>
        {
            anyhow!("no Monitor Node answers at {addr}: start it again with `venice up`")
        }
        _ => anyhow!("{error}"),
    }
}

/// The same where what the Monitor Node finds wrong is what stands on the command line.
pub fn told_as_asked(error: ControlError) -> anyhow::Error {
    match error {
        ControlError::Rack(RackError::BadRequest(said)) => Usage(said).into(),
        error => told(error),
    }
}

/// Runs `work` on a small runtime of its own.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
