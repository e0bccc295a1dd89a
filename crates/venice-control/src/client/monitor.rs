//! A client of the Monitor Node.

use super::channel::{self, Target};
use super::heartbeats::Heartbeats;
use super::login::Access;
use crate::convert;
use crate::error::{ControlError, PeerKind, WrongPeer, cause};
use crate::proto::{self, monitor_node_client::MonitorNodeClient};
use std::time::{Duration, Instant};
use tonic::transport::Channel;
use tonic::{Code, Response, Status};
use venice_rack::borrower::{Failure, RepeatedCall};
use venice_rack::queueing::Asked;
use venice_rack::quota::{QuotaFor, QuotaRecord};
use venice_rack::rows::{
    AllocationPlan, ForecastRow, GrantRow, LinkRow, NodeRow, QueueRow, QuotaTable, ResourceRow,
};
use venice_rack::types::{AllocationRequest, Identity, NodeRegistration, Registered};
use venice_wire::{GrantId, GrantKey};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// Longer than the Monitor Node's handshake with silent donors.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// A connection to the Monitor Node. Cheap to clone; clones share the connection.
#[derive(Debug, Clone)]
pub struct MonitorClient {
    addr: String,
    /// True if it asks in the name of another user.
    is_bound: bool,
    pub(super) inner: MonitorNodeClient<Channel>,
}

impl MonitorClient {
    /// Connects to a rack's Monitor Node, with a timeout of 3 s, and up to 16 s more for a login at
    /// a socket of this machine. It reconnects by itself after a restart of the Monitor Node.
    ///
    /// # Errors
    /// [`ControlError::Unreachable`] if there is no answer, [`ControlError::WrongPeer`] if another
    /// rack answers, [`ControlError::NoLogin`], [`ControlError::BadAddress`].
    pub async fn connect(access: &Access) -> Result<Self, ControlError> {
        let Access { monitor: addr, login } = access;
        let (whom, wait) = (Target::Monitor, CONNECT_TIMEOUT);
        let channel = channel::open(whom, addr, login, wait, CALL_TIMEOUT).await?;
        let is_bound = login.is_of_another();
        Ok(Self { addr: addr.clone(), is_bound, inner: MonitorNodeClient::new(channel) })
    }

    /// The address connected to.
    pub fn addr(&self) -> &str {
        &self.addr
    }

    /// Registers the node.
    ///
    /// # Errors
    /// [`venice_rack::types::RackError::NameTaken`] if a living agent has the name.
    pub async fn register(&mut self, node: NodeRegistration) -> Result<Registered, ControlError> {
        let request = convert::registration_out(node);
        let response = self.inner.register_node(request).await.map_err(|s| self.error(s))?;
        convert::registered_in(response.into_inner()).map_err(|s| self.error(s))
    }

    /// Opens the heartbeat call of an agent.
    ///
    /// # Errors
    /// Fails if the connection is lost and cannot be restored.
    pub async fn heartbeats(&mut self) -> Result<Heartbeats, ControlError> {
        Heartbeats::open(self.addr.clone(), &mut self.inner).await
    }

    /// Deregisters the agent of this epoch and instance.
    ///
    /// # Errors
    /// [`venice_rack::types::RackError::NotRegistered`] if another agent has its name.
    pub async fn deregister(
        &mut self,
        identity: Identity,
        instance: u64,
    ) -> Result<(), ControlError> {
        let identity = Some(convert::identity_out(identity));
        let request = proto::FarewellRequest { identity, instance };
        self.inner.farewell(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Performs one step of [`Self::allocate`]. With several Monitor Nodes it is repeated at another
    /// one if its answer was lost; so it is with one if the request may wait. A queued request is answered within seconds with its
    /// queue state, and must then be repeated at once, with the same `client_id` and its waiting
    /// time so far. A request that is not repeated leaves the queue within seconds.
    ///
    /// # Errors
    /// Fails as [`Self::allocate`] does.
    pub async fn ask(&mut self, request: AllocationRequest) -> Result<Asked, ControlError> {
        let may_wait = request.queueing.left_ms() > 0;
        let request = convert::request_out(request, self.is_bound);
        let answer = self.answer(may_wait, |mut monitor| {
            let request = request.clone();
            async move { monitor.allocate(request).await }
        });
        convert::asked_in(answer.await?).map_err(|s| self.error(s))
    }

    /// Plans [`Self::allocate`] at this moment: the donors and devices it would get, and the
    /// reasons. Nothing is granted.
    ///
    /// # Errors
    /// [`ControlError::UnknownNode`], and errors of invalid requests; a request beyond the rack's
    /// room or the user's quota is a plan with a refusal.
    pub async fn plan(
        &mut self,
        request: AllocationRequest,
    ) -> Result<AllocationPlan, ControlError> {
        let request = convert::request_out(request, self.is_bound);
        let response = self.inner.plan_allocation(request).await.map_err(|s| self.error(s))?;
        Ok(convert::plan_in(response.into_inner()))
    }

    /// Cancels a queued [`Self::ask`]; what was granted meanwhile ends.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`] for another user's request.
    pub async fn leave_queue(&mut self, client_id: u128) -> Result<(), ControlError> {
        let client_id = client_id.to_le_bytes().to_vec();
        let request = proto::LeaveQueueRequest { client_id, is_bound: self.is_bound };
        self.inner.leave_queue(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Returns the queued requests, in the order of service.
    ///
    /// # Errors
    /// The same as [`Self::nodes`].
    pub async fn queue(&mut self) -> Result<Vec<QueueRow>, ControlError> {
        let response = self.inner.list_queue(proto::ListQueueRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().waiting;
        self.rows(rows, convert::queue_row_in)
    }

    /// Performs a call, and repeats it as [`RepeatedCall`] says.
    pub(super) async fn answer<T, F>(
        &self,
        may_wait: bool,
        call: impl Fn(MonitorNodeClient<Channel>) -> F,
    ) -> Result<T, ControlError>
    where
        F: Future<Output = Result<Response<T>, Status>>,
    {
        let (began, monitors) = (Instant::now(), self.addr.split(',').count());
        let now_ns = || began.elapsed().as_nanos() as u64;
        let mut repeated = RepeatedCall::new(0, monitors, may_wait);
        loop {
            let result = call(self.inner.clone()).await.map_err(failure);
            if let Some(result) = repeated.handle_result(now_ns(), result) {
                return result.map(Response::into_inner).map_err(|status| self.error(status));
            }
            while let Some(due_ns) = repeated.poll_timeout() {
                tokio::time::sleep(Duration::from_nanos(due_ns.saturating_sub(now_ns()))).await;
                repeated.handle_timeout(now_ns());
            }
        }
    }

    /// Releases grants. Released grants are no error. Returns the grants whose keys the Monitor
    /// Node lacks: release them at their donors. If the answer is lost and there are several
    /// Monitor Nodes, another one is asked.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`] if a key is not its grant's; the others are released then.
    pub async fn release(
        &mut self,
        leases: &[(GrantId, GrantKey)],
    ) -> Result<Vec<GrantId>, ControlError> {
        let request = proto::ReleaseGrantsRequest { leases: convert::leases_out(leases) };
        let answer = self.answer(false, |mut monitor| {
            let request = request.clone();
            async move { monitor.release_grants(request).await }
        });
        Ok(answer.await?.keyless.into_iter().map(GrantId).collect())
    }

    /// Starts draining the node `name`, or (`undo`) ends it.
    ///
    /// # Errors
    /// [`ControlError::UnknownNode`].
    pub async fn drain(&mut self, name: &str, undo: bool) -> Result<(), ControlError> {
        let request = proto::DrainNodeRequest { name: name.to_owned(), undo };
        self.inner.drain_node(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Sets a user's quota; kinds absent from the record stay unchanged. For administrators.
    ///
    /// # Errors
    /// [`ControlError::Forbidden`]; [`venice_rack::types::RackError::BadRequest`].
    pub async fn set_quota(&mut self, quota: QuotaRecord) -> Result<(), ControlError> {
        let QuotaRecord { of, limits } = quota;
        let limits = convert::limits_out(&limits);
        let request = proto::SetQuotaRequest { user: quota_user(of), limits };
        self.inner.set_quota(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Removes a quota. For administrators.
    ///
    /// # Errors
    /// The same as [`Self::set_quota`], and if there is no such quota.
    pub async fn remove_quota(&mut self, of: QuotaFor) -> Result<(), ControlError> {
        let request = proto::RemoveQuotaRequest { user: quota_user(of) };
        self.inner.remove_quota(request).await.map_err(|s| self.error(s))?;
        Ok(())
    }

    /// Returns the quotas and their use.
    ///
    /// # Errors
    /// Fails only if the Monitor Node cannot be reached.
    pub async fn quotas(&mut self) -> Result<QuotaTable, ControlError> {
        let response = self.inner.list_quotas(proto::ListQuotasRequest {}).await;
        let table = response.map_err(|s| self.error(s))?.into_inner();
        convert::quota_table_in(table).map_err(|s| self.error(s))
    }

    /// Returns the nodes.
    ///
    /// # Errors
    /// Fails only if the Monitor Node cannot be reached, like the other tables.
    pub async fn nodes(&mut self) -> Result<Vec<NodeRow>, ControlError> {
        let response = self.inner.list_nodes(proto::ListNodesRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().nodes;
        Ok(rows.into_iter().map(convert::node_row_in).collect())
    }

    /// Returns the Resource Registration Table.
    ///
    /// # Errors
    /// The same as [`Self::nodes`].
    pub async fn resources(&mut self) -> Result<Vec<ResourceRow>, ControlError> {
        let response = self.inner.list_resources(proto::ListResourcesRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().resources;
        self.rows(rows, convert::resource_row_in)
    }

    /// Returns the Resource Allocation Table.
    ///
    /// # Errors
    /// The same as [`Self::nodes`].
    pub async fn grants(&mut self) -> Result<Vec<GrantRow>, ControlError> {
        let response = self.inner.list_grants(proto::ListGrantsRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().grants;
        self.rows(rows, convert::grant_row_in)
    }

    /// Returns the forecast needs of workloads and the memory reserved for them.
    ///
    /// # Errors
    /// The same as [`Self::nodes`].
    pub async fn forecasts(&mut self) -> Result<Vec<ForecastRow>, ControlError> {
        let response = self.inner.list_forecasts(proto::ListForecastsRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().workloads;
        self.rows(rows, convert::forecast_in)
    }

    /// Returns the Topology Status Table.
    ///
    /// # Errors
    /// The same as [`Self::nodes`].
    pub async fn links(&mut self) -> Result<Vec<LinkRow>, ControlError> {
        let response = self.inner.list_links(proto::ListLinksRequest {}).await;
        let rows = response.map_err(|s| self.error(s))?.into_inner().links;
        Ok(rows.into_iter().map(convert::link_row_in).collect())
    }

    /// Converts rows, which may have values of a later release.
    fn rows<T, R>(
        &self,
        rows: Vec<T>,
        convert: fn(T) -> Result<R, Status>,
    ) -> Result<Vec<R>, ControlError> {
        rows.into_iter().map(convert).collect::<Result<_, _>>().map_err(|s| self.error(s))
    }

    pub(super) fn error(&self, status: Status) -> ControlError {
        ControlError::from_status(PeerKind::MonitorNode, &self.addr, status)
    }
}

/// Separates a call without an answer from a refusal. A Monitor Node that is stopping is
/// unavailable.
fn failure(status: Status) -> Failure<Status> {
    let is_silence = matches!(
        status.code(),
        Code::Unavailable | Code::Unknown | Code::Cancelled | Code::DeadlineExceeded
    );
    let is_stranger = cause::<WrongPeer>(&status).is_some();
    match is_silence && status.details().is_empty() && !is_stranger {
        true => Failure::Silent(status),
        false => Failure::Refused(status),
    }
}

/// Name of a user; `None` for the default quota.
fn quota_user(of: QuotaFor) -> Option<String> {
    match of {
        QuotaFor::User(user) => Some(user),
        QuotaFor::Others => None,
    }
}
