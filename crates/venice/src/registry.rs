//! Client of the Monitor Node for commands, with one-line errors.

use std::pin::Pin;

use anyhow::anyhow;
use venice_control::client::{EnrolmentClient, MonitorClient};
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

/// Connects to its enrolment service.
pub async fn gate(addr: &str) -> anyhow::Result<EnrolmentClient> {
    EnrolmentClient::connect(&access(addr)).await.map_err(told)
}

impl Registry {
    /// Starts draining a node, or (`undo`) ends it.
    pub async fn drain(&mut self, node: &str, undo: bool) -> anyhow::Result<()> {
        self.0.drain(node, undo).await.map_err(told)
    }

    /// Sets a quota.
    pub async fn set_quota(&mut self, quota: QuotaRecord) -> anyhow::Result<()> {
        self.0.set_quota(quota).await.map_err(told)
    }

    /// Removes a quota.
    pub async fn remove_quota(&mut self, of: QuotaFor) -> anyhow::Result<()> {
        self.0.remove_quota(of).await.map_err(told)
    }

    /// Returns the quotas and their use.
    pub async fn quotas(&mut self) -> anyhow::Result<QuotaTable> {
        self.0.quotas().await.map_err(told)
    }

    /// Returns every node.
    pub async fn nodes(&mut self) -> anyhow::Result<Vec<NodeRow>> {
        self.0.nodes().await.map_err(told)
    }

    /// Returns the offered resources: the Resource Registration Table.
    pub async fn resources(&mut self) -> anyhow::Result<Vec<ResourceRow>> {
        self.0.resources().await.map_err(told)
    }

    /// Returns the grants: the Resource Allocation Table.
    pub async fn grants(&mut self) -> anyhow::Result<Vec<GrantRow>> {
        self.0.grants().await.map_err(told)
    }

    /// Returns the queued requests.
    pub async fn queue(&mut self) -> anyhow::Result<Vec<QueueRow>> {
        self.0.queue().await.map_err(told)
    }

    /// Returns the forecast needs of workloads and the memory reserved for them.
    pub async fn forecasts(&mut self) -> anyhow::Result<Vec<ForecastRow>> {
        self.0.forecasts().await.map_err(told)
    }

    /// Returns the links between the nodes: the Topology Status Table.
    pub async fn links(&mut self) -> anyhow::Result<Vec<LinkRow>> {
        self.0.links().await.map_err(told)
    }
}

/// Converts an error into its own text, which suffices for users; the transport's causes are
/// dropped. If the Monitor Node belongs to the local rack, the text suggests `venice up`.
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

/// Converts an error like [`told`]; a request refused as invalid becomes a usage error.
pub fn told_as_asked(error: ControlError) -> anyhow::Error {
    match error {
        ControlError::Rack(RackError::BadRequest(said)) => Usage(said).into(),
        error => told(error),
    }
}

/// Runs `work` on a current-thread runtime.
pub fn block_on<T>(work: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    // The runtime's own code exists once for each type that it runs: here for few.
    let work: Pin<Box<dyn Future<Output = anyhow::Result<T>> + '_>> = Box::pin(work);
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(work)
}
